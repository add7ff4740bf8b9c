//! From what was measured, round by round, to what is reported. Pure.

use std::collections::HashMap;

use shorthaul::Reason;
use shorthaul::placement::{Assignment, Placement};

use super::hygiene;
use super::measure::CellRun;
use super::method::Method;
use super::plan::Plan;
use super::report::{Cell, Cost, EmptyCall, Latency, Payload, Round, Section, Threads, Twin};
use super::session::Mode;
use super::stats::{Spread, median};

/// What one round of one placement gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    pub(crate) spin_us: f64,
    pub(crate) foreign_cpus: f64,
    pub(crate) harness_ns: f64,
    /// Seconds, by what made the round trips; several in turn.
    pub(crate) empty: HashMap<&'static str, Vec<f64>>,
    /// MB/s, by payload.
    pub(crate) speed: HashMap<usize, f64>,
    pub(crate) hand_over: HashMap<usize, f64>,
    pub(crate) cells: HashMap<(usize, Mode, &'static str), CellRun>,
    pub(crate) twins: HashMap<(usize, &'static str), CellRun>,
}

/// All rounds of one placement.
pub(crate) struct Measured<'a> {
    pub(crate) placement: Placement,
    pub(crate) assignment: &'a Assignment,
    pub(crate) rounds: &'a [Samples],
}

/// A section, and what must be said of it.
pub(crate) fn section(plan: &Plan, measured: &Measured<'_>) -> (Section, Option<String>) {
    let spins_us: Vec<f64> = measured.rounds.iter().map(|round| round.spin_us).collect();
    let count = spins_us.len();
    let (verdicts, warning) = match hygiene::judge(&spins_us) {
        Ok(verdicts) => (verdicts, None),
        Err(moved) => {
            let warning = hygiene::unsteady(measured.placement.name(), moved, count);
            (vec![None; count], Some(warning))
        }
    };
    let kept = measured.rounds.iter().zip(&verdicts).filter(|(_, dropped)| dropped.is_none());
    let counted = Counted { rounds: kept.map(|(round, _)| round).collect() };
    let round = |(round, dropped): (&Samples, Option<String>)| Round {
        spin_us: round.spin_us,
        foreign_cpus: round.foreign_cpus,
        dropped,
    };
    let section = Section {
        placement: measured.placement.name().to_owned(),
        why_not: None,
        threads: Some(Threads::new(measured.assignment)),
        empty_call: counted.empty_call(),
        rounds: measured.rounds.iter().zip(verdicts).map(round).collect(),
        harness_ns: Spread::of(&counted.each(|round| Some(round.harness_ns))),
        payloads: plan.payloads.iter().filter_map(|&b| counted.payload(plan, b)).collect(),
    };
    (section, warning)
}

/// The section of a placement that this machine can't do.
pub(crate) fn impossible(plan: &Plan, placement: Placement) -> Section {
    Section {
        placement: placement.name().to_owned(),
        why_not: Some(placement.why_not(&plan.topology)),
        threads: None,
        empty_call: None,
        rounds: Vec::new(),
        harness_ns: None,
        payloads: Vec::new(),
    }
}

/// The rounds that count.
struct Counted<'a> {
    rounds: Vec<&'a Samples>,
}

