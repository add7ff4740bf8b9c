//! The one typed act that turns memory which others can write into slices.

/// Says that whoever can write certain shared memory leaves it alone while we look at it.
///
/// Without one, memory that a peer can write is only ever copied and summed. With one,
/// [`SharedMapping::trusted`](super::SharedMapping::trusted) gives slices of it.
#[derive(Clone, Copy, Debug)]
pub struct Trust(());

impl Trust {
    /// Vouches for others.
    ///
    /// # Safety
    /// As long as a slice lives that was had by this token (or a copy of it):
    /// - no process that shares the memory writes those bytes; for a slice that may be written, it
    ///   doesn't read them either. A peer of Shorthaul is to be trusted this far when it runs code
    ///   that keeps the protocol: a server writes nothing after its reply, a client doesn't touch
    ///   what it offered, nor offers it twice, before its reply. A peer that is merely sealed off,
    ///   sandboxed, or of the same user is not.
    /// - no one in this process writes those bytes by another mapping of the same memory, or by
    ///   another reference to this one.
    ///
    /// # References
    /// The Rust Reference, "Behavior considered undefined": data races; values behind shared
    /// references that change
    #[must_use]
    pub unsafe fn vouch() -> Self {
        Self(())
    }
}
