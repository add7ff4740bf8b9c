//! One mapped address range, given back on drop. Private to `memory`: raw pointers end here.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::generation::generation;
use super::huge::huge_page_bytes;
use super::page_bytes;

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
    /// Maps `bytes` of `file` from its start: where huge pages can be, if it has room for one.
    pub(super) fn of_file(
        file: BorrowedFd<'_>,
        bytes: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<Self> {
        if bytes >= huge_page_bytes()
            && let Ok(aligned) = Self::of_file_aligned(file, bytes, protection, flags)
        {
            return Ok(aligned);
        }
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

    /// Maps the first `bytes` of `file` at a multiple of a huge page's size: the kernel maps such a
    /// page as a whole only where it lies in memory as it does in the file, and sees to that by
    /// itself only where shmem has huge pages by the administrator's word.
    ///
    /// # Errors
    /// Those of mmap(2): it takes more address space for a moment, and leave for more mappings.
    fn of_file_aligned(
        file: BorrowedFd<'_>,
        bytes: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<Self> {
        if let Some(again) = Self::of_file_where_one_was(file, bytes, protection, flags) {
            return Ok(again);
        }
        let alignment = huge_page_bytes();
        let room = bytes.checked_next_multiple_of(page_bytes()).and_then(|whole| {
            (alignment - page_bytes())
                .checked_add(whole)
                .filter(|&room| room <= isize::MAX as usize)
        });
        let room = room.ok_or(io::ErrorKind::OutOfMemory)?;
        let reserving = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses a free range (no MAP_FIXED), so no memory of ours is replaced.
        let start =
            unsafe { mm::mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), reserving) }?;
        let reserved = Self::owning(start.cast(), room)?;
        let at = reserved.start().addr().next_multiple_of(alignment) - reserved.start().addr();
        let place = reserved.start().wrapping_add(at).cast();
        // SAFETY: what is replaced lies inside the range that was reserved just now (`at` is at
        // most `alignment` less a page), to which there is no reference.
        unsafe { mm::mmap(place, bytes, protection, flags | MapFlags::FIXED, file, 0) }?;
        let mapping = reserved.cut_to(at, bytes);
        ALIGNED_PLACE.store(mapping.start().addr(), Ordering::Relaxed);
        Ok(mapping)
    }

    /// As above where the last one was, if that is free again: one system call instead of four.
    fn of_file_where_one_was(
        file: BorrowedFd<'_>,
        bytes: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> Option<Self> {
        let place = ptr::without_provenance_mut::<u8>(ALIGNED_PLACE.load(Ordering::Relaxed));
        if place.is_null() {
            return None;
        }
        // SAFETY: the place is a hint (no MAP_FIXED): the kernel takes a free range.
        let start = unsafe { mm::mmap(place.cast(), bytes, protection, flags, file, 0) }.ok()?;
        let mapping = Self::owning(start.cast(), bytes).ok()?;
        mapping.start().addr().is_multiple_of(huge_page_bytes()).then_some(mapping)
    }

    /// Gives back what lies before and behind a part that begins at a page.
    fn cut_to(self, at: usize, bytes: usize) -> Self {
        let whole = ManuallyDrop::new(self);
        let start = whole.start();
        let end = at + bytes.next_multiple_of(page_bytes());
        for (from, rest) in [(0, at), (end, whole.bytes - end)] {
            if rest > 0 {
                // SAFETY: the range is part of one that was ours alone, has no reference into it,
                // and is nobody's from now on. Refused, it stays reserved: address space is lost.
                unsafe { mm::munmap(start.wrapping_add(from).cast(), rest) }.ok();
            }
        }
        // An offset inside what is mapped.
        let start = NonNull::new(start.wrapping_add(at)).unwrap_or(whole.start);
        Self { start, bytes, owner: whole.owner }
    }

    fn owning(start: *mut u8, bytes: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, bytes, owner: None })
    }

    fn empty() -> Self {
        Self { start: NonNull::dangling(), bytes: 0, owner: None }
    }

    #[inline]
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    #[inline]
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

    /// Puts a part into huge pages, now. (Linux 6.1; `EINVAL` before.)
    fn collapse_part(&self, part: Range<usize>) -> io::Result<()> {
        self.advise_part(part, libc::MADV_COLLAPSE)
    }

    /// Puts every part of `range` that a huge page fits into one, in the first of two ways that
    /// works: by itself where shmem gives huge pages to who asks for them, or at once, out of small
    /// pages. Returns how many bytes those parts have; `range` starts where a huge page can.
    ///
    /// One page of each is touched first: it is what the kernel makes a huge page of.
    ///
    /// # Errors
    /// `ENOMEM`, `EBUSY` or `EAGAIN` when no huge page can be had, or no page at all; `EINVAL`
    /// where the kernel makes none. Some parts may be huge even then.
    ///
    /// # References
    /// madvise(2) `MADV_HUGEPAGE`, `MADV_COLLAPSE`
    pub(super) fn make_huge(&self, range: Range<usize>) -> io::Result<usize> {
        let huge = huge_page_bytes();
        let end = range.end / huge * huge;
        if end <= range.start {
            return Ok(0);
        }
        self.advise(Advice::LinuxHugepage);
        let mut is_huge = true;
        for start in (range.start..end).step_by(huge) {
            self.populate_part(start..start + page_bytes())?;
            is_huge &= self.has_page_at(start + page_bytes());
        }
        if is_huge {
            // What is there already would not be made anew, but waited for: collapsing begins with
            // a word to every CPU.
            return Ok(end - range.start);
        }
        let mut tries = 1;
        while let Err(error) = self.collapse_part(range.start..end) {
            let is_passing = error.raw_os_error() == Some(Errno::AGAIN.raw_os_error());
            if !is_passing || tries == COLLAPSE_TRIES_MAX {
                return Err(error);
            }
            tries += 1;
        }
        Ok(end - range.start)
    }

    /// Whether a page is there for the byte at `at`, which starts one.
    ///
    /// # References
    /// mincore(2)
    fn has_page_at(&self, at: usize) -> bool {
        assert!(at < self.bytes, "inside the mapping");
        let (start, mut state) = (self.start.as_ptr().wrapping_add(at), 0_u8);
        // SAFETY: the page is ours and mapped; for one page the kernel writes one byte.
        let asked = unsafe { libc::mincore(start.cast(), page_bytes(), &raw mut state) };
        asked == 0 && state & 1 == 1
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
            | Advice::LinuxHugepage
            | Advice::LinuxPopulateRead
            | Advice::LinuxPopulateWrite
    )
}

