//! What changed between two runs beyond what the machine's own noise explains.
//!
//! Of each run and cell there are the median, min and max over its rounds. The rule:
//!
//! 1. The speed changed if each run's median lies outside the other run's range. With few rounds
//!    (under [`ROUNDS_ENOUGH`] in either run) the ranges themselves must not overlap, for medians
//!    of so few stray too far. If all rounds of both runs were alike and independent, the first
//!    would call 3 of 1000 cells changed with 9 rounds each, under 1 of 10 000 with 15; the second
//!    8 of 1000 with 5, but one of ten with 3: hence the caution about few rounds.
//! 2. Less than [`CHANGE_MIN`] is never a change.
//! 3. Rounds of one run are more alike than those of two: machines drift as a whole. So the share
//!    of the hand-over limit, measured in the same rounds, is a second witness: if it doesn't say
//!    the same by the same rule, the cell *moved with the machine*, and is neither faster nor
//!    slower.

use std::collections::HashSet;

use serde::Serialize;

use super::plan::format_bytes;
use super::report::{Cell, Payload, Report, Section};
use super::session::Mode;
use super::stats::Spread;

/// Two runs, cell by cell.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    /// What the old run says of itself.
    pub(crate) old: Origin,
    /// Why the runs may not be comparable; whole sentences.
    pub(crate) cautions: Vec<String>,
    pub(crate) changes: Vec<Change>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Origin {
    pub(crate) date: String,
    pub(crate) version: String,
    pub(crate) command_line: String,
}

/// One cell of the two runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Change {
    pub(crate) placement: String,
    pub(crate) bytes: usize,
    pub(crate) method: String,
    pub(crate) mode: Mode,
    pub(crate) kind: Kind,
    /// MB/s, or calls per second of an empty payload: more is better.
    pub(crate) unit: &'static str,
    pub(crate) old: Option<Spread>,
    pub(crate) new: Option<Spread>,
    /// New median over old median.
    pub(crate) ratio: Option<f64>,
    pub(crate) old_share: Option<Spread>,
    pub(crate) new_share: Option<Spread>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Faster,
    Slower,
    /// Its speed changed, its share of the hand-over limit did not.
    MovedWithMachine,
    Unchanged,
    New,
    Gone,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Faster,
        Self::Slower,
        Self::MovedWithMachine,
        Self::Unchanged,
        Self::New,
        Self::Gone,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::MovedWithMachine => "moved with the machine",
            Self::Unchanged => "unchanged",
            Self::New => "new",
            Self::Gone => "gone",
        }
    }
}

impl Comparison {
    pub(crate) fn new(old: &Report, new: &Report) -> Self {
        let mut cautions = differences(old, new);
        cautions.extend(few_rounds(old, new));
        cautions.extend(drifts(old, new));
        Self {
            old: Origin {
                date: old.date.clone(),
                version: old.version.clone(),
                command_line: old.command_line.clone(),
            },
            cautions,
            changes: changes(old, new),
        }
    }

    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.changes.iter().filter(|change| change.kind == kind).count()
    }

    /// What changed beyond the noise, the largest first; then what moved with the machine.
    pub(crate) fn beyond_noise(&self) -> Vec<&Change> {
        let counts = |change: &&Change| {
            matches!(change.kind, Kind::Faster | Kind::Slower | Kind::MovedWithMachine)
        };
        let mut found: Vec<&Change> = self.changes.iter().filter(counts).collect();
        // Half is as far from the same as twice.
        let size = |change: &Change| -change.ratio.unwrap_or(1.0).ln().abs();
        found.sort_by(|a, b| {
            let machine = |change: &Change| change.kind == Kind::MovedWithMachine;
            machine(a).cmp(&machine(b)).then(size(a).total_cmp(&size(b)))
        });
        found
    }

    pub(crate) fn of(&self, key: Key<'_>) -> Option<&Change> {
        self.changes.iter().find(|change| change.key() == key)
    }
}

/// What makes a cell the same one in another run.
pub(crate) type Key<'a> = (&'a str, usize, &'a str, Mode);

