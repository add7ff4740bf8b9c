//! Functions of numbers.

use serde::Serialize;

/// The middle of some measurements, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// The spread of the values that are there; none of none.
    pub(crate) fn of(values: &[Option<f64>]) -> Option<Self> {
        let mut sorted: Vec<f64> = values.iter().flatten().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (lower, upper) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { median: f64::midpoint(lower, upper), min, max })
    }

    /// The spread of the quotients of what was measured in the same rounds.
    pub(crate) fn of_ratios(values: &[Option<f64>], references: &[Option<f64>]) -> Option<Self> {
        let pairs = values.iter().zip(references);
        let ratios: Vec<_> = pairs.map(|(value, by)| Some((*value)? / (*by)?)).collect();
        Self::of(&ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_that_of_what_is_there() {
        let spread = |values: &[Option<f64>]| Spread::of(values).map(|s| (s.median, s.min, s.max));
        assert_eq!(spread(&[Some(3.0), None, Some(1.0), Some(2.0)]), Some((2.0, 1.0, 3.0)));
        assert_eq!(spread(&[Some(4.0), Some(1.0)]), Some((2.5, 1.0, 4.0)));
        assert_eq!(spread(&[None]), None);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine was slow in the second round; the ratio is the same.
        let (ours, theirs) = ([Some(1.0), Some(10.0), None], [Some(2.0), Some(20.0), Some(9.0)]);
        let ratio = Spread::of_ratios(&theirs, &ours).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (2.0, 2.0, 2.0));
    }
}
