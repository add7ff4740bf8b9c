//! What comes first: who won, on which machine, and what a reader must know before the figures.

use maud::{Markup, html};

use super::tables::breakable;
use crate::bench::export::number;
use crate::bench::export::verdict::{Verdict, headline, verdicts};
use crate::bench::plan::format_bytes;
use crate::bench::report::Report;

pub(super) fn header(report: &Report) -> Markup {
    html! {
        header {
            p class="eyebrow" { "shorthaul bench" }
            @match headline(report) {
                Some(headline) => {
                    h1 { span class="method" { (headline.method) } " " (headline.claim) }
                    @if let Some(advice) = headline.advice { p class="advice" { (advice) } }
                }
                None => h1 { "Nothing was measured" },
            }
            @for warning in &report.warnings { p class="warning" { (warning) } }
            (facts(report))
        }
    }
}

fn facts(report: &Report) -> Markup {
    let machine = &report.machine;
    let rounds = match report.rounds_dropped {
        0 => format!("{} in {:.0} s", report.rounds, report.seconds),
        dropped => format!("{} in {:.0} s, {dropped} dropped", report.rounds, report.seconds),
    };
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
        ("rounds", rounds),
        ("pages", report.pages()),
        ("calls in flight", report.in_flight.to_string()),
        ("governor", or(&machine.governor, "none")),
        ("shmem huge pages", or(&machine.shmem_huge_pages, "unknown")),
        ("mitigations", mitigations),
        ("writer", report.source.description().to_owned()),
        ("reader", report.consume.description().trim_start_matches("reader ").to_owned()),
        ("client and server wait by", report.wait.name().to_owned()),
    ];
    html! {
        dl class="facts" {
            @for (name, value) in facts { div { dt { (name) } dd { (value) } } }
            div class="whole" {
                dt { "command" }
                dd { code { "shorthaul " (report.command_line) } }
            }
        }
    }
}

/// Who wins where.
pub(super) fn winners(report: &Report) -> Markup {
    let verdicts = verdicts(report);
    html! {
        section id="winners" {
            h2 { "Fastest in each case" }
            @if !verdicts.is_empty() { (winners_table(&verdicts)) }
            (impossible(report))
        }
    }
}

fn impossible(report: &Report) -> Markup {
    let sections = report.sections.iter();
    let impossible: Vec<_> =
        sections.filter_map(|section| Some((section, section.why_not.as_ref()?))).collect();
    html! {
        @if !impossible.is_empty() {
            p class="note" { "Placements that this machine can't do:" }
            ul class="note" {
                @for (section, why_not) in impossible {
                    li { b { (section.placement) } " " (why_not) }
                }
            }
        }
    }
}

/// Two names at most, and how many more there are.
fn level(verdict: &Verdict<'_>) -> Markup {
    html! {
        @for (index, cell) in verdict.level.iter().take(2).enumerate() {
            @if index > 0 { ", " }
            span class="whole" { (cell.method) " (" (cell.mode.name()) ")" }
        }
        @if verdict.level.len() > 2 { " and " (verdict.level.len() - 2) " more" }
    }
}

fn winners_table(verdicts: &[Verdict<'_>]) -> Markup {
    let has_level = verdicts.iter().any(|verdict| !verdict.level.is_empty());
    let baselines = ["sidecar", "fd(s-mmap)"];
    html! {
        div class="scroll" tabindex="0" role="region" aria-label="winners" { table {
            thead { tr {
                th scope="col" { "placement" }
                th scope="col" class="n" { "payload" }
                th scope="col" { "method" }
                th scope="col" { "mode" }
                th scope="col" class="n" { "MB/s" }
                th scope="col" class="n" { (breakable("of hand-over")) }
                @for baseline in baselines {
                    th scope="col" class="n" { "× " (breakable(baseline)) }
                }
                @if has_level { th scope="col" { "level with" } }
            } }
            tbody { @for verdict in verdicts { tr {
                th scope="row" { (verdict.placement) }
                td class="n" { (format_bytes(verdict.bytes)) }
                td { (verdict.best.method) }
                td { (verdict.best.mode.name()) }
                td class="n" { b {
                    @if verdict.bytes > 0 {
                        (number::pretty(verdict.best.megabytes_per_second.median))
                    } @else { "–" }
                } }
                td class="n" {
                    @match &verdict.best.of_hand_over_limit {
                        Some(share) => (number::share(share.median)),
                        None => "–",
                    }
                }
                @for baseline in baselines {
                    td class="n" {
                        @match verdict.times.iter().find(|(_, name)| *name == baseline) {
                            Some((times, _)) => { (format!("{times:.1}")) },
                            None => "–",
                        }
                    }
                }
                @if has_level { td class="text" { (level(verdict)) } }
            } } }
        } }
        p class="note" {
            "Median over the rounds. " b { "of hand-over" } ": share of what two threads can hand \
            over in this placement with no RPC at all. " b { "×" } ": how many times faster than \
            that method in the same mode; " code { "sidecar" } " is what a socket does, "
            code { "fd(s-mmap)" } " is shared memory that is made anew for each call."
            @if has_level {
                " " b { "level with" } ": other methods that the noise of this run doesn't tell \
                 from the fastest."
            }
        }
    }
}
