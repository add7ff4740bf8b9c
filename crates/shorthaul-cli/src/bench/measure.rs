//! Making calls for a while, one after the other or several at a time, and what that gives.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shorthaul::{Lane, Reason};
use shorthaul_platform::usage::Usage;

use super::method::Method;
use super::stats::{Recorded, Times};
use super::work::{Consume, Source};

/// What the calls of a cell are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) method: Method,
    pub(crate) bytes: usize,
    pub(crate) source: Source,
    pub(crate) consume: Consume,
    /// Calls under way at a time.
    pub(crate) in_flight: usize,
}

/// A way to make calls.
pub(crate) trait Engine {
    /// A call under way.
    type Call;

    /// Starts the next call.
    fn start(&mut self) -> Result<Self::Call>;

    /// Waits for the answer and looks at it as the job says. Whether its payload went through a
    /// mapping that the server had kept.
    fn finish(&mut self, call: Self::Call) -> Result<bool>;
}

/// What a while of calls gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stretch {
    pub(crate) seconds: f64,
    /// Calls that ended within those seconds.
    pub(crate) calls: u64,
    /// Those of them whose payload went through a mapping that the server had kept.
    pub(crate) reused: u64,
    /// Calls that were made for it: with several in flight some end too late to be counted.
    pub(crate) made: u64,
}

/// Makes calls for `time`, always `in_flight` at a time, and takes down how long each took from its
/// start until its answer was looked at. The clock is read once a call: where one ends, the next
/// begins.
pub(crate) fn keep_in_flight<E: Engine>(
    engine: &mut E,
    in_flight: usize,
    time: Duration,
    times: &mut Times,
) -> Result<Stretch> {
    let mut open = VecDeque::with_capacity(in_flight);
    for _ in 1..in_flight {
        open.push_back((Instant::now(), engine.start()?));
    }
    let start = Instant::now();
    let (mut now, mut calls, mut reused) = (start, 0, 0);
    loop {
        open.push_back((now, engine.start()?));
        let (began, call) = open.pop_front().context("one was started just now")?;
        reused += u64::from(engine.finish(call)?);
        now = Instant::now();
        times.record(now - began);
        calls += 1;
        if now - start >= time && calls >= COUNT_MIN {
            break;
        }
    }
    let made = calls + open.len() as u64;
    open.into_iter().try_for_each(|(_, call)| engine.finish(call).map(drop))?;
    Ok(Stretch { seconds: (now - start).as_secs_f64(), calls, reused, made })
}

/// What running a cell for a while gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellRun {
    bytes: usize,
    seconds: f64,
    pub(crate) calls: u64,
    /// Calls whose payload went through a mapping that the server had kept.
    pub(crate) reused: u64,
    pub(crate) times: Recorded,
    /// What the calls of `made` took of both processes.
    cost: Usage,
    made: u64,
    /// The lane that the last payload took, and why.
    pub(crate) lane: Option<(Lane, Reason)>,
}

impl CellRun {
    pub(crate) fn new(bytes: usize, stretch: Stretch, times: Recorded, cost: Usage) -> Self {
        let Stretch { seconds, calls, reused, made } = stretch;
        Self { bytes, seconds, calls, reused, times, cost, made, lane: None }
    }

    /// Adds another turn of the same cell.
    pub(crate) fn add(&mut self, turn: Self) {
        self.bytes = turn.bytes;
        self.seconds += turn.seconds;
        self.calls += turn.calls;
        self.reused += turn.reused;
        self.times.extend(turn.times);
        self.cost += turn.cost;
        self.made += turn.made;
        self.lane = turn.lane.or(self.lane);
    }