impl<'a> Counted<'a> {
    fn each<T>(&self, value: impl Fn(&'a Samples) -> Option<T>) -> Vec<T> {
        self.rounds.iter().filter_map(|round| value(round)).collect()
    }

    fn empty_call(&self) -> Option<EmptyCall> {
        let seconds =
            |name| self.each(|round| round.empty.get(name)).into_iter().flatten().copied();
        let microseconds = |name| {
            let values: Vec<f64> = seconds(name).map(|seconds| seconds * 1e6).collect();
            Spread::of(&values)
        };
        let direct: Vec<f64> = seconds(Mode::Direct.name()).collect();
        let ping_pong: Vec<f64> = seconds(PING_PONG).collect();
        Some(EmptyCall {
            ping_pong_us: microseconds(PING_PONG)?,
            direct_us: microseconds(Mode::Direct.name())?,
            threads_us: microseconds(Mode::Threads.name())?,
            direct_ratio: Spread::of_ratios(&direct, &ping_pong)?,
        })
    }

    fn payload(&self, plan: &Plan, bytes: usize) -> Option<Payload> {
        let cells = plan.methods.iter().flat_map(|method| {
            Mode::ALL.into_iter().filter_map(move |mode| self.cell(plan, bytes, mode, method))
        });
        Some(Payload {
            bytes,
            speed_limit: Spread::of(&self.each(|round| round.speed.get(&bytes).copied()))?,
            hand_over_limit: Spread::of(&self.each(|round| round.hand_over.get(&bytes).copied()))?,
            twins: plan.methods.iter().filter_map(|method| self.twin(bytes, method)).collect(),
            cells: cells.collect(),
        })
    }

    fn twin(&self, bytes: usize, method: &Method) -> Option<Twin> {
        let runs = self.each(|round| round.twins.get(&(bytes, method.name)));
        Some(Twin {
            method: method.name.to_owned(),
            megabytes_per_second: spread(&runs, CellRun::megabytes_per_second)?,
            microseconds_per_call: spread(&runs, |run| run.seconds_per_call() * 1e6)?,
        })
    }

    /// The fastest of the methods that `method` leaves the library to choose from.
    fn best_beside(
        &self,
        plan: &Plan,
        bytes: usize,
        mode: Mode,
        method: &Method,
    ) -> Option<(usize, Mode, &'static str)> {
        let rivals = plan.methods.iter().filter(|other| method.is_choice_between(other));
        let timed = rivals.filter_map(|rival| {
            let key = (bytes, mode, rival.name);
            let runs = self.each(|round| round.cells.get(&key));
            Some((spread(&runs, CellRun::seconds_per_call)?.median, key))
        });
        timed.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, key)| key)
    }

    fn cell(&self, plan: &Plan, bytes: usize, mode: Mode, method: &Method) -> Option<Cell> {
        let key = (bytes, mode, method.name);
        let runs = self.each(|round| round.cells.get(&key));
        // Each share is of the same round's reference.
        let share = |reference: &dyn Fn(&Samples) -> Option<f64>| {
            let ratio = |round: &Samples| {
                Some(round.cells.get(&key)?.megabytes_per_second() / reference(round)?)
            };
            Spread::of(&self.each(ratio)).filter(|_| bytes > 0)
        };
        // By time, so that empty payloads have one too.
        let of_twin = |round: &'a Samples| {
            let twin = round.twins.get(&(bytes, method.name))?.seconds_per_call();
            Some(twin / round.cells.get(&key)?.seconds_per_call())
        };
        // By time too. Which is best is one for all rounds: the best of each would be luck.
        let best = method.is_automatic().then(|| self.best_beside(plan, bytes, mode, method));
        let of_best = |round: &'a Samples| {
            let best = round.cells.get(&best.flatten()?)?.seconds_per_call();
            Some(best / round.cells.get(&key)?.seconds_per_call())
        };
        Some(Cell {
            method: method.name.to_owned(),
            mode,
            megabytes_per_second: spread(&runs, CellRun::megabytes_per_second)?,
            microseconds_per_call: spread(&runs, |run| run.seconds_per_call() * 1e6)?,
            of_speed_limit: share(&|round| round.speed.get(&bytes).copied()),
            of_hand_over_limit: share(&|round| round.hand_over.get(&bytes).copied()),
            of_twin: Spread::of(&self.each(of_twin)),
            of_best: Spread::of(&self.each(of_best)),
            latency: Latency::of(runs.iter().map(|run| &run.times)),
            cost: Some(cost(&runs)),
            lane: runs.iter().rev().find_map(|run| run.lane).map(|(lane, reason)| match reason {
                Reason::Asked => lane.to_string(),
                reason => format!("{lane}: {reason}"),
            }),
            calls: runs.iter().map(|run| run.calls).sum(),
            mappings_reused: runs.iter().map(|run| run.reused).sum(),
        })
    }
}

fn cost(runs: &[&CellRun]) -> Cost {
    let per_gb: Vec<f64> = runs.iter().filter_map(|run| run.cpu_seconds_per_gb()).collect();
    let middle =
        |value: fn(&CellRun) -> f64| median(&runs.iter().map(|run| value(run)).collect::<Vec<_>>());
    Cost {
        cpu_seconds_per_gb: Spread::of(&per_gb),
        context_switches_per_call: middle(CellRun::context_switches_per_call),
        page_faults_per_call: middle(CellRun::page_faults_per_call),
    }
}

fn spread(runs: &[&CellRun], value: impl Fn(&CellRun) -> f64) -> Option<Spread> {
    Spread::of(&runs.iter().map(|run| value(run)).collect::<Vec<_>>())
}

