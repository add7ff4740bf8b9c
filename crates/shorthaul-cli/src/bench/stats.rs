//! Functions of numbers.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::report::Latency;

/// The middle of some measurements, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// The spread of `values`; none of no values.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted[sorted.len() / 2];
        let lower = sorted[(sorted.len() - 1) / 2];
        Some(Self { median: f64::midpoint(lower, upper), min, max })
    }

    /// The spread of the quotients of measurements that were made in the same rounds.
    pub(crate) fn of_ratios(values: &[f64], references: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = values.iter().zip(references).map(|(v, r)| v / r).collect();
        Self::of(&ratios)
    }
}

/// The middle of `values`; 0 of no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    Spread::of(values).map_or(0.0, |spread| spread.median)
}

/// Takes down how long each call took, to three digits.
pub(crate) struct Times {
    histogram: Histogram<u32>,
}

/// What was taken down: nanoseconds, and how many calls took as long. A histogram has a place for
/// every time there could be, and there is one of these for every cell of every round.
pub(crate) type Recorded = Vec<(u64, u32)>;

impl Times {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, TIME_MAX_NS, DIGITS);
        Self { histogram: histogram.expect("the bounds and digits are ones that it takes") }
    }

    /// Takes down one call. One over the maximum counts as the maximum.
    pub(crate) fn record(&mut self, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(time_ns);
    }

    /// Gives out what was taken down, and begins anew.
    pub(crate) fn take(&mut self) -> Recorded {
        let recorded = self
            .histogram
            .iter_recorded()
            .map(|place| (place.value_iterated_to(), place.count_at_value()))
            .collect();
        self.histogram.clear();
        recorded
    }
}

impl Latency {
    /// The median and the 99th percentile of all calls of all `parts`; none if there were none.
    pub(crate) fn of<'a>(parts: impl Iterator<Item = &'a Recorded>) -> Option<Self> {
        let mut all = Times::new().histogram;
        for &(time_ns, count) in parts.flatten() {
            all.saturating_record_n(time_ns, count);
        }
        let percentile = |share| all.value_at_quantile(share) as f64 / 1e3;
        (!all.is_empty()).then(|| Self { p50_us: percentile(0.5), p99_us: percentile(0.99) })
    }
}

/// No call takes longer than its deadline.
const TIME_MAX_NS: u64 = 100_000_000_000;
const DIGITS: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let spread = Spread::of(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 3.0, 5.0));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 9.0]).unwrap().median, 3.0);
        assert_eq!(Spread::of(&[]), None);
        assert_eq!((median(&[]), median(&[2.0])), (0.0, 2.0));
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let spread = Spread::of_ratios(&[1.0, 30.0], &[10.0, 100.0]).unwrap();
        assert_eq!((spread.min, spread.max), (0.1, 0.3));
    }

    #[test]
    fn percentiles_are_of_all_rounds_together() {
        let mut times = Times::new();
        let mut round = |micros: std::ops::RangeInclusive<u64>| {
            micros.for_each(|time| times.record(Duration::from_micros(time)));
            times.take()
        };
        let rounds = [round(1..=60), round(61..=100)];
        let latency = Latency::of(rounds.iter()).unwrap();
        assert!((latency.p50_us - 50.0).abs() < 0.1, "{latency:?}");
        assert!((latency.p99_us - 99.0).abs() < 0.1, "{latency:?}");
        assert!(Latency::of([].iter()).is_none());
        times.record(Duration::from_secs(1_000_000));
        assert_eq!(times.take().len(), 1);
        assert!(times.take().is_empty());
    }
}
