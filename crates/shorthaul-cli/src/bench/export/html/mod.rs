//! A page with plots: one file that needs nothing else, drawn to be looked at first and read after.

mod bars;
mod compared;
mod dots;
mod lines;
mod plot;
mod strip;
mod tables;

use std::io::{self, Write};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use self::bars::{Bar, Bars, Row};
use self::dots::Dots;
use self::plot::{Mark, side_by_side};
use super::verdict::{Verdict, headline, verdicts};
use super::{Results, number};
use crate::bench::plan::format_bytes;
use crate::bench::report::{Cell, EmptyCall, Payload, Report, Section, Threads};
use crate::bench::session::Mode;
use crate::bench::stats::Spread;

pub(in crate::bench) fn write(output: &mut impl Write, results: &Results<'_>) -> io::Result<()> {
    let page = page(results).into_string();
    // Lines, for whoever looks at the source or at a difference. Text has no `</` of its own.
    let ends = ["</g>", "</tr>", "</li>", "</div>", "</figcaption>", "</section>", "</thead>"];
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
                (header(report))
                main {
                    @if let Some(comparison) = comparison { (compared::section(comparison)) }
                    (winners(report))
                    (throughput(report))
                    (sizes(report))
                    (cost(report))
                    (empty_calls(report))
                    (steadiness(report))
                    (figures(report))
                    (methods())
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

fn header(report: &Report) -> Markup {
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
        ("calls in flight", report.in_flight.to_string()),
        ("governor", or(&machine.governor, "none")),
        ("shmem huge pages", or(&machine.shmem_huge_pages, "unknown")),
        ("mitigations", mitigations),
        ("writer", report.source.description().to_owned()),
        ("reader", report.consume.description().trim_start_matches("reader ").to_owned()),
    ];
    html! {
        dl class="facts" {
            @for (name, value) in facts { div { dt { (name) } dd { (value) } } }
            div class="whole" { dt { "command" } dd { code { "shorthaul " (report.command_line) } } }
        }
    }
}

/// Who wins where.
fn winners(report: &Report) -> Markup {
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

fn winners_table(verdicts: &[Verdict<'_>]) -> Markup {
    let baselines = ["sidecar", "fd(s-mmap)"];
    html! {
        div class="scroll" tabindex="0" { table {
            thead { tr {
                th scope="col" { "placement" }
                th scope="col" class="n" { "payload" }
                th scope="col" { "method" }
                th scope="col" { "mode" }
                th scope="col" class="n" { "MB/s" }
                th scope="col" class="n" { "of hand-over" }
                @for baseline in baselines { th scope="col" class="n" { "× " (baseline) } }
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
            } } }
        } }
        p class="note" {
            "Median over the rounds. " b { "of hand-over" } ": share of what two threads can hand \
            over in this placement with no RPC at all. " b { "×" } ": how many times faster than \
            that method in the same mode; " code { "sidecar" } " is what a socket does, "
            code { "fd(s-mmap)" } " is shared memory that is made anew for each call."
        }
    }
}

fn throughput(report: &Report) -> Markup {
    html! {
        section id="throughput" {
            h2 { "How fast: MB/s by method and placement" }
            (legend(report))
            @for bytes in sizes_of(report) {
                h3 { "Payload " (format_bytes(bytes)) }
                (side_by_side(&cases(report, bytes, throughput_of)))
            }
            p class="note" {
                "Payload bytes per second, one call after another, median over the rounds; the thin \
                 line goes from the slowest round to the fastest. Every byte of every call is \
                 written, and the client does with it what " b { "reader" } " says above; work on \
                 the data that a real program does comes on top. " b { "Hand-over limit" } ": two \
                 threads on the same CPUs passing one warm buffer, no RPC: what the placement \
                 allows. " b { "Speed limit" } ": one thread storing into a warm buffer, nobody \
                 reading: what the CPU allows. An arrow at the edge is a limit too far off to draw."
            }
        }
    }
}

fn legend(report: &Report) -> Markup {
    let mut payloads = report.sections.iter().flat_map(|section| &section.payloads);
    let has_twins = payloads.any(|payload| !payload.twins.is_empty());
    html! {
        ul class="legend" {
            (modes())
            li { (swatch(&html! { line class="whisker" x1="2" x2="24" y1="6" y2="6" {}
                line class="whisker" x1="2" x2="2" y1="3" y2="9" {}
                line class="whisker" x1="24" x2="24" y1="3" y2="9" {} })) "min to max" }
            li { (swatch(&html! { g class="mark hand-over" {
                line x1="13" x2="13" y1="0" y2="12" {} } })) "hand-over limit" }
            li { (swatch(&html! { g class="mark speed" {
                line x1="13" x2="13" y1="0" y2="12" {} } })) "speed limit" }
            @if has_twins {
                li { (swatch(&html! { g class="twin" { line x1="13" x2="13" y1="0" y2="12" {} } }))
                    "bare twin: the same without the RPC" }
            }
        }
    }
}

fn modes() -> Markup {
    html! {
        li { (swatch(&html! { rect class="bar direct" x="1" y="1" width="24" height="10" {} }))
            "direct: two threads, two hops a call" }
        li { (swatch(&html! { rect class="bar threads" x="1" y="1" width="24" height="10" {} }))
            "threads: four threads, four hops" }
    }
}

fn swatch(drawing: &Markup) -> Markup {
    html! { svg class="swatch" width="26" height="12" aria-hidden="true" { (drawing) } }
}

/// A payload of a placement, and the methods in the order of all placements.
struct Case<'a> {
    section: &'a Section,
    payload: &'a Payload,
    methods: &'a [&'a str],
    /// Unique on the page.
    id: String,
}

