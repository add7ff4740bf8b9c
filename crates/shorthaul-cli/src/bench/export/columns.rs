//! The columns that a row of figures has, and what each means: the same in every form for people.

use crate::bench::report::{Cell, Cost, Payload};
use crate::bench::stats::Spread;

/// A column of the table of a payload.
pub(super) struct Column {
    pub(super) name: &'static str,
    /// What is measured, and what it doesn't say.
    pub(super) meaning: &'static str,
    /// Whether only the form that has room for everything shows it.
    pub(super) is_detail: bool,
    pub(super) of: fn(&Payload, &Cell) -> Option<Value>,
}

/// What stands in a cell.
pub(super) enum Value {
    Text(String),
    Number { value: f64, decimals: usize },
    Range { min: f64, max: f64 },
    Share(f64),
    Count(u64),
}

impl Value {
    /// As text of fixed decimals: columns stay in line.
    pub(super) fn plain(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number { value, decimals } => format!("{value:.decimals$}"),
            // Of few bytes the range too must say something.
            Self::Range { min, max } if *max < FEW => format!("({min:.3}–{max:.3})"),
            Self::Range { min, max } => format!("({min:.0}–{max:.0})"),
            Self::Share(share) => format!("{:.1} %", share * 100.0),
            Self::Count(count) => count.to_string(),
        }
    }
}

/// The columns that hold something for `payload`: an older result lacks some.
pub(super) fn of(payload: &Payload) -> Vec<&'static Column> {
    let holds =
        |column: &&Column| payload.cells.iter().any(|cell| (column.of)(payload, cell).is_some());
    COLUMNS.iter().filter(holds).collect()
}

fn number(value: f64, decimals: usize) -> Option<Value> {
    Some(Value::Number { value, decimals })
}

/// MB/s, with more decimals where one would leave nothing.
fn megabytes(value: f64) -> Option<Value> {
    number(value, decimals(value))
}

/// Decimals that MB/s have in text.
pub(super) fn decimals(megabytes_per_second: f64) -> usize {
    if megabytes_per_second < FEW { 3 } else { 1 }
}

fn share(spread: Option<&Spread>) -> Option<Value> {
    spread.map(|spread| Value::Share(spread.median))
}

fn cost(cell: &Cell, of: fn(&Cost) -> Option<f64>) -> Option<f64> {
    cell.cost.as_ref().and_then(of)
}

/// An empty payload has no speed.
fn speed<'a>(payload: &Payload, cell: &'a Cell) -> Option<&'a Spread> {
    (payload.bytes > 0).then_some(&cell.megabytes_per_second)
}

const fn column(
    name: &'static str,
    meaning: &'static str,
    of: fn(&Payload, &Cell) -> Option<Value>,
) -> Column {
    Column { name, meaning, is_detail: false, of }
}

const fn detail(
    name: &'static str,
    meaning: &'static str,
    of: fn(&Payload, &Cell) -> Option<Value>,
) -> Column {
    Column { name, meaning, is_detail: true, of }
}

pub(super) const COLUMNS: [Column; 16] = [
    column(
        "MB/s",
        "payload bytes per second, with as many calls at once as are in flight; median over the \
         rounds. MB are 10^6 bytes",
        |payload, cell| megabytes(speed(payload, cell)?.median),
    ),
    column(
        "(min–max)",
        "the slowest and the fastest round: how far the machine, not the method, moved it",
        |payload, cell| {
            let &Spread { min, max, .. } = speed(payload, cell)?;
            Some(Value::Range { min, max })
        },
    ),
    column(
        "of limit",
        "share of the speed limit of the same round: one thread storing, nobody reading",
        |_, cell| share(cell.of_speed_limit.as_ref()),
    ),
    column(
        "of hand-over",
        "share of the hand-over limit of the same round: two threads passing one buffer, no RPC. \
         What is missing to 100 % is the method's and the RPC's",
        |_, cell| share(cell.of_hand_over_limit.as_ref()),
    ),
    column(
        "µs/call",
        "time of a call from start to end, on average; median over the rounds",
        |_, cell| number(cell.microseconds_per_call.median, 1),
    ),
    column("p50 µs", "half of all calls took no longer", |_, cell| {
        number(cell.latency.as_ref()?.p50_us, 1)
    }),
    column(
        "p99 µs",
        "99 of 100 calls took no longer. Rarer delays than that are not shown",
        |_, cell| number(cell.latency.as_ref()?.p99_us, 1),
    ),
    column(
        "CPU-s/GB",
        "CPU time that client and server used together for 10^9 bytes, in user space and kernel; \
         the time of kernel threads on their behalf is not in it",
        |_, cell| number(cost(cell, |cost| Some(cost.cpu_seconds_per_gb.as_ref()?.median))?, 3),
    ),
    column(
        "switches/call",
        "context switches of client and server for each call: how often a thread had to be woken \
         or gave way",
        |_, cell| number(cost(cell, |cost| Some(cost.context_switches_per_call))?, 2),
    ),
    column(
        "faults/call",
        "page faults of client and server for each call: pages that had to be made or mapped",
        |_, cell| number(cost(cell, |cost| Some(cost.page_faults_per_call))?, 2),
    ),
    column(
        "twin MB/s",
        "the bare twin: the method's own memory calls and one blocking message each way, no RPC",
        |payload, cell| {
            let twin = payload.twin(cell).filter(|_| payload.bytes > 0)?;
            megabytes(twin.megabytes_per_second.median)
        },
    ),
    column(
        "of twin",
        "share of the twin of the same round. What is missing to 100 % is the RPC's",
        |_, cell| share(cell.of_twin.as_ref()),
    ),
    column(
        "of best",
        "of an automatic choice: share of the fastest method that it could have been, in the same \
         round. For uploads that is not put(region), whose bytes lie in the buffer already",
        |_, cell| share(cell.of_best.as_ref()),
    ),
    column("lane", "how the payloads travelled, as the replies said", |_, cell| {
        cell.lane.clone().map(Value::Text)
    }),
    detail("calls", "measured, over all rounds that count", |_, cell| {
        Some(Value::Count(cell.calls))
    }),
    detail(
        "mappings reused",
        "calls that the server answered through a mapping it had kept",
        |_, cell| Some(Value::Count(cell.mappings_reused)),
    ),
];

/// MB/s under which one decimal says too little.
const FEW: f64 = 1.0;
