//! Memory that is, or is not, shared with another process. Which type when:
//!
//! | type | who can write it | gives `&[u8]` |
//! |---|---|---|
//! | [`PrivateMemory`] | this process alone | yes, and `&mut [u8]` |
//! | [`SharedMapping`] | both sides, at any moment | **never**: stores, checked copies, sums |
//! | [`SealedMapping`] | nobody any more | yes |
//!
//! A descriptor from another process is parsed once, by [`PeerMemfd::parse`] (to be filled) or
//! [`SealedMapping::parse`] (to be read); what they refuse, they refuse with a [`Refusal`] that
//! says what was found and what would have been taken.

mod atomics;
mod mapping;
mod memfd;
mod private;
mod raw;
mod sealed;

pub use atomics::SharedWord;
pub use mapping::SharedMapping;
pub use memfd::{Memfd, PeerMemfd, Refusal, Refused};
pub use private::PrivateMemory;
pub use sealed::SealedMapping;

/// Bytes in a page of this machine, as the kernel says it (4096 on x86-64; 16 or 64 KiB elsewhere).
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}