    /// MB are 10^6 bytes, as in the original.
    pub(crate) fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 * self.calls as f64 / self.seconds / 1e6
    }

    pub(crate) fn seconds_per_call(&self) -> f64 {
        self.seconds / self.calls as f64
    }

    /// GB are 10^9 bytes; none of no bytes.
    pub(crate) fn cpu_seconds_per_gb(&self) -> Option<f64> {
        let bytes = self.bytes as f64 * self.made as f64;
        (bytes > 0.0).then(|| self.cost.cpu.as_secs_f64() / bytes * 1e9)
    }

    pub(crate) fn context_switches_per_call(&self) -> f64 {
        self.cost.context_switches as f64 / self.made as f64
    }

    pub(crate) fn page_faults_per_call(&self) -> f64 {
        self.cost.page_faults as f64 / self.made as f64
    }
}

/// Calls that do nothing: what remains is the bench itself.
struct Null;

impl Engine for Null {
    type Call = u64;

    fn start(&mut self) -> Result<u64> {
        Ok(std::hint::black_box(0))
    }

    fn finish(&mut self, call: u64) -> Result<bool> {
        std::hint::black_box(call);
        Ok(false)
    }
}

/// Nanoseconds that the bench adds to each call: the loop, the clock, and taking down the time.
pub(crate) fn harness_ns() -> Result<f64> {
    let stretch = keep_in_flight(&mut Null, 1, NULL_TIME, &mut Times::new())?;
    Ok(stretch.seconds / stretch.calls as f64 * 1e9)
}

const COUNT_MIN: u64 = 2;
const NULL_TIME: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// Says what it is asked for.
    #[derive(Default)]
    struct Scribe {
        next: u32,
        said: Vec<String>,
    }

    impl Engine for Scribe {
        type Call = u32;

        fn start(&mut self) -> Result<u32> {
            self.next += 1;
            self.said.push(format!("start {}", self.next));
            Ok(self.next)
        }

        fn finish(&mut self, call: u32) -> Result<bool> {
            self.said.push(format!("finish {call}"));
            Ok(call == 2)
        }
    }

    fn said(in_flight: usize) -> (Stretch, String) {
        let (mut scribe, mut times) = (Scribe::default(), Times::new());
        let stretch = keep_in_flight(&mut scribe, in_flight, Duration::ZERO, &mut times).unwrap();
        assert_eq!(times.take().iter().map(|(_, count)| u64::from(*count)).sum::<u64>(), 2);
        (stretch, scribe.said.join(", "))
    }

    #[test]
    fn one_call_ends_before_the_next_begins() {
        let (stretch, said) = said(1);
        assert_eq!(said, "start 1, finish 1, start 2, finish 2");
        assert_eq!((stretch.calls, stretch.reused, stretch.made), (2, 1, 2));
    }

    #[test]
    fn with_several_in_flight_the_oldest_is_waited_for_and_replaced() {
        let (stretch, said) = said(3);
        let expected = "start 1, start 2, start 3, finish 1, start 4, finish 2, finish 3, finish 4";
        assert_eq!(said, expected);
        assert_eq!((stretch.calls, stretch.made), (2, 4));
    }

    #[test]
    fn turns_of_a_cell_add_up_and_costs_are_per_call_made() {
        let stretch = Stretch { seconds: 0.5, calls: 10, reused: 4, made: 12 };
        let usage = |cpu_ms| Usage {
            cpu: Duration::from_millis(cpu_ms),
            context_switches: 24,
            page_faults: 6,
        };
        let turn = |cpu_ms| CellRun::new(1000, stretch, vec![(7, 1)], usage(cpu_ms));
        let mut run = CellRun::default();
        run.add(turn(1));
        run.add(turn(2));
        assert_eq!((run.calls, run.reused, run.times.len()), (20, 8, 2));
        assert!((run.megabytes_per_second() - 0.02).abs() < 1e-9);
        assert!((run.seconds_per_call() - 0.05).abs() < 1e-9);
        assert!((run.cpu_seconds_per_gb().unwrap() - 125.0).abs() < 1e-9);
        assert_eq!((run.context_switches_per_call(), run.page_faults_per_call()), (2.0, 0.5));
        assert_eq!(CellRun::new(0, stretch, vec![], usage(1)).cpu_seconds_per_gb(), None);
    }
}
