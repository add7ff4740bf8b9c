//! The figures of several numbers of clients, side by side.

use crate::bench::relay::report::{Figures, Group, RelayReport};
use crate::bench::relay::sink::Files;

/// A row: one method on one file, or on a file each.
pub(super) struct Row<'a> {
    pub(super) method: &'a str,
    pub(super) files: Files,
    /// For each number of clients.
    pub(super) figures: Vec<Option<&'a Figures>>,
}

impl Row<'_> {
    /// `one file`, `a file each`.
    pub(super) fn what(&self) -> &'static str {
        self.files.description(2)
    }
}

/// The numbers of clients with these chunks.
pub(super) fn counts(report: &RelayReport, chunk_bytes: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = groups(report, chunk_bytes).map(|group| group.clients).collect();
    counts.dedup();
    counts
}

/// Each method twice: on one file, and on a file each.
pub(super) fn rows(report: &RelayReport, chunk_bytes: usize) -> Vec<Row<'_>> {
    let counts = counts(report, chunk_bytes);
    let Some(first) = groups(report, chunk_bytes).next() else { return Vec::new() };
    let mut rows = Vec::new();
    for cell in &first.cells {
        for files in [Files::Shared, Files::Own] {
            let method = &cell.method[..];
            let find = |&clients: &usize| {
                let is_it = |group: &&Group| {
                    // One client has one file, whichever way that is called.
                    group.clients == clients && (clients == 1 || group.files == files)
                };
                let group = groups(report, chunk_bytes).find(is_it)?;
                group.cell(method)?.figures.as_ref()
            };
            rows.push(Row { method, files, figures: counts.iter().map(find).collect() });
        }
    }
    rows
}

fn groups(report: &RelayReport, chunk_bytes: usize) -> impl Iterator<Item = &Group> {
    report.groups.iter().filter(move |group| group.chunk_bytes == chunk_bytes)
}

/// What is said beside every such table.
pub(super) const MEANING: &str = "\
All clients together in MiB/s, and in brackets the efficiency: their share of so many times what \
one client did alone in the same round. On one file they share its pages and what the kernel keeps \
for it; with a file each they share neither.";
