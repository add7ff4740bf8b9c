//! What changed since an earlier run.

use maud::{Markup, html};

use super::plot::pc;
use crate::bench::compare::{Change, Comparison, Kind};
use crate::bench::export::{JUDGING, counts, number, percent};
use crate::bench::plan::format_bytes;
use crate::bench::stats::Spread;

pub(super) fn section(comparison: &Comparison) -> Markup {
    let (changes, old) = (comparison.beyond_noise(), &comparison.old);
    html! {
        section id="compared" {
            h2 { "What changed" }
            p {
                "Against the run of " (old.date) " (shorthaul " (old.version) ", "
                code { "shorthaul " (old.command_line) } "): " b { (counts(comparison)) } "."
            }
            @for caution in &comparison.cautions { p class="warning" { (caution) } }
            @if changes.is_empty() {
                p { "Nothing changed beyond the noise." }
            } @else {
                (table(&changes))
            }
            p class="note" { (JUDGING) }
        }
    }
}

fn table(changes: &[&Change]) -> Markup {
    // Twice as fast is as far to the right as half as fast is to the left.
    let size = |change: &&Change| change.ratio.map_or(0.0, |ratio| ratio.ln().abs());
    let largest = changes.iter().map(size).fold(0.0, f64::max).max(0.1);
    html! {
        div class="scroll" tabindex="0" role="region" aria-label="changes" {
            table {
                thead { tr {
                    th scope="col" { "placement" }
                    th scope="col" { "payload" }
                    th scope="col" { "method" }
                    th scope="col" { "mode" }
                    th scope="col" class="n" { "old" }
                    th scope="col" class="n" { "new" }
                    th scope="col" class="n" { "change" }
                    th scope="col" class="wide" { "slower | faster" }
                    th scope="col" { "judged" }
                } }
                tbody { @for change in changes { (row(change, largest)) } }
            }
        }
    }
}

fn row(change: &Change, largest: f64) -> Markup {
    let median = |spread: &Option<Spread>| {
        html! {
            @if let Some(Spread { median, min, max }) = spread {
                span title=(format!("{}–{}", number::pretty(*min), number::pretty(*max))) {
                    (number::pretty(*median))
                }
                " " (change.unit)
            } @else { "–" }
        }
    };
    html! {
        tr {
            th scope="row" { (change.placement) }
            td { (format_bytes(change.bytes)) }
            td { (change.method) }
            td { (change.mode.name()) }
            td class="n" { (median(&change.old)) }
            td class="n" { (median(&change.new)) }
            td class="n" { (percent(change)) }
            td { (bar(change, largest)) }
            td { (change.kind.name()) }
        }
    }
}

fn bar(change: &Change, largest: f64) -> Markup {
    let length = change.ratio.map_or(0.0, |ratio| ratio.ln() / largest * 48.0);
    let class = match change.kind {
        Kind::Faster => "faster",
        Kind::Slower => "slower",
        _ => "aside",
    };
    html! {
        svg class="change" width="100%" height="14" aria-hidden="true" {
            rect class=(class) x=(pc(50.0 + length.min(0.0))) width=(pc(length.abs()))
                y="2" height="10" {}
            line x1="50%" x2="50%" y1="0" y2="14" {}
        }
    }
}