impl Change {
    pub(crate) fn key(&self) -> Key<'_> {
        (&self.placement, self.bytes, &self.method, self.mode)
    }

    fn new(key: Key<'_>, old: Option<&Measured<'_>>, new: Option<&Measured<'_>>) -> Self {
        let kind = match (old, new) {
            (Some(old), Some(new)) => judge(old, new),
            (None, _) => Kind::New,
            (_, None) => Kind::Gone,
        };
        let speed = |measured: &Measured<'_>| measured.speed();
        let share = |measured: &Measured<'_>| measured.cell.of_hand_over_limit;
        let (old_speed, new_speed) = (old.map(speed), new.map(speed));
        let ratio = old_speed.zip(new_speed).map(|(old, new)| new.median / old.median);
        Self {
            placement: key.0.to_owned(),
            bytes: key.1,
            method: key.2.to_owned(),
            mode: key.3,
            kind,
            unit: if key.1 == 0 { "calls/s" } else { "MB/s" },
            old: old_speed,
            new: new_speed,
            ratio: ratio.filter(|ratio| ratio.is_finite()),
            old_share: old.and_then(share),
            new_share: new.and_then(share),
        }
    }
}

/// A cell and how many rounds its spreads are of.
struct Measured<'a> {
    cell: &'a Cell,
    bytes: usize,
    rounds: usize,
}

impl Measured<'_> {
    fn speed(&self) -> Spread {
        if self.bytes > 0 {
            return self.cell.megabytes_per_second;
        }
        let Spread { median, min, max } = self.cell.microseconds_per_call;
        Spread { median: 1e6 / median, min: 1e6 / max, max: 1e6 / min }
    }
}

fn judge(old: &Measured<'_>, new: &Measured<'_>) -> Kind {
    let rounds = old.rounds.min(new.rounds);
    let direction = direction(&old.speed(), &new.speed(), rounds);
    let kind = match direction {
        Direction::Up => Kind::Faster,
        Direction::Down => Kind::Slower,
        Direction::None => return Kind::Unchanged,
    };
    match (&old.cell.of_hand_over_limit, &new.cell.of_hand_over_limit) {
        (Some(old), Some(new)) if self::direction(old, new, rounds) != direction => {
            Kind::MovedWithMachine
        }
        _ => kind,
    }
}

/// Whether the noise of `rounds` rounds leaves two spreads apart.
pub(crate) fn is_apart(one: &Spread, other: &Spread, rounds: usize) -> bool {
    direction(one, other, rounds) != Direction::None
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
    None,
}

/// Where it went, if that is more than the noise of `rounds` rounds.
fn direction(old: &Spread, new: &Spread, rounds: usize) -> Direction {
    let (low, high, direction) = if new.median > old.median {
        (old, new, Direction::Up)
    } else {
        (new, old, Direction::Down)
    };
    let is_beyond_noise = if rounds < ROUNDS_ENOUGH {
        low.max < high.min
    } else {
        low.median < high.min && low.max < high.median
    };
    let is_enough = high.median - low.median >= CHANGE_MIN * old.median;
    if is_beyond_noise && is_enough { direction } else { Direction::None }
}

fn changes(old: &Report, new: &Report) -> Vec<Change> {
    let (old, new) = (cells(old), cells(new));
    let find = |key: &Key<'_>| old.iter().find(|(other, _)| other == key).map(|(_, cell)| cell);
    let mut changes: Vec<Change> =
        new.iter().map(|(key, cell)| Change::new(*key, find(key), Some(cell))).collect();
    let known: HashSet<Key<'_>> = new.iter().map(|(key, _)| *key).collect();
    let gone = old.iter().filter(|(key, _)| !known.contains(key));
    changes.extend(gone.map(|(key, cell)| Change::new(*key, Some(cell), None)));
    changes
}

fn cells(report: &Report) -> Vec<(Key<'_>, Measured<'_>)> {
    let mut cells = Vec::new();
    for section in &report.sections {
        let rounds = section.rounds_counted(report);
        for payload in &section.payloads {
            for cell in &payload.cells {
                let key = (&section.placement[..], payload.bytes, &cell.method[..], cell.mode);
                cells.push((key, Measured { cell, bytes: payload.bytes, rounds }));
            }
        }
    }
    cells
}

