//! For people: a table a placement and payload, both limits above it, what it means below.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};

use super::columns::{self, Column, Value};
use super::{JUDGING, Results, counts, origin, percent, verdict};
use crate::bench::compare::{Change, Comparison, Kind};
use crate::bench::method::{LEGEND, LEGEND_MORE};
use crate::bench::plan::format_bytes;
use crate::bench::report::{Cell, EmptyCall, Payload, Report, Section, Threads};
use crate::bench::session::Mode;
use crate::bench::stats::Spread;

pub(in crate::bench) fn write(output: &mut impl Write, results: &Results<'_>) -> io::Result<()> {
    let &Results { report, comparison } = results;
    write_head(output, report)?;
    writeln!(output, "{LEGEND}\nBeside the original's methods:\n{LEGEND_MORE}\n{MODES}")?;
    for section in &report.sections {
        write_section(output, section)?;
    }
    for sentence in verdict::sentences(report) {
        writeln!(output, "{sentence}")?;
    }
    match comparison {
        Some(comparison) => write_comparison(output, comparison),
        None => Ok(()),
    }
}

fn write_head(output: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(output, "{}", report.machine)?;
    let dropped = match report.rounds_dropped {
        0 => String::new(),
        count => format!(" ({count} dropped)"),
    };
    writeln!(
        output,
        "shorthaul {} bench, {}; {} rounds{dropped} in {:.0} s; medians (min–max); \
         MB are 10^6 bytes",
        report.version, report.date, report.rounds, report.seconds
    )?;
    writeln!(output, "command: shorthaul {}", report.command_line)?;
    let (source, reader) = (report.source.description(), report.consume.description());
    let (wait, pages) = (report.wait.description(), report.pages());
    writeln!(output, "writer: {source}; {reader}; {wait}; pages: {pages}")?;
    if report.in_flight != 1 {
        writeln!(output, "calls in flight: {}", report.in_flight)?;
    }
    for warning in &report.warnings {
        writeln!(output, "WARNING: {warning}")?;
    }
    writeln!(output)
}

fn write_section(output: &mut impl Write, section: &Section) -> io::Result<()> {
    writeln!(output, "# {}", section.placement)?;
    if let Some(why_not) = &section.why_not {
        return writeln!(output, "This machine can't do it: {why_not}\n");
    }
    write_rounds(output, section)?;
    if let Some(empty) = &section.empty_call {
        write_empty_call(output, empty)?;
    }
    if let Some(Spread { median, min, max }) = section.harness_ns {
        writeln!(output, "The harness itself: {median:.0} ns a call ({min:.0}–{max:.0})")?;
    }
    let Some(threads) = &section.threads else {
        return Ok(());
    };
    for payload in &section.payloads {
        write_limits(output, payload)?;
        writeln!(output, "{}\n", table(payload, threads))?;
    }
    Ok(())
}

/// The spin round trip of each round; a round in brackets doesn't count.
fn write_rounds(output: &mut impl Write, section: &Section) -> io::Result<()> {
    if section.rounds.is_empty() {
        return Ok(());
    }
    let trips = section.rounds.iter().map(|round| match &round.dropped {
        None => format!("{:.2}", round.spin_us),
        Some(_) => format!("[{:.2}]", round.spin_us),
    });
    let trips = trips.collect::<Vec<_>>().join(" ");
    writeln!(output, "Spin round trip in each round, µs; [dropped]: {trips}")?;
    for (index, round) in section.rounds.iter().enumerate() {
        if let Some(why) = &round.dropped {
            writeln!(output, "Round {} doesn't count: {why}", index + 1)?;
        }
    }
    Ok(())
}

fn write_empty_call(output: &mut impl Write, empty: &EmptyCall) -> io::Result<()> {
    writeln!(
        output,
        "Empty call (64 B in, 8 B out): direct {:.1} µs, {:.2} × a bare socketpair's {:.1} µs \
         ({:.2}–{:.2}); threads {:.1} µs",
        empty.direct_us.median,
        empty.direct_ratio.median,
        empty.ping_pong_us.median,
        empty.direct_ratio.min,
        empty.direct_ratio.max,
        empty.threads_us.median,
    )
}

