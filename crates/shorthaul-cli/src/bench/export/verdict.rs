//! What the figures say, in a sentence for each placement and payload.

use crate::bench::method::Method;
use crate::bench::plan::format_bytes;
use crate::bench::report::{Cell, Payload, Report, Section};
use crate::bench::session::Mode;

/// Which method won, by how much, and what a program here should do.
pub(super) fn sentences(report: &Report) -> Vec<String> {
    report
        .sections
        .iter()
        .flat_map(|section| {
            section.payloads.iter().filter_map(move |payload| sentence(section, payload))
        })
        .collect()
}

fn sentence(section: &Section, payload: &Payload) -> Option<String> {
    let best = payload.best()?;
    let method: Method = best.method.parse().ok()?;
    let mut sentence = format!(
        "{}, {}: {} ({}) wins with {:.1} MB/s",
        section.placement,
        format_bytes(payload.bytes),
        best.method,
        best.mode.name(),
        best.megabytes_per_second.median,
    );
    for baseline in [SIDECAR, FRESH] {
        if let Some(times) = times_faster(payload, best, baseline) {
            sentence += &format!(", {times:.1} times {baseline}");
        }
    }
    let client = match best.mode {
        Mode::Direct => "use a DirectClient and a server with inline_handlers",
        Mode::Threads => "use a Client",
    };
    Some(format!("{sentence}. A program here should {client}, and {}.", method.advice()))
}

/// How many times faster than `baseline` in the same mode.
fn times_faster(payload: &Payload, best: &Cell, baseline: &str) -> Option<f64> {
    let baseline: Method = baseline.parse().ok()?;
    let other = payload.cell(&baseline, best.mode).filter(|other| other.method != best.method)?;
    Some(other.microseconds_per_call.median / best.microseconds_per_call.median)
}

/// What most programs do today: bytes over the socket.
const SIDECAR: &str = "sidecar";
/// What shared memory costs when nothing is used again.
const FRESH: &str = "fd(s-mmap)";
