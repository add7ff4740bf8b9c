//! MB/s by the size of the payload, both on logarithmic axes: a line for each method.

use maud::{Markup, html};

use super::plot::{Figure, Panel, Scale, pc, px};
use crate::bench::export::number;
use crate::bench::plan::format_bytes;
use crate::bench::report::{Cell, Payload, Report, Section};
use crate::bench::session::Mode;
use crate::bench::stats::Spread;

/// A plot for each placement and mode; none if there are fewer than two sizes. What goes to the
/// server has plots of its own: it is no rival of what comes from there.
pub(super) fn plots(report: &Report) -> Vec<Plot<'_>> {
    let mut plots = Vec::new();
    for is_put in [false, true] {
        let names = ranked(report, is_put);
        for (index, section) in report.sections.iter().enumerate() {
            for mode in [Mode::Direct, Mode::Threads] {
                let (sizes, lines) = (sizes(section), lines(section, mode, &names));
                if sizes.len() > 1 && lines.iter().any(|line| !line.is_limit) {
                    let what = if is_put { "uploads" } else { "sizes" };
                    let id = format!("{what}-{index}-{}", mode.name());
                    let placement = &section.placement;
                    plots.push(Plot { id, placement, mode, is_put, sizes, lines });
                }
            }
        }
    }
    plots
}

pub(super) struct Plot<'a> {
    /// Unique on the page.
    id: String,
    placement: &'a str,
    mode: Mode,
    /// Whether the payloads go to the server.
    is_put: bool,
    sizes: Vec<usize>,
    lines: Vec<Line<'a>>,
}

/// From sizes across and speeds down.
struct Scales {
    x: Scale,
    y: Scale,
}

struct Line<'a> {
    name: &'a str,
    /// How it looks: `c1` to `c4` stand out.
    class: &'static str,
    is_limit: bool,
    points: Vec<(usize, Spread)>,
}

impl Panel for Plot<'_> {
    fn range(&self) -> (f64, f64) {
        let spreads =
            || self.lines.iter().flat_map(|line| line.points.iter().map(|point| &point.1));
        let min = spreads().map(|spread| spread.min).filter(|min| *min > 0.0);
        let max = spreads().map(|spread| spread.max).fold(0.0, f64::max);
        (min.fold(f64::INFINITY, f64::min), max)
    }

    fn draw(&self, (min, max): (f64, f64)) -> Markup {
        let [first, .., last] = self.sizes[..] else { return html! {} };
        let scales = Scales {
            x: Scale::log(first as f64, last as f64, 14.0, 97.0),
            y: Scale::log(min * 0.8, max * 1.1, BOTTOM, TOP),
        };
        let figure = Figure {
            id: self.id.clone(),
            title: self.placement,
            subtitle: self.subtitle(),
            description: self.description(),
            height: HEIGHT,
        };
        html! {
            figure class="panel" {
                figcaption { b { (figure.title) } " " (figure.subtitle) }
                div class="labelled" {
                    (figure.svg("plot", &self.drawing(&scales)))
                    (self.labels(&scales))
                }
                (self.key())
            }
        }
    }
}

