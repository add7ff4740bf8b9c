//! Every figure, and what each column means.

use maud::{Markup, html};

use crate::bench::export::columns::{self, COLUMNS, Column, Value};
use crate::bench::export::number;
use crate::bench::plan::format_bytes;
use crate::bench::report::{Cell, Payload, Report, Section};
use crate::bench::stats::Spread;

/// The table of one placement and payload.
pub(super) fn table(section: &Section, payload: &Payload) -> Markup {
    let columns = columns::of(payload);
    let best = payload.best().map(|best| (&best.method, best.mode));
    html! {
        div class="scroll" tabindex="0" role="region" aria-label="figures" {
            table class="sortable" {
                caption {
                    b { (section.placement) } " " (format_bytes(payload.bytes)) (limits(payload))
                }
                thead { tr {
                    th scope="col" { "method" }
                    th scope="col" { "mode" }
                    @for column in &columns {
                        @let class = is_number(column).then_some("n");
                        th scope="col" class=[class] title=(column.meaning) {
                            (breakable(column.name))
                        }
                    }
                } }
                tbody {
                    @for cell in &payload.cells {
                        tr class=[(best == Some((&cell.method, cell.mode))).then_some("best")] {
                            th scope="row" { (cell.method) }
                            td { (cell.mode.name()) }
                            @for column in &columns { (value(column, payload, cell)) }
                        }
                    }
                }
            }
        }
    }
}

/// A name that may be broken at spaces, and before a slash that follows a long word.
pub(in crate::bench) fn breakable(name: &str) -> Markup {
    let joined = name.replace('-', "\u{2011}").replace('–', "\u{2060}–\u{2060}");
    html! {
        @match joined.split_once('/') {
            Some((word, rest)) if word.len() > 5 && !word.contains(' ') => {
                (word) wbr; "/" (rest)
            }
            _ => (joined.replace('/', "\u{2060}/\u{2060}")),
        }
    }
}

fn limits(payload: &Payload) -> Markup {
    let limit = |spread: &Spread| {
        let [median, min, max] = [spread.median, spread.min, spread.max].map(number::pretty);
        format!("{median} MB/s ({min}–{max})")
    };
    html! {
        @if payload.bytes > 0 {
            ", speed limit " (limit(&payload.speed_limit))
            ", hand-over limit " (limit(&payload.hand_over_limit))
        }
    }
}

fn value(column: &Column, payload: &Payload, cell: &Cell) -> Markup {
    let class = Some(if is_number(column) { "n" } else { "text" });
    html! {
        @match (column.of)(payload, cell) {
            None => td class=[class] { "–" },
            Some(Value::Text(text)) => td class=[class] { (text) },
            Some(Value::Number { value, .. }) => {
                td class=[class] data-v=(value) { (number::pretty(value)) }
            }
            Some(Value::Range { min, max }) => {
                td class=[class] data-v=(min) { (number::pretty(min)) "–" (number::pretty(max)) }
            }
            Some(Value::Share(share)) => {
                td class=[class] data-v=(share) { (number::share(share)) }
            }
            Some(Value::Count(count)) => {
                td class=[class] data-v=(count) { (number::count(count)) }
            }
        }
    }
}

/// What the columns that are shown mean.
pub(super) fn meanings(report: &Report) -> Markup {
    let payloads = || report.sections.iter().flat_map(|section| &section.payloads);
    let is_shown = |column: &&Column| {
        let has = |payload| columns::of(payload).iter().any(|other| other.name == column.name);
        payloads().any(has)
    };
    html! {
        dl class="meanings" {
            @for column in COLUMNS.iter().filter(is_shown) {
                div { dt { (column.name) } dd { (column.meaning) "." } }
            }
        }
    }
}

fn is_number(column: &Column) -> bool {
    column.name != "lane"
}
