//! For people: a table for each crowd of clients, what it means below.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};

use super::columns::{self, COLUMNS, Column, share};
use super::scaling::{self, MEANING, Row};
use super::{heading, mib, setting, wrapped};
use crate::bench::plan::format_bytes;
use crate::bench::relay::report::{Figures, Group, RelayReport};
use crate::bench::relay::sink::clients;

pub(in crate::bench) fn write(output: &mut impl Write, report: &RelayReport) -> io::Result<()> {
    write_head(output, report)?;
    if report.settings.is_scaling {
        for chunk_bytes in report.chunks() {
            writeln!(output, "# Scaling, chunks of {}", format_bytes(chunk_bytes))?;
            writeln!(output, "{}\n", scaling_table(report, chunk_bytes).trim_fmt())?;
        }
        writeln!(output, "{}\n", wrapped(MEANING, ""))?;
    }
    for group in &report.groups {
        let limit = copy_limit(group);
        writeln!(output, "# {} · memory-copy limit {limit}", heading(group))?;
        writeln!(output, "{}\n", table(group).trim_fmt())?;
    }
    write_meanings(output, report)
}

fn write_head(output: &mut impl Write, report: &RelayReport) -> io::Result<()> {
    let rounds = match report.rounds {
        1 => "1 round".to_owned(),
        count => format!("{count} rounds"),
    };
    writeln!(
        output,
        "{}\nshorthaul {} bench relay, {}; {rounds} in {:.0} s; medians (min–max); MiB are 2^20 \
         bytes, GB 10^9",
        report.machine, report.version, report.date, report.seconds
    )?;
    writeln!(output, "command: shorthaul {}", report.command_line)?;
    writeln!(output, "{}", wrapped(&setting(report), "  "))?;
    for warning in &report.warnings {
        writeln!(output, "{}", wrapped(&format!("WARNING: {warning}"), "  "))?;
    }
    writeln!(output)
}

fn copy_limit(group: &Group) -> String {
    let [median, min, max] = [group.copy_limit.median, group.copy_limit.min, group.copy_limit.max]
        .map(|limit| limit / f64::from(1 << 30));
    format!("{median:.1} GiB/s ({min:.1}–{max:.1})")
}

fn table(group: &Group) -> Table {
    let columns = columns::of(group);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let names = columns.iter().map(|column| column.name);
    table.set_header(std::iter::once("method").chain(names).chain(["what it measures"]));
    for cell in &group.cells {
        let value = |column: &&Column| match &cell.figures {
            Some(figures) => {
                (column.of)(group, figures).map_or_else(|| "-".into(), |value| value.plain())
            }
            None => "—".to_owned(),
        };
        let said = match &cell.why_not {
            Some(why) => format!("can't: {why}"),
            None => cell.meaning.clone(),
        };
        let row = std::iter::once(cell.method.clone()).chain(columns.iter().map(value));
        table.add_row(row.chain([said]));
    }
    align(&mut table, &[0, columns.len() + 1]);
    table
}

fn scaling_table(report: &RelayReport, chunk_bytes: usize) -> Table {
    let counts = scaling::counts(report, chunk_bytes);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let names = counts.iter().map(|&count| clients(count));
    table.set_header(["method".to_owned(), "on".to_owned()].into_iter().chain(names));
    for row in scaling::rows(report, chunk_bytes) {
        table.add_row(scaling_row(&row));
    }
    align(&mut table, &[0, 1]);
    table
}

fn scaling_row(row: &Row<'_>) -> Vec<String> {
    let value = |figures: &Option<&Figures>| figures.map_or_else(|| "—".to_owned(), together);
    let names = [row.method.to_owned(), row.what().to_owned()];
    names.into_iter().chain(row.figures.iter().map(value)).collect()
}

/// `32589 (98.1 %)`.
fn together(figures: &Figures) -> String {
    let speed = mib(figures.bytes_per_second.median);
    let efficiency = figures.efficiency.map(|efficiency| share(efficiency.median));
    format!("{speed:.0} ({})", efficiency.as_deref().unwrap_or("-"))
}

fn align(table: &mut Table, texts: &[usize]) {
    for (index, column) in table.column_iter_mut().enumerate() {
        let is_text = texts.contains(&index);
        column.set_cell_alignment(if is_text { CellAlignment::Left } else { CellAlignment::Right });
        column.set_padding((0, 2));
    }
}

fn write_meanings(output: &mut impl Write, report: &RelayReport) -> io::Result<()> {
    let shown = |column: &&Column| {
        report.groups.iter().any(|group| columns::of(group).iter().any(|c| c.name == column.name))
    };
    for column in COLUMNS.iter().filter(shown) {
        let said = format!("{}: {}.", column.name, column.meaning);
        writeln!(output, "{}", wrapped(&said, "  "))?;
    }
    Ok(())
}
