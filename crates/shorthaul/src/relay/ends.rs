//! What the two ends of a relay are: looked at once, before anything is moved.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{self, AtFlags, FileType, OFlags, Stat, Statx, StatxFlags};
use rustix::io::{Errno, pread};
use rustix::net::{self, RecvFlags, SocketType, sockopt};
use shorthaul_platform::pipe::Origin;
use shorthaul_platform::transfer::{self, WriteWay};

use super::outcome::Fault;

/// Where bytes come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) fd: BorrowedFd<'a>,
    pub(super) kind: SourceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceKind {
    /// A file or block device of so many bytes.
    Sized(u64),
    /// A file that tells no size, such as those of /proc and /sys: it ends where reading ends.
    Unsized,
    Pipe,
    Socket,
    /// A character device, such as a terminal or /dev/zero, or a file that is like one.
    Device,
}

/// What a stream has at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peeked {
    Bytes,
    Nothing,
    End,
}

/// Where bytes go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sink<'a> {
    pub(super) fd: BorrowedFd<'a>,
    pub(super) kind: SinkKind,
    /// Whether its own mode is to return instead of waiting.
    pub(super) is_nonblocking: bool,
    /// Whether somebody who is not trusted may change that under way.
    pub(super) is_strangers: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SinkKind {
    /// A file or block device, written where its descriptor stands.
    File,
    /// A file that is only written at its end.
    Appending,
    Pipe,
    Socket,
    /// A character device, such as a terminal or /dev/null.
    Device,
}

impl<'a> Source<'a> {
    pub(super) fn look_at(fd: BorrowedFd<'a>) -> Result<Self, Fault> {
        let stat = fs::fstat(fd).map_err(|error| look_failed("source", error))?;
        let flags = fs::fcntl_getfl(fd).map_err(|error| look_failed("source", error))?;
        if flags.contains(OFlags::PATH) || flags & OFlags::ACCMODE == OFlags::WRONLY {
            return Err(misuse("the source is not open for reading"));
        }
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if stat.st_size > 0 => SourceKind::Sized(size(&stat)),
            // Some of /proc and /sys can only be read on and on.
            FileType::RegularFile if fs::tell(fd).is_err() => SourceKind::Device,
            FileType::RegularFile => SourceKind::Unsized,
            FileType::BlockDevice => SourceKind::Sized(device_size(fd)?),
            FileType::Fifo => SourceKind::Pipe,
            FileType::Socket => stream_socket(fd, "source").map(|()| SourceKind::Socket)?,
            FileType::CharacterDevice => SourceKind::Device,
            FileType::Directory => return Err(misuse("the source is a directory")),
            _ => return Err(misuse("the source is no file, device, pipe or socket")),
        };
        Ok(Self { fd, kind })
    }

    /// Whether it is a file that tells no size because there is nothing in it. Reading tells, but
    /// what some files of file systems that make them up give is gone then (/proc/kmsg).
    pub(super) fn is_empty_file(&self) -> bool {
        let may_read = |magic| !MADE_UP_FILES.contains(&magic) && magic != FUSE;
        self.kind == SourceKind::Unsized
            && self.file_system().is_some_and(may_read)
            && pread(self.fd, &mut [0], 0) == Ok(0)
    }

    /// Whether it is of a file system whose files have more or less in them than they tell: those
    /// of /proc tell no size, those of /sys a whole page.
    pub(super) fn tells_wrong_sizes(&self) -> bool {
        self.file_system().is_some_and(|magic| MADE_UP_FILES.contains(&magic))
    }

    fn file_system(&self) -> Option<fs::FsWord> {
        fs::fstatfs(self.fd).ok().map(|found| found.f_type)
    }

    /// Whether bytes are had from it once, and no offset names them.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.kind, SourceKind::Pipe | SourceKind::Socket | SourceKind::Device)
    }

    /// Where a splice takes the bytes at `offset` from.
    pub(super) fn origin(&self, offset: u64) -> Origin<'a> {
        if self.is_stream() { Origin::Stream(self.fd) } else { Origin::File(self.fd, offset) }
    }

    /// What a socket has now, which stays in it.
    pub(super) fn peek(&self) -> io::Result<Peeked> {
        match net::recv(self.fd, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(Peeked::End),
            Ok(_) => Ok(Peeked::Bytes),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Peeked::Nothing),
            Err(error) => Err(error.into()),
        }
    }

    /// How large it is now, if it was of known size.
    pub(super) fn size_now(&self) -> io::Result<Option<u64>> {
        let SourceKind::Sized(before) = self.kind else { return Ok(None) };
        let stat = fs::fstat(self.fd)?;
        // A block device tells its size elsewhere, and keeps it.
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Ok(Some(if is_file { size(&stat) } else { before }))
    }

    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            SourceKind::Sized(_) => "a file",
            SourceKind::Unsized => "a file that tells no size",
            SourceKind::Pipe => "a pipe",
            SourceKind::Socket => "a socket",
            SourceKind::Device => "a character device",
        }
    }
}

