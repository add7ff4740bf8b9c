//! How to wait for a peer: asleep, looking, or looking for as long as it has paid so far.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use shorthaul_platform::topology::Topology;
use shorthaul_platform::usage::thread_preemptions;

/// How to wait for the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Asleep. Costs no CPU time, and two wake-ups for each call.
    Block,
    /// Looking at memory that both sides share for as long as it has paid so far, at most 0.25 ms,
    /// and asleep after that. A connection that is idle costs nothing. While other threads want the
    /// CPUs nobody looks.
    #[default]
    Adaptive,
    /// Looking, until the call's deadline; the reactor of a [`Client`](crate::Client) as long as
    /// somebody waits for an answer. A server looks only while a call is expected soon, as
    /// with [`Wait::Adaptive`], but for 10 ms.
    ///
    /// Whatever is chosen, nobody looks while both sides are on the same CPU: it would only keep
    /// the other from running.
    Spin,
}

/// How long one side of one connection looks before it sleeps, and what that was learnt from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    wait: Wait,
    budget: Duration,
}

impl Patience {
    /// That of a connection of which nothing is known.
    pub(crate) fn new(wait: Wait) -> Self {
        let wait = if can_be_apart() { wait } else { Wait::Block };
        Self { wait, budget: Duration::ZERO }
    }

    /// Whether looking may ever pay.
    pub(crate) fn may_look(&self) -> bool {
        self.wait != Wait::Block
    }

    /// How long to look for a peer that was last seen on a CPU.
    pub(crate) fn budget(&self, peers_cpu: Option<u32>, cpu: u32) -> Duration {
        match self.wait {
            _ if peers_cpu == Some(cpu) => Duration::ZERO,
            Wait::Block => Duration::ZERO,
            Wait::Adaptive if RIVALS.get().rests() => Duration::ZERO,
            Wait::Adaptive => self.budget,
            Wait::Spin => Duration::MAX,
        }
    }

    /// Takes in how long it took until the other side had something. A wait that was short enough
    /// to be looked through makes room for one twice as long, any other halves it.
    pub(crate) fn learn(&mut self, waited: Duration) {
        self.budget = if waited <= LOOK_MAX {
            (self.budget - self.budget / 8).max(waited * 2).min(LOOK_MAX)
        } else if self.budget < LOOK_MIN {
            Duration::ZERO
        } else {
            self.budget / 2
        };
    }
}

/// The CPU that this thread is on.
pub(crate) fn cpu() -> u32 {
    u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(0)
}

/// Looks from `since` on until something is there, or for a few microseconds: then it is time to
/// look at what costs more. Returns when that was.
#[inline]
pub(crate) fn look_for(since: Instant, is_there: impl Fn() -> bool) -> Instant {
    // Most that is looked for is there before looking at the clock would pay, or resting: for that
    // `since` is as good as now.
    if (0..LOOKS_AT_FIRST).any(|_| is_there()) {
        return since;
    }
    let until = since + LOOK_AROUND;
    let mut last = Instant::now();
    loop {
        let mut is_here = false;
        for _ in 0..LOOKS_PER_CLOCK {
            is_here = is_there();
            if is_here {
                break;
            }
            std::hint::spin_loop();
        }
        let now = Instant::now();
        if now.saturating_duration_since(last) >= ABSENCE_MIN {
            RIVALS.set(RIVALS.get().after_absence(now));
        }
        if is_here || now >= until {
            return now;
        }
        last = now;
    }
}

thread_local! {
    static RIVALS: Cell<Rivals> = const { Cell::new(Rivals::NONE) };
}

/// What a thread knows of others that want the CPU on which it looks: while there are such, looking
/// keeps them, and maybe the very one that is waited for, from running.
#[derive(Clone, Copy, Debug)]
struct Rivals {
    /// How often this thread had to leave its CPU, when that was last asked.
    preemptions: Option<u64>,
    /// Nobody looks until then, for so long in all.
    rests_until: Option<Instant>,
    rest: Duration,
}

impl Rivals {
    const NONE: Self = Self { preemptions: None, rests_until: None, rest: Duration::ZERO };

    /// This thread looked, and was somewhere else for a while: made to, or held up by an interrupt.
    #[cold]
    fn after_absence(self, now: Instant) -> Self {
        thread_preemptions().map_or(self, |preemptions| self.after(preemptions, now))
    }

