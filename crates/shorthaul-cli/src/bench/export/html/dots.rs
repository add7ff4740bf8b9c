//! How long calls take: from the middle one to the slow ones.

use maud::{Markup, html};

use super::plot::{Figure, Panel, Scale, axis, pc, px};
use crate::bench::export::number;
use crate::bench::report::Latency;

/// A row for each method, a line for each mode.
pub(super) struct Dots {
    /// Unique on the page.
    pub(super) id: String,
    pub(super) title: String,
    pub(super) subtitle: String,
    pub(super) rows: Vec<(String, Vec<(&'static str, Latency)>)>,
}

impl Panel for Dots {
    fn range(&self) -> (f64, f64) {
        let all = || self.rows.iter().flat_map(|(_, lines)| lines.iter().map(|(_, line)| line));
        let min = all().map(|latency| latency.p50_us).fold(f64::INFINITY, f64::min);
        (min, all().map(|latency| latency.p99_us).fold(0.0, f64::max))
    }

    fn draw(&self, (min, max): (f64, f64)) -> Markup {
        let scale = Scale::log(min * 0.8, max, 0.0, 68.0);
        let height = |lines: usize| LABEL + PITCH * lines as f64 + 8.0;
        let bottom = TOP + self.rows.iter().map(|(_, lines)| height(lines.len())).sum::<f64>();
        let figure = Figure {
            id: self.id.clone(),
            title: &self.title,
            subtitle: self.subtitle.clone(),
            description: self.description(),
            height: bottom + 20.0,
        };
        let mut y = TOP;
        figure.with(&html! {
            (axis(&scale, TOP, bottom))
            @for (label, lines) in &self.rows {
                text class="label" x="0" y=(px(y + 12.0)) { (label) }
                @for (index, (mode, latency)) in lines.iter().enumerate() {
                    (line(label, mode, latency, &scale, y + LABEL + 5.0 + PITCH * index as f64))
                }
                @let () = y += height(lines.len());
            }
        })
    }
}

impl Dots {
    fn description(&self) -> String {
        let lines = self.rows.iter().flat_map(|(label, lines)| {
            lines.iter().map(move |(mode, latency)| {
                let [p50, p99] = [latency.p50_us, latency.p99_us].map(number::pretty);
                format!("{label} {mode}: {p50} and {p99}")
            })
        });
        format!("Microseconds, p50 and p99. {}.", lines.collect::<Vec<_>>().join("; "))
    }
}

fn line(label: &str, mode: &str, latency: &Latency, scale: &Scale, y: f64) -> Markup {
    let &Latency { p50_us, p99_us } = latency;
    let [p50, p99] = [p50_us, p99_us].map(number::pretty);
    html! {
        g class=(format!("latency {mode}")) {
            title { (label) ", " (mode) ": p50 " (p50) " µs, p99 " (p99) " µs" }
            line x1=(pc(scale.at(p50_us))) x2=(pc(scale.at(p99_us))) y1=(px(y)) y2=(px(y)) {}
            line x1=(pc(scale.at(p99_us))) x2=(pc(scale.at(p99_us)))
                y1=(px(y - 4.0)) y2=(px(y + 4.0)) {}
            circle cx=(pc(scale.at(p50_us))) cy=(px(y)) r="4" {}
            text class="value" x=(pc(scale.at(p99_us))) dx="7" y=(px(y + 4.0)) {
                (p50) " → " (p99)
            }
        }
    }
}

const TOP: f64 = 8.0;
const LABEL: f64 = 17.0;
const PITCH: f64 = 13.0;
