//! Whether a round can be believed: what the machine's own round trip was at its start, and what
//! other programs did meanwhile.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shorthaul_platform::usage::{process_cpu_time, process_usage};

use super::stats::median;

/// The load that other programs put on the machine.
pub(crate) struct Load {
    start: Instant,
    all: Duration,
    ours: Duration,
}

impl Load {
    /// Begins to measure. `servers` are processes of ours, beside this one.
    pub(crate) fn begin(servers: &[u32]) -> Result<Self> {
        Ok(Self { start: Instant::now(), all: busy()?, ours: ours(servers)? })
    }

    /// CPUs' worth of load by others since then.
    pub(crate) fn foreign_cpus(&self, servers: &[u32]) -> Result<f64> {
        let all = busy()?.saturating_sub(self.all);
        let ours = ours(servers)?.saturating_sub(self.ours);
        Ok(foreign_cpus(all, ours, self.start.elapsed()))
    }
}

/// The kernel looks by the tick at who runs, so a short time can come out below our own.
fn foreign_cpus(all: Duration, ours: Duration, time: Duration) -> f64 {
    let time = time.as_secs_f64().max(TICK.as_secs_f64());
    all.saturating_sub(ours).as_secs_f64() / time
}

fn ours(servers: &[u32]) -> Result<Duration> {
    let mut time = process_usage()?.cpu;
    for &server in servers {
        let used = process_cpu_time(server);
        time += used.with_context(|| format!("process {server} of this bench has ended"))?;
    }
    Ok(time)
}

fn busy() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let ticks = busy_ticks(&stat).context("the first line of /proc/stat is none of CPU times")?;
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64))
}

/// Ticks that all CPUs together have not been idle. Stolen ones too: then another machine has run
/// on what looks like our CPU.
///
/// # References
/// proc(5), /proc/stat: user nice system idle iowait irq softirq steal; guests are in user and nice
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let columns: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, rest @ ..] = &columns[..] else {
        return None;
    };
    Some(user + nice + system + rest.iter().take(IRQ_SOFTIRQ_STEAL).sum::<u64>())
}

/// For each round, why it doesn't count, if it doesn't: its spin round trip is far from the middle
/// one of all rounds, so the machine was another one. `Err` with their number if those were more
/// than half, for then the middle says nothing, and all are kept.
pub(crate) fn judge(spins_us: &[f64]) -> Result<Vec<Option<String>>, usize> {
    let middle = median(spins_us);
    let verdict = |spin: &f64| {
        let has_moved = (spin - middle).abs() > middle * MOVE_MAX;
        has_moved.then(|| {
            format!("the spin round trip took {spin:.2} µs at its start, in the middle {middle:.2}")
        })
    };
    let verdicts: Vec<Option<String>> = spins_us.iter().map(verdict).collect();
    let dropped = verdicts.iter().flatten().count();
    if dropped * 2 > verdicts.len() { Err(dropped) } else { Ok(verdicts) }
}

/// What to say of rounds of which most moved.
pub(crate) fn unsteady(placement: &str, moved: usize, rounds: usize) -> String {
    format!(
        "The spin round trip of {placement} moved in {moved} of {rounds} rounds, so none was \
         dropped: the machine changes its ways while this runs; run again, or longer."
    )
}

/// What to say of the load by others, round by round; nothing if it was little.
pub(crate) fn busy_machine(foreign_cpus: &[f64]) -> Option<String> {
    let middle = median(foreign_cpus);
    (middle > FOREIGN_CPUS_MAX).then(|| {
        format!(
            "Other programs used {middle:.2} CPUs while this ran: run again when the machine is \
             quiet."
        )
    })
}

/// How far from the middle a spin round trip may be.
const MOVE_MAX: f64 = 0.25;
const FOREIGN_CPUS_MAX: f64 = 0.1;
/// Columns of /proc/stat behind iowait that are no guest's.
const IRQ_SOFTIRQ_STEAL: usize = 3;
/// What /proc/stat counts in, usually.
const TICK: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_not_busy_and_stolen_is() {
        let stat = "cpu  100 20 3 99999 88888 4 5 600 70 7\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(100 + 20 + 3 + 4 + 5 + 600));
        // Kernels of old have fewer columns.
        assert_eq!(busy_ticks("cpu  1 2 3 4 5\n"), Some(6));
        for wrong in ["", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3", "cpu  a b c d e", "intr 1 2 3 4 5"]
        {
            assert_eq!(busy_ticks(wrong), None, "{wrong}");
        }
        assert!(busy().unwrap() > Duration::ZERO);
    }

    #[test]
    fn foreign_is_what_is_not_ours() {
        let seconds = Duration::from_secs_f64;
        assert!((foreign_cpus(seconds(3.0), seconds(2.5), seconds(2.0)) - 0.25).abs() < 1e-9);
        assert_eq!(foreign_cpus(seconds(1.0), seconds(1.01), seconds(1.0)), 0.0);
        assert_eq!(foreign_cpus(Duration::ZERO, Duration::ZERO, Duration::ZERO), 0.0);
    }

    #[test]
    fn load_is_said_from_a_tenth_of_a_cpu_on() {
        assert_eq!(busy_machine(&[0.0, 0.1, 5.0]), None);
        assert!(busy_machine(&[0.0, 0.31, 5.0]).unwrap().contains("0.31 CPUs"));
        assert_eq!(busy_machine(&[]), None);
    }

    #[test]
    fn rounds_that_moved_are_dropped() {
        let verdicts = judge(&[1.0, 1.2, 0.8, 1.3, 0.7, 1.0, 1.0]).unwrap();
        let dropped: Vec<bool> = verdicts.iter().map(Option::is_some).collect();
        assert_eq!(dropped, [false, false, false, true, true, false, false]);
        assert!(verdicts[3].as_ref().unwrap().contains("1.30 µs"));
        assert_eq!(judge(&[]), Ok(vec![]));
        assert_eq!(judge(&[4.0]), Ok(vec![None]));
    }

    #[test]
    fn never_more_than_half_of_the_rounds_are_dropped() {
        let dropped = judge(&[1.0, 1.0, 1.0, 5.0, 9.0]).map(|all| all.iter().flatten().count());
        assert_eq!(dropped, Ok(2));
        // Where there is no middle, all stay.
        assert_eq!(judge(&[1.0, 1.0, 9.0, 9.0]), Err(4));
        assert_eq!(judge(&[1.0, 2.0, 4.0, 8.0]), Err(4));
        assert!(unsteady("all-same-core", 4, 4).contains("4 of 4 rounds"));
    }
}
