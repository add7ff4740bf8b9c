//! Runs the cells of a plan in rounds, each beside the limits of its round.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shorthaul::placement::{Assignment, Placement};

use super::hygiene::{self, Load};
use super::limits;
use super::measure::{Job, harness_ns};
use super::method::Method;
use super::ping_pong::PingPong;
use super::plan::Plan;
use super::progress::Progress;
use super::report::Section;
use super::session::{Mode, Session};
use super::summary::{self, Measured, PING_PONG, Samples};
use super::twin::Twin;

/// What a run gave.
pub(crate) struct Findings {
    pub(crate) sections: Vec<Section>,
    /// Whole sentences.
    pub(crate) warnings: Vec<String>,
}

/// Runs the plan.
pub(crate) fn run(plan: &Plan, progress: &Progress) -> Result<Findings> {
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
    Ok(findings(plan, &placements))
}

/// A placement that this machine can do, with its processes and what was measured.
struct Running {
    placement: Placement,
    assignment: Assignment,
    sessions: Vec<(Mode, Session)>,
    ping_pong: PingPong,
    twin: Option<Twin>,
    rounds: Vec<Samples>,
}

fn start(plan: &Plan) -> Result<Vec<Running>> {
    let possible = plan.placements.iter().filter_map(|&p| Some((p, p.assign(&plan.topology)?)));
    possible
        .map(|(placement, assignment)| {
            Running::start(plan, placement, assignment)
                .with_context(|| format!("can't start the processes for {placement}"))
        })
        .collect()
}

/// Every cell once, uncounted: pages, mappings, caches and clocks of the CPU come up.
fn warm_up(plan: &Plan, placements: &mut [Running]) -> Result<()> {
    for running in placements {
        for (_, session) in &mut running.sessions {
            session.run_empty(WARM_UP)?;
        }
        for &bytes in &plan.payloads {
            for &method in &plan.methods {
                running.turn(&plan.job(method, bytes), WARM_UP, &mut Samples::default())?;
            }
        }
    }
    Ok(())
}

/// When a run that is to end at `by` has how much left for each of `count` parts.
fn share_of_time(by: Instant, count: usize) -> Duration {
    let left = by.saturating_duration_since(Instant::now());
    left / u32::try_from(count.max(1)).unwrap_or(u32::MAX)
}

fn findings(plan: &Plan, placements: &[Running]) -> Findings {
    let rounds = placements.iter().flat_map(|running| &running.rounds);
    let foreign_cpus: Vec<f64> = rounds.map(|round| round.foreign_cpus).collect();
    let mut warnings: Vec<String> = hygiene::busy_machine(&foreign_cpus).into_iter().collect();
    let mut section = |placement: Placement| {
        let running = placements.iter().find(|running| running.placement == placement);
        let Some(Running { assignment, rounds, .. }) = running else {
            return summary::impossible(plan, placement);
        };
        let measured = Measured { placement, assignment, rounds };
        let (section, warning) = summary::section(plan, &measured);
        warnings.extend(warning);
        section
    };
    let sections = plan.placements.iter().map(|&placement| section(placement)).collect();
    Findings { sections, warnings }
}

impl Running {
    fn start(plan: &Plan, placement: Placement, assignment: Assignment) -> Result<Self> {
        let pages = plan.huge_pages;
        let bytes_max = plan.payloads.iter().copied().max().unwrap_or(0);
        let (client, worker) = (assignment.client.id, assignment.worker.id);
        let twin =
            plan.baseline.then(|| Twin::start(client, worker, bytes_max, plan.twin_huge_pages));
        Ok(Self {
            placement,
            sessions: Mode::ALL
                .into_iter()
                .map(|mode| {
                    Ok((mode, Session::start(mode, plan.wait, &assignment, bytes_max, pages)?))
                })
                .collect::<Result<_>>()?,
            ping_pong: PingPong::start(client, worker)?,
            twin: twin.transpose()?,
            assignment,
            rounds: Vec::new(),
        })
    }

    /// Measurements in one round.
    fn steps(&self, plan: &Plan) -> usize {
        let cells = plan.methods.iter().map(|&method| self.kinds(&plan.job(method, 0)));
        1 + self.sessions.len() + plan.payloads.len() * (2 + cells.sum::<usize>())
    }

    /// Cells of one method and size, and its twin.
    fn kinds(&self, job: &Job) -> usize {
        self.sessions.len() + usize::from(self.twin.is_some() && job.method.has_twin())
    }

