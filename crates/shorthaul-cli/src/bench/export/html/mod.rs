//! A page with plots: one file that needs nothing else, drawn to be looked at first and read after.

pub(in crate::bench) mod bars;
mod cases;
mod compared;
mod dots;
mod head;
pub(in crate::bench) mod lines;
pub(in crate::bench) mod plot;
mod strip;
pub(in crate::bench) mod tables;

use std::io::{self, Write};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use self::bars::{Bar, Bars, Row};
use self::plot::side_by_side;
use super::verdict::verdicts;
use super::{Results, number};
use crate::bench::report::{EmptyCall, Report, Section};
use crate::bench::stats::Spread;

pub(in crate::bench) fn write(output: &mut impl Write, results: &Results<'_>) -> io::Result<()> {
    write_lines(output, page(results))
}

/// Writes a page in lines, for whoever looks at the source or at a difference.
pub(in crate::bench) fn write_lines(output: &mut impl Write, page: Markup) -> io::Result<()> {
    // Text has no `</` of its own.
    let ends = ["</g>", "</tr>", "</li>", "</div>", "</figcaption>", "</section>", "</thead>"];
    let page = page.into_string();
    let page = ends.iter().fold(page, |page, end| page.replace(end, &format!("{end}\n")));
    writeln!(output, "{page}")
}

fn page(results: &Results<'_>) -> Markup {
    let &Results { report, comparison } = results;
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "shorthaul bench, " (report.machine.cpu) ", " (report.date) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (head::header(report))
                main {
                    @if let Some(comparison) = comparison { (compared::section(comparison)) }
                    (head::winners(report))
                    @if !verdicts(report).is_empty() { (cases::throughput(report)) }
                    (sizes(report))
                    (cases::cost(report))
                    (empty_calls(report))
                    (steadiness(report))
                    @if !verdicts(report).is_empty() { (figures(report)) }
                    (methods())
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

fn sizes(report: &Report) -> Markup {
    let plots = lines::plots(report);
    html! {
        @if !plots.is_empty() {
            section id="sizes" {
                h2 { "How it grows: MB/s by the size of the payload" }
                (side_by_side(&plots))
                p class="note" {
                    "Both axes are logarithmic: a straight line up is a cost for each call, a \
                     level one a cost for each byte. The methods that win most often, and then \
                     those nearest to the winner, stand out, with min to max as upright lines; \
                     the dashed lines are the limits for that size. A size that is not marked was \
                     not measured."
                }
            }
        }
    }
}

fn empty_calls(report: &Report) -> Markup {
    let sections = report.sections.iter().enumerate();
    let plots: Vec<Bars> = sections
        .filter_map(|(index, section)| {
            Some(empty_call(section, section.empty_call.as_ref()?, index))
        })
        .collect();
    html! {
        @if !plots.is_empty() {
            section id="empty" {
                h2 { "What a call costs that moves nothing" }
                (side_by_side(&plots))
                p class="note" {
                    "64 bytes there, 8 back, no payload, in microseconds; less is better. The bare \
                     socketpair passes the same bytes between two processes on the same CPUs with \
                     blocking read and write: what the kernel alone takes."
                }
            }
        }
    }
}

fn empty_call(section: &Section, empty: &EmptyCall, index: usize) -> Bars {
    let row = |label: &str, class, spread: &Spread| Row {
        label: label.to_owned(),
        bars: vec![Bar { class, spread: *spread, is_best: false }],
        twin: None,
    };
    let harness = section.harness_ns.map_or_else(String::new, |harness| {
        format!("; the harness itself takes {} ns of each call", number::pretty(harness.median))
    });
    let ratio = empty.direct_ratio.median;
    Bars {
        id: format!("empty-{index}"),
        title: section.placement.clone(),
        subtitle: format!("µs a call; direct takes {ratio:.2} × the socketpair{harness}"),
        unit: "µs",
        rows: vec![
            row("bare socketpair", "plain", &empty.ping_pong_us),
            row("direct", "direct", &empty.direct_us),
            row("threads", "threads", &empty.threads_us),
        ],
        marks: Vec::new(),
    }
}

fn steadiness(report: &Report) -> Markup {
    let kept = || report.sections.iter().enumerate().filter(|(_, s)| !s.rounds.is_empty());
    html! {
        @if kept().next().is_some() {
            section id="steadiness" {
                h2 { "Was the machine steady?" }
                div class="panels" {
                    @for (index, section) in kept() {
                        (strip::draw(section, format!("rounds-{index}")))
                    }
                }
                p class="note" {
                    "A dot is a round: how long two threads on the CPUs of client and worker \
                     took to pass a flag there and back, spinning (by futex where both share a \
                     CPU), before the round began. The line is the median. A level row of dots is \
                     a machine in one mode; a round that is crossed out was in another one and \
                     counts nowhere. Grey bars are CPUs' worth of load by other programs, up to \
                     one CPU. What happened within a round shows in min and max only."
                }
            }
        }
    }
}

fn figures(report: &Report) -> Markup {
    html! {
        section id="figures" {
            h2 { "Every figure" }
            @for section in &report.sections {
                @for payload in &section.payloads { (tables::table(section, payload)) }
            }
            (tables::meanings(report))
        }
    }
}

/// What the parts of the names mean.
fn methods() -> Markup {
    html! {
        section id="methods" {
            h2 { "The methods" }
            dl class="meanings" {
                @for (name, meaning) in METHODS { div { dt { (name) } dd { (meaning) } } }
            }
        }
    }
}

const METHODS: [(&str, &str); 10] = [
    ("fd", "The client sends a descriptor of its memory, and the server fills that."),
    ("s-write", "The server fills it by pwrite(2)."),
    ("s-mmap", "The server maps it and stores into it."),
    ("c-reuse", "The client keeps one buffer for all calls; else each call brings a new one."),
    ("s-reuse", "The server keeps its mapping for the next call on the same buffer."),
    ("sidecar", "No shared memory: the payload follows the reply on the socket."),
    ("nt", "Streaming (non-temporal) stores: past the caches, into memory."),
    ("sealed", "The server makes memory, seals it and sends a descriptor of it."),
    ("auto", "The library chooses, and the lane says what and why."),
    (
        "put",
        "The other way, from the client to the server: inline, from a region that the client \
         keeps, in sealed memory, or as the library chooses.",
    ),
];
pub(in crate::bench) const STYLE: &str = include_str!("page.css");
pub(in crate::bench) const SCRIPT: &str = include_str!("sort.js");
