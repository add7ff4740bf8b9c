//! Invented figures that fill every field of a report of relays.

use crate::bench::machine::Machine;
use crate::bench::relay::meaning::meaning;
use crate::bench::relay::report::{
    Cell, Client, Figures, Group, Kind, RelayReport, Settings, SourceFile,
};
use crate::bench::relay::sink::{Files, Receive, Sink};
use crate::bench::stats::Spread;

/// The run of the mail.
pub(super) fn report() -> RelayReport {
    let settings = Settings {
        sink: Sink::Null,
        receive: None,
        is_verified: false,
        loops: 10,
        seconds_max: 15.0,
        client_cpus: vec![0, 1],
        files: vec![file(0)],
        is_scaling: false,
    };
    let groups = vec![group(&settings, 2, Files::Shared, 65_536, 1.0)];
    RelayReport {
        kind: Kind::Relay,
        machine: Machine {
            cpu: "Abacus 9".into(),
            cpus: 2,
            kernel: "6.18.0".into(),
            governor: None,
            shmem_huge_pages: Some("never".into()),
            mitigations: vec!["spectre_v2".into()],
        },
        command_line: "bench relay -n2 -l10 -a -s -z file".into(),
        date: "2026-01-01 00:00 UTC".into(),
        version: "0.1.0".into(),
        settings,
        rounds: 5,
        seconds: 68.4,
        warnings: vec!["Other programs used 0.31 CPUs while this ran.".into()],
        groups,
    }
}

/// Several numbers of clients over TCP, by chunks of two sizes.
pub(super) fn scaling() -> RelayReport {
    let mut report = report();
    report.command_line = "bench relay --scale 1,2,4 -b 64KiB,1MiB --receive read".into();
    report.settings = Settings {
        sink: Sink::Tcp,
        receive: Some(Receive::Read),
        is_verified: true,
        client_cpus: vec![],
        files: (0..4).map(file).collect(),
        is_scaling: true,
        ..report.settings
    };
    let settings = &report.settings;
    let (shared, own) = (Files::Shared, Files::Own);
    let crowds =
        [(1, shared, 1.0), (2, shared, 1.9), (2, own, 1.98), (4, shared, 1.8), (4, own, 2.0)];
    let groups = [65_536, 1 << 20].into_iter().flat_map(|chunk| {
        crowds.map(|(clients, files, factor)| {
            let mut group = group(settings, clients, files, chunk, factor);
            for cell in &mut group.cells {
                if let Some(figures) = &mut cell.figures {
                    figures.efficiency = Some(around(factor / clients as f64));
                }
            }
            group
        })
    });
    report.groups = groups.collect();
    report
}

/// An empty file, through nothing.
pub(super) fn empty() -> RelayReport {
    let mut report = report();
    report.settings.files[0].bytes = 0;
    for cell in report.groups.iter_mut().flat_map(|group| &mut group.cells) {
        if let Some(figures) = &mut cell.figures {
            let nothing = Spread { median: 0.0, min: 0.0, max: 0.0 };
            figures.bytes_per_second = nothing;
            figures.bytes_per_second_each = nothing;
            figures.of_copy_limit = nothing;
            figures.cpu_seconds_per_gb = None;
            figures.bytes_per_call = 0.0;
            for client in &mut figures.clients {
                *client = Client { bytes: 0, nanoseconds: 0, ..*client };
            }
        }
    }
    report
}

fn file(index: usize) -> SourceFile {
    SourceFile { name: format!("file{index}"), bytes: 1 << 30 }
}

fn group(
    settings: &Settings,
    clients: usize,
    files: Files,
    chunk_bytes: usize,
    factor: f64,
) -> Group {
    let methods = [("splice", 551.0), ("mmap", 66.0), ("rw", 6200.0)];
    let mut cells: Vec<Cell> = methods
        .into_iter()
        .map(|(method, milliseconds)| Cell {
            method: method.into(),
            meaning: meaning(method, settings.sink, settings.receive),
            why_not: None,
            figures: Some(figures(clients, milliseconds, factor)),
        })
        .collect();
    cells.push(Cell {
        method: "copy_file_range".into(),
        meaning: meaning("copy_file_range", settings.sink, settings.receive),
        why_not: Some("from a file to a character device: it goes from file to file".into()),
        figures: None,
    });
    Group { clients, files, chunk_bytes, copy_limit: around(32e9), cells }
}

fn figures(clients: usize, milliseconds: f64, factor: f64) -> Figures {
    let bytes: u64 = 10 << 30;
    let alone = bytes as f64 / milliseconds * 1e3;
    let nanoseconds = (milliseconds * 1e6) as u64;
    Figures {
        bytes_per_second: around(alone * factor),
        bytes_per_second_each: around(alone * factor / clients as f64),
        of_copy_limit: around(alone * factor / clients as f64 / 32e9),
        cpu_seconds_per_gb: Some(around(milliseconds / 1e4)),
        efficiency: None,
        bytes_per_call: 32_768.0,
        clients: (0..clients)
            .rev()
            .map(|client| Client { client, bytes, loops: 10, nanoseconds: nanoseconds + 2_000_000 })
            .collect(),
    }
}

fn around(median: f64) -> Spread {
    Spread { median, min: median * 0.875, max: median * 1.125 }
}
