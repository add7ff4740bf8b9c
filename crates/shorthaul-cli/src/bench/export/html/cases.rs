//! The plots of one payload in one placement, side by side with those of the other placements.

use maud::{Markup, html};

use super::bars::{Bar, Bars, Row};
use super::dots::Dots;
use super::plot::{Mark, side_by_side};
use crate::bench::export::number;
use crate::bench::plan::format_bytes;
use crate::bench::report::{Cell, Payload, Report, Section, Threads};
use crate::bench::session::Mode;
use crate::bench::stats::Spread;

pub(super) fn throughput(report: &Report) -> Markup {
    html! {
        section id="throughput" {
            h2 { "How fast: MB/s by method and placement" }
            (legend(report))
            @for bytes in sizes_of(report) {
                h3 { "Payload " (format_bytes(bytes)) }
                (side_by_side(&cases(report, bytes, throughput_of)))
            }
            p class="note" {
                "Payload bytes per second, with as many calls at once as are in flight; median \
                 over the rounds. The thin line goes from the slowest round to the fastest. Every \
                 byte of every call is written, and the client does with it what " b { "reader" }
                " says above; work on the data that a real program does comes on top. "
                b { "Hand-over limit" } ": two threads on the same CPUs passing one warm buffer, \
                 no RPC: what the placement allows. " b { "Speed limit" } ": one thread storing \
                 into a warm buffer, nobody reading: what the CPU allows. An arrow at the edge is \
                 a limit too far off to draw."
                @if has_puts(report) {
                    " " b { "put" } ": uploads, from the client to the server. They are another \
                     task than answers, so they stand below them and are no rivals of theirs."
                }
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

pub(super) fn cost(report: &Report) -> Markup {
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

fn cpu_of(case: &Case<'_>) -> Option<Bars> {
    let of: fn(&Cell) -> Option<&Spread> = |cell| cell.cost.as_ref()?.cpu_seconds_per_gb.as_ref();
    let bars = case.bars("CPU-seconds per GB", of)?;
    Some(Bars { id: format!("cpu-{}", case.id), ..bars })
}

fn latency_of(case: &Case<'_>) -> Option<Dots> {
    let rows = case.methods.iter().map(|method| {
        let lines = case.cells(method);
        let lines = lines.filter_map(|cell| Some((cell.mode.name(), cell.latency?)));
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

/// Methods of a payload in all placements, the fastest first; those that go to the server after
/// all others, for they are no rivals.
fn ranked(report: &Report, bytes: usize) -> Vec<&str> {
    let payloads = report.sections.iter().flat_map(|section| &section.payloads);
    let mut best: Vec<(&Cell, f64)> = Vec::new();
    for cell in payloads.filter(|p| p.bytes == bytes).flat_map(|payload| &payload.cells) {
        let time = cell.microseconds_per_call.median;
        match best.iter_mut().find(|(other, _)| other.method == cell.method) {
            Some((_, least)) => *least = least.min(time),
            None => best.push((cell, time)),
        }
    }
    best.sort_by(|(a, a_time), (b, b_time)| {
        a.is_put().cmp(&b.is_put()).then(a_time.total_cmp(b_time))
    });
    best.into_iter().map(|(cell, _)| cell.method.as_str()).collect()
}

fn has_puts(report: &Report) -> bool {
    let mut payloads = report.sections.iter().flat_map(|section| &section.payloads);
    payloads.any(|payload| payload.cells.iter().any(Cell::is_put))
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