/// Where the last mapping for huge pages was made.
static ALIGNED_PLACE: AtomicUsize = AtomicUsize::new(0);
/// A page that others look at just then can't be moved; in the next moment it can.
const COLLAPSE_TRIES_MAX: usize = 8;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memory::{HugePages, Memfd, huge, huge_pages_refused};

    const PROTECTION: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

    fn mapping(bytes: usize) -> (Memfd, RawMapping) {
        let memfd = Memfd::create("test", bytes).unwrap();
        let raw = RawMapping::of_file(memfd.as_fd(), bytes, PROTECTION, MapFlags::SHARED).unwrap();
        (memfd, raw)
    }

    fn is_huge_page_too_large() -> bool {
        let is_so = huge_page_bytes() > 32 << 20;
        if is_so {
            eprintln!("passed over: huge pages have {} bytes", huge_page_bytes());
        }
        is_so
    }

    /// What /proc/self/smaps says of the mapping that starts at `start`.
    fn kibibytes(start: *mut u8, name: &str) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = smaps.lines().skip_while(|line| {
            let from = line.split_once('-').map(|(from, _)| from);
            from.is_none_or(|from| usize::from_str_radix(from, 16) != Ok(start.addr()))
        });
        assert!(lines.next().is_some(), "there is no mapping at {start:?}");
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn files_lie_where_huge_pages_can_be() {
        if is_huge_page_too_large() {
            return;
        }
        let (huge, page) = (huge_page_bytes(), page_bytes());
        for bytes in [huge, huge + 1, 3 * huge - page, 3 * huge + 5 * page + 1] {
            // Several, so that the kernel has no free place that happens to be right.
            let mappings = [(); 3].map(|()| mapping(bytes));
            for (_memfd, raw) in &mappings {
                assert_eq!((raw.start().addr() % huge, raw.bytes()), (0, bytes));
                let whole = bytes.next_multiple_of(page);
                assert_eq!(kibibytes(raw.start(), "Size"), whole / 1024);
            }
        }
        let (_memfd, small) = mapping(huge - page);
        assert_eq!(kibibytes(small.start(), "Size"), (huge - page) / 1024);
    }

    #[test]
    fn every_whole_part_is_huge_and_the_rest_is_small() {
        if is_huge_page_too_large() {
            return;
        }
        let (huge, page) = (huge_page_bytes(), page_bytes());
        for (bytes, wanted) in
            [(huge - 1, 0), (huge, 1), (huge + 1, 1), (2 * huge - 1, 1), (3 * huge + page, 3)]
        {
            let (_memfd, raw) = mapping(bytes);
            match raw.make_huge(0..bytes) {
                Ok(made) => assert_eq!(made, wanted * huge),
                Err(error) => return eprintln!("passed over: {error}"),
            }
            raw.populate_part(0..wanted * huge).unwrap();
            assert_eq!(kibibytes(raw.start(), "ShmemPmdMapped"), wanted * huge / 1024);
            // What is behind was left alone.
            assert_eq!(kibibytes(raw.start(), "Rss"), wanted * huge / 1024);
        }
    }

    /// As a server does with what a client has sent it.
    #[test]
    fn what_is_mapped_anew_is_huge_at_once() {
        if is_huge_page_too_large() {
            return;
        }
        let bytes = 2 * huge_page_bytes() + 100;
        let (memfd, raw) = mapping(bytes);
        if let Err(error) = raw.make_huge(0..bytes) {
            return eprintln!("passed over: {error}");
        }
        let modes = [(PROTECTION, MapFlags::SHARED), (ProtFlags::READ, MapFlags::PRIVATE)];
        for (protection, flags) in modes {
            let again = RawMapping::of_file(memfd.as_fd(), bytes, protection, flags).unwrap();
            // SAFETY: mapped readable, and the file is as large.
            let byte = unsafe { again.start().read_volatile() };
            assert_eq!(byte, 0);
            assert_eq!(kibibytes(again.start(), "ShmemPmdMapped"), huge_page_bytes() / 1024);
        }
    }

    #[test]
    fn more_than_the_address_space_is_refused_and_costs_nothing() {
        let (memfd, _raw) = mapping(1);
        for bytes in [isize::MAX as usize, usize::MAX - 5] {
            let raw = RawMapping::of_file(memfd.as_fd(), bytes, PROTECTION, MapFlags::SHARED);
            assert!(raw.is_err(), "{bytes}");
        }
    }

    #[test]
    fn a_refusal_is_remembered_and_nothing_fails() {
        if is_huge_page_too_large() {
            return;
        }
        let bytes = 2 * huge_page_bytes();
        let (memfd, _raw) = mapping(bytes);
        // Read-only: no page of it can be populated.
        let flags = MapFlags::PRIVATE;
        let raw = RawMapping::of_file(memfd.as_fd(), bytes, ProtFlags::empty(), flags).unwrap();
        assert_eq!(huge::make_huge(&raw, 0..bytes, HugePages::Never), 0);
        assert_eq!(huge::make_huge(&raw, 0..bytes, HugePages::Auto), 0);
        let why = huge_pages_refused().unwrap();
        assert!(why.starts_with("no huge pages for ") && why.contains("small ones"), "{why}");
        assert_eq!(huge_pages_refused(), Some(why));
    }
}