/// What `panel` makes of each placement that has this payload.
fn cases<P>(report: &Report, bytes: usize, panel: fn(&Case<'_>) -> Option<P>) -> Vec<P> {
    let methods = &ranked(report, bytes)[..];
    let mut found = Vec::new();
    for (index, section) in report.sections.iter().enumerate() {
        for payload in section.payloads.iter().filter(|payload| payload.bytes == bytes) {
            let id = format!("{index}-{bytes}");
            found.extend(panel(&Case { section, payload, methods, id }));
        }
    }
    found
}

fn throughput_of(case: &Case<'_>) -> Option<Bars> {
    let &Case { section, payload, .. } = case;
    let mut bars = match payload.bytes {
        0 => case.bars("µs a call", |cell| Some(&cell.microseconds_per_call))?,
        _ => case.bars("MB/s", |cell| Some(&cell.megabytes_per_second))?,
    };
    if payload.bytes > 0 {
        bars.marks = marks(payload);
        for row in &mut bars.rows {
            let twin = payload.twins.iter().find(|twin| twin.method == row.label);
            row.twin = twin.map(|twin| twin.megabytes_per_second.median);
        }
    }
    if let Some(best) = payload.best() {
        let row = bars.rows.iter_mut().find(|row| row.label == best.method);
        let bars = row.into_iter().flat_map(|row| &mut row.bars);
        bars.filter(|bar| bar.class == best.mode.name()).for_each(|bar| bar.is_best = true);
    }
    bars.id = format!("speed-{}", case.id);
    if let Some(threads) = &section.threads {
        bars.subtitle += &format!("; {}", places(threads));
    }
    Some(bars)
}

impl Case<'_> {
    /// A row for each method, a bar for each mode; none if no cell has the number.
    fn bars(&self, unit: &'static str, of: fn(&Cell) -> Option<&Spread>) -> Option<Bars> {
        let bar =
            |cell: &Cell| Some(Bar { class: cell.mode.name(), spread: *of(cell)?, is_best: false });
        let rows = self.methods.iter().map(|method| Row {
            label: (*method).to_owned(),
            bars: self.cells(method).filter_map(bar).collect(),
            twin: None,
        });
        let rows: Vec<Row> = rows.filter(|row| !row.bars.is_empty()).collect();
        (!rows.is_empty()).then(|| Bars {
            id: self.id.clone(),
            title: self.section.placement.clone(),
            subtitle: unit.to_owned(),
            unit,
            rows,
            marks: Vec::new(),
        })
    }

    /// The cells of a method, the mode of fewer hops first.
    fn cells(&self, method: &str) -> impl Iterator<Item = &Cell> {
        [Mode::Direct, Mode::Threads].into_iter().filter_map(move |mode| {
            self.payload.cells.iter().find(|cell| cell.method == method && cell.mode == mode)
        })
    }
}

fn marks(payload: &Payload) -> Vec<Mark> {
    let mark = |class, name, limit: &Spread| Mark {
        class,
        name,
        value: limit.median,
        tooltip: format!(
            "{name}: {} MB/s ({}–{})",
            number::pretty(limit.median),
            number::pretty(limit.min),
            number::pretty(limit.max)
        ),
    };
    vec![
        mark("speed", "speed limit", &payload.speed_limit),
        mark("hand-over", "hand-over limit", &payload.hand_over_limit),
    ]
}

/// Where the threads run, in few words.
fn places(threads: &Threads) -> String {
    let Threads { client, client_reactor, server_reactor, worker } = threads;
    let [client, c_rx, s_rx, worker] =
        [client, client_reactor, server_reactor, worker].map(|thread| &thread.place);
    if client == c_rx && s_rx == worker {
        return match client == worker {
            true => format!("all threads on {client}"),
            false => format!("client and c-rx on {client}, s-rx and worker on {worker}"),
        };
    }
    format!("client on {client}, c-rx on {c_rx}, s-rx on {s_rx}, worker on {worker}")
}

