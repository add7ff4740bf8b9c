//! Descriptors that clients hand over to be relayed into: which of them a service takes, and what
//! each is, looked at once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketType, sockopt};

use super::outgoing::FillTarget;
use super::region::Share;
use super::shared::Shared;
use crate::error::{Code, Status};
use crate::undertaker;

/// Which descriptors a server relays payloads into when clients hand them over.
///
/// A relay keeps a worker busy for as long as its sink takes: a client whose sinks are slow keeps
/// as many workers as it has such calls. It ends with the call's time, when the call is taken back,
/// when its connection is gone, and when the sink has taken nothing for 30 seconds.
///
/// The server writes in its own name and with its own rights, wherever a client lets it: a Unix
/// socket's reader that asks for the sender's credentials (`SO_PASSCRED`) gets the server's. So
/// this is for clients that may do what the server may, or for readers that don't ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Descriptors {
    /// None. Clients are told so when they connect.
    #[default]
    Refuse,
    /// Pipes, and connected stream sockets (Unix, IPv4 and IPv6). They are written in ways that
    /// don't wait, whatever the client does to their modes. What a client can do still is to hold
    /// the kernel's own lock of a pipe or TCP socket: it writes to it from memory whose pages never
    /// come (userfaultfd(2), a file on FUSE), and a worker that writes there waits for as long as
    /// that client lives. Unix sockets have no such lock.
    Streams,
    /// Those, and regular files of local file systems, memory files among them. A write to a file
    /// waits for its disk whatever the call's deadline; the memory and the room on disk that it
    /// takes are had with the server's rights.
    Any,
}

/// A descriptor that was looked at and taken, at the charge of its user.
#[derive(Debug)]
pub(crate) struct GivenSink {
    descriptor: OwnedFd,
    kind: Kind,
    share: Share,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pipe,
    Socket,
    File,
}

impl AsFd for GivenSink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl FillTarget {
    /// Looks at a descriptor that nobody has looked at yet.
    pub(super) fn open(&mut self, shared: &Shared) {
        let before = std::mem::replace(self, Self::None);
        let Self::Unopened(descriptor, share) = before else {
            *self = before;
            return;
        };
        *self = match look_at(descriptor.as_fd(), shared.config.descriptors) {
            Ok(kind) => Self::Given(GivenSink { descriptor, kind, share }),
            Err(status) => {
                // What it is, nobody knows: closing it can wait for the client.
                undertaker::bury(share.uid(), (descriptor, share));
                Self::Refused(status)
            }
        };
    }

    /// Closes a descriptor that was handed over. A pipe's is closed before its call is answered, so
    /// that its reader finds the end; closing others can wait for the client.
    pub(super) fn close_given(&mut self) {
        match std::mem::replace(self, Self::None) {
            Self::Given(GivenSink { kind: Kind::Pipe, descriptor, share }) => {
                drop((descriptor, share));
            }
            Self::Given(GivenSink { descriptor, share, .. })
            | Self::Unopened(descriptor, share) => {
                undertaker::bury(share.uid(), (descriptor, share));
            }
            other => *self = other,
        }
    }
}

/// What a service that takes no descriptors says of one.
pub(super) fn none_taken() -> Status {
    Status::new(
        Code::PermissionDenied,
        "this server takes no descriptors to be relayed into: offer a buffer, or room inline",
    )
}

/// What a descriptor is. None of the questions does I/O on it, for that could wait for its owner.
fn look_at(descriptor: BorrowedFd<'_>, policy: Descriptors) -> Result<Kind, Status> {
    ensure_writable(descriptor)?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let mask = StatxFlags::TYPE | StatxFlags::MNT_ID;
    let found = fs::statx(descriptor, "", flags, mask).map_err(cannot_look)?;
    match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::Fifo => Ok(Kind::Pipe),
        FileType::Socket => ensure_connected_stream(descriptor).map(|()| Kind::Socket),
        FileType::RegularFile if policy != Descriptors::Any => Err(Status::new(
            Code::PermissionDenied,
            "the descriptor is a file, and this server takes pipes and sockets only",
        )),
        FileType::RegularFile => {
            let has_mount = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
            let mount = has_mount.then_some(found.stx_mnt_id);
            ensure_local(descriptor, mount).map(|()| Kind::File)
        }
        FileType::Directory => Err(refused("is a directory")),
        FileType::CharacterDevice | FileType::BlockDevice => Err(refused("is a device")),
        _ => Err(refused("is no pipe, socket or file")),
    }
}

fn ensure_writable(descriptor: BorrowedFd<'_>) -> Result<(), Status> {
    let flags = fs::fcntl_getfl(descriptor).map_err(cannot_look)?;
    if flags.contains(OFlags::PATH) {
        return Err(refused("was opened with O_PATH: open it for writing"));
    }
    match flags & OFlags::ACCMODE {
        OFlags::WRONLY | OFlags::RDWR => Ok(()),
        _ => Err(refused("is not open for writing")),
    }
}

/// Others have message boundaries, or nobody at their other end.
fn ensure_connected_stream(socket: BorrowedFd<'_>) -> Result<(), Status> {
    let families = [AddressFamily::UNIX, AddressFamily::INET, AddressFamily::INET6];
    if !families.contains(&sockopt::socket_domain(socket).map_err(cannot_look)?) {
        return Err(refused("is a socket of a family other than Unix, IPv4 and IPv6"));
    }
    if sockopt::socket_type(socket).map_err(cannot_look)? != SocketType::STREAM {
        return Err(refused("is a socket, but no stream"));
    }
    match net::getpeername(socket) {
        Ok(_) => Ok(()),
        Err(Errno::NOTCONN | Errno::INVAL) => Err(refused("is a socket that is not connected")),
        Err(error) => Err(cannot_look(error)),
    }
}

/// Files whose file system asks somebody else (FUSE, a network) wait for him; those of /proc and
/// /sys are no data.
fn ensure_local(file: BorrowedFd<'_>, mount: Option<u64>) -> Result<(), Status> {
    // Memory files are on a mount that has no place in the tree. What has seals is in memory.
    if fs::fcntl_get_seals(file).is_ok() {
        return Ok(());
    }
    match mount.and_then(file_system_of) {
        Some(name) if LOCAL_FILE_SYSTEMS.contains(&name.as_str()) => Ok(()),
        Some(name) => Err(refused(&format!("is a file on a file system of type {name}"))),
        None => Err(refused("is a file on a file system that this server can't see")),
    }
}

/// The type of the file system of a mount, which the kernel tells without asking it.
fn file_system_of(mount: u64) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let is_it = |line: &&str| line.split(' ').next().and_then(|id| id.parse().ok()) == Some(mount);
    let (_, about) = mounts.lines().find(is_it)?.split_once(" - ")?;
    about.split(' ').next().map(str::to_owned)
}

fn refused(what: &str) -> Status {
    let message = format!("the descriptor to be relayed into {what}");
    Status::new(Code::InvalidArgument, message)
}

fn cannot_look(error: Errno) -> Status {
    refused(&format!("can't be looked at: {error}"))
}

/// Those that keep their data on this machine.
const LOCAL_FILE_SYSTEMS: [&str; 16] = [
    "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "ntfs3", "overlay",
    "ramfs", "reiserfs", "tmpfs", "vfat", "xfs", "zfs",
];
