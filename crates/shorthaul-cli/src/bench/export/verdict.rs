//! What the figures say, in a sentence for each placement and payload, and in one for all.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::columns::decimals;
use crate::bench::compare::is_apart;
use crate::bench::method::Method;
use crate::bench::plan::format_bytes;
use crate::bench::report::{Cell, Payload, Report, Section};
use crate::bench::session::Mode;

/// Which method won in one placement with one payload, by how much, and what a program should do.
pub(super) struct Verdict<'a> {
    pub(super) placement: &'a str,
    pub(super) bytes: usize,
    pub(super) best: &'a Cell,
    /// How many times faster than what people do otherwise, in the same mode.
    pub(super) times: Vec<(f64, &'static str)>,
    /// Other methods that the noise doesn't tell from it, in their better mode; the fastest first.
    pub(super) level: Vec<&'a Cell>,
    /// What a program does to get it; none for a method that this version doesn't know.
    pub(super) advice: Option<String>,
}

/// What holds over all placements and payloads.
pub(super) struct Headline<'a> {
    pub(super) method: &'a str,
    /// The rest of the sentence that begins with the method.
    pub(super) claim: String,
    pub(super) advice: Option<String>,
}

pub(super) fn verdicts(report: &Report) -> Vec<Verdict<'_>> {
    let mut verdicts = Vec::new();
    for section in &report.sections {
        let rounds = section.rounds_counted(report);
        verdicts.extend(section.payloads.iter().filter_map(|p| Verdict::of(section, p, rounds)));
    }
    verdicts
}

pub(super) fn sentences(report: &Report) -> Vec<String> {
    verdicts(report).iter().map(Verdict::to_string).collect()
}

/// The method that wins most often; none if nothing was measured.
pub(super) fn headline(report: &Report) -> Option<Headline<'_>> {
    let mut verdicts = verdicts(report);
    // Which method moves nothing fastest is of no use to anyone, if there is more to say.
    if verdicts.iter().any(|verdict| verdict.bytes > 0) {
        verdicts.retain(|verdict| verdict.bytes > 0);
    }
    let mut wins: HashMap<_, Vec<&Verdict<'_>>> = HashMap::new();
    for verdict in &verdicts {
        wins.entry((&verdict.best.method, verdict.best.mode)).or_default().push(verdict);
    }
    let first = |winner: &&Vec<&Verdict<'_>>| {
        let first = winner.first().map(|verdict| (verdict.placement, verdict.bytes));
        verdicts.iter().position(|verdict| Some((verdict.placement, verdict.bytes)) == first)
    };
    // Of equals the one that comes first in the report: the same file gives the same sentence.
    let won = wins.values().max_by_key(|won| (won.len(), std::cmp::Reverse(first(won))))?;
    let [verdict, ..] = won[..] else { return None };
    let (method, mode) = (&verdict.best.method, verdict.best.mode.name());
    let mut claim = format!("in {mode} mode is fastest{}", how_often(won, &verdicts));
    if let Some((min, max)) = times(won, SIDECAR) {
        claim += &if max - min < 0.05 {
            format!(", {max:.1} times {SIDECAR}")
        } else {
            format!(", {min:.1} to {max:.1} times {SIDECAR}")
        };
    }
    let advice = verdict.advice.as_ref().map(|advice| format!("A program here should {advice}."));
    Some(Headline { method, claim: claim + ".", advice })
}

impl<'a> Verdict<'a> {
    fn of(section: &'a Section, payload: &'a Payload, rounds: usize) -> Option<Self> {
        let best = payload.best()?;
        let times = [SIDECAR, FRESH]
            .into_iter()
            .filter_map(|baseline| Some((times_faster(payload, best, baseline)?, baseline)));
        Some(Self {
            placement: &section.placement,
            bytes: payload.bytes,
            best,
            times: times.collect(),
            level: level(payload, best, rounds),
            advice: advice(best),
        })
    }
}