fn sizes(report: &Report) -> Markup {
    let plots: Vec<Markup> = report
        .sections
        .iter()
        .enumerate()
        .flat_map(|(index, section)| {
            [Mode::Direct, Mode::Threads].into_iter().filter_map(move |mode| {
                lines::draw(section, mode, format!("sizes-{index}-{}", mode.name()))
            })
        })
        .collect();
    html! {
        @if !plots.is_empty() {
            section id="sizes" {
                h2 { "How it grows: MB/s by the size of the payload" }
                div class="panels" { @for plot in plots { (plot) } }
                p class="note" {
                    "Both axes are logarithmic: a straight line up is a cost for each call, a level \
                     one a cost for each byte. The methods that win somewhere, and then those nearest \
                     to the winner, stand out, with min to max as upright lines; the dashed lines are \
                     the limits for that size. A size that is not marked was not measured."
                }
            }
        }
    }
}

fn cost(report: &Report) -> Markup {
    let mut cells = report.sections.iter().flat_map(|section| &section.payloads);
    let has_cost = cells.any(|payload| {
        payload.cells.iter().any(|cell| cell.cost.is_some() || cell.latency.is_some())
    });
    html! {
        @if has_cost {
            section id="cost" {
                h2 { "What it costs" }
                ul class="legend" {
                    (modes())
                    li { (swatch(&html! { g class="latency direct" {
                        line x1="5" x2="23" y1="6" y2="6" {} line x1="23" x2="23" y1="2" y2="10" {}
                        circle cx="5" cy="6" r="4" {} } })) "from p50 to p99" }
                }
                @for bytes in sizes_of(report) {
                    h3 { "Payload " (format_bytes(bytes)) }
                    (side_by_side(&cases(report, bytes, cpu_of)))
                    (side_by_side(&cases(report, bytes, latency_of)))
                }
                p class="note" {
                    b { "CPU-seconds per GB" } ": CPU time of client and server together, in user \
                     space and kernel, for 10^9 bytes; less is better. Threads that sleep cost \
                     nothing, kernel threads on their behalf are not counted. " b { "Latency" } ": \
                     half of all calls are over by p50, 99 of 100 by p99, on a logarithmic axis. \
                     Calls come one after another, or as many at once as are in flight: this is no \
                     latency under a load from elsewhere."
                }
            }
        }
    }
}

fn cpu_of(case: &Case<'_>) -> Option<Bars> {
    let of: fn(&Cell) -> Option<&Spread> = |cell| cell.cost.as_ref()?.cpu_seconds_per_gb.as_ref();
    let bars = case.bars("CPU-seconds per GB", of)?;
    Some(Bars { id: format!("cpu-{}", case.id), ..bars })
}

fn latency_of(case: &Case<'_>) -> Option<Dots> {
    let rows = case.methods.iter().map(|method| {
        let lines = case.cells(method);
        let lines = lines.filter_map(|cell| Some((cell.mode.name(), cell.latency.clone()?)));
        ((*method).to_owned(), lines.collect())
    });
    let rows: Vec<(String, Vec<_>)> =
        rows.filter(|(_, lines): &(_, Vec<_>)| !lines.is_empty()).collect();
    (!rows.is_empty()).then(|| Dots {
        id: format!("latency-{}", case.id),
        title: case.section.placement.clone(),
        subtitle: "µs for a call, p50 → p99".to_owned(),
        rows,
    })
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
                    "A dot is a round: how long two threads on the CPUs of client and worker took to \
                     pass a flag there and back, spinning (by futex where both share a CPU), before \
                     the round began. The line is the median. A level row of dots is a machine in one \
                     mode; a round that is crossed out was in another one and counts nowhere. Grey \
                     bars are CPUs' worth of load by other programs, up to one CPU. What happened \
                     within a round shows in min and max only."
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

/// Methods of a payload in all placements, the fastest first.
fn ranked(report: &Report, bytes: usize) -> Vec<&str> {
    let payloads = report.sections.iter().flat_map(|section| &section.payloads);
    let mut best: Vec<(&str, f64)> = Vec::new();
    for cell in payloads.filter(|p| p.bytes == bytes).flat_map(|payload| &payload.cells) {
        let time = cell.microseconds_per_call.median;
        match best.iter_mut().find(|(method, _)| *method == cell.method) {
            Some((_, least)) => *least = least.min(time),
            None => best.push((&cell.method, time)),
        }
    }
    best.sort_by(|a, b| a.1.total_cmp(&b.1));
    best.into_iter().map(|(method, _)| method).collect()
}

/// All sizes of payload, in the order of the run.
fn sizes_of(report: &Report) -> Vec<usize> {
    let mut sizes = Vec::new();
    for payload in report.sections.iter().flat_map(|section| &section.payloads) {
        if !sizes.contains(&payload.bytes) {
            sizes.push(payload.bytes);
        }
    }
    sizes
}

const METHODS: [(&str, &str); 7] = [
    ("fd", "The client sends a descriptor of its memory, and the server fills that."),
    ("s-write", "The server fills it by pwrite(2)."),
    ("s-mmap", "The server maps it and stores into it."),
    ("c-reuse", "The client keeps one buffer for all calls; else each call brings a new one."),
    ("s-reuse", "The server keeps its mapping for the next call on the same buffer."),
    ("sidecar", "No shared memory: the payload follows the reply on the socket."),
    ("nt", "Streaming (non-temporal) stores: past the caches, into memory."),
];
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("sort.js");