impl Plot<'_> {
    fn subtitle(&self) -> String {
        let uploads = if self.is_put { "uploads, " } else { "" };
        format!("{uploads}{}, MB/s by payload", self.mode.name())
    }

    fn drawing(&self, scales: &Scales) -> Markup {
        // What stands out is drawn last, over the rest.
        let behind = |line: &&Line<'_>| line.class == MUTED;
        let (behind, before): (Vec<_>, Vec<_>) = self.lines.iter().partition(behind);
        html! {
            @for tick in scales.y.ticks() {
                line class="grid" x1="0" x2="100%"
                    y1=(px(scales.y.at(tick))) y2=(px(scales.y.at(tick))) {}
                text class="tick" x="0" y=(px(scales.y.at(tick) - 4.0)) { (number::tick(tick)) }
            }
            @for bytes in self.sizes_with_room(&scales.x) {
                @let place = scales.x.at(bytes as f64);
                text class="tick" x=(pc(place)) y=(px(BOTTOM + 18.0))
                    text-anchor=(if place > 90.0 { "end" } else { "middle" })
                    dx=(if place > 90.0 { 8 } else { 0 }) { (format_bytes(bytes)) }
            }
            @for line in behind.into_iter().chain(before) { (self.line(line, scales)) }
        }
    }

    fn line(&self, line: &Line<'_>, scales: &Scales) -> Markup {
        let place = |(bytes, spread): &(usize, Spread)| {
            (pc(scales.x.at(*bytes as f64)), px(scales.y.at(spread.median)))
        };
        html! {
            g class=(format!("series {}", line.class)) {
                @for pair in line.points.windows(2) {
                    @let ((x1, y1), (x2, y2)) = (place(&pair[0]), place(&pair[1]));
                    line x1=(x1) x2=(x2) y1=(y1) y2=(y2) {}
                }
                @for point in &line.points {
                    @let (x, y) = place(point);
                    @let Spread { median, min, max } = point.1;
                    g {
                        title {
                            (line.name) ", " (format_bytes(point.0)) ": " (number::pretty(median))
                            " MB/s (" (number::pretty(min)) "–" (number::pretty(max)) ")"
                        }
                        @if line.class != MUTED && !line.is_limit {
                            line class="range" x1=(x) x2=(x)
                                y1=(px(scales.y.at(min))) y2=(px(scales.y.at(max))) {}
                        }
                        @if !line.is_limit {
                            svg x=(x) y=(y) overflow="visible" { path d=(marker(line.class)) {} }
                        }
                    }
                }
            }
        }
    }

    /// Each line's name at its end.
    fn labels(&self, scales: &Scales) -> Markup {
        let end = |line: &Line<'_>| Some(scales.y.at(line.points.last()?.1.median));
        let ends = self.lines.iter().filter_map(|line| Some((end(line)?, line.class, line.name)));
        names_at_ends(ends.collect())
    }

    /// The same names below, where there is no room beside.
    fn key(&self) -> Markup {
        html! {
            ul class="key" aria-hidden="true" {
                @for line in &self.lines {
                    li {
                        svg width="26" height="10" class=(format!("series {}", line.class)) {
                            line x1="0" x2="26" y1="5" y2="5" {}
                            @if !line.is_limit {
                                svg x="13" y="5" overflow="visible" {
                                    path d=(marker(line.class)) {}
                                }
                            }
                        }
                        (line.name)
                    }
                }
            }
        }
    }

    fn description(&self) -> String {
        let lines = self.lines.iter().map(|line| {
            let points = line.points.iter().map(|(bytes, spread)| {
                format!("{} at {}", number::pretty(spread.median), format_bytes(*bytes))
            });
            format!("{}: {}", line.name, points.collect::<Vec<_>>().join(", "))
        });
        lines.collect::<Vec<_>>().join("; ")
    }

    /// Sizes whose names don't run into each other.
    fn sizes_with_room(&self, x: &Scale) -> Vec<usize> {
        let mut chosen: Vec<usize> = Vec::new();
        // The largest first: the end of the axis is always named.
        for &bytes in self.sizes.iter().rev() {
            let is_apart = |other: &usize| x.at(*other as f64) - x.at(bytes as f64) >= 15.0;
            if chosen.last().is_none_or(is_apart) {
                chosen.push(bytes);
            }
        }
        chosen
    }
}

