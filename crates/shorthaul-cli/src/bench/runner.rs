//! Runs the cells of a plan in rounds, each beside the limits of its round.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shorthaul::placement::{Assignment, Placement};

use super::limits;
use super::method::Method;
use super::plan::Plan;
use super::progress::Progress;
use super::report::{Cell, EmptyCall, Payload, Section, Threads};
use super::session::{CellRun, Mode, PingPong, Session, share_of_time};
use super::stats::Spread;

/// Runs the plan.
pub(crate) fn run(plan: &Plan, progress: &Progress) -> Result<Vec<Section>> {
    let mut placements = start(plan)?;
    let mut steps_left = plan.rounds * placements.iter().map(|p| p.steps(plan)).sum::<usize>();
    progress.begin(steps_left);
    warm_up(plan, &mut placements)?;
    let by = Instant::now() + plan.time;
    for round in 0..plan.rounds {
        for placement in &mut placements {
            placement.round(plan, round, &mut |what| {
                progress.step(what, by.saturating_duration_since(Instant::now()));
                let slice = share_of_time(by, steps_left).max(SLICE_MIN);
                steps_left = steps_left.saturating_sub(1);
                slice
            })?;
        }
    }
    progress.end();
    Ok(plan.placements.iter().map(|&placement| section(plan, placement, &placements)).collect())
}

/// A placement that this machine can do, with its processes and what was measured.
struct Running {
    placement: Placement,
    assignment: Assignment,
    sessions: Vec<(Mode, Session)>,
    ping_pong: PingPong,
    empty: Samples<&'static str>,
    /// By payload.
    speed: Samples<usize>,
    hand_over: Samples<usize>,
    cells: HashMap<(usize, Mode, &'static str), Vec<CellRun>>,
}

/// Measurements in the order of the rounds, by what was measured.
type Samples<K> = HashMap<K, Vec<f64>>;

fn start(plan: &Plan) -> Result<Vec<Running>> {
    let bytes_max = plan.payloads.iter().copied().max().unwrap_or(0);
    let possible = plan.placements.iter().filter_map(|&p| Some((p, p.assign(&plan.topology)?)));
    possible
        .map(|(placement, assignment)| {
            let sessions = Mode::ALL
                .into_iter()
                .map(|mode| Ok((mode, Session::start(mode, &assignment, bytes_max)?)))
                .collect::<Result<_>>()
                .with_context(|| format!("can't start the processes for {placement}"))?;
            let ping_pong = PingPong::start(assignment.client.id, assignment.worker.id)?;
            Ok(Running {
                placement,
                assignment,
                sessions,
                ping_pong,
                empty: HashMap::new(),
                speed: HashMap::new(),
                hand_over: HashMap::new(),
                cells: HashMap::new(),
            })
        })
        .collect()
}

/// Every cell once, uncounted: pages, mappings, caches and clocks of the CPU come up.
fn warm_up(plan: &Plan, placements: &mut [Running]) -> Result<()> {
    for running in placements {
        for (_, session) in &mut running.sessions {
            session.run_empty(WARM_UP)?;
            for &bytes in &plan.payloads {
                for method in &plan.methods {
                    session.run(*method, bytes, plan.source, plan.consume, WARM_UP)?;
                }
            }
        }
    }
    Ok(())
}

impl Running {
    /// Measurements in one round.
    fn steps(&self, plan: &Plan) -> usize {
        let modes = self.sessions.len();
        1 + modes + plan.payloads.len() * (2 + modes * plan.methods.len())
    }

    /// Measures everything once. `slice` is told what comes, and says how long it may take.
    fn round(
        &mut self,
        plan: &Plan,
        round: usize,
        slice: &mut dyn FnMut(&str) -> Duration,
    ) -> Result<()> {
        self.round_of_empty_calls(slice)?;
        for &bytes in &plan.payloads {
            self.round_of_limits(plan, bytes, slice)?;
            // Each round begins elsewhere, so that no method always follows the same one.
            let count = plan.methods.len();
            for index in 0..count {
                let method = plan.methods[(index + round) % count];
                for (mode, session) in &mut self.sessions {
                    let time = slice(&format!("{} {method}", self.placement));
                    let run = session.run(method, bytes, plan.source, plan.consume, time)?;
                    self.cells.entry((bytes, *mode, method.name)).or_default().push(run);
                }
            }
        }
        Ok(())
    }

