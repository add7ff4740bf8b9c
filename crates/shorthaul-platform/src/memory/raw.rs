//! One mapped address range, given back on drop. Private to `memory`: raw pointers end here.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::generation::generation;

/// An owned range of `bytes` mapped bytes; an empty one maps nothing (mmap refuses length 0).
#[derive(Debug)]
pub(super) struct RawMapping {
    start: NonNull<u8>,
    bytes: usize,
    /// The process that has it, where its children don't.
    owner: Option<u64>,
}

// SAFETY: a mapping is plain address space: it is valid from every thread, and unmapping it may
// happen on any. What may be done with the bytes is decided by the types that own a `RawMapping`.
unsafe impl Send for RawMapping {}
// SAFETY: as above; `&RawMapping` gives out only the address and the length.
unsafe impl Sync for RawMapping {}

impl RawMapping {
    /// Maps `bytes` of `file` from its start.
    pub(super) fn of_file(
        file: BorrowedFd<'_>,
        bytes: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<Self> {
        Self::of_file_at(file, 0, bytes, protection, flags)
    }

    /// Maps `bytes` of `file` from `offset` on, a multiple of the page size.
    pub(super) fn of_file_at(
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<Self> {
        if bytes == 0 {
            return Ok(Self::empty());
        }
        // SAFETY: the kernel chooses a free range (no MAP_FIXED), so no memory of ours is replaced.
        let start = unsafe { mm::mmap(ptr::null_mut(), bytes, protection, flags, file, offset) }?;
        Self::owning(start.cast(), bytes)
    }

    /// Maps `bytes` of zeroed memory of our own.
    pub(super) fn anonymous(bytes: usize) -> io::Result<Self> {
        if bytes == 0 {
            return Ok(Self::empty());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free range (no MAP_FIXED), so no memory of ours is replaced.
        let start =
            unsafe { mm::mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) }?;
        Self::owning(start.cast(), bytes)
    }

    /// Maps the first `bytes` of `file`, shared and writable, at a multiple of `alignment` inside a
    /// reserved range, and says how far inside.
    pub(super) fn of_file_aligned(
        file: BorrowedFd<'_>,
        bytes: usize,
        alignment: usize,
    ) -> io::Result<(Self, usize)> {
        let (room, flags) = (bytes + alignment, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: the kernel chooses a free range (no MAP_FIXED), so no memory of ours is replaced.
        let start =
            unsafe { mm::mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), flags) }?;
        let reserved = Self::owning(start.cast(), room)?;
        let at = reserved.start().addr().next_multiple_of(alignment) - reserved.start().addr();
        let place = reserved.start().wrapping_add(at).cast();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: what is replaced lies inside the range that was reserved just now (`at` is at
        // most `alignment`), to which there is no reference.
        unsafe { mm::mmap(place, bytes, protection, flags, file, 0) }?;
        Ok((reserved, at))
    }

    fn owning(start: *mut u8, bytes: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, bytes, owner: None })
    }

    fn empty() -> Self {
        Self { start: NonNull::dangling(), bytes: 0, owner: None }
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps it from children that fork(2) makes, if the kernel does so.
    pub(super) fn keep_from_children(&mut self) {
        if self.advise(Advice::LinuxDontFork) {
            self.owner = Some(generation());
        }
    }

    /// Whether it is there: not so in a child that it was kept from.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.owner.is_none_or(|owner| owner == generation())
    }

    /// Gives the kernel a hint about the whole range; whether it was taken.
    pub(super) fn advise(&self, advice: Advice) -> bool {
        self.bytes == 0 || {
            debug_assert!(is_harmless(advice), "an advice that drops data is no hint");
            // SAFETY: the range is ours and mapped, and the advice changes no contents.
            let hint = unsafe { mm::madvise(self.start.as_ptr().cast(), self.bytes, advice) };
            // A hint that is refused (EINVAL on an older kernel, ENOMEM under a limit) costs speed.
            hint.is_ok()
        }
    }

    /// Makes sure that a part, in whole pages, has pages that can be written: a lack of memory is
    /// an error here, where a store would be a signal. (Linux 5.14; `EINVAL` before.)
    pub(super) fn populate_part(&self, part: Range<usize>) -> io::Result<()> {
        self.advise_part(part, libc::MADV_POPULATE_WRITE)
    }

    /// Puts a part into a huge page, now. (Linux 6.1; `EINVAL` before.)
    pub(super) fn collapse_part(&self, part: Range<usize>) -> io::Result<()> {
        self.advise_part(part, libc::MADV_COLLAPSE)
    }

    fn advise_part(&self, part: Range<usize>, advice: libc::c_int) -> io::Result<()> {
        assert!(part.start <= part.end && part.end <= self.bytes, "inside the mapping");
        let start = self.start.as_ptr().wrapping_add(part.start);
        // SAFETY: the part is ours and mapped, and neither of the two advices changes contents.
        let done = unsafe { libc::madvise(start.cast(), part.len(), advice) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for RawMapping {
    fn drop(&mut self) {
        // In a child that it was kept from, something else may be mapped there.
        if self.bytes > 0 && self.is_here() {
            // SAFETY: the range was mapped by us, nobody else unmaps it, and no reference into it
            // can outlive its owner.
            let unmapped = unsafe { mm::munmap(self.start.as_ptr().cast(), self.bytes) };
            debug_assert!(unmapped.is_ok(), "munmap of our own range");
        }
    }
}

fn is_harmless(advice: Advice) -> bool {
    matches!(
        advice,
        Advice::LinuxDontFork
            | Advice::LinuxWipeOnFork
            | Advice::LinuxPopulateRead
            | Advice::LinuxPopulateWrite
    )
}