fn sizes(section: &Section) -> Vec<usize> {
    let mut sizes: Vec<usize> = section.payloads.iter().map(|payload| payload.bytes).collect();
    sizes.retain(|bytes| *bytes > 0);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Limits first, then methods in the order of `names`: the first few stand out.
fn lines<'a>(section: &'a Section, mode: Mode, names: &[&'a str]) -> Vec<Line<'a>> {
    let limit = |name, class, of: fn(&Payload) -> Spread| Line {
        name,
        class,
        is_limit: true,
        points: points(section, |payload| Some(of(payload))),
    };
    let mut lines = vec![
        limit("speed limit", "speed", |payload| payload.speed_limit),
        limit("hand-over limit", "hand-over", |payload| payload.hand_over_limit),
    ];
    for (rank, name) in names.iter().enumerate() {
        let class = ["c1", "c2", "c3", "c4"].get(rank).copied().unwrap_or(MUTED);
        let points = points(section, |payload| speed(payload, name, mode).copied());
        lines.push(Line { name, class, is_limit: false, points });
    }
    lines.retain(|line| !line.points.is_empty());
    lines
}

/// Methods of one direction that win most often first, then by their mean share of the best, as a
/// factor. It is the same order for all its plots, so that a colour is the same method in each.
fn ranked(report: &Report, is_put: bool) -> Vec<&str> {
    let mut shares: Vec<(&str, Vec<f64>)> = Vec::new();
    let payloads = report.sections.iter().flat_map(|section| &section.payloads);
    for payload in payloads.filter(|payload| payload.bytes > 0) {
        for mode in Mode::ALL {
            let is_of_mode = |cell: &&Cell| cell.mode == mode && cell.is_put() == is_put;
            let of_mode = || payload.cells.iter().filter(is_of_mode);
            let best = of_mode().map(|cell| cell.megabytes_per_second.median).fold(0.0, f64::max);
            for cell in of_mode() {
                let share = cell.megabytes_per_second.median / best;
                match shares.iter_mut().find(|(name, _)| *name == cell.method) {
                    Some((_, shares)) => shares.push(share),
                    None => shares.push((&cell.method, vec![share])),
                }
            }
        }
    }
    let rank = |shares: &[f64]| {
        let wins = shares.iter().filter(|share| **share >= 1.0).count() as f64;
        let mean = shares.iter().map(|share| share.ln()).sum::<f64>() / shares.len().max(1) as f64;
        (-wins, -mean)
    };
    shares.sort_by(|a, b| {
        let (a, b) = (rank(&a.1), rank(&b.1));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    shares.into_iter().map(|(name, _)| name).collect()
}

fn speed<'a>(payload: &'a Payload, method: &str, mode: Mode) -> Option<&'a Spread> {
    let found = payload.cells.iter().find(|cell| cell.method == method && cell.mode == mode);
    found.map(|cell| &cell.megabytes_per_second)
}

fn points(section: &Section, of: impl Fn(&Payload) -> Option<Spread>) -> Vec<(usize, Spread)> {
    let sized = section.payloads.iter().filter(|payload| payload.bytes > 0);
    let mut points: Vec<(usize, Spread)> =
        sized.filter_map(|payload| Some((payload.bytes, of(payload)?))).collect();
    points.sort_by_key(|(bytes, _)| *bytes);
    points
}

/// The name of each line, given with its class, beside the place where it ends, apart from the
/// others.
pub(in crate::bench) fn names_at_ends(mut ends: Vec<(f64, &str, &str)>) -> Markup {
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let places = apart(&ends.iter().map(|(y, ..)| *y).collect::<Vec<_>>());
    html! {
        svg class="ends" width="186" height=(px(HEIGHT)) aria-hidden="true" {
            @for ((y, class, name), place) in ends.into_iter().zip(places) {
                g class=(format!("series {class}")) {
                    line class="leader" x1="0" x2="11" y1=(px(y)) y2=(px(place)) {}
                    text x="14" y=(px(place + 4.0)) { (name) }
                }
            }
        }
    }
}

/// Places as near to `wanted`, which is sorted, as a line of text between them allows.
fn apart(wanted: &[f64]) -> Vec<f64> {
    let mut places = wanted.to_vec();
    for index in 1..places.len() {
        places[index] = places[index].max(places[index - 1] + LINE_HEIGHT);
    }
    let mut max = BOTTOM + 8.0;
    for place in places.iter_mut().rev() {
        *place = place.min(max);
        max = *place - LINE_HEIGHT;
    }
    places
}

/// A shape of its own for each colour: they are told apart without it, too.
pub(in crate::bench) fn marker(class: &str) -> &'static str {
    match class {
        "c1" => "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
        "c2" => "M-4-4h8v8h-8z",
        "c3" => "M0-5 5 4h-10z",
        "c4" => "M0-5.5 5.5 0 0 5.5-5.5 0z",
        _ => "M-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0z",
    }
}

const MUTED: &str = "muted";
const LINE_HEIGHT: f64 = 15.0;
pub(in crate::bench) const TOP: f64 = 14.0;
pub(in crate::bench) const BOTTOM: f64 = 300.0;
pub(in crate::bench) const HEIGHT: f64 = 324.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lie_apart() {
        assert_eq!(apart(&[20.0, 100.0]), [20.0, 100.0]);
        assert_eq!(apart(&[20.0, 21.0, 22.0]), [20.0, 35.0, 50.0]);
        let places = apart(&[299.0, 300.0]);
        assert!(places[1] <= BOTTOM + 8.0 && places[1] - places[0] >= LINE_HEIGHT, "{places:?}");
    }
}
