//! To paste into an issue: the machine, a table for each crowd of clients, what it means.

use std::io::{self, Write};

use super::columns::{self, COLUMNS, Column, share};
use super::scaling::{self, MEANING};
use super::{heading, mib, setting};
use crate::bench::export::markdown::{code, escape, one_line};
use crate::bench::export::number;
use crate::bench::plan::format_bytes;
use crate::bench::relay::report::{Cell, Figures, Group, RelayReport};
use crate::bench::relay::sink::clients;

pub(in crate::bench) fn write(output: &mut impl Write, report: &RelayReport) -> io::Result<()> {
    write_head(output, report)?;
    if report.settings.is_scaling {
        for chunk_bytes in report.chunks() {
            write_scaling(output, report, chunk_bytes)?;
        }
        writeln!(output, "\n{MEANING}")?;
    }
    for group in &report.groups {
        write_group(output, group)?;
    }
    write_meanings(output)
}

fn write_head(output: &mut impl Write, report: &RelayReport) -> io::Result<()> {
    writeln!(output, "## shorthaul bench relay: {}\n", escape(&report.machine.to_string()))?;
    writeln!(
        output,
        "shorthaul {}, {}, rounds: {}, {:.0} s. {}.\n\n    shorthaul {}\n",
        escape(&report.version),
        escape(&report.date),
        report.rounds,
        report.seconds,
        escape(&setting(report)),
        one_line(&report.command_line),
    )?;
    for warning in &report.warnings {
        writeln!(output, "> **Warning:** {}\n", escape(warning))?;
    }
    Ok(())
}

fn write_scaling(
    output: &mut impl Write,
    report: &RelayReport,
    chunk_bytes: usize,
) -> io::Result<()> {
    let counts = scaling::counts(report, chunk_bytes);
    let names: Vec<String> = counts.iter().map(|&count| clients(count)).collect();
    writeln!(output, "\n### Scaling, chunks of {}\n", format_bytes(chunk_bytes))?;
    writeln!(output, "| method | on | {} |", names.join(" | "))?;
    writeln!(output, "|---|---|{}", "---:|".repeat(counts.len()))?;
    for row in scaling::rows(report, chunk_bytes) {
        let values = row.figures.iter().map(|figures| figures.map_or("—".into(), together));
        let values = values.collect::<Vec<String>>().join(" | ");
        writeln!(output, "| `{}` | {} | {values} |", code(row.method), row.what())?;
    }
    Ok(())
}

fn together(figures: &Figures) -> String {
    let speed = number::pretty(mib(figures.bytes_per_second.median));
    match figures.efficiency {
        Some(efficiency) => format!("{speed} ({})", share(efficiency.median)),
        None => speed,
    }
}

fn write_group(output: &mut impl Write, group: &Group) -> io::Result<()> {
    let [median, min, max] = [group.copy_limit.median, group.copy_limit.min, group.copy_limit.max]
        .map(|limit| number::pretty(mib(limit)));
    writeln!(output, "\n### {}\n", heading(group))?;
    writeln!(output, "Memory-copy limit {median} MiB/s ({min}–{max}).\n")?;
    let columns = columns::of(group);
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    let names: String = names.iter().map(|name| format!(" {name} |")).collect();
    writeln!(output, "| method |{names} what it measures |")?;
    writeln!(output, "|---|{}---|", "---:|".repeat(columns.len()))?;
    group.cells.iter().try_for_each(|cell| write_cell(output, group, cell, &columns))
}

fn write_cell(
    output: &mut impl Write,
    group: &Group,
    cell: &Cell,
    columns: &[&Column],
) -> io::Result<()> {
    write!(output, "| `{}` |", code(&cell.method))?;
    for column in columns {
        let value = cell.figures.as_ref().and_then(|figures| (column.of)(group, figures));
        let value = value.map_or_else(|| "—".to_owned(), |value| value.plain());
        write!(output, " {value} |")?;
    }
    match &cell.why_not {
        Some(why) => writeln!(output, " can't: {} |", escape(why)),
        None => writeln!(output, " {} |", escape(&cell.meaning)),
    }
}

/// What the columns mean, folded away.
fn write_meanings(output: &mut impl Write) -> io::Result<()> {
    writeln!(output, "\n<details><summary>What the columns mean</summary>\n")?;
    for column in &COLUMNS {
        writeln!(output, "- **{}**: {}.", column.name, column.meaning)?;
    }
    writeln!(output, "\n</details>")
}
