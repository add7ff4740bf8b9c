//! Counts with a bound, that many threads change.

use std::sync::atomic::{AtomicU64, Ordering};

/// How much of something is in use, of at most so much.
#[derive(Debug)]
pub(crate) struct Meter {
    used: AtomicU64,
    max: u64,
}

impl Meter {
    pub(crate) const fn new(max: u64) -> Self {
        Self { used: AtomicU64::new(0), max }
    }

    /// Counts `amount` more, if that many are left.
    #[must_use]
    pub(crate) fn add(&self, amount: u64) -> bool {
        let grown = |used: u64| used.checked_add(amount).filter(|&used| used <= self.max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
    }

    pub(crate) fn subtract(&self, amount: u64) {
        let before = self.used.fetch_sub(amount, Ordering::Relaxed);
        debug_assert!(before >= amount, "given back more than was taken");
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.used.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn max(&self) -> u64 {
        self.max
    }
}
