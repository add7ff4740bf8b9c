//! A report as tables, and where it goes.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use bytesize::ByteSize;
use comfy_table::{CellAlignment, Table as Grid, TableStyle, presets};

use crate::options::Options;
use crate::report::{Cell, Report, Table};
use crate::statistics::Spread;

/// Prints the report, and writes the files that were asked for.
pub(crate) fn write(report: &Report, options: &Options) -> Result<()> {
    print!("{}", render(report, presets::UTF8_BORDERS_ONLY, ""));
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(report)? + "\n";
        fs::write(path, text).with_context(|| format!("can't write {}", path.display()))?;
    }
    if let Some(path) = &options.markdown {
        let text = render(report, presets::ASCII_MARKDOWN, "## ");
        fs::write(path, text).with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(())
}

fn render(report: &Report, style: TableStyle, heading: &str) -> String {
    let mut text = String::new();
    for line in &report.head {
        let bullet = if heading.is_empty() { "" } else { "- " };
        writeln!(text, "{bullet}{line}").ok();
    }
    if !report.left_out.is_empty() {
        writeln!(text, "\nLeft out of this build: {}", report.left_out.join(", ")).ok();
    }
    let mut add = |title: String, mut grid: Grid| {
        grid.load_style(style);
        write!(text, "\n{heading}{title}\n\n{grid}\n").ok();
    };
    for table in &report.tables {
        let place = format!("{}, {} in flight", table.placement.name(), table.in_flight);
        add(format!("{place}: µs per call, median (min–max)"), grid(table, time));
        for reference in table.references() {
            let title = format!("{place}: times as long as {reference}, median (min–max)");
            add(title, grid(table, |cell| cell.ratios.get(reference).map(ratio)));
        }
    }
    add("What each row is".to_owned(), legend(report));
    text
}

/// A row for each variant, a column for each size. What failed says so in the first table and in
/// all others.
fn grid(table: &Table, show: impl Fn(&Cell) -> Option<String>) -> Grid {
    let mut grid = Grid::new();
    let sizes = table.sizes_bytes.iter().map(|&bytes| size(bytes));
    grid.set_header(std::iter::once("peer".to_owned()).chain(sizes));
    for row in &table.rows {
        let cells = row.cells.iter().map(|cell| told(cell, &show));
        grid.add_row(std::iter::once(row.name.clone()).chain(cells));
    }
    for column in grid.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    grid
}

/// With a whole number, as it is typed.
fn size(bytes: usize) -> String {
    ByteSize(bytes as u64).to_string().replace(".0 ", " ")
}

fn told(cell: &Cell, show: impl Fn(&Cell) -> Option<String>) -> String {
    let said = cell.said.as_deref().map(short);
    let parts: Vec<String> = show(cell).into_iter().chain(said).collect();
    if parts.is_empty() { "–".to_owned() } else { parts.join(", then ") }
}

/// The beginning of a long message, without what would end a cell of Markdown.
fn short(text: &str) -> String {
    let line = text.replace(['|', '\n'], " ");
    if line.chars().count() <= SAID_CHARS_MAX {
        return line;
    }
    line.chars().take(SAID_CHARS_MAX - 1).chain(['…']).collect()
}

fn time(cell: &Cell) -> Option<String> {
    cell.time_us.as_ref().map(spread)
}

fn ratio(ratio: &Spread) -> String {
    spread(ratio)
}

fn spread(Spread { median, min, max }: &Spread) -> String {
    format!("{} ({}–{})", digits(*median), digits(*min), digits(*max))
}

/// Three digits that count.
fn digits(value: f64) -> String {
    match value {
        ..0.1 => format!("{value:.3}"),
        0.1..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn legend(report: &Report) -> Grid {
    let mut grid = Grid::new();
    grid.set_header(["peer", "version", "what it is"]);
    for row in &report.variants {
        let package = row.package.zip(row.version.as_deref());
        let version =
            package.map_or("–".to_owned(), |(name, version)| format!("{name} {version}"));
        grid.add_row([&row.name, &version, row.about]);
    }
    grid
}

const SAID_CHARS_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_count() {
        let shown: Vec<String> = [0.0164, 0.164, 9.5, 12.34, 1234.5].map(digits).into();
        assert_eq!(shown, ["0.016", "0.16", "9.50", "12.3", "1234"]);
    }

    #[test]
    fn a_cell_tells_what_it_has_and_why_it_has_no_more() {
        let time_us = Spread::of(&[Some(1.0)]);
        let said = Some("hangs | here".to_owned());
        let cell = Cell { time_us, said, ..Cell::default() };
        assert_eq!(told(&cell, time), "1.00 (1.00–1.00), then hangs   here");
        assert_eq!(told(&Cell::default(), time), "–");
    }

    #[test]
    fn sizes_are_shown_as_they_are_typed() {
        let shown: Vec<String> = [0, 4 << 10, 1 << 20, 1536].map(size).into();
        assert_eq!(shown, ["0 B", "4 KiB", "1 MiB", "1.5 KiB"]);
    }

    #[test]
    fn a_long_message_is_cut() {
        let cut = short(&"x".repeat(100));
        assert_eq!(cut.chars().count(), SAID_CHARS_MAX);
        assert!(cut.ends_with('…'));
    }
}
