//! Bars across, a row for each method: how much, from min to max, and how much there could be.

use maud::{Markup, html};

use super::plot::{Figure, MARK_HEIGHT, Mark, Panel, Scale, axis, marks, pc, px};
use crate::bench::export::number;
use crate::bench::stats::Spread;

#[derive(Clone)]
pub(in crate::bench) struct Bars {
    /// Unique on the page.
    pub(in crate::bench) id: String,
    pub(in crate::bench) title: String,
    pub(in crate::bench) subtitle: String,
    pub(in crate::bench) unit: &'static str,
    pub(in crate::bench) rows: Vec<Row>,
    pub(in crate::bench) marks: Vec<Mark>,
}

/// What is compared, and its bars.
#[derive(Clone)]
pub(in crate::bench) struct Row {
    pub(in crate::bench) label: String,
    pub(in crate::bench) bars: Vec<Bar>,
    /// What the same would be without the RPC.
    pub(in crate::bench) twin: Option<f64>,
}

#[derive(Clone)]
pub(in crate::bench) struct Bar {
    /// `direct` or `threads`, or another class of the style sheet.
    pub(in crate::bench) class: &'static str,
    pub(in crate::bench) spread: Spread,
    pub(in crate::bench) is_best: bool,
}

impl Panel for Bars {
    /// A mark that would leave the bars no room lies outside.
    fn range(&self) -> (f64, f64) {
        let spreads = self.rows.iter().flat_map(|row| row.bars.iter().map(|bar| bar.spread.max));
        let twins = self.rows.iter().filter_map(|row| row.twin);
        let bars = spreads.chain(twins).fold(0.0, f64::max);
        let near = self.marks.iter().map(|mark| mark.value).filter(|value| *value <= 4.0 * bars);
        (0.0, near.fold(bars, f64::max))
    }

    fn draw(&self, (_, max): (f64, f64)) -> Markup {
        let top = 8.0 + MARK_HEIGHT * self.marks.len() as f64;
        let bottom = top + self.rows.iter().map(Row::height).sum::<f64>();
        let scale = Scale::linear(max, 0.0, SCALE_END);
        let figure = Figure {
            id: self.id.clone(),
            title: &self.title,
            subtitle: self.subtitle.clone(),
            description: self.description(),
            height: bottom + 20.0,
        };
        let mut y = top;
        figure.with(&html! {
            (axis(&scale, top, bottom))
            (marks(&self.marks, &scale, bottom))
            @for row in &self.rows {
                (self.row(row, &scale, y))
                @let () = y += row.height();
            }
        })
    }
}

impl Bars {
    fn row(&self, row: &Row, scale: &Scale, top: f64) -> Markup {
        html! {
            text class="label" x="0" y=(px(top + 12.0)) { (row.label) }
            @for (index, bar) in row.bars.iter().enumerate() {
                (self.bar(row, bar, scale, top + LABEL + PITCH * index as f64))
            }
            @if let Some(twin) = row.twin {
                g class="twin" {
                    title { (row.label) ", bare twin: " (number::pretty(twin)) " " (self.unit) }
                    line x1=(pc(scale.at(twin))) x2=(pc(scale.at(twin))) y1=(px(top + LABEL - 2.0))
                        y2=(px(top + LABEL + PITCH * row.bars.len() as f64)) {}
                }
            }
        }
    }

    fn bar(&self, row: &Row, bar: &Bar, scale: &Scale, top: f64) -> Markup {
        let Spread { median, min, max } = bar.spread;
        let middle = px(top + THICK / 2.0);
        let value = if bar.is_best { "value best" } else { "value" };
        html! {
            g {
                title {
                    (row.label) @if bar.class != "plain" { ", " (bar.class) } ": "
                    (number::pretty(median)) " " (self.unit)
                    " (" (number::pretty(min)) "–" (number::pretty(max)) ")"
                }
                rect class=(format!("bar {}", bar.class)) x="0" y=(px(top))
                    width=(pc(scale.at(median))) height=(px(THICK)) {}
                line class="whisker" x1=(pc(scale.at(min))) x2=(pc(scale.at(max)))
                    y1=(middle) y2=(middle) {}
                @for end in [min, max] {
                    line class="whisker" x1=(pc(scale.at(end))) x2=(pc(scale.at(end)))
                        y1=(px(top + 3.0)) y2=(px(top + THICK - 3.0)) {}
                }
                text class=(value) x=(pc(row.free_from(scale.at(max), scale))) dx="6"
                    y=(px(top + THICK - 0.5)) {
                    (number::pretty(median))
                }
            }
        }
    }

    fn description(&self) -> String {
        let bars = self.rows.iter().flat_map(|row| {
            row.bars.iter().map(|bar| {
                format!("{} {} {}", row.label, bar.class, number::pretty(bar.spread.median))
            })
        });
        let marks =
            self.marks.iter().map(|mark| format!("{} {}", mark.name, number::pretty(mark.value)));
        format!("{}: {}.", self.unit, bars.chain(marks).collect::<Vec<_>>().join("; "))
    }
}

impl Row {
    fn height(&self) -> f64 {
        LABEL + PITCH * self.bars.len() as f64 + 8.0
    }

    /// Where a value can be written that belongs at `place`: beside the twin, not across it.
    fn free_from(&self, place: f64, scale: &Scale) -> f64 {
        let twin = self.twin.map(|twin| scale.at(twin));
        let in_the_way = twin.filter(|twin| (place - 1.0..place + VALUE).contains(twin));
        in_the_way.unwrap_or(place)
    }
}

/// What is to the right of the scale is room for a value.
const SCALE_END: f64 = 84.0;
/// Room that a value takes, in per cent of a narrow plot.
const VALUE: f64 = 15.0;
const LABEL: f64 = 17.0;
const PITCH: f64 = 13.0;
const THICK: f64 = 10.0;