/// What must be the same for figures to be compared.
fn differences(old: &Report, new: &Report) -> Vec<String> {
    let (before, now) = (&old.machine, &new.machine);
    let or_none = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let cases = [
        ("CPU", before.cpu.clone(), now.cpu.clone()),
        ("number of CPUs", before.cpus.to_string(), now.cpus.to_string()),
        ("kernel", before.kernel.clone(), now.kernel.clone()),
        ("frequency governor", or_none(&before.governor), or_none(&now.governor)),
        (
            "setting of shmem huge pages",
            or_none(&before.shmem_huge_pages),
            or_none(&now.shmem_huge_pages),
        ),
        ("set of mitigations", before.mitigations.join(" "), now.mitigations.join(" ")),
        ("source", old.source.name().to_owned(), new.source.name().to_owned()),
        ("reader", old.consume.description().to_owned(), new.consume.description().to_owned()),
        ("way of waiting", old.wait.name().to_owned(), new.wait.name().to_owned()),
        ("kind of pages", old.pages(), new.pages()),
        ("number of calls in flight", old.in_flight.to_string(), new.in_flight.to_string()),
    ];
    let differing = cases.into_iter().filter(|(_, before, now)| before != now);
    let mut found: Vec<String> = differing
        .map(|(what, before, now)| {
            format!(
                "The {what} is another one ({before} before, {now} now): differences below may be \
                 due to that alone."
            )
        })
        .collect();
    found.extend(pairs(old, new).filter_map(|(before, now)| moved(before, now)));
    found
}

/// A placement whose threads ran elsewhere.
fn moved(old: &Section, new: &Section) -> Option<String> {
    let cpus = |section: &Section| section.threads.as_ref().map(super::report::Threads::cpus);
    let (before, now) = (cpus(old)?, cpus(new)?);
    (before != now).then(|| {
        format!(
            "{} ran on other CPUs ({before:?} before, {now:?} now): differences there may be due \
             to that alone.",
            new.placement
        )
    })
}

fn few_rounds(old: &Report, new: &Report) -> Option<String> {
    let counted = |report: &Report| {
        let measured = report.sections.iter().filter(|section| !section.payloads.is_empty());
        measured.map(|section| section.rounds_counted(report)).min()
    };
    let rounds = counted(old)?.min(counted(new)?);
    (rounds < ROUNDS_MIN).then(|| {
        format!(
            "Only {rounds} rounds count in one of the runs: chance alone makes some cells look \
             changed. Run without --quick to be sure."
        )
    })
}

/// Limits that changed beyond the noise: then it was the machine.
fn drifts(old: &Report, new: &Report) -> Vec<String> {
    let mut found = Vec::new();
    for (before, now) in pairs(old, new) {
        let rounds = before.rounds_counted(old).min(now.rounds_counted(new));
        for payload in &now.payloads {
            let other = before.payloads.iter().find(|other| other.bytes == payload.bytes);
            let drift = other.and_then(|other| drift(&now.placement, other, payload, rounds));
            found.extend(drift);
        }
    }
    found
}

fn drift(placement: &str, old: &Payload, new: &Payload, rounds: usize) -> Option<String> {
    let limits = [
        ("speed limit", &old.speed_limit, &new.speed_limit),
        ("hand-over limit", &old.hand_over_limit, &new.hand_over_limit),
    ];
    let moved: Vec<String> = limits
        .into_iter()
        .filter(|(_, old, new)| direction(old, new, rounds) != Direction::None)
        .map(|(name, old, new)| {
            format!("its {name} went from {:.0} to {:.0} MB/s", old.median, new.median)
        })
        .collect();
    (!moved.is_empty()).then(|| {
        let bytes = format_bytes(new.bytes);
        format!("The machine itself changed ({placement}, {bytes}): {}.", moved.join(", "))
    })
}

/// Placements that are in both.
fn pairs<'a>(old: &'a Report, new: &'a Report) -> impl Iterator<Item = (&'a Section, &'a Section)> {
    new.sections.iter().filter_map(|now| {
        let before = old.sections.iter().find(|before| before.placement == now.placement)?;
        Some((before, now))
    })
}

