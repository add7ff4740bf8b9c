//! For spreadsheets and data frames: a line for each method of each group, in columns whose names
//! stay.

use std::io::{self, Write};

use crate::bench::export::csv::{max, median, min};
use crate::bench::relay::report::{Cell, Figures, Group, RelayReport};
use crate::bench::stats::Spread;

pub(in crate::bench) fn write(output: &mut impl Write, report: &RelayReport) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(output);
    writer.write_record(COLUMNS.iter().map(|(name, _)| name))?;
    for group in &report.groups {
        for cell in &group.cells {
            let line = Line { report, group, cell };
            writer.write_record(COLUMNS.iter().map(|(_, of)| of(&line).unwrap_or_default()))?;
        }
    }
    writer.flush()
}

struct Line<'a> {
    report: &'a RelayReport,
    group: &'a Group,
    cell: &'a Cell,
}

impl Line<'_> {
    fn figures(&self) -> Option<&Figures> {
        self.cell.figures.as_ref()
    }

    fn together(&self) -> Option<&Spread> {
        Some(&self.figures()?.bytes_per_second)
    }

    fn each(&self) -> Option<&Spread> {
        Some(&self.figures()?.bytes_per_second_each)
    }

    fn of_copy(&self) -> Option<&Spread> {
        Some(&self.figures()?.of_copy_limit)
    }

    fn cpu(&self) -> Option<&Spread> {
        self.figures()?.cpu_seconds_per_gb.as_ref()
    }

    fn efficiency(&self) -> Option<&Spread> {
        self.figures()?.efficiency.as_ref()
    }
}

/// The name of a column, and what stands in it; nothing where there is no number.
type Column = (&'static str, fn(&Line<'_>) -> Option<String>);

/// Add to the end: who reads columns by number is not disturbed then.
const COLUMNS: [Column; 36] = [
    ("date", |line| Some(line.report.date.clone())),
    ("version", |line| Some(line.report.version.clone())),
    ("cpu", |line| Some(line.report.machine.cpu.clone())),
    ("kernel", |line| Some(line.report.machine.kernel.clone())),
    ("sink", |line| Some(line.report.settings.sink.name().to_owned())),
    ("receive", |line| Some(line.report.settings.receive?.name().to_owned())),
    ("is_verified", |line| Some(line.report.settings.is_verified.to_string())),
    ("is_pinned", |line| Some((!line.report.settings.client_cpus.is_empty()).to_string())),
    ("rounds", |line| Some(line.report.rounds.to_string())),
    ("loops_max", |line| Some(line.report.settings.loops.to_string())),
    ("clients", |line| Some(line.group.clients.to_string())),
    ("files", |line| Some(line.group.files.name().to_owned())),
    ("file_bytes", |line| Some(line.report.settings.files.first()?.bytes.to_string())),
    ("chunk_bytes", |line| Some(line.group.chunk_bytes.to_string())),
    ("method", |line| Some(line.cell.method.clone())),
    ("bytes_per_s_median", |line| median(line.together())),
    ("bytes_per_s_min", |line| min(line.together())),
    ("bytes_per_s_max", |line| max(line.together())),
    ("bytes_per_s_per_client_median", |line| median(line.each())),
    ("bytes_per_s_per_client_min", |line| min(line.each())),
    ("bytes_per_s_per_client_max", |line| max(line.each())),
    ("copy_limit_bytes_per_s_median", |line| median(Some(&line.group.copy_limit))),
    ("copy_limit_bytes_per_s_min", |line| min(Some(&line.group.copy_limit))),
    ("copy_limit_bytes_per_s_max", |line| max(Some(&line.group.copy_limit))),
    ("share_of_copy_limit_median", |line| median(line.of_copy())),
    ("share_of_copy_limit_min", |line| min(line.of_copy())),
    ("share_of_copy_limit_max", |line| max(line.of_copy())),
    ("efficiency_median", |line| median(line.efficiency())),
    ("efficiency_min", |line| min(line.efficiency())),
    ("efficiency_max", |line| max(line.efficiency())),
    ("cpu_s_per_gb_median", |line| median(line.cpu())),
    ("cpu_s_per_gb_min", |line| min(line.cpu())),
    ("cpu_s_per_gb_max", |line| max(line.cpu())),
    ("bytes_per_call_mean", |line| Some(line.figures()?.bytes_per_call.to_string())),
    ("meaning", |line| Some(line.cell.meaning.clone())),
    ("why_not", |line| line.cell.why_not.clone()),
];
