//! For people: a table a placement and payload, both limits above it, what it means below.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};

use super::verdict;
use crate::bench::method::LEGEND;
use crate::bench::plan::format_bytes;
use crate::bench::report::{Cell, EmptyCall, Payload, Report, Section, Threads};
use crate::bench::session::Mode;
use crate::bench::stats::Spread;
use crate::bench::work::Source;

pub(in crate::bench) fn write(output: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(output, "{}", report.machine)?;
    writeln!(
        output,
        "shorthaul {} bench, {}; {} rounds in {:.0} s; medians (min–max); MB are 10^6 bytes",
        report.version, report.date, report.rounds, report.seconds
    )?;
    writeln!(output, "command: shorthaul {}", report.command_line)?;
    let source = match report.source {
        Source::Fill => {
            "one pass of stores of a byte that changes per call: the fastest write there is"
        }
        Source::Warm => "a copy from a warm source, of other bytes on each call",
    };
    writeln!(output, "writer: {source}; {}\n", report.consume.description())?;
    writeln!(output, "{LEGEND}\n{MODES}")?;
    for section in &report.sections {
        write_section(output, section)?;
    }
    for sentence in verdict::sentences(report) {
        writeln!(output, "{sentence}")?;
    }
    Ok(())
}

fn write_section(output: &mut impl Write, section: &Section) -> io::Result<()> {
    writeln!(output, "# {}", section.placement)?;
    if let Some(why_not) = &section.why_not {
        return writeln!(output, "This machine can't do it: {why_not}\n");
    }
    if let Some(empty) = &section.empty_call {
        write_empty_call(output, empty)?;
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
    let hand_over = gigabytes(&payload.hand_over_limit);
    writeln!(output, "Payload {bytes} · speed limit {speed} · hand-over limit {hand_over}")
}

fn table(payload: &Payload, threads: &Threads) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "method",
        "client",
        "c-rx",
        "s-rx",
        "worker",
        "MB/s",
        "(min–max)",
        "of limit",
        "of hand-over",
        "µs/call",
    ]);
    for mode in Mode::ALL {
        for cell in payload.cells.iter().filter(|cell| cell.mode == mode) {
            table.add_row(row(cell, threads));
        }
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        let is_place = (1..=4).contains(&index);
        column.set_cell_alignment(if is_place {
            CellAlignment::Left
        } else {
            CellAlignment::Right
        });
        column.set_padding((0, 1));
    }
    table
}

fn row(cell: &Cell, threads: &Threads) -> [String; 10] {
    let is_direct = cell.mode == Mode::Direct;
    let unless_direct = |place: &str| {
        if is_direct { "-".to_owned() } else { place.to_owned() }
    };
    let Spread { median, min, max } = cell.megabytes_per_second;
    [
        cell.method.to_owned(),
        threads.client.place.clone(),
        unless_direct(&threads.client_reactor.place),
        if is_direct { &threads.worker.place } else { &threads.server_reactor.place }.clone(),
        unless_direct(&threads.worker.place),
        format!("{median:.1}"),
        format!("({min:.0}–{max:.0})"),
        share(cell.of_speed_limit.as_ref()),
        share(cell.of_hand_over_limit.as_ref()),
        format!("{:.1}", cell.microseconds_per_call.median),
    ]
}

fn share(spread: Option<&Spread>) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| format!("{:.1} %", spread.median * 100.0))
}

fn gigabytes(spread: &Spread) -> String {
    let Spread { median, min, max } = spread;
    format!("{:.1} GB/s ({:.1}–{:.1})", median / 1e3, min / 1e3, max / 1e3)
}

/// What this bench adds to the original's legend.
const MODES: &str = "\
A row with - for c-rx and worker is in direct mode: the client's thread does its own
socket I/O, and the server's reactor runs the handler, on the CPU that is the worker's.
Speed limit: one thread on the worker's CPU storing into a warm buffer of that size.
Hand-over limit: two threads passing one warm buffer by a spinning flag (by a futex
where both share a CPU), with the same reading and no RPC: what the placement allows.
";
