//! What was measured, and what follows from it.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use crate::cell::Outcome;
use crate::options::Placement;
use crate::statistics::Spread;
use crate::variant::Variant;
use crate::versions::versions;

/// Everything of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Where, by what and how.
    pub(crate) head: Vec<String>,
    /// Features that this program was built without.
    pub(crate) left_out: Vec<&'static str>,
    pub(crate) variants: Vec<Described>,
    pub(crate) tables: Vec<Table>,
}

/// What a row is.
#[derive(Debug, Serialize)]
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) about: &'static str,
    pub(crate) package: Option<&'static str>,
    pub(crate) version: Option<String>,
}

/// All variants at all sizes, in one placement.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) placement: Placement,
    pub(crate) in_flight: usize,
    pub(crate) sizes_bytes: Vec<usize>,
    pub(crate) rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// One for each size.
    pub(crate) cells: Vec<Cell>,
}

/// A variant at a size.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Cell {
    /// Microseconds for each call, round by round.
    pub(crate) times_us: Vec<Option<f64>>,
    /// Why there are none, or no more.
    pub(crate) said: Option<String>,
    pub(crate) time_us: Option<Spread>,
    /// How many times as long it takes as each reference does, in the same round.
    pub(crate) ratios: BTreeMap<&'static str, Spread>,
}

impl Report {
    pub(crate) fn new(
        head: Vec<String>,
        variants: &[Variant],
        mut tables: Vec<Table>,
    ) -> Result<Self> {
        let versions = versions()?;
        let describe = |variant: &Variant| {
            let package = variant.peer.package();
            let version = package.and_then(|name| versions.get(name).cloned());
            let name = variant.name.clone();
            Described { name, about: variant.peer.about(), package, version }
        };
        let variants = variants.iter().map(describe).collect();
        tables.iter_mut().for_each(Table::conclude);
        Ok(Self { head, left_out: crate::peers::left_out(), variants, tables })
    }
}

impl Table {
    pub(crate) fn new(
        placement: Placement,
        in_flight: usize,
        sizes_bytes: &[usize],
        variants: &[Variant],
    ) -> Self {
        let cells = vec![Cell::default(); sizes_bytes.len()];
        let row = |variant: &Variant| Row { name: variant.name.clone(), cells: cells.clone() };
        let rows = variants.iter().map(row).collect();
        Self { placement, in_flight, sizes_bytes: sizes_bytes.to_vec(), rows }
    }

    pub(crate) fn cell(&mut self, row: usize, column: usize) -> &mut Cell {
        &mut self.rows[row].cells[column]
    }

    /// Which rows the others are compared with, of those that have something.
    pub(crate) fn references(&self) -> Vec<&'static str> {
        let has_times = |name: &&str| {
            let row = self.rows.iter().find(|row| row.name == *name);
            row.is_some_and(|row| row.cells.iter().any(|cell| cell.time_us.is_some()))
        };
        REFERENCES.into_iter().filter(has_times).collect()
    }

    fn conclude(&mut self) {
        for cell in self.rows.iter_mut().flat_map(|row| &mut row.cells) {
            cell.time_us = Spread::of(&cell.times_us);
        }
        for reference in self.references() {
            let Some(by) = self.rows.iter().find(|row| row.name == reference) else { continue };
            let by: Vec<_> = by.cells.iter().map(|cell| cell.times_us.clone()).collect();
            for row in &mut self.rows {
                for (cell, by) in row.cells.iter_mut().zip(&by) {
                    let ratio = Spread::of_ratios(&cell.times_us, by);
                    cell.ratios.extend(ratio.map(|ratio| (reference, ratio)));
                }
            }
        }
    }
}

impl Cell {
    /// Takes down what came of the next round.
    pub(crate) fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Time(seconds) => self.times_us.push(Some(seconds * 1e6)),
            Outcome::Failed(why) => {
                self.times_us.push(None);
                self.said = Some(why);
            }
        }
    }
}

/// What a user gets, and what the machine could do.
const REFERENCES: [&str; 7] = [
    "shorthaul",
    "shorthaul block",
    "shorthaul spin",
    "shorthaul threads",
    "bare spin",
    "bare eventfd",
    "bare futex",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn table(names: &[&str]) -> Table {
        let row = |name: &&str| Row { name: (*name).to_owned(), cells: vec![Cell::default()] };
        let rows = names.iter().map(row).collect();
        Table { placement: Placement::CrossCore, in_flight: 1, sizes_bytes: vec![0], rows }
    }

    #[test]
    fn rivals_are_compared_with_what_was_measured_in_the_same_round() {
        let mut table = table(&["shorthaul", "pigeon"]);
        for seconds in [1.0, 2.0] {
            table.cell(0, 0).add(Outcome::Time(seconds));
            table.cell(1, 0).add(Outcome::Time(3.0 * seconds));
        }
        table.conclude();
        assert_eq!(table.references(), ["shorthaul"]);
        let ratio = table.rows[1].cells[0].ratios["shorthaul"];
        assert_eq!((ratio.min, ratio.max), (3.0, 3.0));
        assert_eq!(table.rows[1].cells[0].time_us.unwrap().max, 6e6);
    }

    #[test]
    fn who_has_failed_says_why_and_keeps_what_it_had() {
        let mut table = table(&["shorthaul"]);
        table.cell(0, 0).add(Outcome::Time(1.0));
        table.cell(0, 0).add(Outcome::Failed("hangs".to_owned()));
        table.conclude();
        let cell = &table.rows[0].cells[0];
        assert_eq!(cell.said.as_deref(), Some("hangs"));
        assert_eq!(cell.time_us.unwrap().median, 1e6);
    }
}
