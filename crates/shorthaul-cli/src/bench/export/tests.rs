//! The forms of a report, with invented figures: what is printed is what lies in `golden/`. After a
//! change that is meant, run the tests once with UPDATE_GOLDEN=1 and read the difference.

use std::path::Path;

use super::{json, seed, table};
use crate::bench::machine::Machine;
use crate::bench::report::{
    Cell, Cost, EmptyCall, Latency, Payload, Report, Round, Section, Thread, Threads, Twin,
};
use crate::bench::session::Mode;
use crate::bench::stats::Spread;
use crate::bench::work::{Consume, Source};

#[test]
fn table_is_golden() {
    check("table.txt", |output| table::write(output, &report()));
}

#[test]
fn seed_is_golden() {
    check("seed.txt", |output| seed::write(output, &report()));
}

#[test]
fn json_is_golden() {
    check("json.txt", |output| json::write(output, &report()));
}

fn check(name: &str, write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) {
    let mut written = Vec::new();
    write(&mut written).unwrap();
    let written = String::from_utf8(written).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bench/export/golden");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(folder.join(name), &written).unwrap();
    }
    let golden = std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(written == golden, "{name} is written otherwise:\n{written}");
}

fn report() -> Report {
    Report {
        machine: Machine {
            cpu: "Abacus 9".into(),
            cpus: 2,
            kernel: "6.18.0".into(),
            governor: None,
            shmem_huge_pages: Some("never".into()),
            mitigations: vec!["spectre_v2".into()],
        },
        command_line: "bench".into(),
        date: "2026-01-01 00:00 UTC".into(),
        version: "0.1.0".into(),
        source: Source::Fill,
        consume: Consume::Sample,
        rounds: 7,
        rounds_dropped: 1,
        in_flight: 1,
        seconds: 45.2,
        warnings: vec!["other programs used 0.31 CPUs while this ran: run again".into()],
        sections: vec![section(), impossible()],
    }
}

fn section() -> Section {
    let thread = |cpu: u32| Thread { place: format!("S0C{cpu}T0"), cpu };
    Section {
        placement: "client-server-cross-core".into(),
        why_not: None,
        threads: Some(Threads {
            client: thread(0),
            client_reactor: thread(0),
            server_reactor: thread(1),
            worker: thread(1),
        }),
        empty_call: Some(EmptyCall {
            ping_pong_us: around(12.0),
            direct_us: around(15.0),
            threads_us: around(36.0),
            direct_ratio: around(1.25),
        }),
        rounds: [None, Some("the spin round trip took 0.90 µs".into())]
            .map(|dropped| Round { spin_us: 0.3, foreign_cpus: 0.31, dropped })
            .into(),
        harness_ns: Some(around(50.0)),
        payloads: vec![Payload {
            bytes: 1 << 20,
            speed_limit: around(50_000.0),
            hand_over_limit: around(40_000.0),
            twins: vec![Twin {
                method: "sidecar".into(),
                megabytes_per_second: around(5_500.0),
                microseconds_per_call: around(190.7),
            }],
            cells: Mode::ALL.into_iter().flat_map(cells).collect(),
        }],
    }
}

fn cells(mode: Mode) -> [Cell; 2] {
    let cell = |method: &str, speed: f64, mappings_reused| Cell {
        method: method.into(),
        mode,
        megabytes_per_second: around(speed),
        microseconds_per_call: around(1048.576 / speed * 1e3),
        of_speed_limit: Some(around(speed / 50_000.0)),
        of_hand_over_limit: Some(around(speed / 40_000.0)),
        of_twin: (method == "sidecar").then(|| around(speed / 5_500.0)),
        latency: Some(Latency { p50_us: 1000.0 / speed, p99_us: 3000.0 / speed }),
        cost: Some(Cost {
            cpu_seconds_per_gb: Some(around(0.4)),
            context_switches_per_call: 4.0,
            page_faults_per_call: 0.02,
        }),
        lane: Some("fill(map)".into()),
        calls: 1000,
        mappings_reused,
    };
    let factor = if mode == Mode::Direct { 2.0 } else { 1.0 };
    [
        cell("fd(s-mmap,c-reuse,s-reuse)", 10_000.0 * factor, 999),
        cell("sidecar", 2_500.0 * factor, 0),
    ]
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
    Spread { median, min: median * 0.9, max: median * 1.1 }
}
