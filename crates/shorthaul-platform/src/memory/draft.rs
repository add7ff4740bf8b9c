//! A memory file that is still being written, by its maker alone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;

use rustix::fs::{self, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::memfd::{allocate, create_sealable, ensure_file_size_allowed, write_all_at};
use super::raw::RawMapping;
use super::sealed::{SEALED, SealedMapping};
use crate::store::{self, Store};

/// A memory file on its way to be sealed: written here, then fixed for ever by [`Draft::seal`].
///
/// Nobody else has it yet, so that its bytes may be had as `&mut [u8]`. Writing through the kernel
/// ([`Draft::write_at`]) costs less than a mapping for pages that are written once: the kernel
/// allocates them without a fault for each.
#[derive(Debug)]
pub struct Draft {
    file: OwnedFd,
    bytes: usize,
    mapping: Option<RawMapping>,
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
        Ok(Self { file, bytes, mapping: None })
    }

    /// Room in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has room for nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Writes all of `source` at `offset` through the kernel.
    ///
    /// # Errors
    /// `InvalidInput` when it would pass the end; `ENOSPC` or `ENOMEM` when there is no memory;
    /// those of pwrite(2).
    pub fn write_at(&mut self, offset: usize, source: &[u8]) -> io::Result<()> {
        write_all_at(&self.file, self.bytes, offset, source)
    }

    /// All of its bytes, zero where nothing was written. Allocates every page.
    ///
    /// # Errors
    /// `ENOSPC` or `ENOMEM` when the pages can't be had; those of mmap(2).
    pub fn as_mut_slice(&mut self) -> io::Result<&mut [u8]> {
        let mapping = match self.mapping.take() {
            Some(mapping) if mapping.is_here() => mapping,
            // In a child that fork(2) has made it is not.
            Some(_) => return Err(rustix::io::Errno::FAULT.into()),
            None => self.map()?,
        };
        let mapping = self.mapping.insert(mapping);
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
        let Self { file, bytes: room, mapping } = self;
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

    fn map(&self) -> io::Result<RawMapping> {
        allocate(&self.file, self.bytes)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let mut mapping =
            RawMapping::of_file(self.file.as_fd(), self.bytes, protection, MapFlags::SHARED)?;
        mapping.keep_from_children();
        // Pages that are allocated but not touched count as holes.
        if !mapping.advise(Advice::LinuxPopulateWrite) {
            // SAFETY: mapped writable, every page allocated, and nobody else has the file.
            unsafe { store::fill(mapping.start(), mapping.bytes(), 0, Store::Ordinary) };
        }
        Ok(mapping)
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
}