    /// A few microseconds are compared here, while the machine drifts: so in turn, several times.
    fn round_of_empty_calls(&mut self, slice: &mut dyn FnMut(&str) -> Duration) -> Result<()> {
        let what = format!("{} empty calls", self.placement);
        let kinds = 1 + self.sessions.len();
        let time: Duration = (0..kinds).map(|_| slice(&what)).sum();
        let turn = time / (EMPTY_TURNS * kinds) as u32;
        for _ in 0..EMPTY_TURNS {
            let seconds = self.ping_pong.run(turn)?;
            self.empty.entry(PING_PONG).or_default().push(seconds);
            for (mode, session) in &mut self.sessions {
                let seconds = session.run_empty(turn)?;
                self.empty.entry(mode.name()).or_default().push(seconds);
            }
        }
        Ok(())
    }

    fn round_of_limits(
        &mut self,
        plan: &Plan,
        bytes: usize,
        slice: &mut dyn FnMut(&str) -> Duration,
    ) -> Result<()> {
        let what = format!("{} limits", self.placement);
        let speed = limits::speed(self.assignment.worker.id, bytes, plan.source, slice(&what))?;
        self.speed.entry(bytes).or_default().push(speed);
        let (consumer, producer) = (self.assignment.client.id, self.assignment.worker.id);
        let (source, consume) = (plan.source, plan.consume);
        let limit = limits::hand_over(consumer, producer, bytes, source, consume, slice(&what))?;
        self.hand_over.entry(bytes).or_default().push(limit);
        Ok(())
    }

    fn section(&self, plan: &Plan) -> Section {
        Section {
            placement: self.placement.name().to_owned(),
            why_not: None,
            threads: Some(Threads::new(&self.assignment)),
            empty_call: self.empty_call(),
            rounds: Vec::new(),
            harness_ns: None,
            payloads: plan.payloads.iter().filter_map(|&b| self.payload(plan, b)).collect(),
        }
    }

    fn empty_call(&self) -> Option<EmptyCall> {
        let samples = |name| self.empty.get(name).map_or(&[][..], Vec::as_slice);
        let microseconds = |name| {
            let values: Vec<f64> = samples(name).iter().map(|seconds| seconds * 1e6).collect();
            Spread::of(&values)
        };
        let direct = Mode::Direct.name();
        Some(EmptyCall {
            ping_pong_us: microseconds(PING_PONG)?,
            direct_us: microseconds(direct)?,
            threads_us: microseconds(Mode::Threads.name())?,
            direct_ratio: Spread::of_ratios(samples(direct), samples(PING_PONG))?,
        })
    }

    fn payload(&self, plan: &Plan, bytes: usize) -> Option<Payload> {
        let cells = plan.methods.iter().flat_map(|method| {
            Mode::ALL.into_iter().filter_map(move |mode| self.cell(bytes, mode, method))
        });
        Some(Payload {
            bytes,
            speed_limit: Spread::of(self.speed.get(&bytes)?)?,
            hand_over_limit: Spread::of(self.hand_over.get(&bytes)?)?,
            twins: Vec::new(),
            cells: cells.collect(),
        })
    }

    fn cell(&self, bytes: usize, mode: Mode, method: &Method) -> Option<Cell> {
        let runs = self.cells.get(&(bytes, mode, method.name))?;
        let speeds: Vec<f64> = runs.iter().map(|run| run.megabytes_per_second).collect();
        let times: Vec<f64> = runs.iter().map(|run| run.seconds_per_call * 1e6).collect();
        let share = |limits: Option<&Vec<f64>>| {
            limits.filter(|_| bytes > 0).and_then(|limits| Spread::of_ratios(&speeds, limits))
        };
        Some(Cell {
            method: method.name.to_owned(),
            mode,
            megabytes_per_second: Spread::of(&speeds)?,
            microseconds_per_call: Spread::of(&times)?,
            of_speed_limit: share(self.speed.get(&bytes)),
            of_hand_over_limit: share(self.hand_over.get(&bytes)),
            of_twin: None,
            latency: None,
            cost: None,
            lane: None,
            calls: runs.iter().map(|run| run.calls).sum(),
            mappings_reused: runs.iter().map(|run| run.reused).sum(),
        })
    }
}

fn section(plan: &Plan, placement: Placement, running: &[Running]) -> Section {
    match running.iter().find(|running| running.placement == placement) {
        Some(running) => running.section(plan),
        None => Section {
            placement: placement.name().to_owned(),
            why_not: Some(placement.why_not(&plan.topology)),
            threads: None,
            empty_call: None,
            rounds: Vec::new(),
            harness_ns: None,
            payloads: Vec::new(),
        },
    }
}

const PING_PONG: &str = "ping-pong";
const WARM_UP: Duration = Duration::from_millis(20);
const SLICE_MIN: Duration = Duration::from_millis(5);
/// Turns that bare round trips and empty calls take in one round.
const EMPTY_TURNS: usize = 7;