impl<'a> Sink<'a> {
    pub(super) fn look_at(fd: BorrowedFd<'a>) -> Result<Self, Fault> {
        let found = glance(fd).map_err(|error| look_failed("sink", error))?;
        let flags = fs::fcntl_getfl(fd).map_err(|error| look_failed("sink", error))?;
        if flags.contains(OFlags::PATH) || flags & OFlags::ACCMODE == OFlags::RDONLY {
            return Err(misuse("the sink is not open for writing"));
        }
        let kind = match FileType::from_raw_mode(found.stx_mode.into()) {
            FileType::RegularFile if flags.contains(OFlags::APPEND) => SinkKind::Appending,
            FileType::RegularFile | FileType::BlockDevice => SinkKind::File,
            FileType::Fifo => SinkKind::Pipe,
            FileType::Socket => stream_socket(fd, "sink").map(|()| SinkKind::Socket)?,
            FileType::CharacterDevice => SinkKind::Device,
            FileType::Directory => return Err(misuse("the sink is a directory")),
            _ => return Err(misuse("the sink is no file, device, pipe or socket")),
        };
        let is_nonblocking = flags.contains(OFlags::NONBLOCK);
        Ok(Self { fd, kind, is_nonblocking, is_strangers: false })
    }

    /// Whether poll(2) tells when nobody reads it any more. Of others it tells something else: that
    /// a file of /sys was not read yet, or that a terminal's other side is closed for now.
    pub(super) fn can_hang_up(&self) -> bool {
        matches!(self.kind, SinkKind::Pipe | SinkKind::Socket)
    }

    /// How bytes are given to it, if a call that waits for it `is_bounded`.
    pub(super) fn write_way(&self, is_bounded: bool) -> WriteWay {
        match self.kind {
            SinkKind::Socket if is_bounded => WriteWay::SendNow,
            SinkKind::Socket => WriteWay::Send,
            SinkKind::Pipe if self.is_strangers => WriteWay::PlainNow,
            SinkKind::Pipe if is_bounded && !self.is_nonblocking => WriteWay::PlainNow,
            _ => WriteWay::Plain,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            SinkKind::File => "a file",
            SinkKind::Appending => "a file that appends",
            SinkKind::Pipe => "a pipe",
            SinkKind::Socket => "a socket",
            SinkKind::Device => "a character device",
        }
    }
}

/// Whether two descriptors are of one pipe.
pub(super) fn are_the_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let inode = |found: &Statx| (found.stx_dev_major, found.stx_dev_minor, found.stx_ino);
    match (glance(one), glance(other)) {
        (Ok(one), Ok(other)) => inode(&one) == inode(&other),
        _ => false,
    }
}

/// What the kernel knows of a descriptor without asking its file system: that of a stranger's named
/// pipe may be the stranger's own, on FUSE, and never answer.
fn glance(fd: BorrowedFd<'_>) -> rustix::io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    fs::statx(fd, "", flags, StatxFlags::TYPE | StatxFlags::INO)
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn device_size(fd: BorrowedFd<'_>) -> Result<u64, Fault> {
    let size = transfer::block_device_bytes(fd);
    size.map_err(|cause| Fault::Io { context: "can't learn the size of the source", cause })
}

/// Sockets with message boundaries would lose them, silently.
fn stream_socket(fd: BorrowedFd<'_>, end: &str) -> Result<(), Fault> {
    match sockopt::socket_type(fd) {
        Ok(SocketType::STREAM) => Ok(()),
        Ok(_) => Err(Fault::Misuse(format!("the {end} is a socket, but no stream"))),
        Err(error) => Err(look_failed("socket", error)),
    }
}

fn misuse(what: &str) -> Fault {
    Fault::Misuse(what.to_owned())
}

fn look_failed(end: &'static str, error: Errno) -> Fault {
    let context = match end {
        "source" => "can't look at the source",
        "sink" => "can't look at the sink",
        _ => "can't look at the socket",
    };
    Fault::Io { context, cause: error.into() }
}

/// File systems that make their files' contents when they are read: sysfs, proc, configfs, debugfs,
/// tracefs, securityfs, cgroup2. See linux/magic.h.
const MADE_UP_FILES: [fs::FsWord; 7] =
    [0x6265_6572, 0x9fa0, 0x6265_6570, 0x6462_6720, 0x7472_6163, 0x7363_6673, 0x6367_7270];
/// Its files may do so too.
const FUSE: fs::FsWord = 0x6573_5546;