/// From so many rounds on a median stands firm enough to be held against a range.
const ROUNDS_ENOUGH: usize = 9;
/// With fewer, even ranges that don't overlap are often chance.
const ROUNDS_MIN: usize = 5;
/// Share of the old median: what two runs of the same program differ by is more.
const CHANGE_MIN: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(min: f64, median: f64, max: f64) -> Spread {
        Spread { median, min, max }
    }

    #[test]
    fn a_change_is_apart_from_the_noise() {
        let old = spread(90.0, 100.0, 115.0);
        for (new, expected) in [
            (spread(116.0, 120.0, 130.0), Direction::Up),
            // The ranges overlap by an outlier, the medians are out of them.
            (spread(101.0, 120.0, 130.0), Direction::Up),
            (spread(99.0, 120.0, 130.0), Direction::None),
            (spread(101.0, 114.0, 130.0), Direction::None),
            (spread(60.0, 80.0, 99.0), Direction::Down),
            (spread(60.0, 80.0, 101.0), Direction::None),
            (old, Direction::None),
        ] {
            assert_eq!(direction(&old, &new, 15), expected, "{new:?}");
        }
    }

    #[test]
    fn with_few_rounds_ranges_must_not_overlap() {
        let (old, new) = (spread(90.0, 100.0, 115.0), spread(110.0, 120.0, 130.0));
        assert_eq!(direction(&old, &new, ROUNDS_ENOUGH), Direction::Up);
        assert_eq!(direction(&old, &new, ROUNDS_ENOUGH - 1), Direction::None);
        assert_eq!(direction(&old, &spread(116.0, 120.0, 130.0), 3), Direction::Up);
    }

    #[test]
    fn a_small_change_is_none() {
        let old = spread(99.9, 100.0, 100.1);
        assert_eq!(direction(&old, &spread(101.4, 101.5, 101.6), 15), Direction::None);
        assert_eq!(direction(&old, &spread(97.8, 97.9, 98.0), 15), Direction::Down);
        // Nothing was measured: nothing changed.
        let nothing = spread(0.0, 0.0, 0.0);
        assert_eq!(direction(&nothing, &nothing, 15), Direction::None);
    }

    fn cell(speed: f64, share: Option<f64>) -> Cell {
        let around = |median: f64| spread(median * 0.95, median, median * 1.05);
        Cell {
            method: "sidecar".into(),
            mode: Mode::Direct,
            megabytes_per_second: around(speed),
            microseconds_per_call: around(1e6 / speed),
            of_speed_limit: None,
            of_hand_over_limit: share.map(around),
            of_twin: None,
            of_best: None,
            latency: None,
            cost: None,
            lane: None,
            calls: 1,
            mappings_reused: 0,
        }
    }

    fn judged(bytes: usize, old: &Cell, new: &Cell) -> Kind {
        let measured = |cell| Measured { cell, bytes, rounds: 15 };
        judge(&measured(old), &measured(new))
    }

    #[test]
    fn the_share_of_the_hand_over_limit_is_a_witness() {
        let old = cell(1000.0, Some(0.5));
        assert_eq!(judged(1, &old, &cell(2000.0, Some(0.9))), Kind::Faster);
        assert_eq!(judged(1, &old, &cell(500.0, Some(0.2))), Kind::Slower);
        assert_eq!(judged(1, &old, &cell(2000.0, Some(0.5))), Kind::MovedWithMachine);
        assert_eq!(judged(1, &old, &cell(2000.0, Some(0.2))), Kind::MovedWithMachine);
        assert_eq!(judged(1, &old, &cell(1000.0, Some(0.9))), Kind::Unchanged);
        assert_eq!(judged(1, &cell(1000.0, None), &cell(2000.0, None)), Kind::Faster);
    }

    #[test]
    fn empty_payloads_are_judged_by_their_calls() {
        let (old, mut new) = (cell(1000.0, None), cell(2000.0, None));
        new.megabytes_per_second = old.megabytes_per_second;
        assert_eq!(judged(0, &old, &new), Kind::Faster);
        assert_eq!(judged(0, &new, &old), Kind::Slower);
    }
}
