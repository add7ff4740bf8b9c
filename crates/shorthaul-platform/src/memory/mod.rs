//! Memory that is, or is not, shared with another process. Which type when:
//!
//! | type | who can write it | gives `&[u8]` |
//! |---|---|---|
//! | [`PrivateMemory`] | this process alone | yes, and `&mut [u8]` |
//! | [`SharedMapping`] | both sides, at any moment | **never**: stores, checked copies, sums |
//! | [`Draft`] | this process alone, until it is sealed | `&mut [u8]` |
//! | [`SealedMapping`] | nobody any more | yes |
//! | [`FileView`] | whoever has the file, which may shrink | **never**: the kernel reads it |
//!
//! [`Trust`] is the one way from shared memory to slices: its constructor is unsafe.
//!
//! A descriptor from another process is parsed once, by [`PeerMemfd::parse`] (to be filled) or
//! [`SealedMapping::parse`] (to be read); what they refuse, they refuse with a [`Refusal`] that
//! says what was found and what would have been taken.

mod atomics;
mod draft;
mod generation;
mod huge;
mod lent;
mod mapping;
mod memfd;
mod private;
mod raw;
mod sealed;
mod trust;
mod view;

pub use atomics::SharedWord;
pub use draft::{Draft, SealedFile};
pub use generation::generation;
pub use huge::{
    HugePages, huge_page_bytes, huge_pages_refused, hugetlb_page_bytes, shmem_bytes_after_collapse,
    shmem_bytes_at_first_touch,
};
pub use lent::LentFile;
pub use mapping::{SharedMapping, SharedWindow};
pub use memfd::{Memfd, PeerMemfd, Refusal, Refused};
pub use private::PrivateMemory;
pub use sealed::SealedMapping;
pub use trust::Trust;
pub use view::FileView;

/// Bytes in a page of this machine, as the kernel says it (4096 on x86-64; 16 or 64 KiB elsewhere).
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}
