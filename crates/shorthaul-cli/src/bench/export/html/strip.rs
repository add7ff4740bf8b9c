//! Was the machine steady: the spin round trip at the start of each round, and the load of others.

use maud::{Markup, html};

use super::plot::{Figure, Scale, pc, px};
use crate::bench::export::number;
use crate::bench::report::{Round, Section};
use crate::bench::stats::Spread;

/// A dot for each round; nothing if the rounds were not kept.
pub(super) fn draw(section: &Section, id: String) -> Markup {
    let rounds = &section.rounds;
    let counted: Vec<f64> =
        rounds.iter().filter(|round| round.dropped.is_none()).map(|round| round.spin_us).collect();
    let max = rounds.iter().map(|round| round.spin_us).fold(0.0, f64::max);
    let scale = Scale::linear(max * 1.15, BOTTOM, TOP);
    let figure = Figure {
        id,
        title: &section.placement,
        subtitle: format!("{} of {} rounds count", counted.len(), rounds.len()),
        description: description(rounds),
        height: HEIGHT,
    };
    let drawing = html! {
        @for tick in scale.ticks() {
            line class="grid" x1="0" x2="100%" y1=(px(scale.at(tick))) y2=(px(scale.at(tick))) {}
            text class="tick" x="0" y=(px(scale.at(tick) - 4.0)) {
                (number::tick(tick)) @if tick == 0.0 { " µs" }
            }
        }
        @if let Some(Spread { median, .. }) = Spread::of(&counted) {
            line class="median" x1=(pc(LEFT)) x2="100%"
                y1=(px(scale.at(median))) y2=(px(scale.at(median))) {}
            text class="tick halo" x="100%" y=(px(scale.at(median) - 8.0)) text-anchor="end" {
                "median " (number::pretty(median))
            }
        }
        @for (index, round) in rounds.iter().enumerate() {
            (dot(round, index, rounds.len(), scale.at(round.spin_us)))
        }
        text class="tick" x="0" y=(px(LOAD_BOTTOM - LOAD_HEIGHT - 3.0)) { "other programs, CPUs" }
        line class="grid" x1="0" x2="100%" y1=(px(LOAD_BOTTOM)) y2=(px(LOAD_BOTTOM)) {}
        text class="tick" x=(pc(place(0, rounds.len()))) y=(px(HEIGHT - 2.0)) text-anchor="middle" {
            "1"
        }
        @if let Some(last) = rounds.len().checked_sub(1).filter(|last| *last > 0) {
            text class="tick" x=(pc(place(last, rounds.len()))) y=(px(HEIGHT - 2.0))
                text-anchor="middle" { (rounds.len()) }
        }
    };
    figure.with_note(&drawing, &dropped(rounds))
}

fn dot(round: &Round, index: usize, count: usize, y: f64) -> Markup {
    let x = pc(place(index, count));
    let load = Scale::linear(1.0, 0.0, LOAD_HEIGHT).at(round.foreign_cpus).max(0.6);
    let width = 60.0 / count as f64;
    html! {
        g class=(if round.dropped.is_some() { "round dropped" } else { "round" }) {
            title {
                "Round " (index + 1) ": " (number::pretty(round.spin_us)) " µs; other programs "
                (number::pretty(round.foreign_cpus)) " CPUs"
                @if let Some(why) = &round.dropped { ". Dropped: " (why) }
            }
            @if round.dropped.is_some() {
                rect class="band" x=(pc(place(index, count) - width / 2.0)) y=(px(TOP - 6.0))
                    width=(pc(width)) height=(px(LOAD_BOTTOM - TOP + 6.0)) {}
                svg x=(x) y=(px(y)) overflow="visible" { path d="M-4-4 4 4M-4 4 4-4" {} }
            } @else {
                circle cx=(x) cy=(px(y)) r="3.5" {}
            }
            rect class="load" x=(pc(place(index, count) - width / 2.0)) y=(px(LOAD_BOTTOM - load))
                width=(pc(width)) height=(px(load)) {}
        }
    }
}

fn dropped(rounds: &[Round]) -> Markup {
    let dropped = rounds.iter().enumerate();
    let dropped: Vec<_> =
        dropped.filter_map(|(index, round)| Some((index, round.dropped.as_ref()?))).collect();
    html! {
        @if !dropped.is_empty() {
            ul class="dropped-list" {
                @for (index, why) in dropped {
                    li { "Round " (index + 1) " doesn't count: " (why) }
                }
            }
        }
    }
}

fn description(rounds: &[Round]) -> String {
    let trips = rounds.iter().map(|round| {
        let dropped = if round.dropped.is_some() { " (dropped)" } else { "" };
        format!("{}{dropped}", number::pretty(round.spin_us))
    });
    format!("Microseconds, round by round: {}.", trips.collect::<Vec<_>>().join(", "))
}

/// Where a round is, beside the words of the axis.
fn place(index: usize, count: usize) -> f64 {
    LEFT + (100.0 - LEFT) * (index as f64 + 0.5) / count as f64
}

const LEFT: f64 = 10.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 104.0;
const LOAD_BOTTOM: f64 = 150.0;
const LOAD_HEIGHT: f64 = 24.0;
const HEIGHT: f64 = 168.0;