impl Verdict<'_> {
    /// Two names at most, and how many more there are.
    fn level_names(&self) -> String {
        let name = |cell: &&Cell| format!("{} ({})", cell.method, cell.mode.name());
        let names: Vec<String> = self.level.iter().take(2).map(name).collect();
        match self.level.len().saturating_sub(2) {
            0 => names.join(" and "),
            more => format!("{} and {more} more", names.join(", ")),
        }
    }
}

impl fmt::Display for Verdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (method, mode) = (&self.best.method, self.best.mode.name());
        write!(
            f,
            "{}, {}: {method} ({mode}) wins with ",
            self.placement,
            format_bytes(self.bytes)
        )?;
        match self.bytes {
            0 => write!(f, "{:.1} µs a call", self.best.microseconds_per_call.median)?,
            _ => {
                let speed = self.best.megabytes_per_second.median;
                write!(f, "{speed:.0$} MB/s", decimals(speed))?;
            }
        }
        for (times, baseline) in &self.times {
            write!(f, ", {times:.1} times {baseline}")?;
        }
        if !self.level.is_empty() {
            write!(f, "; the noise doesn't tell it from {}", self.level_names())?;
        }
        match &self.advice {
            Some(advice) => write!(f, ". A program here should {advice}."),
            None => write!(f, "."),
        }
    }
}

fn level<'a>(payload: &'a Payload, best: &Cell, rounds: usize) -> Vec<&'a Cell> {
    let time = |cell: &Cell| cell.microseconds_per_call;
    let is_level = |cell: &&Cell| {
        let is_rival = cell.method != best.method && cell.is_put() == best.is_put();
        is_rival && !is_apart(&time(best), &time(cell), rounds)
    };
    let mut level: Vec<&Cell> = payload.cells.iter().filter(is_level).collect();
    level.sort_by(|a, b| time(a).median.total_cmp(&time(b).median));
    let mut seen = HashSet::new();
    level.retain(|cell| seen.insert(&cell.method));
    level
}

fn advice(best: &Cell) -> Option<String> {
    let method: Method = best.method.parse().ok()?;
    let client = match best.mode {
        Mode::Direct => "use a DirectClient and a server with inline_handlers",
        Mode::Threads => "use a Client",
    };
    Some(format!("{client}, and {}", method.advice()))
}

fn how_often(won: &[&Verdict<'_>], all: &[Verdict<'_>]) -> String {
    match (won.len(), all.len()) {
        (1, 1) => format!(" ({})", all[0].placement),
        (2, 2) => " in both cases".to_owned(),
        (count, total) if count == total => format!(" in all {total} cases"),
        (count, total) => format!(" in {count} of {total} cases"),
    }
}

/// The least and the most times that the winner was faster than `baseline`.
fn times(won: &[&Verdict<'_>], baseline: &str) -> Option<(f64, f64)> {
    let of_baseline = |verdict: &&Verdict<'_>| {
        verdict.times.iter().find(|(_, name)| *name == baseline).map(|(times, _)| *times)
    };
    let times: Vec<f64> = won.iter().filter_map(of_baseline).collect();
    let min = times.iter().copied().min_by(f64::total_cmp)?;
    let max = times.iter().copied().max_by(f64::total_cmp)?;
    Some((min, max))
}

/// How many times faster than `baseline` in the same mode.
fn times_faster(payload: &Payload, best: &Cell, baseline: &str) -> Option<f64> {
    let baseline: Method = baseline.parse().ok()?;
    let other = payload.cell(&baseline, best.mode).filter(|other| other.method != best.method)?;
    Some(other.microseconds_per_call.median / best.microseconds_per_call.median)
}

/// What most programs do today: bytes over the socket.
const SIDECAR: &str = "sidecar";
/// What shared memory costs when nothing is used again.
const FRESH: &str = "fd(s-mmap)";
