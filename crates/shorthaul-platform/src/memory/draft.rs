//! A memory file that is still being written, by its maker alone.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;

use rustix::fs::{self, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::huge::{self, HugePages, huge_page_bytes};
use super::memfd::{allocate, create_sealable, ensure_file_size_allowed, write_all_at};
use super::page_bytes;
use super::raw::RawMapping;
use super::sealed::{SEALED, SealedMapping};
use crate::store::{self, Store};

/// A memory file on its way to be sealed: written here, then fixed for ever by [`Draft::seal`].
///
/// Nobody else has it yet, so that its bytes may be had as `&mut [u8]`. Small pages that are
/// written once are written through the kernel, which allocates them without a fault for each;
/// where huge ones can be had they are mapped.
#[derive(Debug)]
pub struct Draft {
    file: OwnedFd,
    bytes: usize,
    mapping: Option<RawMapping>,
    /// Bytes from the start whose pages are there, as far as the mapping is used for.
    backed: usize,
    /// Which pages are still wanted: small ones after a refusal.
    pages: HugePages,
}

/// A memory file of our own that nobody can change any more.
#[derive(Debug)]
pub struct SealedFile {
    file: OwnedFd,
    bytes: usize,
}

impl Draft {
    /// Makes an empty memory file with room for `bytes` bytes; pages are allocated when they are
    /// written. `name` shows up in /proc/PID/maps and needs not be unique.
    ///
    /// # Errors
    /// `EFBIG` when the size is over this process's RLIMIT_FSIZE; those of memfd_create(2).
    ///
    /// # References
    /// memfd_create(2), fcntl_add_seals(2)
    pub fn create(name: &str, bytes: usize) -> io::Result<Self> {
        ensure_file_size_allowed(bytes as u64)?;
        let file = create_sealable(name)?;
        fs::ftruncate(&file, bytes as u64)?;
        Ok(Self { file, bytes, mapping: None, backed: 0, pages: HugePages::Never })
    }

    /// Has its pages be huge ones where that is possible; small ones are what it has otherwise.
    pub fn with_pages(self, pages: HugePages) -> Self {
        Self { pages, ..self }
    }

    /// Room in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has room for nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Writes all of `source` at `offset`.
    ///
    /// # Errors
    /// `InvalidInput` when it would pass the end; `ENOSPC` or `ENOMEM` when there is no memory;
    /// those of pwrite(2).
    pub fn write_at(&mut self, offset: usize, source: &[u8]) -> io::Result<()> {
        let Some(start) = self.place(offset, source.len())? else {
            return write_all_at(&self.file, self.bytes, offset, source);
        };
        // SAFETY: `place` has seen to so many bytes being mapped there, their pages allocated, so
        // that no store can fail. The source can't overlap: the one way to a slice over this memory
        // borrows `self` as exclusively as this does.
        unsafe { store::copy_in(start, source.as_ptr(), source.len(), Store::Ordinary) };
        Ok(())
    }

    /// Writes `value` to the `bytes` bytes at `offset` if that takes no copy; else returns false,
    /// and [`Draft::write_at`] is the way to write them.
    ///
    /// # Errors
    /// As [`Draft::write_at`].
    pub fn fill(
        &mut self,
        offset: usize,
        bytes: usize,
        value: u8,
        store: Store,
    ) -> io::Result<bool> {
        let Some(start) = self.place(offset, bytes)? else { return Ok(false) };
        // SAFETY: `place` has seen to so many bytes being mapped there, their pages allocated, so
        // that no store can fail.
        unsafe { store::fill(start, bytes, value, store) };
        Ok(true)
    }

    /// All of its bytes, zero where nothing was written. Allocates every page.
    ///
    /// # Errors
    /// `ENOSPC` or `ENOMEM` when the pages can't be had; those of mmap(2).
    pub fn as_mut_slice(&mut self) -> io::Result<&mut [u8]> {
        let mapping = match self.mapping.take() {
            Some(mapping) => mapping,
            None => self.map()?,
        };
        self.mapping = Some(mapping);
        self.back(self.bytes)?;
        let mapping = self.mapping()?;
        // SAFETY: mapped readable and writable while `self` lives, every page allocated, so that no
        // access can fail. The file is ours alone until it is sealed, there is one mapping of it,
        // and the borrow of `self` is exclusive.
        Ok(unsafe { slice::from_raw_parts_mut(mapping.start(), mapping.bytes()) })
    }

    /// Cuts the file to its first `bytes` bytes and fixes them. What of them was never written must
    /// be zero to whoever reads, and is refused by readers as a hole, see [`SealedMapping::parse`].
    ///
    /// # Errors
    /// `InvalidInput` when it has fewer bytes; those of ftruncate(2) and fcntl_add_seals(2).
    pub fn seal(self, bytes: usize) -> io::Result<SealedFile> {
        let Self { file, bytes: room, mapping, .. } = self;
        if bytes > room {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // A writable mapping would keep the seal off.
        drop(mapping);
        if bytes < room {
            fs::ftruncate(&file, bytes as u64)?;
        }
        fs::fcntl_add_seals(&file, SEALED | SealFlags::SEAL)?;
        Ok(SealedFile { file, bytes })
    }

    /// Where `bytes` bytes at `offset` are mapped, their pages there; none if they are better
    /// written through the kernel, for nothing is mapped and huge pages don't make it worth while.
    fn place(&mut self, offset: usize, bytes: usize) -> io::Result<Option<*mut u8>> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes);
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        if self.mapping.is_none() && !self.begin_huge(end)? {
            return Ok(None);
        }
        self.back(end)?;
        Ok(Some(self.mapping()?.start().wrapping_add(offset)))
    }

    /// Maps it if what ends at `end` gets huge pages; whether it did.
    fn begin_huge(&mut self, end: usize) -> io::Result<bool> {
        if self.pages == HugePages::Never || end == 0 || self.bytes < huge_page_bytes() {
            return Ok(false);
        }
        let (mapping, stretch) = (self.map()?, 0..self.stretch_end(end));
        if huge::make_huge(&mapping, stretch.clone(), self.pages) == 0 {
            self.pages = HugePages::Never;
            return Ok(false);
        }
        self.allocate(&mapping, stretch)?;
        self.mapping = Some(mapping);
        Ok(true)
    }

    /// Sees to it that everything up to `end` has its pages.
    fn back(&mut self, end: usize) -> io::Result<()> {
        if end <= self.backed {
            return Ok(());
        }
        self.mapping()?;
        let Some(mapping) = self.mapping.take() else { return Ok(()) };
        let stretch = self.backed..self.stretch_end(end);
        huge::make_huge(&mapping, stretch.clone(), self.pages);
        let allocated = self.allocate(&mapping, stretch);
        self.mapping = Some(mapping);
        allocated
    }

    /// Where pages are made up to, for something that ends at `end`: a huge one is made whole, and
    /// as much again as there is, so that small pieces take few steps.
    fn stretch_end(&self, end: usize) -> usize {
        let end = end.max(self.backed.saturating_mul(2));
        end.checked_next_multiple_of(huge_page_bytes()).map_or(self.bytes, |e| e.min(self.bytes))
    }

    /// Makes every page of `stretch` that is not there yet: a lack of memory is an error here, and
    /// no signal later.
    fn allocate(&mut self, mapping: &RawMapping, stretch: Range<usize>) -> io::Result<()> {
        allocate(&self.file, stretch.clone())?;
        // Pages that are allocated but not touched count as holes.
        if mapping.populate_part(stretch.clone()).is_err() {
            touch(mapping, stretch.clone());
        }
        self.backed = stretch.end;
        Ok(())
    }

    fn map(&self) -> io::Result<RawMapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let file = self.file.as_fd();
        let mut mapping = RawMapping::of_file(file, self.bytes, protection, MapFlags::SHARED)?;
        mapping.keep_from_children();
        Ok(mapping)
    }

    /// Its mapping, which a child that fork(2) has made does not have.
    fn mapping(&self) -> io::Result<&RawMapping> {
        self.mapping.as_ref().filter(|mapping| mapping.is_here()).ok_or(Errno::FAULT.into())
    }
}

