//! A set of CPU ids that grows with the machine, and its two kernel notations.

use std::fmt;
use std::io;
use std::str::FromStr;

use libc::c_ulong;

/// One more than the highest CPU or node id that is believed: 2^20.
///
/// The largest kernels of today stop at 8192 CPUs. The bound keeps a malformed file from naming
/// four thousand million of them.
pub const CPU_IDS_MAX: u32 = 1 << 20;

/// A set of CPU ids (or of node ids) of any size up to [`CPU_IDS_MAX`].
///
/// It is written and read in the kernel's list format: `0-3,8`. The empty list is the empty set.
///
/// ```
/// use shorthaul_platform::topology::CpuSet;
///
/// let cpus: CpuSet = "0-3,8".parse()?;
/// assert_eq!(cpus.len(), 5);
/// assert_eq!(cpus.to_string(), "0-3,8");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # References
/// cpuset(7), "List format" and "Mask format".
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    /// As the kernel lays a mask out. The last word is never 0, so that equal sets are equal words.
    words: Vec<Word>,
}

impl CpuSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// The set of these ids.
    ///
    /// # Errors
    /// As [`CpuSet::insert`].
    pub fn from_ids(ids: impl IntoIterator<Item = u32>) -> io::Result<Self> {
        let mut set = Self::new();
        ids.into_iter().try_for_each(|id| set.insert(id))?;
        Ok(set)
    }

    /// Adds an id.
    ///
    /// # Errors
    /// `InvalidInput` for an id of [`CPU_IDS_MAX`] or more.
    pub fn insert(&mut self, id: u32) -> io::Result<()> {
        if id >= CPU_IDS_MAX {
            let text = format!("CPU id {id} is not below {CPU_IDS_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let (word, bit) = position(id);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
        Ok(())
    }

    /// Whether the id is in the set.
    #[must_use]
    pub fn contains(&self, id: u32) -> bool {
        let (word, bit) = position(id);
        self.words.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// How many ids the set holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set holds no id.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The lowest id.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// The ids, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().zip(0_u32..).flat_map(|(&word, index)| {
            let base = index * Word::BITS;
            Bits(word).map(move |bit| base + bit)
        })
    }

    /// The ids that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let both = self.words.iter().zip(&other.words).map(|(a, b)| a & b);
        Self::from_words(both.collect())
    }

    /// The ids of this set that are not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let others = other.words.iter().copied().chain(std::iter::repeat(0));
        let left = self.words.iter().zip(others).map(|(a, b)| a & !b);
        Self::from_words(left.collect())
    }

    /// Reads the mask format: groups of up to eight hexadecimal digits, the highest ids first.
    pub(super) fn from_mask(text: &str) -> io::Result<Self> {
        let mut set = Self::new();
        for (group, group_index) in text.rsplit(',').zip(0_u32..) {
            let mask = (group.len() <= 8).then(|| u32::from_str_radix(group, 16).ok());
            let mask = mask.flatten().ok_or_else(|| malformed("mask", text))?;
            for bit in Bits(Word::from(mask)) {
                set.insert(group_index.saturating_mul(32).saturating_add(bit))?;
            }
        }
        Ok(set)
    }

    pub(super) fn from_words(mut words: Vec<Word>) -> Self {
        let used = words.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
        words.truncate(used);
        Self { words }
    }

    pub(super) fn words(&self) -> &[Word] {
        &self.words
    }
}

