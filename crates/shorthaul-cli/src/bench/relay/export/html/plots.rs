//! Bars for each method: how fast, and what it costs.

use maud::{Markup, html};

use crate::bench::export::html::bars::{Bar, Bars, Row};
use crate::bench::export::html::plot::{Mark, Panel, side_by_side};
use crate::bench::export::number;
use crate::bench::plan::format_bytes;
use crate::bench::relay::export::mib;
use crate::bench::relay::report::{Cell, Figures, Group, RelayReport};
use crate::bench::relay::sink::clients;
use crate::bench::stats::Spread;

pub(super) fn throughput(report: &RelayReport) -> Markup {
    html! {
        section id="throughput" {
            h2 { "How fast: MiB/s by method" }
            @for chunk_bytes in report.chunks() {
                h3 { "Chunks of " (format_bytes(chunk_bytes)) }
                (side_by_side(&panels(report, chunk_bytes, speed_of)))
            }
            p class="note" {
                "All clients together, from the first start until the last byte had arrived; \
                 median over the rounds. The thin line goes from the slowest round to the \
                 fastest. " b { "Memory-copy limit" } ": one thread copying a warm block of a \
                 chunk's size to another. What copies nothing can be above it. A bar that would \
                 leave the others no room ends at the edge, and its number says how long it is."
            }
        }
    }
}

pub(super) fn cost(report: &RelayReport) -> Markup {
    let chunks = report.chunks();
    let panels: Vec<_> =
        chunks.iter().map(|&chunk| (chunk, panels(report, chunk, cost_of))).collect();
    html! {
        @if panels.iter().any(|(_, panels)| !panels.is_empty()) {
            section id="cost" {
                h2 { "What it costs: CPU-seconds per GB" }
                @for (chunk_bytes, panels) in &panels {
                    h3 { "Chunks of " (format_bytes(*chunk_bytes)) }
                    (side_by_side(panels))
                }
                p class="note" {
                    "CPU time of clients and receivers, in user space and kernel, for 10^9 bytes; \
                     less is better. Kernel threads on their behalf are not counted."
                }
            }
        }
    }
}

/// What `panel` makes of each group with these chunks; the index makes names unique.
fn panels<P: Panel>(
    report: &RelayReport,
    chunk_bytes: usize,
    panel: fn(usize, &Group) -> Option<P>,
) -> Vec<P> {
    let groups = report.groups.iter().enumerate();
    let of_chunk = groups.filter(|(_, group)| group.chunk_bytes == chunk_bytes);
    of_chunk.filter_map(|(index, group)| panel(index, group)).collect()
}

fn speed_of(index: usize, group: &Group) -> Option<Clipped> {
    let rows = rows(group, |figures| Some(in_mib(&figures.bytes_per_second)));
    let limit = in_mib(&group.copy_limit);
    let mark = Mark {
        class: "hand-over",
        name: "memory-copy limit",
        value: limit.median,
        tooltip: format!(
            "memory-copy limit: {} MiB/s ({}–{})",
            number::pretty(limit.median),
            number::pretty(limit.min),
            number::pretty(limit.max)
        ),
    };
    panel(format!("speed-{index}"), group, "MiB/s", rows, vec![mark]).map(Clipped)
}

fn cost_of(index: usize, group: &Group) -> Option<Bars> {
    let rows = rows(group, |figures| figures.cpu_seconds_per_gb);
    panel(format!("cost-{index}"), group, "CPU-s/GB", rows, Vec::new())
}

fn panel(
    id: String,
    group: &Group,
    unit: &'static str,
    rows: Vec<Row>,
    marks: Vec<Mark>,
) -> Option<Bars> {
    let files = group.files.description(group.clients);
    let bars = Bars {
        id,
        title: clients(group.clients),
        subtitle: format!("{unit}, {files}"),
        unit,
        rows,
        marks,
    };
    (!bars.rows.is_empty()).then_some(bars)
}

fn rows(group: &Group, of: impl Fn(&Figures) -> Option<Spread>) -> Vec<Row> {
    let row = |cell: &Cell| {
        let spread = of(cell.figures.as_ref()?)?;
        let bars = vec![Bar { class: "direct", spread, is_best: false }];
        Some(Row { label: cell.method.clone(), bars, twin: None })
    };
    group.cells.iter().filter_map(row).collect()
}

fn in_mib(spread: &Spread) -> Spread {
    Spread { median: mib(spread.median), min: mib(spread.min), max: mib(spread.max) }
}

/// Bars on a scale that leaves out those that would leave the others no room.
struct Clipped(Bars);

impl Panel for Clipped {
    fn range(&self) -> (f64, f64) {
        let bars = self.0.rows.iter().flat_map(|row| row.bars.iter().map(|bar| bar.spread.max));
        let max = scale_max(bars.collect());
        let near = self.0.marks.iter().map(|mark| mark.value).filter(|value| *value <= 4.0 * max);
        (0.0, near.fold(max, f64::max))
    }

    fn draw(&self, range: (f64, f64)) -> Markup {
        let mut bars = self.0.clone();
        for row in &mut bars.rows {
            if row.bars.iter().any(|bar| bar.spread.median > range.1) {
                row.label += " (longer than there is room)";
            }
        }
        bars.draw(range)
    }
}

/// The largest value, or the one below the first gap that is too wide.
fn scale_max(mut values: Vec<f64>) -> f64 {
    values.sort_by(|a, b| b.total_cmp(a));
    let gap = values.windows(2).position(|pair| pair[0] > GAP_MAX * pair[1] && pair[1] > 0.0);
    values.get(gap.map_or(0, |index| index + 1)).copied().unwrap_or(0.0)
}

const GAP_MAX: f64 = 6.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_off_does_not_make_the_scale() {
        assert_eq!(scale_max(vec![3.0, 300_000.0, 16.0, 310_000.0]), 16.0);
        assert_eq!(scale_max(vec![3.0, 12.0, 5.0]), 12.0);
        assert_eq!(scale_max(vec![7.0]), 7.0);
        assert_eq!(scale_max(vec![7.0, 0.0]), 7.0);
        assert_eq!(scale_max(vec![]), 0.0);
    }
}