/// Stores what is there already into each page of a part.
fn touch(mapping: &RawMapping, part: Range<usize>) {
    for at in part.step_by(page_bytes()) {
        let byte = mapping.start().wrapping_add(at);
        // SAFETY: mapped readable, its page allocated, and nobody else has the file.
        let value = unsafe { byte.read_volatile() };
        // SAFETY: as above, and writable.
        unsafe { byte.write_volatile(value) };
    }
}

impl SealedFile {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Maps it to be read.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn map(&self) -> io::Result<SealedMapping> {
        SealedMapping::of_sealed(self.file.as_fd(), self.bytes)
    }

    /// The descriptor, to be sent away. Whoever gets it may read it, and nobody may write it.
    pub fn into_descriptor(self) -> OwnedFd {
        self.file
    }
}

impl AsFd for SealedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;
    use crate::memory::page_bytes;

    #[test]
    fn what_was_written_is_what_is_sealed() {
        let bytes = page_bytes() * 3;
        let mut draft = Draft::create("test", bytes).unwrap();
        draft.write_at(0, b"begin").unwrap();
        let slice = draft.as_mut_slice().unwrap();
        assert_eq!(&slice[..6], b"begin\0");
        slice[5..].fill(7);
        draft.write_at(bytes - 3, b"end").unwrap();
        assert!(draft.write_at(bytes - 2, b"end").is_err());
        let sealed = draft.seal(bytes).unwrap();
        let mapping = sealed.map().unwrap();
        assert_eq!((&mapping[..6], &mapping[bytes - 4..]), (&b"begin\x07"[..], &b"\x07end"[..]));
        let parsed = SealedMapping::parse(sealed.into_descriptor(), bytes as u64).unwrap();
        assert_eq!(&parsed[..], &mapping[..]);
    }

    #[test]
    fn it_is_cut_to_what_is_wanted_of_it() {
        let mut draft = Draft::create("test", 100_000).unwrap();
        draft.write_at(0, &[3; 5000]).unwrap();
        let sealed = draft.seal(5000).unwrap();
        assert_eq!((sealed.len(), sealed.map().unwrap().len()), (5000, 5000));
        assert!(rustix::io::pwrite(&sealed, b"x", 0).is_err());
        assert!(fs::ftruncate(&sealed, 1).is_err());
        assert!(Draft::create("test", 5).unwrap().seal(6).is_err());
    }

    #[test]
    fn a_slice_that_nobody_wrote_is_no_hole() {
        let bytes = page_bytes() * 4;
        let mut draft = Draft::create("test", bytes).unwrap();
        assert_eq!(draft.as_mut_slice().unwrap().len(), bytes);
        let sealed = draft.seal(bytes).unwrap();
        assert!(SealedMapping::parse(sealed.into_descriptor(), bytes as u64).is_ok());
    }

    #[test]
    fn empty_ones_are_in_order() {
        let mut draft = Draft::create("test", 0).unwrap();
        assert!(draft.is_empty() && draft.as_mut_slice().unwrap().is_empty());
        let sealed = draft.seal(0).unwrap();
        assert!(sealed.is_empty() && sealed.map().unwrap().is_empty());
    }

    #[test]
    fn it_is_written_the_same_whatever_its_pages() {
        let huge = huge_page_bytes();
        if huge > 32 << 20 {
            return eprintln!("passed over: huge pages have {huge} bytes");
        }
        for bytes in [1, huge - 1, huge, huge + 1, 3 * huge + 12_345] {
            for pages in [HugePages::Auto, HugePages::Never] {
                for is_sliced in [false, true] {
                    let expected: Vec<u8> = (0..bytes).map(|at| (at / 7) as u8).collect();
                    let mut draft = Draft::create("test", bytes).unwrap().with_pages(pages);
                    if is_sliced {
                        assert_eq!(draft.as_mut_slice().unwrap().len(), bytes);
                    }
                    let (first, rest) = expected.split_at(bytes / 3);
                    draft.write_at(0, first).unwrap();
                    for (index, piece) in rest.chunks(1 << 20).enumerate() {
                        draft.write_at(first.len() + (index << 20), piece).unwrap();
                    }
                    assert!(draft.write_at(bytes, b"x").is_err() && draft.backed <= bytes);
                    let sealed = draft.seal(bytes).unwrap().into_descriptor();
                    let parsed = SealedMapping::parse(sealed, bytes as u64).unwrap();
                    assert!(parsed[..] == expected, "{bytes} bytes with {pages:?}");
                }
            }
        }
    }

    #[test]
    fn pages_are_made_as_far_as_it_is_written() {
        let huge = huge_page_bytes();
        if huge > 32 << 20 {
            return eprintln!("passed over: huge pages have {huge} bytes");
        }
        let mut draft = Draft::create("test", 4 * huge + 5).unwrap().with_pages(HugePages::Auto);
        let backed = |draft: &Draft| fs::fstat(&draft.file).unwrap().st_blocks as usize * 512;
        draft.write_at(0, b"begin").unwrap();
        assert!(backed(&draft) <= huge, "{}", backed(&draft));
        draft.write_at(5, &vec![1; huge]).unwrap();
        assert!(backed(&draft) <= 2 * huge, "{}", backed(&draft));
        // Cut inside a huge page.
        let sealed = draft.seal(huge + 5).unwrap().into_descriptor();
        let parsed = SealedMapping::parse(sealed, (huge + 5) as u64).unwrap();
        assert!(parsed.starts_with(b"begin\x01") && parsed[5..].iter().all(|&byte| byte == 1));
    }

    #[test]
    fn it_is_filled_in_place_only_where_pages_are_huge() {
        let bytes = 2 * huge_page_bytes() + 100;
        if bytes > 65 << 20 {
            return eprintln!("passed over: huge pages have {bytes} bytes");
        }
        let mut small = Draft::create("test", bytes).unwrap();
        assert!(!small.fill(0, bytes, 7, Store::Ordinary).unwrap());
        let mut huge = Draft::create("test", bytes).unwrap().with_pages(HugePages::Auto);
        assert!(huge.fill(1, bytes, 7, Store::Ordinary).is_err());
        if !huge.fill(1, bytes - 1, 7, Store::Ordinary).unwrap() {
            return eprintln!("passed over: {:?}", huge::huge_pages_refused());
        }
        let slice = huge.as_mut_slice().unwrap();
        assert!(slice[0] == 0 && slice[1..].iter().all(|&byte| byte == 7));
    }
}
