//! Where the decisions of a run come from: a seed, or bytes that somebody has thought out.

/// Decisions, one after another.
#[derive(Debug)]
pub(super) struct Random(Source);

#[derive(Debug)]
enum Source {
    Seed(u64),
    /// When they are used up, every decision is the first of those there are.
    Bytes {
        bytes: Box<[u8]>,
        at: usize,
    },
}

impl Random {
    pub(super) fn of_seed(seed: u64) -> Self {
        Self(Source::Seed(seed))
    }

    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        Self(Source::Bytes { bytes: bytes.into(), at: 0 })
    }

    /// Whether nothing is left to be decided by.
    pub(super) fn is_spent(&self) -> bool {
        match &self.0 {
            Source::Seed(_) => false,
            Source::Bytes { bytes, at } => *at >= bytes.len(),
        }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.bits(u64::BITS)
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.bits(u64::BITS - (end - 1).leading_zeros()) % end
    }

    /// True once in `times`.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Any number up to `max`, small ones more often.
    pub(super) fn up_to(&mut self, max: u64) -> u64 {
        let bits = self.below(u64::from(u64::BITS - max.leading_zeros()) + 1) as u32;
        self.bits(bits) & u64::MAX.checked_shr(u64::BITS - bits).unwrap_or(0).min(max)
    }

    /// So many bytes that mean nothing.
    pub(super) fn noise(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }

    /// At least so many bits at random: no more bytes are used up than they need.
    fn bits(&mut self, bits: u32) -> u64 {
        match &mut self.0 {
            Source::Seed(state) => split_mix(state),
            Source::Bytes { bytes, at } => {
                let rest = &bytes[(*at).min(bytes.len())..];
                let count = bits.div_ceil(8) as usize;
                *at += count;
                rest.iter().take(count).rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
            }
        }
    }
}

/// Small, fast, and the same on every machine.
///
/// # References
/// S. Vigna: *SplitMix64*
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Says which seed it was when a run fails.
#[derive(Debug)]
pub(super) struct Announce(pub(super) u64);

impl Drop for Announce {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the run of seed {} failed", self.0);
        }
    }
}
