//! Memory of this process alone: page-aligned, zeroed, given back on drop.

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::slice;

use rustix::mm::Advice;

use super::raw::RawMapping;
use crate::store::{self, Store};

/// A page-aligned block of memory that no other process can see.
///
/// Page-aligned because some CPUs copy many times slower into memory that starts a few bytes into a
/// page, which is where a heap allocator puts large blocks. Pages cost memory only once touched.
#[derive(Debug)]
pub struct PrivateMemory {
    raw: RawMapping,
}

impl PrivateMemory {
    /// Maps `bytes` of zeroed memory (0 is fine).
    ///
    /// # Errors
    /// `ENOMEM` when the address space or the overcommit limit is used up.
    ///
    /// # References
    /// mmap(2), `MAP_ANONYMOUS`
    pub fn new(bytes: usize) -> io::Result<Self> {
        Ok(Self { raw: RawMapping::anonymous(bytes)? })
    }

    /// Touches every page now, so that later stores take no page fault. A hint: see madvise(2).
    pub fn populate(&self) {
        self.raw.advise(Advice::LinuxPopulateWrite);
    }

    /// Asks for huge pages where they fit and nothing was touched yet. A hint: see madvise(2).
    pub fn prefer_huge_pages(&self) {
        self.raw.advise(Advice::LinuxHugepage);
    }

    /// Stores `value` into every byte of `range`.
    ///
    /// # Panics
    /// If `range` is not inside the memory.
    pub fn fill(&mut self, range: Range<usize>, value: u8, store: Store) {
        let target = &mut self[range];
        // SAFETY: the pointer and length are those of a slice that we hold exclusively.
        unsafe { store::fill(target.as_mut_ptr(), target.len(), value, store) };
    }

    /// Copies `source` to `at`.
    ///
    /// # Panics
    /// If `at + source.len()` is past the end.
    pub fn copy_in(&mut self, at: usize, source: &[u8], store: Store) {
        let target = &mut self[at..][..source.len()];
        // SAFETY: both pointers are those of slices of this very length; they cannot overlap, for
        // one is borrowed exclusively.
        unsafe { store::copy_in(target.as_mut_ptr(), source.as_ptr(), source.len(), store) };
    }
}

impl Deref for PrivateMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped readable for as long as `self` lives, was zeroed by the
        // kernel, is private to this process, and is only written through `&mut self`.
        unsafe { slice::from_raw_parts(self.raw.start(), self.raw.bytes()) }
    }
}

impl DerefMut for PrivateMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the borrow exclusive.
        unsafe { slice::from_raw_parts_mut(self.raw.start(), self.raw.bytes()) }
    }
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;
    use crate::memory::page_bytes;

    #[test]
    fn is_zeroed_aligned_and_writable() {
        let mut memory = PrivateMemory::new(100_000).unwrap();
        assert_eq!(memory.as_ptr() as usize % page_bytes(), 0);
        assert!(memory.iter().all(|&byte| byte == 0));
        memory.fill(1..99_999, 5, Store::Ordinary);
        memory.copy_in(10, b"hello", Store::Ordinary);
        assert_eq!(&memory[9..16], b"\x05hello\x05");
        assert_eq!((memory[0], memory[99_999]), (0, 0));
    }

    #[test]
    fn empty_is_no_mapping() {
        let mut memory = PrivateMemory::new(0).unwrap();
        memory.populate();
        memory.fill(0..0, 1, Store::Ordinary);
        assert!(memory.is_empty());
    }

    #[test]
    fn more_than_the_address_space_is_an_error() {
        assert!(PrivateMemory::new(usize::MAX / 2).is_err());
    }
}
