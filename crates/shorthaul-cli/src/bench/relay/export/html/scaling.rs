//! Efficiency by the number of clients: a line for each method, on one file and on a file each.

use maud::{Markup, html};

use crate::bench::export::html::lines::{BOTTOM, HEIGHT, TOP, marker, names_at_ends};
use crate::bench::export::html::plot::{Figure, Panel, Scale, pc, px, side_by_side};
use crate::bench::plan::format_bytes;
use crate::bench::relay::export::scaling::{MEANING, counts, rows};
use crate::bench::relay::report::RelayReport;
use crate::bench::relay::sink::{Files, clients};
use crate::bench::stats::Spread;

pub(super) fn section(report: &RelayReport) -> Markup {
    html! {
        section id="scaling" {
            h2 { "How it scales: efficiency by the number of clients" }
            @for chunk_bytes in report.chunks() {
                h3 { "Chunks of " (format_bytes(chunk_bytes)) }
                (side_by_side(&plots(report, chunk_bytes)))
            }
            p class="note" {
                (MEANING) " A level line at 100 % is perfect; where there are more clients than \
                 CPUs it can't be. Upright lines go from the slowest round to the fastest."
            }
        }
    }
}

struct Plot<'a> {
    /// Unique on the page.
    id: String,
    title: &'static str,
    counts: Vec<usize>,
    lines: Vec<Line<'a>>,
}

struct Line<'a> {
    method: &'a str,
    /// How it looks: `c1` to `c4` stand out.
    class: &'static str,
    /// Numbers of clients, and shares.
    points: Vec<(usize, Spread)>,
}

fn plots(report: &RelayReport, chunk_bytes: usize) -> Vec<Plot<'_>> {
    let of = |files: Files| {
        let counts = counts(report, chunk_bytes);
        let rows = rows(report, chunk_bytes).into_iter().filter(|row| row.files == files);
        let lines = rows.enumerate().map(|(index, row)| {
            let points = counts.iter().zip(&row.figures);
            let points =
                points.filter_map(|(&count, figures)| Some((count, (*figures)?.efficiency?)));
            let class = ["c1", "c2", "c3", "c4"].get(index).copied().unwrap_or("muted");
            Line { method: row.method, class, points: points.collect() }
        });
        let lines = lines.filter(|line| !line.points.is_empty()).collect();
        let id = format!("scaling-{chunk_bytes}-{}", files.name());
        Plot { id, title: files.description(2), counts, lines }
    };
    [Files::Shared, Files::Own].map(of).into_iter().filter(|plot| !plot.lines.is_empty()).collect()
}

impl Panel for Plot<'_> {
    fn range(&self) -> (f64, f64) {
        let points = self.lines.iter().flat_map(|line| &line.points);
        // So much that the perfect line is there, and a bit of air above it.
        (0.0, points.map(|(_, spread)| spread.max).fold(1.1, f64::max))
    }

    fn draw(&self, (_, max): (f64, f64)) -> Markup {
        let last = self.counts.last().copied().unwrap_or(1);
        let x = Scale::log(1.0, last as f64, 14.0, 97.0);
        let y = Scale::linear(max * 100.0, BOTTOM, TOP);
        let figure = Figure {
            id: self.id.clone(),
            title: self.title,
            subtitle: "% of so many times one client alone, by clients".to_owned(),
            description: self.description(),
            height: HEIGHT,
        };
        html! {
            figure class="panel" {
                figcaption { b { (figure.title) } " " (figure.subtitle) }
                div class="labelled" {
                    (figure.svg("plot", &self.drawing(&x, &y)))
                    (self.labels(&y))
                }
                (self.key())
            }
        }
    }
}

impl Plot<'_> {
    fn drawing(&self, x: &Scale, y: &Scale) -> Markup {
        html! {
            @for tick in y.ticks() {
                line class="grid" x1="0" x2="100%" y1=(px(y.at(tick))) y2=(px(y.at(tick))) {}
                text class="tick" x="0" y=(px(y.at(tick) - 4.0)) { (tick) " %" }
            }
            @for &count in &self.counts {
                text class="tick" x=(pc(x.at(count as f64))) y=(px(BOTTOM + 18.0))
                    text-anchor="middle" { (count) }
            }
            g class="series hand-over" {
                title { "perfect: 100 %" }
                line x1=(pc(x.at(1.0))) x2="97%" y1=(px(y.at(100.0))) y2=(px(y.at(100.0))) {}
            }
            @for line in &self.lines { (line.draw(x, y)) }
        }
    }

    /// Each line's name at its end.
    fn labels(&self, y: &Scale) -> Markup {
        let end = |line: &Line<'_>| line.points.last().map_or(0.0, |point| point.1.median);
        let ends = self.lines.iter().map(|line| (y.at(end(line) * 100.0), line.class, line.method));
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
                            svg x="13" y="5" overflow="visible" { path d=(marker(line.class)) {} }
                        }
                        (line.method)
                    }
                }
            }
        }
    }

    fn description(&self) -> String {
        let lines = self.lines.iter().map(|line| {
            let points = line.points.iter().map(|(count, spread)| {
                format!("{:.0} % with {}", spread.median * 100.0, clients(*count))
            });
            format!("{}: {}", line.method, points.collect::<Vec<_>>().join(", "))
        });
        lines.collect::<Vec<_>>().join("; ")
    }
}

impl Line<'_> {
    fn draw(&self, x: &Scale, y: &Scale) -> Markup {
        let at = |&(count, spread): &(usize, Spread)| {
            (pc(x.at(count as f64)), px(y.at(spread.median * 100.0)))
        };
        html! {
            g class=(format!("series {}", self.class)) {
                @for pair in self.points.windows(2) {
                    @let ((x1, y1), (x2, y2)) = (at(&pair[0]), at(&pair[1]));
                    line x1=(x1) x2=(x2) y1=(y1) y2=(y2) {}
                }
                @for point in &self.points {
                    @let (px_, py) = at(point);
                    @let [median, min, max] =
                        [point.1.median, point.1.min, point.1.max].map(|share| share * 100.0);
                    g {
                        title {
                            (self.method) ", " (clients(point.0)) ": "
                            (format!("{median:.1} % ({min:.1}–{max:.1})"))
                        }
                        line class="range" x1=(px_) x2=(px_)
                            y1=(px(y.at(min))) y2=(px(y.at(max))) {}
                        svg x=(px_) y=(py) overflow="visible" { path d=(marker(self.class)) {} }
                    }
                }
            }
        }
    }
}
