//! For spreadsheets and data frames: a line for each cell, in columns whose names stay.

use std::io::{self, Write};

use super::Results;
use crate::bench::compare::{Change, Key};
use crate::bench::report::{Cell, Cost, Latency, Payload, Report, Section, Twin};
use crate::bench::stats::Spread;

pub(in crate::bench) fn write(output: &mut impl Write, results: &Results<'_>) -> io::Result<()> {
    let &Results { report, comparison } = results;
    let mut writer = csv::Writer::from_writer(output);
    writer.write_record(COLUMNS.iter().map(|(name, _)| name))?;
    for section in &report.sections {
        for payload in &section.payloads {
            for cell in &payload.cells {
                let key: Key<'_> = (&section.placement, payload.bytes, &cell.method, cell.mode);
                let change = comparison.and_then(|comparison| comparison.of(key));
                let line = Line { report, section, payload, cell, change };
                writer.write_record(COLUMNS.iter().map(|(_, of)| of(&line).unwrap_or_default()))?;
            }
        }
    }
    writer.flush()
}

struct Line<'a> {
    report: &'a Report,
    section: &'a Section,
    payload: &'a Payload,
    cell: &'a Cell,
    change: Option<&'a Change>,
}

impl Line<'_> {
    /// An empty payload has no speed and no limits.
    fn speed(&self) -> Option<&Spread> {
        (self.payload.bytes > 0).then_some(&self.cell.megabytes_per_second)
    }

    fn hand_over(&self) -> Option<&Spread> {
        (self.payload.bytes > 0).then_some(&self.payload.hand_over_limit)
    }

    fn speed_limit(&self) -> Option<&Spread> {
        (self.payload.bytes > 0).then_some(&self.payload.speed_limit)
    }

    fn twin(&self) -> Option<&Twin> {
        self.payload.twin(self.cell)
    }

    fn latency(&self) -> Option<&Latency> {
        self.cell.latency.as_ref()
    }

    fn cost(&self) -> Option<&Cost> {
        self.cell.cost.as_ref()
    }

    fn cpu(&self) -> Option<&Spread> {
        self.cost()?.cpu_seconds_per_gb.as_ref()
    }
}

/// The name of a column, and what stands in it; nothing where there is no number.
type Column = (&'static str, fn(&Line<'_>) -> Option<String>);

pub(in crate::bench) fn median(spread: Option<&Spread>) -> Option<String> {
    Some(spread?.median.to_string())
}

pub(in crate::bench) fn min(spread: Option<&Spread>) -> Option<String> {
    Some(spread?.min.to_string())
}

pub(in crate::bench) fn max(spread: Option<&Spread>) -> Option<String> {
    Some(spread?.max.to_string())
}

/// Add to the end: who reads columns by number is not disturbed then.
const COLUMNS: [Column; 53] = [
    ("date", |line| Some(line.report.date.clone())),
    ("version", |line| Some(line.report.version.clone())),
    ("cpu", |line| Some(line.report.machine.cpu.clone())),
    ("kernel", |line| Some(line.report.machine.kernel.clone())),
    ("source", |line| Some(line.report.source.name().to_owned())),
    ("consume", |line| Some(line.report.consume.name().to_owned())),
    ("in_flight", |line| Some(line.report.in_flight.to_string())),
    ("rounds_counted", |line| Some(line.section.rounds_counted(line.report).to_string())),
    ("placement", |line| Some(line.section.placement.clone())),
    ("client_cpu", |line| Some(line.section.threads.as_ref()?.client.cpu.to_string())),
    ("worker_cpu", |line| Some(line.section.threads.as_ref()?.worker.cpu.to_string())),
    ("payload_bytes", |line| Some(line.payload.bytes.to_string())),
    ("method", |line| Some(line.cell.method.clone())),
    ("mode", |line| Some(line.cell.mode.name().to_owned())),
    ("speed_mb_per_s_median", |line| median(line.speed())),
    ("speed_mb_per_s_min", |line| min(line.speed())),
    ("speed_mb_per_s_max", |line| max(line.speed())),
    ("call_us_median", |line| median(Some(&line.cell.microseconds_per_call))),
    ("call_us_min", |line| min(Some(&line.cell.microseconds_per_call))),
    ("call_us_max", |line| max(Some(&line.cell.microseconds_per_call))),
    ("latency_us_p50", |line| Some(line.latency()?.p50_us.to_string())),
    ("latency_us_p99", |line| Some(line.latency()?.p99_us.to_string())),
    ("cpu_s_per_gb_median", |line| median(line.cpu())),
    ("cpu_s_per_gb_min", |line| min(line.cpu())),
    ("cpu_s_per_gb_max", |line| max(line.cpu())),
    ("context_switches_per_call", |line| Some(line.cost()?.context_switches_per_call.to_string())),
    ("page_faults_per_call", |line| Some(line.cost()?.page_faults_per_call.to_string())),
    ("speed_limit_mb_per_s_median", |line| median(line.speed_limit())),
    ("speed_limit_mb_per_s_min", |line| min(line.speed_limit())),
    ("speed_limit_mb_per_s_max", |line| max(line.speed_limit())),
    ("hand_over_limit_mb_per_s_median", |line| median(line.hand_over())),
    ("hand_over_limit_mb_per_s_min", |line| min(line.hand_over())),
    ("hand_over_limit_mb_per_s_max", |line| max(line.hand_over())),
    ("share_of_speed_limit_median", |line| median(line.cell.of_speed_limit.as_ref())),
    ("share_of_hand_over_limit_median", |line| median(line.cell.of_hand_over_limit.as_ref())),
    ("share_of_hand_over_limit_min", |line| min(line.cell.of_hand_over_limit.as_ref())),
    ("share_of_hand_over_limit_max", |line| max(line.cell.of_hand_over_limit.as_ref())),
    ("twin_mb_per_s_median", |line| {
        let twin = line.twin().filter(|_| line.payload.bytes > 0)?;
        Some(twin.megabytes_per_second.median.to_string())
    }),
    ("twin_us_median", |line| Some(line.twin()?.microseconds_per_call.median.to_string())),
    ("share_of_twin_median", |line| median(line.cell.of_twin.as_ref())),
    ("harness_ns_median", |line| median(line.section.harness_ns.as_ref())),
    ("lane", |line| line.cell.lane.clone()),
    ("calls", |line| Some(line.cell.calls.to_string())),
    ("mappings_reused", |line| Some(line.cell.mappings_reused.to_string())),
    ("compared_old_mb_per_s_median", |line| {
        median(line.change?.old.as_ref().filter(|_| line.payload.bytes > 0))
    }),
    ("compared_change_percent", |line| Some(((line.change?.ratio? - 1.0) * 100.0).to_string())),
    ("compared_kind", |line| Some(line.change?.kind.name().to_owned())),
    ("share_of_twin_min", |line| min(line.cell.of_twin.as_ref())),
    ("share_of_twin_max", |line| max(line.cell.of_twin.as_ref())),
    ("share_of_best_median", |line| median(line.cell.of_best.as_ref())),
    ("share_of_best_min", |line| min(line.cell.of_best.as_ref())),
    ("share_of_best_max", |line| max(line.cell.of_best.as_ref())),
    ("wait", |line| Some(line.report.wait.name().to_owned())),
];