    fn after(self, preemptions: u64, now: Instant) -> Self {
        let is_first = self.preemptions.is_none();
        let seen = Self { preemptions: Some(preemptions), ..self };
        if is_first || self.preemptions == Some(preemptions) {
            return seen;
        }
        // Soon again: it was not by chance.
        let is_again = self.rests_until.is_some_and(|until| now < until + self.rest.max(AGAIN_MIN));
        let rest = if is_again { (self.rest * 2).min(REST_MAX) } else { REST_MIN };
        Self { rests_until: Some(now + rest), rest, ..seen }
    }

    #[inline]
    fn rests(&self) -> bool {
        self.rests_until.is_some_and(|until| Instant::now() < until)
    }
}

/// Whether the two sides can be on two CPUs. It is the machine's that count, for a thread that is
/// pinned to one of them may well look for a peer on another.
fn can_be_apart() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        Topology::read().is_ok_and(|found| found.cpus().len() + found.disallowed().len() > 1)
    })
}

/// A wake-up of a sleeper on another CPU costs some 5 µs on each side; looking for much longer than
/// that is bought for what a fill of some megabytes takes.
const LOOK_MAX: Duration = Duration::from_micros(250);
/// Less is not worth beginning.
const LOOK_MIN: Duration = Duration::from_micros(1);
/// Away for so long while looking: somebody else may have had the CPU, and more of it than the
/// kernel's own threads take now and then.
const ABSENCE_MIN: Duration = Duration::from_micros(150);
/// Whoever has rivals looks no more for so long at first, and at most.
const REST_MIN: Duration = Duration::from_millis(2);
const REST_MAX: Duration = Duration::from_millis(128);
/// A rival that comes again so soon after a rest is no chance: some slices of the scheduler's.
const AGAIN_MIN: Duration = Duration::from_millis(10);
/// How often is looked at what takes a system call to look at.
pub(crate) const LOOK_AROUND: Duration = Duration::from_micros(10);
/// Some 2 µs, if each costs what a load from the nearest cache does.
const LOOKS_AT_FIRST: u32 = 1024;
/// The clock costs as much as some looks.
const LOOKS_PER_CLOCK: u32 = 32;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    fn patience(wait: Wait) -> Patience {
        Patience { wait, budget: Duration::ZERO }
    }

    #[test]
    fn short_waits_are_looked_through_and_long_ones_end_that() {
        let mut patience = patience(Wait::Adaptive);
        assert_eq!(patience.budget(None, 0), Duration::ZERO, "nothing is known yet");
        patience.learn(Duration::from_micros(20));
        assert_eq!(patience.budget(Some(1), 0), Duration::from_micros(40));
        patience.learn(Duration::from_micros(200));
        assert_eq!(patience.budget(Some(1), 0), LOOK_MAX);
        (0..9).for_each(|_| patience.learn(LOOK_MAX * 2));
        assert_eq!(patience.budget(Some(1), 0), Duration::ZERO);
        patience.learn(Duration::from_micros(3));
        assert_eq!(patience.budget(Some(1), 0), Duration::from_micros(6));
    }

    #[test]
    fn nobody_looks_for_who_is_on_the_same_cpu() {
        for wait in [Wait::Block, Wait::Adaptive, Wait::Spin] {
            let mut patience = patience(wait);
            patience.learn(Duration::from_micros(20));
            assert_eq!(patience.budget(Some(3), 3), Duration::ZERO);
            assert_eq!(patience.budget(Some(2), 3).is_zero(), wait == Wait::Block);
        }
    }

    #[test]
    fn who_has_rivals_rests_and_longer_each_time() {
        let start = Instant::now();
        let rivals = Rivals::NONE.after(7, start);
        assert!(rivals.rests_until.is_none(), "what was before the first question is not known");
        assert!(rivals.after(7, start).rests_until.is_none(), "an interrupt");
        let (mut rivals, mut now) = (rivals.after(8, start), start);
        let mut rest = REST_MIN;
        for preemptions in 9..20 {
            assert_eq!(rivals.rests_until, Some(now + rest));
            now += rest + Duration::from_millis(3);
            (rivals, rest) = (rivals.after(preemptions, now), (rest * 2).min(REST_MAX));
        }
        now += REST_MAX * 3;
        assert_eq!(rivals.after(100, now).rest, REST_MIN, "by chance");
    }

    #[test]
    fn a_look_ends_by_itself() {
        let before = Instant::now();
        assert!(look_for(before, || false) >= before + LOOK_AROUND);
        assert!(look_for(before, || true) >= before);
    }
}
