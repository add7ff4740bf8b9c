//! To paste into an issue: the machine, a table for each placement and payload, what it means.

use std::io::{self, Write};

use super::columns::{self, Column, Value};
use super::{JUDGING, Results, counts, number, origin, percent, verdict};
use crate::bench::compare::{Change, Comparison};
use crate::bench::plan::format_bytes;
use crate::bench::report::{Payload, Report, Section};
use crate::bench::stats::Spread;

pub(in crate::bench) fn write(output: &mut impl Write, results: &Results<'_>) -> io::Result<()> {
    let &Results { report, comparison } = results;
    write_head(output, report)?;
    for verdict in verdict::verdicts(report) {
        writeln!(output, "- {}", escape(&verdict.to_string()))?;
    }
    if let Some(comparison) = comparison {
        write_comparison(output, comparison)?;
    }
    for section in &report.sections {
        write_section(output, section)?;
    }
    write_meanings(output, report)
}

fn write_head(output: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(output, "## shorthaul bench: {}\n", escape(&report.machine.to_string()))?;
    let dropped = match report.rounds_dropped {
        0 => String::new(),
        count => format!(", {count} dropped"),
    };
    writeln!(
        output,
        "shorthaul {}, {}, {} rounds{dropped}, {:.0} s, {} in flight. \
         Writer: {}; {}; {}; pages: {}.\n\n    shorthaul {}\n",
        escape(&report.version),
        escape(&report.date),
        report.rounds,
        report.seconds,
        report.in_flight,
        report.source.description(),
        report.consume.description(),
        report.wait.description(),
        report.pages(),
        one_line(&report.command_line),
    )?;
    for warning in &report.warnings {
        writeln!(output, "> **Warning:** {}\n", escape(warning))?;
    }
    Ok(())
}

fn write_section(output: &mut impl Write, section: &Section) -> io::Result<()> {
    writeln!(output, "\n### {}\n", escape(&section.placement))?;
    if let Some(why_not) = &section.why_not {
        return writeln!(output, "This machine can't do it: {}.", escape(why_not));
    }
    if let Some(threads) = &section.threads {
        let [client, c_rx, s_rx, worker] =
            [&threads.client, &threads.client_reactor, &threads.server_reactor, &threads.worker]
                .map(|thread| escape(&thread.place));
        writeln!(
            output,
            "Client {client}, c-rx {c_rx}, s-rx {s_rx}, worker {worker}; in direct mode client \
             {client} and server {worker}."
        )?;
    }
    if let Some(empty) = &section.empty_call {
        writeln!(
            output,
            "Empty call: direct {:.1} µs ({:.2} × a bare socketpair's {:.1} µs), threads {:.1} µs.",
            empty.direct_us.median,
            empty.direct_ratio.median,
            empty.ping_pong_us.median,
            empty.threads_us.median,
        )?;
    }
    if let Some(Spread { median, .. }) = section.harness_ns {
        writeln!(output, "The harness itself: {median:.0} ns a call.")?;
    }
    for (index, round) in section.rounds.iter().enumerate() {
        if let Some(why) = &round.dropped {
            writeln!(output, "Round {} doesn't count: {}.", index + 1, escape(why))?;
        }
    }
    section.payloads.iter().try_for_each(|payload| write_payload(output, payload))
}

fn write_payload(output: &mut impl Write, payload: &Payload) -> io::Result<()> {
    write!(output, "\n**{}**", format_bytes(payload.bytes))?;
    if payload.bytes > 0 {
        let limit = |Spread { median, min, max }: Spread| {
            let digits = if median < 1.0 { 3 } else { 0 };
            format!("{median:.digits$} MB/s ({min:.digits$}–{max:.digits$})")
        };
        let (speed, hand_over) = (limit(payload.speed_limit), limit(payload.hand_over_limit));
        write!(output, ": speed limit {speed}, hand-over limit {hand_over}")?;
    }
    let columns: Vec<&Column> =
        columns::of(payload).into_iter().filter(|column| !column.is_detail).collect();
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    writeln!(output, "\n\n| method | mode | {} |", names.join(" | "))?;
    writeln!(output, "|---|---|{}", "---:|".repeat(columns.len()))?;
    let best = payload.best().map(|best| (&best.method, best.mode));
    for cell in &payload.cells {
        let strong = if best == Some((&cell.method, cell.mode)) { "**" } else { "" };
        write!(output, "| {strong}`{}`{strong} | {} |", code(&cell.method), cell.mode.name())?;
        for column in &columns {
            let value = (column.of)(payload, cell);
            let text = value.as_ref().map_or_else(String::new, Value::plain);
            write!(output, " {} |", escape(&text))?;
        }
        writeln!(output)?;
    }
    Ok(())
}

fn write_comparison(output: &mut impl Write, comparison: &Comparison) -> io::Result<()> {
    writeln!(output, "\n### Compared with {}\n", escape(&origin(comparison)))?;
    for caution in &comparison.cautions {
        writeln!(output, "> **Warning:** {}\n", escape(caution))?;
    }
    writeln!(output, "**{}.** {JUDGING}\n", counts(comparison))?;
    let changes = comparison.beyond_noise();
    if changes.is_empty() {
        return writeln!(output, "Nothing changed beyond the noise.");
    }
    writeln!(output, "| placement | payload | method | mode | old | new | change | |")?;
    writeln!(output, "|---|---|---|---|---:|---:|---:|---|")?;
    changes.into_iter().try_for_each(|change| write_change(output, change))
}

fn write_change(output: &mut impl Write, change: &Change) -> io::Result<()> {
    let median = |spread: &Option<Spread>| {
        spread.map_or_else(String::new, |spread| {
            format!("{} {}", number::pretty(spread.median), change.unit)
        })
    };
    writeln!(
        output,
        "| {} | {} | `{}` | {} | {} | {} | {} | {} |",
        escape(&change.placement),
        format_bytes(change.bytes),
        code(&change.method),
        change.mode.name(),
        median(&change.old),
        median(&change.new),
        percent(change),
        change.kind.name(),
    )
}

/// What the columns mean, folded away.
fn write_meanings(output: &mut impl Write, report: &Report) -> io::Result<()> {
    let payloads = || report.sections.iter().flat_map(|section| &section.payloads);
    let shown = columns::COLUMNS.iter().filter(|column| {
        let names = |payload| columns::of(payload).iter().any(|other| other.name == column.name);
        !column.is_detail && payloads().any(names)
    });
    writeln!(output, "\n<details><summary>What the columns mean</summary>\n")?;
    for column in shown {
        writeln!(output, "- **{}**: {}.", column.name, column.meaning)?;
    }
    writeln!(output, "\n</details>")
}

/// Text that means itself: what Markdown, or HTML in it, would take for markup is escaped.
pub(in crate::bench) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for letter in one_line(text).chars() {
        match letter {
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '&' => escaped += "&amp;",
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '#' | '~' | '!' => {
                escaped.extend(['\\', letter]);
            }
            _ => escaped.push(letter),
        }
    }
    escaped
}

/// A name between backticks, in a table.
pub(in crate::bench) fn code(name: &str) -> String {
    one_line(name).replace('`', "'").replace('|', "\\|")
}

pub(in crate::bench) fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}
