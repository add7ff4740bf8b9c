//! What comes first: who won, on which machine, and what a reader must know before the figures.

use maud::{Markup, html};

use crate::bench::export::number;
use crate::bench::relay::export::{heading, mib, setting};
use crate::bench::relay::report::{Cell, Group, RelayReport};
use crate::bench::relay::sink::Sink;

pub(super) fn header(report: &RelayReport) -> Markup {
    html! {
        header {
            p class="eyebrow" { "shorthaul bench relay" }
            (headline(report))
            @for warning in &report.warnings { p class="warning" { (warning) } }
            (facts(report))
        }
    }
}

fn headline(report: &RelayReport) -> Markup {
    let fastest = report.groups.first().and_then(|group| Some((group, fastest(group)?)));
    let sink = report.settings.sink;
    html! {
        @match fastest {
            None => h1 { "Nothing was measured" },
            // There the fastest is who does least: no method to choose by.
            Some(_) if sink == Sink::Null => {
                h1 { "What files cost on their way to /dev/null" }
                p class="advice" { "Nobody looks at the bytes there: each method shows what it \
                    does itself, and nothing else." }
            }
            Some((group, (cell, speed))) => {
                h1 {
                    span class="method" { (cell.method) }
                    " moves files fastest to " (sink.description()) ": "
                    (number::pretty(mib(speed))) " MiB/s" (times_rw(group, speed))
                }
                p class="advice" { (heading(group)) ". " (capital(&cell.meaning)) "." }
            }
        }
    }
}

fn fastest(group: &Group) -> Option<(&Cell, f64)> {
    let speeds = group
        .cells
        .iter()
        .filter_map(|cell| Some((cell, cell.figures.as_ref()?.bytes_per_second.median)));
    speeds.max_by(|a, b| a.1.total_cmp(&b.1))
}

fn times_rw(group: &Group, speed: f64) -> String {
    let rw = group.cell("rw").and_then(|cell| cell.figures.as_ref());
    match rw.map(|figures| speed / figures.bytes_per_second.median) {
        Some(times) if times.is_finite() && times > 1.0 => format!(", {times:.1} × rw"),
        _ => String::new(),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + letters.as_str()
    })
}

fn facts(report: &RelayReport) -> Markup {
    let machine = &report.machine;
    let mitigations = match machine.mitigations.len() {
        0 => "none".to_owned(),
        _ => machine.mitigations.join(", "),
    };
    let or = |value: &Option<String>, other: &str| value.clone().unwrap_or_else(|| other.into());
    let facts = [
        ("machine", format!("{}, {} CPUs", machine.cpu, machine.cpus)),
        ("kernel", format!("Linux {}", machine.kernel)),
        ("date", report.date.clone()),
        ("version", format!("shorthaul {}", report.version)),
        ("rounds", format!("{} in {:.0} s", report.rounds, report.seconds)),
        ("governor", or(&machine.governor, "none")),
        ("shmem huge pages", or(&machine.shmem_huge_pages, "unknown")),
        ("mitigations", mitigations),
    ];
    html! {
        dl class="facts" {
            @for (name, value) in facts { div { dt { (name) } dd { (value) } } }
            div class="whole" { dt { "what" } dd { (setting(report)) } }
            div class="whole" {
                dt { "command" }
                dd { code { "shorthaul " (report.command_line) } }
            }
        }
    }
}
