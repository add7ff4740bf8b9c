//! A page with plots: what the bench of calls has, drawn for relays.

mod head;
mod plots;
mod scaling;
mod tables;

use std::io::{self, Write};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::bench::export::html::{SCRIPT, STYLE, write_lines};
use crate::bench::relay::report::RelayReport;

pub(in crate::bench) fn write(output: &mut impl Write, report: &RelayReport) -> io::Result<()> {
    write_lines(output, page(report))
}

fn page(report: &RelayReport) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "shorthaul bench relay, " (report.machine.cpu) ", " (report.date) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (head::header(report))
                main {
                    @if report.settings.is_scaling { (scaling::section(report)) }
                    @if report.has_figures() {
                        (plots::throughput(report))
                        (plots::cost(report))
                    }
                    (tables::figures(report))
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}
