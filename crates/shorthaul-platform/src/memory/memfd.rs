//! Memory files: our own, sealed for sharing, and a peer's, parsed before anything is done with it.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, FallocateFlags, MemfdFlags, OFlags, SealFlags};
use rustix::process::{Resource, getrlimit};

use super::huge::HugePages;
use super::mapping::SharedMapping;

/// A memory file of our own: its size is fixed by seals, its bytes stay writable by whoever has it.
#[derive(Debug)]
pub struct Memfd {
    file: OwnedFd,
    bytes: usize,
}

impl Memfd {
    /// Makes a memory file of `bytes` bytes, sealed SHRINK, GROW and SEAL; pages are allocated when
    /// first touched. `name` shows up in /proc/PID/maps and needs not be unique.
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
        fs::fcntl_add_seals(&file, FILL_SEALS)?;
        Ok(Self { file, bytes })
    }

    /// Like [`Memfd::create`], with every page allocated now, so that a lack of memory is an error
    /// here and no later fault.
    ///
    /// # Errors
    /// As [`Memfd::create`]; `ENOSPC` or `ENOMEM` when the pages can't be had.
    pub fn create_backed(name: &str, bytes: usize) -> io::Result<Self> {
        let memfd = Self::create(name, bytes)?;
        allocate(&memfd.file, 0..bytes)?;
        Ok(memfd)
    }

    /// Like [`Memfd::create_backed`], and maps it, its pages touched, so that stores take no fault.
    ///
    /// # Errors
    /// As [`Memfd::create_backed`]; those of mmap(2).
    pub fn create_mapped(
        name: &str,
        bytes: usize,
        pages: HugePages,
    ) -> io::Result<(Self, SharedMapping)> {
        let memfd = Self::create(name, bytes)?;
        let mapping = memfd.map()?;
        mapping.make_huge(bytes, pages);
        // What is not huge: the rest behind the last whole one, or all.
        allocate(&memfd.file, 0..bytes)?;
        mapping.populate();
        Ok((memfd, mapping))
    }

    /// Maps the whole file.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn map(&self) -> io::Result<SharedMapping> {
        SharedMapping::of_file(self.file.as_fd(), self.bytes)
    }

    /// The descriptor, to be sent away. Mappings stay valid without it.
    pub fn into_descriptor(self) -> OwnedFd {
        self.file
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A peer's memory file that has been checked: shmem, of fixed size, writable, its seals final.
///
/// Mapping it can't lead to SIGBUS by anything its owner does: the size is sealed, and shmem gives
/// a new page where the owner punches a hole. (A *hugetlb* memfd sealed the same way does not: once
/// the owner has taken the page out of the pool, the next store is fatal. So those are refused.)
#[derive(Debug)]
pub struct PeerMemfd {
    file: OwnedFd,
    bytes: usize,
}

impl PeerMemfd {
    /// Parses a received descriptor that is said to hold `bytes` bytes. Nothing is read, written or
    /// mapped.
    ///
    /// # Errors
    /// A [`Refused`] that says what was found, and gives the descriptor back.
    ///
    /// # References
    /// fcntl_get_seals(2); seals are compared by mask, for newer kernels add bits.
    pub fn parse(file: OwnedFd, bytes: u64) -> Result<Self, Refused> {
        match Self::check(&file, bytes) {
            Ok(bytes) => Ok(Self { file, bytes }),
            Err(refusal) => Err(Refused { refusal, descriptor: file }),
        }
    }

    fn check(file: &OwnedFd, bytes: u64) -> Result<usize, Refusal> {
        ensure_read_write(file)?;
        let seals = shmem_seals(file)?;
        if !seals.contains(FILL_SEALS) {
            return Err(Refusal::SealsMissing { wanted: "SHRINK, GROW and SEAL" });
        }
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(Refusal::NotWritable);
        }
        ensure_size(file, bytes)
    }

    /// The bytes that were promised, and are there.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it was promised to hold nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Maps the promised bytes.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn map(&self) -> io::Result<SharedMapping> {
        SharedMapping::of_file(self.file.as_fd(), self.bytes)
    }

    /// Writes all of `source` at `offset` through the kernel, in as many calls as it takes.
    ///
    /// # Errors
    /// `InvalidInput` when it would pass the end; `EFBIG` over this process's RLIMIT_FSIZE (which
    /// would otherwise end the process by SIGXFSZ); those of pwrite(2).
    pub fn write_all_at(&self, offset: usize, source: &[u8]) -> io::Result<()> {
        write_all_at(&self.file, self.bytes, offset, source)
    }

    /// Reads `target.len()` bytes at `offset` through the kernel. Holes read as zeros and stay
    /// holes.
    ///
    /// # Errors
    /// `InvalidInput` when it would pass the promised end; those of pread(2).
    pub fn read_exact_at(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        if end_within(self.bytes, offset, target.len()).is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut read = 0;
        while read < target.len() {
            match rustix::io::pread(&self.file, &mut target[read..], (offset + read) as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => read += bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// A received descriptor that was not taken.
///
/// Where it is closed is for the caller to choose: closing what a stranger has opened can wait for
/// the stranger (a socket that lingers, a file on a FUSE mount).
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// What.
    pub descriptor: OwnedFd,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.refusal.fmt(f)
    }
}

impl std::error::Error for Refused {}

/// Why a received descriptor was not taken: what was found, and what would have been taken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Not a memory file on shmem: a regular file, pipe, socket, device, hugetlb memfd …
    NotShmem {
        /// What it is instead.
        found: &'static str,
    },
    /// The descriptor's access mode or flags don't allow what is needed.
    AccessMode {
        /// What was found.
        found: &'static str,
        /// What is needed.
        wanted: &'static str,
    },
    /// A seal that the use needs is not set.
    SealsMissing {
        /// The seals needed.
        wanted: &'static str,
    },
    /// It is sealed against writing but should be filled.
    NotWritable,
    /// It holds fewer bytes than was promised.
    TooSmall {
        /// Bytes in the file.
        found: u64,
        /// Bytes promised.
        promised: u64,
    },
    /// Its size is over the limit.
    TooLarge {
        /// Bytes in the file or promised.
        found: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Not fully backed by pages: reading it through a mapping would allocate them, at our charge.
    Sparse {
        /// Bytes backed by pages before the first hole.
        backed: u64,
        /// Size in bytes.
        bytes: u64,
    },
    /// The kernel refused a question about it, or to map it.
    Kernel(rustix::io::Errno),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotShmem { found } => write!(
                f,
                "the descriptor is {found}, not a shmem memory file: send one from memfd_create(2)"
            ),
            Self::AccessMode { found, wanted } => {
                write!(f, "the descriptor is opened {found}, but {wanted} is needed")
            }
            Self::SealsMissing { wanted } => {
                write!(f, "the memory file lacks seals: {wanted} must be set before it is sent")
            }
            Self::NotWritable => f.write_str("the memory file is sealed against writing"),
            Self::TooSmall { found, promised } => {
                write!(f, "the memory file is too small: size {found} < {promised} promised")
            }
            Self::TooLarge { found, limit } => {
                write!(f, "the memory file is too large: size {found} > limit {limit}")
            }
            Self::Sparse { backed, bytes } => write!(
                f,
                "the memory file is sparse: it has a hole at {backed} of {bytes} bytes; write all \
                 of it before it is sent"
            ),
            Self::Kernel(error) => write!(f, "the kernel refuses the memory file: {error}"),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<rustix::io::Errno> for Refusal {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Kernel(error)
    }
}

/// Writes all of `source` at `offset` of a memory file of `bytes` bytes.
pub(super) fn write_all_at(
    file: &OwnedFd,
    bytes: usize,
    offset: usize,
    source: &[u8],
) -> io::Result<()> {
    let end = end_within(bytes, offset, source.len());
    let end = end.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    ensure_file_size_allowed(end as u64)?;
    let mut written = 0;
    while written < source.len() {
        match rustix::io::pwrite(file, &source[written..], (offset + written) as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => written += bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn end_within(bytes: usize, offset: usize, count: usize) -> Option<usize> {
    offset.checked_add(count).filter(|&end| end <= bytes)
}

/// Allocates the pages of a part.
pub(super) fn allocate(file: &OwnedFd, range: Range<usize>) -> io::Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let (start, bytes) = (range.start as u64, range.len() as u64);
    // Interrupted by a signal it begins anew; what it has allocated stays.
    while let Err(error) = fs::fallocate(file, FallocateFlags::empty(), start, bytes) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    Ok(())
}

pub(super) fn create_sealable(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 don't know NOEXEC_SEAL: that flag alone is dropped.
        Err(rustix::io::Errno::INVAL) => Ok(fs::memfd_create(name, flags)?),
        other => Ok(other?),
    }
}

pub(super) fn ensure_file_size_allowed(bytes: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if bytes > limit => Err(rustix::io::Errno::FBIG.into()),
        _ => Ok(()),
    }
}

fn ensure_read_write(file: &OwnedFd) -> Result<(), Refusal> {
    let flags = fs::fcntl_getfl(file)?;
    let refuse = |found| Err(Refusal::AccessMode { found, wanted: "reading and writing" });
    if flags.contains(OFlags::PATH) {
        return refuse("by path only (O_PATH)");
    }
    if flags.contains(OFlags::APPEND) {
        // pwrite(2) on an O_APPEND file ignores its offset.
        return refuse("for appending (O_APPEND)");
    }
    match flags & OFlags::RWMODE {
        OFlags::RDWR => Ok(()),
        OFlags::WRONLY => refuse("for writing only"),
        _ => refuse("for reading only"),
    }
}

/// The seals of a memory file on shmem; anything else is refused.
///
/// The seals are asked for first: that question does no I/O, while fstat(2) on a file of a FUSE
/// mount waits for whoever serves it, and that may be the peer.
pub(super) fn shmem_seals(file: &OwnedFd) -> Result<SealFlags, Refusal> {
    let seals = match fs::fcntl_get_seals(file) {
        Ok(seals) => seals,
        Err(rustix::io::Errno::INVAL) => {
            return Err(Refusal::NotShmem { found: "a file, pipe, socket or device" });
        }
        Err(error) => return Err(error.into()),
    };
    if fs::fstatfs(file)?.f_type as u64 != TMPFS_MAGIC {
        return Err(Refusal::NotShmem { found: "a memory file of another kind (hugetlb)" });
    }
    Ok(seals)
}

fn ensure_size(file: &OwnedFd, promised: u64) -> Result<usize, Refusal> {
    let found = fs::fstat(file)?.st_size as u64;
    if found < promised {
        return Err(Refusal::TooSmall { found, promised });
    }
    let limit = isize::MAX as u64;
    usize::try_from(promised)
        .ok()
        .filter(|&bytes| bytes as u64 <= limit)
        .ok_or(Refusal::TooLarge { found: promised, limit })
}

/// What a region to be filled must carry: a fixed size that nobody can unfix.
const FILL_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// statfs(2); memfds live on the kernel's internal tmpfs mount.
const TMPFS_MAGIC: u64 = 0x0102_1994;