    /// Measures everything once. `slice` is told what comes, and says how long it may take.
    fn round(
        &mut self,
        plan: &Plan,
        round: usize,
        slice: &mut dyn FnMut(&str) -> Duration,
    ) -> Result<()> {
        let servers = self.servers();
        let load = Load::begin(&servers)?;
        let (client, worker) = (self.assignment.client.id, self.assignment.worker.id);
        let spin_us = limits::spin(client, worker)? * 1e6;
        let mut samples = Samples { spin_us, harness_ns: harness_ns()?, ..Samples::default() };
        self.round_of_empty_calls(slice, &mut samples)?;
        for &bytes in &plan.payloads {
            self.round_of_limits(plan, bytes, slice, &mut samples)?;
            // Each round begins elsewhere, so that no method always follows the same one.
            let count = plan.methods.len();
            for index in 0..count {
                let method = plan.methods[(index + round) % count];
                self.round_of_method(&plan.job(method, bytes), slice, &mut samples)?;
            }
        }
        samples.foreign_cpus = load.foreign_cpus(&servers)?;
        self.rounds.push(samples);
        Ok(())
    }

    /// The processes of this placement, beside this one.
    fn servers(&self) -> Vec<u32> {
        let sessions = self.sessions.iter().map(|(_, session)| session.server());
        let twin = self.twin.iter().map(Twin::server);
        sessions.chain([self.ping_pong.server()]).chain(twin).collect()
    }

    /// A few microseconds are compared here, while the machine drifts: so in turn, several times.
    fn round_of_empty_calls(
        &mut self,
        slice: &mut dyn FnMut(&str) -> Duration,
        samples: &mut Samples,
    ) -> Result<()> {
        let what = format!("{} empty calls", self.placement);
        let kinds = 1 + self.sessions.len();
        let time: Duration = (0..kinds).map(|_| slice(&what)).sum();
        let turn = time / (EMPTY_TURNS * kinds) as u32;
        for _ in 0..EMPTY_TURNS {
            let seconds = self.ping_pong.run(turn)?;
            samples.empty.entry(PING_PONG).or_default().push(seconds);
            for (mode, session) in &mut self.sessions {
                let seconds = session.run_empty(turn)?;
                samples.empty.entry(mode.name()).or_default().push(seconds);
            }
        }
        Ok(())
    }

    fn round_of_limits(
        &mut self,
        plan: &Plan,
        bytes: usize,
        slice: &mut dyn FnMut(&str) -> Duration,
        samples: &mut Samples,
    ) -> Result<()> {
        let what = format!("{} limits", self.placement);
        let (worker, pages) = (self.assignment.worker.id, plan.huge_pages);
        let speed = limits::speed(worker, bytes, plan.source, pages, slice(&what))?;
        samples.speed.insert(bytes, speed);
        let (consumer, producer) = (self.assignment.client.id, self.assignment.worker.id);
        let (source, consume) = (plan.source, plan.consume);
        let time = slice(&what);
        let limit = limits::hand_over(consumer, producer, bytes, source, consume, pages, time)?;
        samples.hand_over.insert(bytes, limit);
        Ok(())
    }

    /// The cells of one method, and its twin. What is to be compared with the twin runs in turn
    /// with it, in small slices, for the machine drifts.
    fn round_of_method(
        &mut self,
        job: &Job,
        slice: &mut dyn FnMut(&str) -> Duration,
        samples: &mut Samples,
    ) -> Result<()> {
        let what = format!("{} {}", self.placement, job.method);
        let kinds = self.kinds(job);
        let time = (0..kinds).map(|_| slice(&what)).sum::<Duration>() / kinds.max(1) as u32;
        let turns = if self.twin.is_some() { turns_in(time) } else { 1 };
        (0..turns).try_for_each(|_| self.turn(job, time / turns, samples))
    }

    fn turn(&mut self, job: &Job, time: Duration, samples: &mut Samples) -> Result<()> {
        let Job { bytes, method: Method { name, .. }, .. } = *job;
        for (mode, session) in &mut self.sessions {
            let run = session.run(job, time)?;
            samples.cells.entry((bytes, *mode, name)).or_default().add(run);
        }
        if let Some(twin) = &mut self.twin
            && job.method.has_twin()
        {
            let run = twin.run(job, time)?;
            samples.twins.entry((bytes, name)).or_default().add(run);
        }
        Ok(())
    }
}

fn turns_in(time: Duration) -> u32 {
    let turns = time.as_nanos() / TURN.as_nanos();
    u32::try_from(turns).unwrap_or(u32::MAX).clamp(1, TURNS_MAX)
}

const WARM_UP: Duration = Duration::from_millis(20);
const SLICE_MIN: Duration = Duration::from_millis(5);
/// Turns that bare round trips and empty calls take in one round.
const EMPTY_TURNS: usize = 7;
/// How long a turn of a cell beside its twin is at least, and how many a round has at most: each
/// begins with a call that is not counted.
const TURN: Duration = Duration::from_micros(2500);
const TURNS_MAX: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_has_a_few_turns() {
        assert_eq!(turns_in(Duration::from_millis(1)), 1);
        assert_eq!(turns_in(Duration::from_millis(10)), 4);
        assert_eq!(turns_in(Duration::from_secs(1000)), TURNS_MAX);
    }
}
