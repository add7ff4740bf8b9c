//! Memory that nobody can write any more.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;

use rustix::fs::{self, SealFlags, SeekFrom};
use rustix::mm::{MapFlags, ProtFlags};

use super::memfd::{Refusal, Refused, shmem_seals};
use super::raw::RawMapping;

/// A read-only mapping of a memory file sealed against shrinking, growing and writing.
///
/// The kernel grants F_SEAL_WRITE only while no writable mapping exists and refuses writes, new
/// writable mappings and hole punching from then on: the bytes hold still, so `&[u8]` is sound.
#[derive(Debug)]
pub struct SealedMapping {
    raw: RawMapping,
}

impl SealedMapping {
    /// Parses a received descriptor and maps it, if it is sealed, on shmem, at most `bytes_max`
    /// bytes, and **fully backed**: a sparse sealed file is a bomb, for reading its holes through a
    /// mapping allocates pages that are charged to the reader. Read those with pread(2), which
    /// allocates nothing, or refuse them. The descriptor is closed; the mapping stays.
    ///
    /// # Errors
    /// A [`Refused`] that says what was found, and gives the descriptor back.
    ///
    /// # References
    /// fcntl_get_seals(2), "File Sealing"; lseek(2) `SEEK_HOLE`. Counting blocks would not do: what
    /// fallocate(2) put behind the end of the file counts too. Pages that were allocated and never
    /// written are a hole.
    pub fn parse(file: OwnedFd, bytes_max: u64) -> Result<Self, Refused> {
        match Self::check_and_map(&file, bytes_max) {
            Ok(raw) => Ok(Self { raw }),
            Err(refusal) => Err(Refused { refusal, descriptor: file }),
        }
    }

    fn check_and_map(file: &OwnedFd, bytes_max: u64) -> Result<RawMapping, Refusal> {
        if !shmem_seals(file)?.contains(SEALED) {
            return Err(Refusal::SealsMissing { wanted: "SHRINK, GROW and WRITE" });
        }
        let bytes = fs::fstat(file)?.st_size as u64;
        if bytes > bytes_max {
            return Err(Refusal::TooLarge { found: bytes, limit: bytes_max });
        }
        // No file ends in a hole for this question: the first one is at its end at the latest.
        if bytes > 0 {
            let backed = fs::seek(file, SeekFrom::Hole(0))?;
            if backed < bytes {
                return Err(Refusal::Sparse { backed, bytes });
            }
        }
        let limit = isize::MAX as u64;
        let bytes =
            usize::try_from(bytes).map_err(|_| Refusal::TooLarge { found: bytes, limit })?;
        map(file.as_fd(), bytes).map_err(|error| Refusal::Kernel(errno(&error)))
    }

    /// Maps a file that this process has sealed itself.
    pub(super) fn of_sealed(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        Ok(Self { raw: map(file, bytes)? })
    }
}

/// MAP_PRIVATE: a shared mapping of a write-sealed file is refused by kernels before 6.7.
fn map(file: BorrowedFd<'_>, bytes: usize) -> io::Result<RawMapping> {
    RawMapping::of_file(file, bytes, ProtFlags::READ, MapFlags::PRIVATE)
}

impl Deref for SealedMapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped readable while `self` lives; the seals that `parse` found can't be taken
        // back, and with them no process can change or remove the bytes.
        unsafe { slice::from_raw_parts(self.raw.start(), self.raw.bytes()) }
    }
}

fn errno(error: &io::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::IO)
}

/// What keeps its bytes as they are.
pub(super) const SEALED: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);
