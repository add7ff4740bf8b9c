//! Huge pages for memory files: whether they are wanted, why there are none, and the probes that
//! tell which of the three ways works here.
//!
//! No file or switch is believed: of each way one huge page is asked for, and the size of the file
//! in memory tells what came. What the probes have allocated is given back before they return.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use rustix::fs::{self, MemfdFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::memfd::{allocate, ensure_file_size_allowed};
use super::raw::RawMapping;
use super::{Memfd, page_bytes};

/// Bytes of a huge page: what one table of pages maps, an entry being 8 bytes. 2 MiB where pages
/// have 4 KiB, up to 512 MiB elsewhere.
pub fn huge_page_bytes() -> usize {
    page_bytes() * (page_bytes() / 8)
}

/// Whether memory that has room for huge pages is to get them.
///
/// Everything that is smaller than one ([`huge_page_bytes`], 2 MiB on x86-64), and what is left
/// behind the last whole one, has small pages either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// Where the kernel gives them; small ones elsewhere, see [`huge_pages_refused`].
    #[default]
    Auto,
    /// Small pages, which cost memory only where they are touched.
    Never,
}

/// Why huge pages could not be had when they were wanted: the first time in this process, in
/// words. Nothing is wrong then, but memory that is not used again costs several times as much.
pub fn huge_pages_refused() -> Option<&'static str> {
    REFUSED.get().map(String::as_str)
}

/// Makes huge pages if they are wanted; tells how many bytes have them, and remembers the first
/// refusal.
pub(super) fn make_huge(mapping: &RawMapping, range: Range<usize>, pages: HugePages) -> usize {
    if pages == HugePages::Never {
        return 0;
    }
    let bytes = range.len();
    mapping.make_huge(range).unwrap_or_else(|error| {
        REFUSED.get_or_init(|| why(&error, bytes));
        0
    })
}

fn why(error: &io::Error, bytes: usize) -> String {
    let advice = match Errno::from_io_error(error) {
        Some(Errno::INVAL) => {
            "the kernel makes none of memory files (MADV_COLLAPSE is in Linux 6.1 and newer, where \
             transparent huge pages are not switched off)"
        }
        Some(Errno::NOMEM | Errno::AGAIN | Errno::BUSY) => {
            "there is no memory in whole huge pages at the moment, or a limit is in the way"
        }
        _ => "madvise(2) is refused",
    };
    format!("no huge pages for {bytes} bytes, small ones are used: {advice}: {error}")
}

static REFUSED: OnceLock<String> = OnceLock::new();

/// Touches one byte of a memory file and returns how many bytes the kernel allocates for that: a
/// page, or more where shmem has huge pages by the administrator's word, for who asks or for all.
///
/// # Errors
/// Those of [`Memfd::create`] and mmap(2); `EINVAL` before Linux 5.14.
pub fn shmem_bytes_at_first_touch() -> io::Result<usize> {
    let (memfd, mapping) = probe()?;
    mapping.advise(Advice::LinuxHugepage);
    mapping.populate_part(0..page_bytes())?;
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
    let (memfd, mapping) = probe()?;
    mapping.make_huge(0..huge_page_bytes())?;
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
    allocate(&file, 0..bytes)?;
    Ok(bytes)
}

/// A memory file of one huge page, sealed as those that are sent.
fn probe() -> io::Result<(Memfd, RawMapping)> {
    let bytes = huge_page_bytes();
    let memfd = Memfd::create("shorthaul-probe", bytes)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let mapping = RawMapping::of_file(memfd.as_fd(), bytes, protection, MapFlags::SHARED)?;
    Ok((memfd, mapping))
}

fn backed_bytes(memfd: &Memfd) -> io::Result<usize> {
    let blocks = usize::try_from(fs::fstat(memfd)?.st_blocks).map_err(io::Error::other)?;
    Ok(blocks * BLOCK_BYTES)
}

/// fstat(2), `st_blocks`.
const BLOCK_BYTES: usize = 512;

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
