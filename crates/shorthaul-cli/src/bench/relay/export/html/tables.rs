//! Every figure, and what each column means.

use maud::{Markup, html};

use crate::bench::export::html::tables::breakable;
use crate::bench::export::number;
use crate::bench::plan::format_bytes;
use crate::bench::relay::export::columns::{self, COLUMNS, Column, Value};
use crate::bench::relay::export::mib;
use crate::bench::relay::report::{Cell, Group, RelayReport};
use crate::bench::relay::sink::clients;

pub(super) fn figures(report: &RelayReport) -> Markup {
    html! {
        section id="figures" {
            h2 { "Every figure" }
            @for group in &report.groups { (table(group)) }
            dl class="meanings" {
                @for column in &COLUMNS {
                    div { dt { (column.name) } dd { (column.meaning) "." } }
                }
            }
        }
    }
}

fn table(group: &Group) -> Markup {
    let columns = columns::of(group);
    let [median, min, max] = [group.copy_limit.median, group.copy_limit.min, group.copy_limit.max]
        .map(|limit| number::pretty(mib(limit)));
    html! {
        div class="scroll" tabindex="0" role="region" aria-label="figures" {
            table class="sortable" {
                caption {
                    b { (clients(group.clients)) ", " (group.files.description(group.clients)) }
                    " chunks of " (format_bytes(group.chunk_bytes))
                    ", memory-copy limit " (median) " MiB/s (" (min) "–" (max) ")"
                }
                thead { tr {
                    th scope="col" { "method" }
                    @for column in &columns {
                        th scope="col" class="n" title=(column.meaning) {
                            (breakable(column.name))
                        }
                    }
                    th scope="col" { "what it measures" }
                } }
                tbody { @for cell in &group.cells { (row(group, cell, &columns)) } }
            }
        }
    }
}

fn row(group: &Group, cell: &Cell, columns: &[&Column]) -> Markup {
    html! {
        tr {
            th scope="row" { (cell.method) }
            @for column in columns {
                @let figures = cell.figures.as_ref();
                (value(figures.and_then(|figures| (column.of)(group, figures))))
            }
            td class="text" {
                @match &cell.why_not {
                    Some(why) => { "can't: " (why) }
                    None => (cell.meaning),
                }
            }
        }
    }
}

fn value(value: Option<Value>) -> Markup {
    html! {
        @match value {
            None => td class="n" { "—" },
            Some(Value::Number(number)) => {
                td class="n" data-v=(number) { (number::pretty(number)) }
            }
            Some(Value::Range(min, max)) => {
                td class="n" data-v=(min) { (number::pretty(min)) "–" (number::pretty(max)) }
            }
            Some(Value::Share(share)) => {
                td class="n" data-v=(share) { (number::share(share)) }
            }
        }
    }
}