impl FromStr for CpuSet {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let mut set = Self::new();
        let mut named = 0;
        for range in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (list_id(first, text)?, list_id(last, text)?);
            // A range that is named over and over again would cost time without a bound.
            named += u64::from(last.saturating_sub(first)) + 1;
            if last < first || named > u64::from(CPU_IDS_MAX) {
                return Err(malformed("list", text));
            }
            (first..=last).try_for_each(|id| set.insert(id))?;
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = ids.next() {
            let mut last = first;
            while let Some(next) = ids.next_if(|&id| id == last + 1) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

/// The kernel's masks are arrays of `unsigned long`.
pub(super) type Word = c_ulong;

/// The numbers of the bits that are set, ascending.
struct Bits(Word);

impl Iterator for Bits {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (bit < Word::BITS).then_some(bit)
    }
}

fn position(id: u32) -> (usize, Word) {
    ((id / Word::BITS) as usize, 1 << (id % Word::BITS))
}

/// Digits only: `u32::from_str` would also take a sign.
fn list_id(digits: &str, list: &str) -> io::Result<u32> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let id = digits.parse().ok().filter(|&id| plain && id < CPU_IDS_MAX);
    id.ok_or_else(|| malformed("list", list))
}

fn malformed(kind: &str, text: &str) -> io::Error {
    let start: String = text.chars().take(40).collect();
    io::Error::new(io::ErrorKind::InvalidData, format!("not a {kind} of CPUs: {start:?}"))
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hostile_lists_are_errors_and_the_empty_list_is_empty() {
        for list in ["0-4294967295", "5-2", "a", ",", "1,", "-", "-1", "1-", "+1", "0-1:2/4", "1 2"]
        {
            assert!(list.parse::<CpuSet>().is_err(), "{list}");
        }
        assert!("99999999999999999999".parse::<CpuSet>().is_err());
        assert!("".parse::<CpuSet>().unwrap().is_empty());
    }

    #[test]
    fn a_range_named_over_and_over_is_refused_early() {
        let list = vec!["0-1048575"; 100_000].join(",");
        assert!(list.parse::<CpuSet>().is_err());
        assert_eq!("0-1048575".parse::<CpuSet>().unwrap().len(), 1 << 20);
    }

    #[test]
    fn masks_are_read_from_the_right() {
        assert_eq!(
            CpuSet::from_mask("00000001,00000000,80000003").unwrap().to_string(),
            "0-1,31,64"
        );
        assert_eq!(CpuSet::from_mask("fffff").unwrap().to_string(), "0-19");
        for mask in ["", "g", "1ffffffff", "1,,1", "0x1", " 1"] {
            assert!(CpuSet::from_mask(mask).is_err(), "{mask}");
        }
        let beyond = format!("1{}", ",00000000".repeat(1 << 15));
        assert!(CpuSet::from_mask(&beyond).is_err());
    }

    #[test]
    fn ids_beyond_the_bound_are_refused() {
        assert!(CpuSet::new().insert(CPU_IDS_MAX).is_err());
        assert!(CpuSet::from_ids([0, u32::MAX]).is_err());
        assert!(!CpuSet::from_ids([0]).unwrap().contains(u32::MAX));
    }

    #[test]
    fn equal_sets_are_equal_whatever_their_past() {
        let high = CpuSet::from_ids([1, 5000]).unwrap();
        let low = CpuSet::from_ids([1]).unwrap();
        assert_eq!(high.intersection(&low), low);
        assert_eq!(high.difference(&low).to_string(), "5000");
        assert_eq!(low.difference(&high), CpuSet::new());
    }

    proptest! {
        #[test]
        fn a_set_survives_its_list(ids in prop::collection::btree_set(0..CPU_IDS_MAX, 0..200)) {
            let set = CpuSet::from_ids(ids.iter().copied()).unwrap();
            prop_assert_eq!(&set.to_string().parse::<CpuSet>().unwrap(), &set);
            prop_assert!(set.iter().eq(ids.iter().copied()));
            prop_assert_eq!(set.len(), ids.len());
            prop_assert_eq!(set.first(), ids.first().copied());
        }

        #[test]
        fn dense_sets_survive_their_list(ids in prop::collection::btree_set(0_u32..300, 0..300)) {
            let set = CpuSet::from_ids(ids.iter().copied()).unwrap();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }

        #[test]
        fn no_text_panics(text in "[-0-9a-f,:]{0,30}") {
            let _ = text.parse::<CpuSet>();
            let _ = CpuSet::from_mask(&text);
        }
    }
}