fn write_limits(output: &mut impl Write, payload: &Payload) -> io::Result<()> {
    let (bytes, speed) = (format_bytes(payload.bytes), gigabytes(&payload.speed_limit));
    if payload.bytes == 0 {
        return writeln!(output, "Payload {bytes}");
    }
    let hand_over = gigabytes(&payload.hand_over_limit);
    writeln!(output, "Payload {bytes} · speed limit {speed} · hand-over limit {hand_over}")
}

fn table(payload: &Payload, threads: &Threads) -> Table {
    let columns: Vec<&Column> = columns::of(payload).into_iter().filter(is_shown).collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let names = columns.iter().map(|column| column.name);
    table.set_header(["method", "client", "c-rx", "s-rx", "worker"].into_iter().chain(names));
    for mode in Mode::ALL {
        for cell in payload.cells.iter().filter(|cell| cell.mode == mode) {
            let values = columns.iter().map(|column| {
                let value = (column.of)(payload, cell);
                value.as_ref().map_or_else(|| "-".to_owned(), Value::plain)
            });
            table.add_row(places(cell, threads).into_iter().chain(values));
        }
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        let is_place = (1..=4).contains(&index);
        let is_text = is_place || index.checked_sub(5).is_some_and(|i| columns[i].name == "lane");
        column.set_cell_alignment(if is_text { CellAlignment::Left } else { CellAlignment::Right });
        column.set_padding((0, 1));
    }
    table
}

fn is_shown(column: &&Column) -> bool {
    !column.is_detail
}

fn places(cell: &Cell, threads: &Threads) -> [String; 5] {
    let is_direct = cell.mode == Mode::Direct;
    let unless_direct = |place: &str| {
        if is_direct { "-".to_owned() } else { place.to_owned() }
    };
    [
        cell.method.clone(),
        threads.client.place.clone(),
        unless_direct(&threads.client_reactor.place),
        if is_direct { &threads.worker.place } else { &threads.server_reactor.place }.clone(),
        unless_direct(&threads.worker.place),
    ]
}

fn write_comparison(output: &mut impl Write, comparison: &Comparison) -> io::Result<()> {
    writeln!(output, "\n# Compared with {}", origin(comparison))?;
    for caution in &comparison.cautions {
        writeln!(output, "WARNING: {caution}")?;
    }
    writeln!(output, "{}\n{JUDGING}\n", counts(comparison))?;
    let changes = comparison.beyond_noise();
    if changes.is_empty() {
        return writeln!(output, "Nothing changed beyond the noise.");
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(CHANGES);
    for change in changes {
        table.add_row(changed(change));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_cell_alignment(if (4..=6).contains(&index) {
            CellAlignment::Right
        } else {
            CellAlignment::Left
        });
        column.set_padding((0, 2));
    }
    writeln!(output, "{table}")
}

fn changed(change: &Change) -> [String; 8] {
    let median = |spread: &Option<Spread>| {
        spread.map_or_else(
            || "-".to_owned(),
            |spread| format!("{:.1} {}", spread.median, change.unit),
        )
    };
    [
        change.placement.clone(),
        format_bytes(change.bytes),
        change.method.clone(),
        change.mode.name().to_owned(),
        median(&change.old),
        median(&change.new),
        percent(change),
        match change.kind {
            Kind::Faster | Kind::Slower => change.kind.name().to_owned(),
            // In brackets: it isn't the program's doing.
            kind => format!("({})", kind.name()),
        },
    ]
}

fn gigabytes(spread: &Spread) -> String {
    let Spread { median, min, max } = spread;
    // Slow ones too must say something.
    let digits = match *median {
        ..1.0 => 6,
        ..1e3 => 3,
        _ => 1,
    };
    format!("{:.digits$} GB/s ({:.digits$}–{:.digits$})", median / 1e3, min / 1e3, max / 1e3)
}

const CHANGES: [&str; 8] = ["placement", "payload", "method", "mode", "old", "new", "change", ""];

/// What this bench adds to the original's legend.
const MODES: &str = "\
A row with - for c-rx and worker is in direct mode: the client's thread does its own
socket I/O, and the server's reactor runs the handler, on the CPU that is the worker's.
Speed limit: one thread on the worker's CPU storing into a warm buffer of that size.
Hand-over limit: two threads passing one warm buffer by a spinning flag (by a futex
where both share a CPU), with the same reading and no RPC: what the placement allows.
Bare twin (--baseline): the method's own memory calls and one message each way between
two processes, no RPC. CPU-s/GB, switches/call (of contexts) and faults/call (page
faults): of both processes. p50 and p99: of each call's time, in µs.
";
