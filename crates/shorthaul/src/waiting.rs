//! How to wait for a peer: asleep, looking, or looking for as long as it has paid so far.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use shorthaul_platform::topology::Topology;

/// How to wait for the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Asleep. Costs no CPU time, and two wake-ups for each call.
    Block,
    /// Looking at memory that both sides share for as long as it has paid so far, at most 0.25 ms,
    /// and asleep after that. A connection that is idle costs nothing.
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

/// Looks until something is there, or for a few microseconds: then it is time to look at what
/// costs more. Returns when that was.
pub(crate) fn look_for(is_there: impl Fn() -> bool) -> Instant {
    let until = Instant::now() + LOOK_AROUND;
    loop {
        for _ in 0..LOOKS_PER_CLOCK {
            if is_there() {
                return Instant::now();
            }
            std::hint::spin_loop();
        }
        let now = Instant::now();
        if now >= until {
            return now;
        }
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
/// How often is looked at what takes a system call to look at.
pub(crate) const LOOK_AROUND: Duration = Duration::from_micros(10);
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
    fn a_look_ends_by_itself() {
        let before = Instant::now();
        assert!(look_for(|| false) >= before + LOOK_AROUND);
        assert!(look_for(|| true) >= before);
    }
}
