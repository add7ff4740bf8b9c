//! Invented figures that fill every field of a report.

use crate::bench::machine::Machine;
use crate::bench::report::{
    Cell, Cost, EmptyCall, Latency, Payload, Report, Round, Section, Thread, Threads, Twin,
};
use crate::bench::session::Mode;
use crate::bench::stats::Spread;
use crate::bench::work::{Consume, Pages, Source, WaitKind};

pub(super) fn report() -> Report {
    Report {
        machine: Machine {
            cpu: "Abacus 9".into(),
            cpus: 2,
            kernel: "6.18.0".into(),
            governor: None,
            shmem_huge_pages: Some("never".into()),
            mitigations: vec!["spectre_v2".into()],
        },
        command_line: "bench --payload 4KiB,64KiB,1MiB --baseline".into(),
        date: "2026-01-01 00:00 UTC".into(),
        version: "0.1.0".into(),
        source: Source::Fill,
        consume: Consume::Sample,
        wait: WaitKind::Adaptive,
        huge_pages: Pages::Auto,
        twin_huge_pages: Pages::Never,
        rounds: 9,
        rounds_dropped: 2,
        in_flight: 1,
        seconds: 45.2,
        warnings: vec![
            "Other programs used 0.31 CPUs while this ran: figures may be too low.".into(),
        ],
        sections: vec![
            section("all-same-core", 0, 1.0),
            section("client-server-cross-core", 1, 1.1),
            impossible(),
        ],
    }
}

/// A run of the same plan, later: one cell faster, one slower, one new, one gone, one that moved
/// with the machine.
pub(super) fn later() -> Report {
    let mut report = report();
    report.date = "2026-02-01 00:00 UTC".into();
    report.machine.kernel = "6.19.0".into();
    for section in &mut report.sections {
        for payload in section.payloads.iter_mut().filter(|payload| payload.bytes == 1 << 20) {
            for cell in &mut payload.cells {
                change(cell);
            }
        }
    }
    report
}

fn change(cell: &mut Cell) {
    let (factor, factor_of_share) = match (cell.method.as_str(), cell.mode) {
        ("fd(s-mmap,c-reuse,s-reuse)", Mode::Direct) => (1.4, 1.4),
        ("fd(s-mmap)", Mode::Direct) => (0.6, 0.6),
        ("sidecar", Mode::Threads) => (0.7, 1.0),
        _ => (1.01, 1.01),
    };
    scale(&mut cell.megabytes_per_second, factor);
    if let Some(share) = &mut cell.of_hand_over_limit {
        scale(share, factor_of_share);
    }
    if cell.method == "auto" {
        cell.method = "fd(s-write)".into();
    }
}

pub(super) fn scale(spread: &mut Spread, factor: f64) {
    let Spread { median, min, max } = *spread;
    *spread = Spread { median: median * factor, min: min * factor, max: max * factor };
}

fn section(placement: &str, worker: u32, factor: f64) -> Section {
    let thread = |cpu: u32| Thread { place: format!("S0C{cpu}T0"), cpu };
    let payloads = [(4096, 0.02), (65_536, 0.4), (1 << 20, 1.0)];
    Section {
        placement: placement.into(),
        why_not: None,
        threads: Some(Threads {
            client: thread(0),
            client_reactor: thread(0),
            server_reactor: thread(worker),
            worker: thread(worker),
        }),
        empty_call: Some(EmptyCall {
            ping_pong_us: around(12.0),
            direct_us: around(15.0),
            threads_us: around(36.0),
            direct_ratio: around(1.25),
        }),
        rounds: (0..9).map(round).collect(),
        harness_ns: Some(around(42.0)),
        payloads: payloads.map(|(bytes, share)| payload(bytes, share * factor)).into(),
    }
}

fn round(index: usize) -> Round {
    let is_dropped = index == 3;
    Round {
        spin_us: if is_dropped { 0.31 } else { 0.12 + 0.004 * (index % 3) as f64 },
        foreign_cpus: if index == 6 { 0.4 } else { 0.02 },
        dropped: is_dropped.then(|| "its spin round trip was 2.6 times the median".into()),
    }
}

fn payload(bytes: usize, factor: f64) -> Payload {
    let methods = [
        ("fd(s-mmap,c-reuse,s-reuse)", 16_000.0, Some("fill(map)")),
        ("fd(s-mmap)", 500.0, Some("fill(map)")),
        ("sidecar", 2_500.0, Some("inline")),
        ("auto", 15_000.0, Some("fill(map): the buffer has room")),
    ];
    let twins = methods.iter().take(3).map(|(method, speed, _)| Twin {
        method: (*method).into(),
        megabytes_per_second: around(speed * factor * 1.3),
        microseconds_per_call: around(bytes as f64 / (speed * factor * 1.3)),
    });
    let cells = Mode::ALL.into_iter().flat_map(|mode| {
        methods.map(|(method, speed, lane)| {
            let of_mode = if mode == Mode::Direct { 1.0 } else { 0.6 };
            cell((method, mode, lane), (bytes, 40_000.0 * factor), speed * factor * of_mode)
        })
    });
    Payload {
        bytes,
        speed_limit: around(50_000.0),
        hand_over_limit: around(40_000.0 * factor),
        twins: twins.collect(),
        cells: cells.collect(),
    }
}

fn cell(
    (method, mode, lane): (&str, Mode, Option<&str>),
    (bytes, hand_over): (usize, f64),
    speed: f64,
) -> Cell {
    let microseconds = bytes as f64 / speed;
    Cell {
        method: method.into(),
        mode,
        megabytes_per_second: around(speed),
        microseconds_per_call: around(microseconds),
        of_speed_limit: Some(around(speed / 50_000.0)),
        of_hand_over_limit: Some(around(speed / hand_over)),
        of_twin: (method != "auto").then(|| around(1.0 / 1.3)),
        of_best: (method == "auto").then(|| around(0.97)),
        latency: Some(Latency { p50_us: microseconds * 0.95, p99_us: microseconds * 2.5 }),
        cost: Some(Cost {
            cpu_seconds_per_gb: Some(around(1_400.0 / speed)),
            context_switches_per_call: if mode == Mode::Direct { 2.0 } else { 4.25 },
            page_faults_per_call: if method == "fd(s-mmap)" {
                2.0 * (bytes / 4096) as f64
            } else {
                0.0
            },
        }),
        lane: lane.map(Into::into),
        calls: 1000,
        mappings_reused: if method.contains("c-reuse") { 999 } else { 0 },
    }
}

fn impossible() -> Section {
    Section {
        placement: "client-server-cross-socket".into(),
        why_not: Some("needs two packages; this machine has 1".into()),
        threads: None,
        empty_call: None,
        rounds: Vec::new(),
        harness_ns: None,
        payloads: Vec::new(),
    }
}

fn around(median: f64) -> Spread {
    Spread { median, min: median * 0.875, max: median * 1.125 }
}
