//! What all plots are made of. Across, places are per cent of the width, so that a plot fills the
//! page it finds while its letters keep their size; down, they are pixels.

use maud::{Markup, html};

use crate::bench::export::number;

/// A plot with its words: what it is, what it shows, and how to read it.
pub(in crate::bench) struct Figure<'a> {
    /// Unique on the page.
    pub(in crate::bench) id: String,
    pub(in crate::bench) title: &'a str,
    pub(in crate::bench) subtitle: String,
    /// What a reader who can't see it is told.
    pub(in crate::bench) description: String,
    pub(in crate::bench) height: f64,
}

impl Figure<'_> {
    pub(in crate::bench) fn with(&self, drawing: &Markup) -> Markup {
        self.with_note(drawing, &html! {})
    }

    /// With words below it.
    pub(in crate::bench) fn with_note(&self, drawing: &Markup, note: &Markup) -> Markup {
        html! {
            figure class="panel" {
                figcaption { b { (self.title) } " " (self.subtitle) }
                (self.svg("plot", drawing))
                (note)
            }
        }
    }

    pub(in crate::bench) fn svg(&self, class: &str, drawing: &Markup) -> Markup {
        let [title, description] =
            ["title", "description"].map(|part| format!("{}-{part}", self.id));
        html! {
            svg class=(class) width="100%" height=(px(self.height)) role="img"
                aria-labelledby=(format!("{title} {description}")) {
                title id=(title) { (self.title) " " (self.subtitle) }
                desc id=(description) { (self.description) }
                (drawing)
            }
        }
    }
}

/// A plot that stands beside others of its kind, on the same scale.
pub(in crate::bench) trait Panel {
    /// The least and the largest value that it shows.
    fn range(&self) -> (f64, f64);

    fn draw(&self, range: (f64, f64)) -> Markup;
}

/// What can be compared stands side by side.
pub(in crate::bench) fn side_by_side<P: Panel>(panels: &[P]) -> Markup {
    let ranges = || panels.iter().map(Panel::range);
    let min = ranges().map(|(min, _)| min).fold(f64::INFINITY, f64::min);
    let max = ranges().map(|(_, max)| max).fold(0.0, f64::max);
    html! {
        div class="panels" { @for panel in panels { (panel.draw((min, max))) } }
    }
}

/// From values to places.
pub(in crate::bench) struct Scale {
    min: f64,
    max: f64,
    from: f64,
    to: f64,
    is_log: bool,
}

impl Scale {
    /// From nothing to `max`, and on to the next tick if that is near.
    pub(in crate::bench) fn linear(max: f64, from: f64, to: f64) -> Self {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        Self { min: 0.0, max, from, to, is_log: false }
    }

    /// From one positive value to another.
    pub(in crate::bench) fn log(min: f64, max: f64, from: f64, to: f64) -> Self {
        let min = if min.is_finite() && min > 0.0 { min } else { 1.0 };
        let max = if max.is_finite() && max > min * 1.01 { max } else { min * 10.0 };
        Self { min, max, from, to, is_log: true }
    }

    pub(in crate::bench) fn at(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value.max(self.min) / self.min).ln() / (self.max / self.min).ln()
        } else {
            (value - self.min) / (self.max - self.min)
        };
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        self.from + share * (self.to - self.from)
    }

    pub(in crate::bench) fn ticks(&self) -> Vec<f64> {
        if self.is_log { self.decades() } else { self.steps() }
    }

    /// About four round steps.
    fn steps(&self) -> Vec<f64> {
        let rough = self.max / 4.0;
        let decade = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .map(|factor| factor * decade)
            .into_iter()
            .find(|step| *step >= rough * 0.99)
            .unwrap_or(rough);
        let count = (self.max / step + 1e-9).floor() as usize;
        (0..=count).map(|index| index as f64 * step).collect()
    }

    /// Powers of ten, with twos and fives between them where there are few.
    fn decades(&self) -> Vec<f64> {
        let (first, last) = (self.min.log10().floor() as i32, self.max.log10().ceil() as i32);
        let within = |factors: &[f64]| -> Vec<f64> {
            let ticks = (first..=last)
                .flat_map(|decade| factors.iter().map(move |factor| factor * 10f64.powi(decade)));
            let edge = 1.0 + 1e-9;
            ticks.filter(|tick| *tick * edge >= self.min && *tick <= self.max * edge).collect()
        };
        let decades = within(&[1.0]);
        if decades.len() > 2 { decades } else { within(&[1.0, 2.0, 5.0]) }
    }
}

