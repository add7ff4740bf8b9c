//! A result in several forms. Exporters format; they measure and compute nothing.

mod columns;
pub(super) mod csv;
pub(super) mod html;
#[cfg(test)]
mod invented;
pub(super) mod json;
pub(super) mod markdown;
pub(super) mod number;
pub(super) mod seed;
pub(super) mod table;
#[cfg(test)]
mod tests;
mod verdict;

use super::compare::{Change, Comparison, Kind};
use super::report::Report;

/// What is written.
pub(super) struct Results<'a> {
    pub(super) report: &'a Report,
    /// With an earlier run.
    pub(super) comparison: Option<&'a Comparison>,
}

/// `3 faster, 1 slower, …`: what there is none of is left out, but for faster and slower.
fn counts(comparison: &Comparison) -> String {
    let counts = Kind::ALL.iter().filter_map(|&kind| {
        let count = comparison.count(kind);
        let is_shown = count > 0 || matches!(kind, Kind::Faster | Kind::Slower);
        is_shown.then(|| format!("{count} {}", kind.name()))
    });
    counts.collect::<Vec<_>>().join(", ")
}

/// Which run it is compared with.
fn origin(comparison: &Comparison) -> String {
    let old = &comparison.old;
    format!("the run of {} ({}: shorthaul {})", old.date, old.version, old.command_line)
}

/// How much a cell changed.
fn percent(change: &Change) -> String {
    change.ratio.map_or_else(|| "-".to_owned(), number::change)
}

/// How a change is judged; what is said beside every list of them.
const JUDGING: &str = "\
A cell counts as faster or slower if each run's median lies outside the other run's min–max \
(with under 9 rounds: if the ranges don't overlap), by 2 % at least, and its share of the \
hand-over limit says the same. If the share doesn't, the cell moved with the machine.";
