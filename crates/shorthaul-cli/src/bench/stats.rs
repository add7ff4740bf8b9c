//! Functions of numbers.

use serde::{Deserialize, Serialize};

/// The middle of some measurements, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let spread = Spread::of(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 3.0, 5.0));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 9.0]).unwrap().median, 3.0);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let spread = Spread::of_ratios(&[1.0, 30.0], &[10.0, 100.0]).unwrap();
        assert_eq!((spread.min, spread.max), (0.1, 0.3));
    }
}