/// Lines down the plot at the ticks, with their values below.
pub(in crate::bench) fn axis(scale: &Scale, top: f64, bottom: f64) -> Markup {
    html! {
        @for tick in scale.ticks() {
            line class="grid" x1=(pc(scale.at(tick))) x2=(pc(scale.at(tick)))
                y1=(px(top)) y2=(px(bottom)) {}
            text class="tick" x=(pc(scale.at(tick))) y=(px(bottom + 14.0))
                text-anchor=(if scale.at(tick) < 4.0 { "start" } else { "middle" }) {
                (number::tick(tick))
            }
        }
    }
}

/// A line down the plot at a value that isn't the method's, named at its top.
#[derive(Clone)]
pub(in crate::bench) struct Mark {
    pub(in crate::bench) class: &'static str,
    pub(in crate::bench) name: &'static str,
    pub(in crate::bench) value: f64,
    pub(in crate::bench) tooltip: String,
}

/// Marks with their names in rows from the top; one that lies too far off is an arrow.
pub(in crate::bench) fn marks(marks: &[Mark], scale: &Scale, bottom: f64) -> Markup {
    html! {
        @for (index, mark) in marks.iter().enumerate() {
            @let baseline = 11.0 + MARK_HEIGHT * index as f64;
            @let name = format!("{} {}", mark.name, number::pretty(mark.value));
            g class=(format!("mark {}", mark.class)) {
                title { (mark.tooltip) }
                @if mark.value > scale.max * 1.001 {
                    text x="100%" y=(px(baseline)) text-anchor="end" { (name) " →" }
                } @else {
                    @let place = scale.at(mark.value);
                    @let is_right = place > 45.0;
                    line x1=(pc(place)) x2=(pc(place)) y1=(px(baseline - 9.0)) y2=(px(bottom)) {}
                    text x=(pc(place)) dx=(if is_right { -5 } else { 5 }) y=(px(baseline))
                        text-anchor=(if is_right { "end" } else { "start" }) { (name) }
                }
            }
        }
    }
}

/// A place across.
pub(in crate::bench) fn pc(place: f64) -> String {
    format!("{place:.2}%")
}

/// A place down.
pub(in crate::bench) fn px(place: f64) -> String {
    format!("{}", (place * 10.0).round() / 10.0)
}

pub(in crate::bench) const MARK_HEIGHT: f64 = 16.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_places() {
        let scale = Scale::linear(50.0, 0.0, 80.0);
        assert_eq!((scale.at(0.0), scale.at(25.0), scale.at(500.0)), (0.0, 40.0, 80.0));
        let scale = Scale::log(1.0, 10_000.0, 100.0, 0.0);
        assert_eq!((scale.at(1.0), scale.at(100.0), scale.at(0.0)), (100.0, 50.0, 100.0));
        // Nothing was measured, or nothing sensible.
        assert_eq!(Scale::linear(0.0, 0.0, 80.0).at(0.0), 0.0);
        assert_eq!(Scale::log(0.0, f64::NAN, 0.0, 80.0).at(f64::NAN), 0.0);
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(Scale::linear(44.2, 0.0, 1.0).ticks(), [0.0, 20.0, 40.0]);
        assert_eq!(Scale::linear(0.9, 0.0, 1.0).ticks(), [0.0, 0.25, 0.5, 0.75]);
        assert_eq!(Scale::log(3.0, 2_000.0, 0.0, 1.0).ticks(), [10.0, 100.0, 1_000.0]);
        assert_eq!(Scale::log(4.0, 30.0, 0.0, 1.0).ticks(), [5.0, 10.0, 20.0]);
    }
}
