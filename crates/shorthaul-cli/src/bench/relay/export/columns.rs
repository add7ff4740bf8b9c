//! The columns that a row of figures has, and what each means: the same in every form for people.

use super::mib;
use crate::bench::relay::report::{Figures, Group};
use crate::bench::stats::Spread;

pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
    pub(super) of: fn(&Group, &Figures) -> Option<Value>,
}

pub(super) enum Value {
    /// A speed in MiB/s, or another number.
    Number(f64),
    Range(f64, f64),
    Share(f64),
}

impl Value {
    /// As text of few digits.
    pub(super) fn plain(&self) -> String {
        match *self {
            Self::Number(value) => number(value),
            Self::Range(min, max) => format!("({}–{})", number(min), number(max)),
            Self::Share(share) => self::share(share),
        }
    }
}

/// Whole numbers where they have digits enough.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        ..0.1 => 4,
        ..10.0 => 3,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

pub(super) fn share(share: f64) -> String {
    let decimals = if share < 10.0 { 1 } else { 0 };
    format!("{:.decimals$} %", share * 100.0)
}

/// The columns that hold something for `group`.
pub(super) fn of(group: &Group) -> Vec<&'static Column> {
    let figures = || group.cells.iter().filter_map(|cell| cell.figures.as_ref());
    let holds = |column: &&Column| figures().any(|figures| (column.of)(group, figures).is_some());
    COLUMNS.iter().filter(holds).collect()
}

fn range(spread: &Spread) -> Option<Value> {
    Some(Value::Range(mib(spread.min), mib(spread.max)))
}

pub(super) const COLUMNS: [Column; 7] = [
    Column {
        name: "MiB/s",
        meaning: "bytes of all clients together, by the time from the first start until the last \
                  byte had arrived; median over the rounds. MiB are 2^20 bytes",
        of: |_, figures| Some(Value::Number(mib(figures.bytes_per_second.median))),
    },
    Column {
        name: "(min–max)",
        meaning: "the slowest and the fastest round",
        of: |_, figures| range(&figures.bytes_per_second),
    },
    Column {
        name: "each",
        meaning: "MiB/s of a client by its own time, on average",
        of: |group, figures| {
            let each = figures.bytes_per_second_each.median;
            (group.clients > 1).then(|| Value::Number(mib(each)))
        },
    },
    Column {
        name: "of copy",
        meaning: "what a client does as a share of the memory-copy limit of the same round: one \
                  thread copying a warm block of a chunk's size to another. Over 100 % is what \
                  copies nothing",
        of: |_, figures| Some(Value::Share(figures.of_copy_limit.median)),
    },
    Column {
        name: "of n × 1",
        meaning: "efficiency: all clients together, as a share of so many times one client alone \
                  in the same round",
        of: |group, figures| {
            let efficiency = figures.efficiency.filter(|_| group.clients > 1)?;
            Some(Value::Share(efficiency.median))
        },
    },
    Column {
        name: "CPU-s/GB",
        meaning: "CPU time of clients and receivers for 10^9 bytes, in user space and kernel; the \
                  time of kernel threads on their behalf is not in it",
        of: |_, figures| Some(Value::Number(figures.cpu_seconds_per_gb?.median)),
    },
    Column {
        name: "KiB/call",
        meaning: "bytes that one system call of a client moved, on average; splice over a pipe \
                  makes two calls a chunk, as rw does",
        of: |_, figures| Some(Value::Number(figures.bytes_per_call / 1024.0)),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_count() {
        let cases = [(0.0, "0"), (0.0123, "0.0123"), (1.5, "1.500"), (45.67, "45.7")];
        for (value, expected) in cases {
            assert_eq!(number(value), expected);
        }
        assert_eq!(number(19_030.4), "19030");
        assert_eq!((share(0.123), share(60.5)), ("12.3 %".into(), "6050 %".into()));
    }
}
