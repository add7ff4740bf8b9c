//! Memory that another process can write at any moment.

use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::slice;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::atomics::SharedWord;
use super::huge::{self, HugePages};
use super::page_bytes;
use super::raw::RawMapping;
use super::trust::Trust;
use crate::store::{self, Store};

/// A shared, writable mapping of a memfd from its start.
///
/// The other side may change any byte at any moment, so no reference into it is handed out
/// (unless somebody vouches for the other side by a [`Trust`]): what goes in and out are stores and
/// copies that the compiler can't look into, and the kernel's own. Children made by fork(2) don't
/// get the mapping (`MADV_DONTFORK`).
///
/// All ranges are in bytes; a range outside the mapping panics, as slicing does, and so does any in
/// a child that fork(2) has made.
#[derive(Debug)]
pub struct SharedMapping {
    raw: RawMapping,
}

impl SharedMapping {
    /// Maps `bytes` of `file`. The caller knows that the file has them and can't shrink.
    pub(super) fn of_file(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let mut raw = RawMapping::of_file(file, bytes, protection, MapFlags::SHARED)?;
        raw.keep_from_children();
        Ok(Self { raw })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.raw.bytes()
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Touches every page now, so that later stores take no page fault. A hint: see madvise(2).
    pub fn populate(&self) {
        self.raw.advise(Advice::LinuxPopulateWrite);
    }

    /// Touches the pages of `range` in one call, which costs less than a fault for each.
    ///
    /// # Errors
    /// `ENOMEM` or `EFAULT` when there is no memory for them: a store would be fatal. Where the
    /// kernel doesn't know the call (before Linux 5.14) or refuses it, nothing is touched.
    ///
    /// # Panics
    /// If `range` is not inside the mapping.
    pub fn populate_part(&self, range: Range<usize>) -> io::Result<()> {
        self.part(range.clone());
        let start = range.start / page_bytes() * page_bytes();
        match self.raw.populate_part(start..range.end) {
            Err(error) if is_fatal(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes huge pages of every part of the first `bytes` bytes that one fits into, if they are
    /// wanted and can be had, and returns how many bytes have them, from the start on. For memory
    /// of our own, before it is sent away: its pages are allocated here, at this process's charge.
    pub fn make_huge(&self, bytes: usize, pages: HugePages) -> usize {
        huge::make_huge(&self.raw, 0..bytes.min(self.len()), pages)
    }

    /// Stores `value` into every byte of `range`. Streaming stores are fenced before it returns.
    ///
    /// # Panics
    /// If `range` is not inside the mapping.
    pub fn fill(&self, range: Range<usize>, value: u8, store: Store) {
        let (start, bytes) = self.part(range);
        // SAFETY: `part` checked that the range is mapped, which it stays while `self` lives; the
        // kernels are made for memory that others write too.
        unsafe { store::fill(start, bytes, value, store) };
    }

    /// Copies `source` to `at`. Streaming stores are fenced before it returns.
    ///
    /// # Panics
    /// If `at + source.len()` is past the end.
    #[inline]
    pub fn copy_in(&self, at: usize, source: &[u8], store: Store) {
        let (start, bytes) = self.part(at..end_of(at, source.len()));
        // SAFETY: `part` checked the target; the source is a slice of the same length. They can't
        // overlap: a slice over this memory is had only by a `Trust`, whose maker has promised that
        // nobody writes those bytes while it lives.
        unsafe { store::copy_in(start, source.as_ptr(), bytes, store) };
    }

    /// Copies the bytes at `at` into `target`: what the other side writes meanwhile may or may not
    /// be in the copy, but the copy itself holds still.
    ///
    /// # Panics
    /// If `at + target.len()` is past the end.
    #[inline]
    pub fn copy_out(&self, at: usize, target: &mut [u8]) {
        let (start, bytes) = self.part(at..end_of(at, target.len()));
        // SAFETY: `part` checked the source; the target is a slice of the same length, borrowed
        // exclusively.
        unsafe { store::copy_out(target.as_mut_ptr(), start, bytes) };
    }

    /// Sums the first byte of every `stride` bytes of `range` (1 sums all bytes).
    ///
    /// # Panics
    /// If `range` is not inside the mapping or `stride` is 0.
    pub fn sum(&self, range: Range<usize>, stride: usize) -> u64 {
        assert!(stride > 0, "a stride of 0 never ends");
        let (start, bytes) = self.part(range);
        // SAFETY: `part` checked that the range is mapped; the kernel reads each byte once.
        unsafe { store::sum(start, bytes, stride) }
    }

    /// Reads up to `range.len()` bytes of `file` at `file_offset` straight into the mapping, and
    /// returns how many came; 0 is the end of the file. The kernel does the copying.
    ///
    /// # Errors
    /// Those of pread(2); `EFAULT` if pages of the mapping are gone.
    ///
    /// # Panics
    /// If `range` is not inside the mapping.
    pub fn read_from(
        &self,
        file: BorrowedFd<'_>,
        file_offset: u64,
        range: Range<usize>,
    ) -> io::Result<usize> {
        let (start, bytes) = self.part(range);
        let offset = libc::off_t::try_from(file_offset)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: the kernel writes at most `bytes` bytes at `start`, all of which are mapped.
        let read = unsafe { libc::pread(file.as_raw_fd(), start.cast(), bytes, offset) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Reads up to `range.len()` of the bytes that come next from `stream` straight into the
    /// mapping, and returns how many came; 0 is the end of the stream.
    ///
    /// # Errors
    /// Those of read(2); `EFAULT` if pages of the mapping are gone.
    ///
    /// # Panics
    /// If `range` is not inside the mapping.
    pub fn read_next(&self, stream: BorrowedFd<'_>, range: Range<usize>) -> io::Result<usize> {
        let (start, bytes) = self.part(range);
        // SAFETY: the kernel writes at most `bytes` bytes at `start`, all of which are mapped.
        let read = unsafe { libc::read(stream.as_raw_fd(), start.cast(), bytes) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Writes up to `range.len()` bytes of the mapping to `file` at `file_offset`, and returns how
    /// many went. The kernel does the copying.
    ///
    /// # Errors
    /// Those of pwrite(2); `EFAULT` if pages of the mapping are gone.
    ///
    /// # Panics
    /// If `range` is not inside the mapping.
    pub fn write_to(
        &self,
        file: BorrowedFd<'_>,
        file_offset: u64,
        range: Range<usize>,
    ) -> io::Result<usize> {
        let (start, bytes) = self.part(range);
        let offset = libc::off_t::try_from(file_offset)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: the kernel reads at most `bytes` bytes at `start`, all of which are mapped.
        let written = unsafe { libc::pwrite(file.as_raw_fd(), start.cast(), bytes, offset) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    /// The bytes of `range` in place, on the word of whoever made `_trust`.
    ///
    /// # Panics
    /// If `range` is not inside the mapping.
    pub fn trusted(&self, range: Range<usize>, _trust: Trust) -> &[u8] {
        let (start, bytes) = self.part(range);
        // SAFETY: mapped while `self` is borrowed, and backed by a file that can't shrink. That
        // nobody writes the bytes meanwhile was promised when the token was made.
        unsafe { slice::from_raw_parts(start, bytes) }
    }

    /// The bytes of `range` in place, to be written, on the word of whoever made `_trust`.
    ///
    /// # Panics
    /// If `range` is not inside the mapping.
    #[allow(clippy::mut_from_ref, reason = "that it is the only one is what the token promises")]
    pub fn trusted_mut(&self, range: Range<usize>, _trust: Trust) -> &mut [u8] {
        let (start, bytes) = self.part(range);
        // SAFETY: mapped writable while `self` is borrowed, and backed by a file that can't shrink.
        // That nobody else touches the bytes meanwhile was promised when the token was made.
        unsafe { slice::from_raw_parts_mut(start, bytes) }
    }

    /// The 32-bit word at byte `at`, to be used as an atomic by both sides.
    ///
    /// # Panics
    /// If `at` is not a multiple of 4 or the word is not inside the mapping.
    #[inline]
    pub fn word(&self, at: usize) -> SharedWord<'_> {
        self.window(at..end_of(at, 4)).word(0)
    }

    /// `range`, checked once for many small accesses.
    ///
    /// # Panics
    /// If `range` is not inside the mapping or does not start at a multiple of 4.
    #[inline]
    pub fn window(&self, range: Range<usize>) -> SharedWindow<'_> {
        assert!(range.start.is_multiple_of(4), "a word at {} is not aligned", range.start);
        let (start, bytes) = self.part(range);
        SharedWindow { start, bytes, _mapping: PhantomData }
    }

    #[inline]
    fn part(&self, range: Range<usize>) -> (*mut u8, usize) {
        let is_inside = range.start <= range.end && range.end <= self.raw.bytes();
        if !is_inside || !self.raw.is_here() {
            self.refuse(&range);
        }
        (self.raw.start().wrapping_add(range.start), range.end - range.start)
    }

    #[cold]
    fn refuse(&self, range: &Range<usize>) -> ! {
        let bytes = self.raw.bytes();
        let is_inside = range.start <= range.end && range.end <= bytes;
        assert!(is_inside, "bytes {}..{} of a mapping of {bytes}", range.start, range.end);
        panic!("the mapping belongs to the process that fork(2) copied");
    }
}

/// A part of a [`SharedMapping`], for many small accesses: that this is the process that mapped it
/// was asked when it was made, and while it is borrowed the thread that has it can't become a
/// child's without its knowing.
#[derive(Clone, Copy, Debug)]
pub struct SharedWindow<'a> {
    start: *mut u8,
    bytes: usize,
    _mapping: PhantomData<&'a SharedMapping>,
}

impl<'a> SharedWindow<'a> {
    /// The 32-bit word at byte `at`, to be used as an atomic by both sides.
    ///
    /// # Panics
    /// If `at` is not a multiple of 4 or the word is not inside.
    #[inline]
    pub fn word(&self, at: usize) -> SharedWord<'a> {
        assert!(at.is_multiple_of(4), "a word at {at} is not aligned");
        let start = self.part(at, 4);
        // SAFETY: mapped (it is inside what was checked when this was made) and aligned (so is the
        // start, and `at` is a multiple of 4) for as long as the mapping is borrowed.
        unsafe { SharedWord::at(start.cast()) }
    }

    /// Copies `source` to `at`.
    ///
    /// # Panics
    /// If `at + source.len()` is past the end.
    #[inline]
    pub fn copy_in(&self, at: usize, source: &[u8]) {
        let start = self.part(at, source.len());
        // SAFETY: the target is inside what was checked when this was made; the source is a slice
        // of the same length, which can't overlap it (see `SharedMapping::copy_in`).
        unsafe { store::copy_in(start, source.as_ptr(), source.len(), Store::Ordinary) };
    }

    /// Copies the bytes at `at` into `target`, as [`SharedMapping::copy_out`] does.
    ///
    /// # Panics
    /// If `at + target.len()` is past the end.
    #[inline]
    pub fn copy_out(&self, at: usize, target: &mut [u8]) {
        let start = self.part(at, target.len());
        // SAFETY: the source is inside what was checked when this was made; the target is a slice
        // of the same length, borrowed exclusively.
        unsafe { store::copy_out(target.as_mut_ptr(), start, target.len()) };
    }

    #[inline]
    fn part(&self, at: usize, bytes: usize) -> *mut u8 {
        let is_inside = at <= self.bytes && bytes <= self.bytes - at;
        assert!(is_inside, "{bytes} bytes at {at} of a window of {}", self.bytes);
        self.start.wrapping_add(at)
    }
}

/// Whether pages could not be had, and not only be asked for.
fn is_fatal(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOMEM | Errno::FAULT))
}

#[inline]
fn end_of(at: usize, bytes: usize) -> usize {
    at.checked_add(bytes).expect("the end of a range fits in usize")
}
