//! The parts of a payload: where each begins and ends.

use std::ops::Range;

use crate::limits::{PARTS_MAX, PAYLOAD_ALIGNMENT};

/// Where the parts of a payload lie in it. A payload that was made in one piece has one part; of
/// several, each starts at a multiple of [`PAYLOAD_ALIGNMENT`] bytes of the payload. The bytes
/// between them are nobody's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    bytes: usize,
    /// Of several parts; empty if there is one.
    ranges: Vec<Range<usize>>,
}

impl Parts {
    /// One part of `bytes` bytes.
    pub(crate) fn one(bytes: usize) -> Self {
        Self { bytes, ranges: Vec::new() }
    }

    /// The parts whose lengths are told, which must fill exactly `bytes` bytes.
    pub(crate) fn of_lengths(
        bytes: u64,
        lengths: impl ExactSizeIterator<Item = u64>,
    ) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?;
        if lengths.len() == 0 {
            return Some(Self::one(bytes));
        }
        if lengths.len() == 1 || lengths.len() > PARTS_MAX {
            return None;
        }
        let mut ranges: Vec<Range<usize>> = Vec::with_capacity(lengths.len());
        for length in lengths {
            let start = match ranges.last() {
                Some(last) => aligned(last.end)?,
                None => 0,
            };
            let end = start.checked_add(usize::try_from(length).ok()?)?;
            ranges.push(start..end);
        }
        (ranges.last()?.end == bytes).then_some(Self { bytes, ranges })
    }

    /// How many there are: at least one.
    pub fn count(&self) -> usize {
        self.ranges.len().max(1)
    }

    /// Where part `index` lies in the payload, in bytes.
    pub fn get(&self, index: usize) -> Option<Range<usize>> {
        match &self.ranges[..] {
            [] => (index == 0).then_some(0..self.bytes),
            ranges => ranges.get(index).cloned(),
        }
    }

    /// Where they all lie, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Range<usize>> {
        (0..self.count()).map(|index| self.get(index).unwrap_or_default())
    }

    /// Bytes of the whole payload, with what is between the parts.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Their lengths as they travel: none if there is one part.
    pub(crate) fn lengths(&self) -> impl ExactSizeIterator<Item = u64> {
        self.ranges.iter().map(|range| range.len() as u64)
    }
}

/// Bytes of a payload whose parts have these lengths: each but the last takes up a multiple of
/// [`PAYLOAD_ALIGNMENT`]. None if that is more than there can be.
pub fn parts_bytes(lengths: &[usize]) -> Option<usize> {
    lengths.iter().try_fold(0, |end, &length| aligned(end)?.checked_add(length))
}

/// The next place where a part may begin.
pub(crate) fn aligned(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(PAYLOAD_ALIGNMENT as usize)
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_aligned_and_all_fill_the_payload() {
        let lengths = [1_u64, 64, 0, 130];
        let parts = Parts::of_lengths(64 + 64 + 130, lengths.into_iter()).unwrap();
        let expected = [0..1, 64..128, 128..128, 128..258];
        assert_eq!(parts.iter().collect::<Vec<_>>(), expected);
        assert_eq!((parts.count(), parts.bytes(), parts.get(4)), (4, 258, None));
        assert_eq!(parts.lengths().collect::<Vec<_>>(), lengths);
        assert_eq!(parts_bytes(&[1, 64, 0, 130]), Some(258));
    }

    #[test]
    fn one_part_needs_no_table() {
        let parts = Parts::one(7);
        assert_eq!((parts.count(), parts.get(0), parts.get(1)), (1, Some(0..7), None));
        assert_eq!(Parts::of_lengths(7, [].into_iter()), Some(parts));
        assert_eq!(parts_bytes(&[]), Some(0));
    }

    #[test]
    fn tables_that_do_not_add_up_are_none() {
        let of = |bytes, lengths: &[u64]| Parts::of_lengths(bytes, lengths.iter().copied());
        assert!(of(7, &[7]).is_none(), "one part has no table");
        assert!(of(65, &[1, 2]).is_none());
        assert!(of(66, &[1, 2]).is_some());
        assert!(of(67, &[1, 2]).is_none());
        assert!(of(u64::MAX, &[u64::MAX, 1]).is_none());
        assert!(of(0, &[u64::MAX, 1]).is_none());
        assert!(of(u64::MAX - 62, &[u64::MAX - 62, 0]).is_none());
        assert!(of(0, &vec![0; PARTS_MAX]).is_some());
        assert!(of(0, &vec![0; PARTS_MAX + 1]).is_none());
        assert_eq!(parts_bytes(&[usize::MAX, 1]), None);
    }
}
