//! A file's own pages, mapped for the kernel to read.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs;
use rustix::mm::{MapFlags, ProtFlags};

use super::page_bytes;
use super::raw::RawMapping;
use crate::transfer::{WriteWay, write_raw};

/// A read-only mapping of a part of a file that others may write, and cut, at any moment.
///
/// A load from a page that was cut off ends the process (SIGBUS), so no code of ours ever reads
/// through it: it can only be given to the kernel, which returns `EFAULT` there.
#[derive(Debug)]
pub struct FileView {
    raw: RawMapping,
    /// Bytes of the mapping before the part: a mapping starts at a page.
    skipped: usize,
    bytes: usize,
}

impl FileView {
    /// Maps `bytes` of `file` from `offset` on. The file may be shorter.
    ///
    /// # Errors
    /// Those of mmap(2): `ENODEV` where the file can't be mapped, `EACCES` without read access,
    /// `ENOMEM` when the address space is used up.
    ///
    /// # References
    /// mmap(2)
    pub fn map(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        let page = page_bytes_of(file)?;
        let skipped = (offset % page as u64) as usize;
        let whole = bytes.checked_add(skipped).and_then(|end| end.checked_next_multiple_of(page));
        let whole = whole.ok_or(io::ErrorKind::InvalidInput)?;
        let start = offset - skipped as u64;
        let raw = RawMapping::of_file_at(file, start, whole, ProtFlags::READ, MapFlags::SHARED)?;
        Ok(Self { raw, skipped, bytes })
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes up to `range.len()` bytes to `sink` and returns how many went. The kernel does the
    /// copying; behind the end of a file that was cut it finds zeros up to the end of the page.
    ///
    /// # Errors
    /// As [`write`](crate::transfer::write); `EFAULT` if the file has no such page any more.
    ///
    /// # Panics
    /// If `range` is not inside the view.
    #[inline]
    pub fn write_to(
        &self,
        range: Range<usize>,
        sink: BorrowedFd<'_>,
        way: WriteWay,
    ) -> io::Result<usize> {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "bytes {range:?} of a view of {}",
            self.len(),
        );
        let start = self.raw.start().wrapping_add(self.skipped + range.start);
        // SAFETY: the range is mapped (checked above) for as long as `self` is borrowed, and only
        // the kernel reads it.
        unsafe { write_raw(sink, start, range.len(), way) }
    }
}

/// Bytes of a page of `file`: mappings of huge pages begin and end with one, and can't be unmapped
/// in parts.
fn page_bytes_of(file: BorrowedFd<'_>) -> io::Result<usize> {
    let found = fs::fstatfs(file)?;
    let huge = usize::try_from(found.f_bsize).ok().filter(|_| found.f_type == HUGETLBFS);
    Ok(huge.unwrap_or_else(page_bytes))
}

/// See linux/magic.h.
const HUGETLBFS: fs::FsWord = 0x9584_58f6;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use rustix::fs::MemfdFlags;

    use super::*;

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn any_part_of_a_file_can_be_viewed() {
        let page = page_bytes();
        let bytes: Vec<u8> = (0..3 * page).map(|at| (at / 7) as u8).collect();
        let file = file_of(&bytes);
        for (offset, length) in [(0, 10), (1, page), (page - 1, 2), (page, page), (2 * page + 5, 9)]
        {
            let view = FileView::map(file.as_fd(), offset as u64, length).unwrap();
            let (mut reader, writer) = io::pipe().unwrap();
            let sent = view.write_to(0..length, writer.as_fd(), WriteWay::Plain).unwrap();
            drop(writer);
            let mut got = Vec::new();
            reader.read_to_end(&mut got).unwrap();
            assert_eq!((sent, &got[..]), (length, &bytes[offset..offset + length]));
        }
    }

    /// Says nothing where no huge pages are set aside.
    #[test]
    fn parts_of_huge_pages_are_unmapped_again() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB;
        let Ok(file) = fs::memfd_create("huge", flags) else { return };
        let page = page_bytes_of(file.as_fd()).unwrap();
        assert!(page > page_bytes());
        if fs::ftruncate(&file, page as u64).is_err() {
            return;
        }
        for (offset, bytes) in [(0, 1000), (5000, 1000), (page - 5, 5), (0, page)] {
            // That it can be unmapped is asserted where that is done.
            let view = FileView::map(file.as_fd(), offset as u64, bytes);
            assert!(view.is_ok_and(|view| view.len() == bytes) || !has_huge_pages());
        }
    }

    fn has_huge_pages() -> bool {
        let count = std::fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap_or_default();
        count.trim() != "0"
    }

    #[test]
    fn a_page_that_was_cut_off_is_an_error() {
        let file = file_of(&vec![1; 4 * page_bytes()]);
        let view = FileView::map(file.as_fd(), 0, 4 * page_bytes()).unwrap();
        file.set_len(0).unwrap();
        let (_reader, writer) = io::pipe().unwrap();
        let error = view.write_to(0..100, writer.as_fd(), WriteWay::Plain).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