pub(crate) const PING_PONG: &str = "ping-pong";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shorthaul_platform::topology::{CpuDescription, Topology};
    use shorthaul_platform::usage::Usage;

    use super::*;
    use crate::bench::measure::Stretch;
    use crate::bench::work::{Consume, Pages, Source, WaitKind};

    fn plan() -> Plan {
        let cpu = CpuDescription { id: 0, package: Some(0), core: Some(0), ..Default::default() };
        Plan {
            topology: Topology::from_cpus(vec![cpu]),
            placements: vec![Placement::AllSameCore],
            methods: vec![Method::ALL[8]],
            payloads: vec![BYTES],
            source: Source::Fill,
            consume: Consume::Sample,
            wait: WaitKind::Block,
            huge_pages: Pages::Never,
            twin_huge_pages: Pages::Never,
            in_flight: 1,
            baseline: true,
            rounds: 3,
            time: Duration::ZERO,
        }
    }

    /// A round in which a call took `call_us`, and a call of its twin half of that.
    fn round(spin_us: f64, call_us: f64) -> Samples {
        let run = |seconds: f64| {
            let stretch = Stretch { seconds, calls: 1, reused: 1, made: 1 };
            let usage = Usage { cpu: Duration::from_secs(2), context_switches: 4, page_faults: 3 };
            CellRun::new(BYTES, stretch, vec![((seconds * 1e9) as u64, 1)], usage)
        };
        let name = Method::ALL[8].name;
        let empty = [PING_PONG, "direct", "threads"].map(|name| (name, vec![spin_us * 1e-6; 7]));
        Samples {
            spin_us,
            foreign_cpus: 0.5,
            harness_ns: 50.0,
            empty: empty.into(),
            speed: [(BYTES, 1000.0)].into(),
            hand_over: [(BYTES, 500.0)].into(),
            cells: [((BYTES, Mode::Direct, name), run(call_us * 1e-6))].into(),
            twins: [((BYTES, name), run(call_us * 0.5e-6))].into(),
        }
    }

    fn summed_up(rounds: &[Samples]) -> (Section, Option<String>) {
        let plan = plan();
        let placement = Placement::AllSameCore;
        let assignment = placement.assign(&plan.topology).unwrap();
        section(&plan, &Measured { placement, assignment: &assignment, rounds })
    }

    #[test]
    fn a_round_that_is_dropped_is_in_no_figure() {
        let (section, warning) =
            summed_up(&[round(1.0, 10_000.0), round(9.0, 90_000.0), round(1.0, 20_000.0)]);
        assert_eq!(warning, None);
        let dropped: Vec<bool> = section.rounds.iter().map(|r| r.dropped.is_some()).collect();
        assert_eq!(dropped, [false, true, false]);
        assert_eq!(section.empty_call.unwrap().direct_us.max, 1.0);
        let [payload] = &section.payloads[..] else { panic!("one payload") };
        let ([cell], [twin]) = (&payload.cells[..], &payload.twins[..]) else { panic!("one cell") };
        assert_eq!(cell.calls, 2);
        assert!((cell.microseconds_per_call.max - 20_000.0).abs() < 1.0);
        assert!((twin.microseconds_per_call.max - 10_000.0).abs() < 1.0);
        assert!((cell.of_twin.unwrap().median - 0.5).abs() < 1e-9);
        assert!((cell.latency.unwrap().p99_us - 20_000.0).abs() < 20.0);
        let cost = cell.cost.unwrap();
        assert!((cost.cpu_seconds_per_gb.unwrap().median - 2000.0).abs() < 1e-9);
        assert_eq!((cost.context_switches_per_call, cost.page_faults_per_call), (4.0, 3.0));
    }

    #[test]
    fn an_automatic_choice_is_held_against_the_best_other_one() {
        let [fill, write, auto, put] =
            ["fd(s-mmap,c-reuse,s-reuse)", "fd(s-write)", "auto", "put(region)"]
                .map(|name| name.parse::<Method>().unwrap());
        let plan = Plan { methods: vec![write, fill, auto, put], ..plan() };
        let times_us = [(write, 900.0), (fill, 300.0), (auto, 400.0), (put, 1.0)];
        let mut sample = round(1.0, 1.0);
        sample.cells.clear();
        for (method, call_us) in times_us {
            let run = round(1.0, call_us).cells.into_values().next().unwrap();
            sample.cells.insert((BYTES, Mode::Direct, method.name), run);
        }
        let counted = Counted { rounds: vec![&sample] };
        let of_best = |method| counted.cell(&plan, BYTES, Mode::Direct, method).unwrap().of_best;
        assert!((of_best(&auto).unwrap().median - 0.75).abs() < 0.01);
        assert_eq!(of_best(&fill), None);
    }

    #[test]
    fn where_most_rounds_moved_all_count_and_it_is_said() {
        let (section, warning) = summed_up(&[1.0, 2.0, 4.0, 8.0].map(|spin| round(spin, 1000.0)));
        assert!(warning.unwrap().contains("all-same-core"));
        assert!(section.rounds.iter().all(|round| round.dropped.is_none()));
        assert_eq!(section.payloads[0].cells[0].calls, 4);
    }

    const BYTES: usize = 1_000_000;
}
