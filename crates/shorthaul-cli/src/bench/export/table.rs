//! For people: a table a placement and payload, both limits above it, what it means below.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};

use super::verdict;
use crate::bench::method::{LEGEND, LEGEND_MORE};
use crate::bench::plan::format_bytes;
use crate::bench::report::{Cell, Cost, EmptyCall, Latency, Payload, Report, Section, Threads};
use crate::bench::session::Mode;
use crate::bench::stats::Spread;
use crate::bench::work::Source;

pub(in crate::bench) fn write(output: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(output, "{}", report.machine)?;
    writeln!(
        output,
        "shorthaul {} bench, {}; {} rounds in {:.0} s ({} dropped); medians (min–max); MB are 10^6 \
         bytes",
        report.version, report.date, report.rounds, report.seconds, report.rounds_dropped
    )?;
    writeln!(output, "command: shorthaul {}", report.command_line)?;
    let source = match report.source {
        Source::Fill => {
            "one pass of stores of a byte that changes per call: the fastest write there is"
        }
        Source::Warm => "a copy from a warm source, of other bytes on each call",
    };
    let (consume, in_flight) = (report.consume.description(), report.in_flight);
    writeln!(output, "writer: {source}; {consume}; calls in flight: {in_flight}\n")?;
    for warning in &report.warnings {
        writeln!(output, "Warning: {warning}.\n")?;
    }
    writeln!(output, "{LEGEND}\nBeside the original's methods:\n{LEGEND_MORE}\n{MODES}")?;
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
    write_rounds(output, section)?;
    let Some(threads) = &section.threads else {
        return Ok(());
    };
    for payload in &section.payloads {
        write_limits(output, payload)?;
        writeln!(output, "{}\n", table(payload, threads))?;
    }
    Ok(())
}

/// How the machine was: one figure a round, for it has modes.
fn write_rounds(output: &mut impl Write, section: &Section) -> io::Result<()> {
    if let Some(harness) = &section.harness_ns {
        let Spread { median, min, max } = harness;
        writeln!(output, "The bench itself: {median:.0} ns a call ({min:.0}–{max:.0})")?;
    }
    if section.rounds.is_empty() {
        return Ok(());
    }
    let spins = section.rounds.iter().map(|round| {
        let mark = if round.dropped.is_some() { " (dropped)" } else { "" };
        format!("{:.2}{mark}", round.spin_us)
    });
    let spins = spins.collect::<Vec<_>>().join(", ");
    writeln!(output, "Spin round trip at the start of each round, µs: {spins}")
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
        "of twin",
        "µs/call",
        "p50",
        "p99",
        "CPU-s/GB",
        "ctx/call",
        "faults/call",
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

fn row(cell: &Cell, threads: &Threads) -> [String; 16] {
    let is_direct = cell.mode == Mode::Direct;
    let unless_direct = |place: &str| {
        if is_direct { "-".to_owned() } else { place.to_owned() }
    };
    let Spread { median, min, max } = cell.megabytes_per_second;
    let latency = |value: fn(&Latency) -> f64| number(cell.latency.as_ref().map(value), 1);
    let cost = |value: fn(&Cost) -> f64| number(cell.cost.as_ref().map(value), 2);
    let cpu = cell.cost.and_then(|cost| cost.cpu_seconds_per_gb);
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
        share(cell.of_twin.as_ref()),
        format!("{:.1}", cell.microseconds_per_call.median),
        latency(|latency| latency.p50_us),
        latency(|latency| latency.p99_us),
        number(cpu.map(|cpu| cpu.median), 3),
        cost(|cost| cost.context_switches_per_call),
        cost(|cost| cost.page_faults_per_call),
    ]
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
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
Bare twin (--baseline): the method's own memory calls and one message each way between
two processes, no RPC. CPU-s/GB, ctx/call (context switches) and faults/call (page
faults): of both processes. p50 and p99: of each call's time, in µs.
";
