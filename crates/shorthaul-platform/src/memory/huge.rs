//! Whether memory files get huge pages here: each of the three ways, tried.
//!
//! No file or switch is believed: of each way one huge page is asked for, and the size of the file
//! in memory tells what came. What was allocated is given back before a function returns.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{self, MemfdFlags};
use rustix::io::Errno;

use super::memfd::{allocate, ensure_file_size_allowed};
use super::raw::RawMapping;
use super::{Memfd, page_bytes};

/// Bytes of a huge page: what one table of pages maps, an entry being 8 bytes. 2 MiB where pages
/// have 4 KiB, up to 512 MiB elsewhere.
pub fn huge_page_bytes() -> usize {
    page_bytes() * (page_bytes() / 8)
}

/// Touches one byte of a memory file and returns how many bytes the kernel allocates for that: a
/// page, or more where shmem has huge pages by itself.
///
/// # Errors
/// Those of [`Memfd::create`] and mmap(2); `EINVAL` before Linux 5.14.
pub fn shmem_bytes_at_first_touch() -> io::Result<usize> {
    let (memfd, mapping, at) = aligned_file()?;
    mapping.populate_part(at..at + page_bytes())?;
    backed_bytes(&memfd)
}

/// Touches one byte of a sealed memory file, asks the kernel to make that a huge page, and returns
/// how many bytes it has then.
///
/// # Errors
/// As [`shmem_bytes_at_first_touch`]; `EINVAL` before Linux 6.1; `ENOMEM`, `EAGAIN` when no huge
/// page can be had.
///
/// # References
/// madvise(2) `MADV_COLLAPSE`; refused where a range has no page at all.
pub fn shmem_bytes_after_collapse() -> io::Result<usize> {
    let (memfd, mapping, at) = aligned_file()?;
    mapping.populate_part(at..at + page_bytes())?;
    let mut tries = 0;
    while let Err(error) = mapping.collapse_part(at..at + huge_page_bytes()) {
        tries += 1;
        let is_passing = [Errno::AGAIN, Errno::BUSY].map(|errno| Some(errno.raw_os_error()));
        if tries == COLLAPSE_TRIES_MAX || !is_passing.contains(&error.raw_os_error()) {
            return Err(error);
        }
    }
    backed_bytes(&memfd)
}

/// Allocates one page of a memory file of the hugetlb kind, and returns its size.
///
/// That memfd_create(2) succeeds says nothing: the pages are looked for when they are needed.
///
/// # Errors
/// `ENOSPC` or `ENOMEM` when none is reserved; those of memfd_create(2).
///
/// # References
/// memfd_create(2) `MFD_HUGETLB`, fallocate(2)
pub fn hugetlb_page_bytes() -> io::Result<usize> {
    let file = fs::memfd_create("shorthaul-probe", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB)?;
    let bytes = usize::try_from(fs::fstat(&file)?.st_blksize).map_err(io::Error::other)?;
    ensure_file_size_allowed(bytes as u64)?;
    fs::ftruncate(&file, bytes as u64)?;
    allocate(&file, bytes)?;
    Ok(bytes)
}

/// A memory file of one huge page, sealed as those that are sent, mapped where such a page can be.
fn aligned_file() -> io::Result<(Memfd, RawMapping, usize)> {
    let bytes = huge_page_bytes();
    let memfd = Memfd::create("shorthaul-probe", bytes)?;
    let (mapping, at) = RawMapping::of_file_aligned(memfd.as_fd(), bytes, bytes)?;
    Ok((memfd, mapping, at))
}

fn backed_bytes(memfd: &Memfd) -> io::Result<usize> {
    let blocks = usize::try_from(fs::fstat(memfd)?.st_blocks).map_err(io::Error::other)?;
    Ok(blocks * BLOCK_BYTES)
}

/// fstat(2), `st_blocks`.
const BLOCK_BYTES: usize = 512;
/// A page that others look at just then can't be moved; in the next moment it can.
const COLLAPSE_TRIES_MAX: usize = 8;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    fn is_refused(error: &io::Error) -> bool {
        eprintln!("passed over: {error}");
        matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::OutOfMemory)
            || [Errno::AGAIN, Errno::NOSPC]
                .map(|e| Some(e.raw_os_error()))
                .contains(&error.raw_os_error())
    }

    #[test]
    fn a_touch_allocates_at_least_a_page() {
        match shmem_bytes_at_first_touch() {
            Ok(bytes) => assert!((page_bytes()..=huge_page_bytes()).contains(&bytes), "{bytes}"),
            Err(error) => assert!(is_refused(&error), "{error}"),
        }
    }

    #[test]
    fn what_was_collapsed_is_one_huge_page() {
        match shmem_bytes_after_collapse() {
            Ok(bytes) => assert_eq!(bytes, huge_page_bytes()),
            Err(error) => assert!(is_refused(&error), "{error}"),
        }
    }

    #[test]
    fn a_hugetlb_page_is_there_or_is_refused() {
        match hugetlb_page_bytes() {
            Ok(bytes) => assert!(bytes.is_power_of_two() && bytes > page_bytes(), "{bytes}"),
            Err(error) => assert!(is_refused(&error), "{error}"),
        }
    }
}
