//! Unix stream sockets: bytes together with descriptors, and who is on the other side.
//!
//! Neither frames nor buffers here. Every received descriptor is close-on-exec and owned at once; a
//! truncated control message is never passed on as if it were whole.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use smallvec::SmallVec;

/// At most this many descriptors travel with one message, either way.
pub const DESCRIPTORS_MAX: usize = 4;

/// A few owned descriptors, without allocating.
pub type DescriptorList = SmallVec<[OwnedFd; DESCRIPTORS_MAX]>;

/// Whether a call waits for the socket or returns [`io::ErrorKind::WouldBlock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait, at most for the socket's own time-out.
    Block,
    /// Receive until the buffer is full, the stream ends, or the socket's own time-out is over:
    /// then what came until then is returned. Sends wait as with [`Wait::Block`].
    Fill,
    /// Return at once.
    Never,
}

/// Sends the parts, and with their first byte the descriptors. Returns the bytes sent, which may be
/// fewer; the descriptors have gone with the first of them and must not be sent again.
///
/// # Errors
/// Those of sendmsg(2); no SIGPIPE is raised. `InvalidInput` when there are more than
/// [`DESCRIPTORS_MAX`] descriptors or no byte that they could ride on (the kernel would lose them).
///
/// # References
/// sendmsg(2), unix(7) `SCM_RIGHTS`
pub fn send(
    socket: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    descriptors: &[BorrowedFd<'_>],
    wait: Wait,
) -> io::Result<usize> {
    let mut flags = SendFlags::NOSIGNAL;
    flags.set(SendFlags::DONTWAIT, wait == Wait::Never);
    let mut control = SendAncillaryBuffer::default();
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    if !descriptors.is_empty() {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        control = SendAncillaryBuffer::new(&mut space);
        if bytes == 0
            || descriptors.len() > DESCRIPTORS_MAX
            || !control.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
    }
    retry(|| net::sendmsg(socket, parts, &mut control, flags))
}

/// What one receive brought.
#[derive(Debug)]
pub struct Received {
    /// Bytes stored; 0 is the end of the stream.
    pub bytes: usize,
    /// The descriptors that came with them.
    pub descriptors: Descriptors,
}

/// The descriptors of one receive. They belong to a message whose first byte is among its bytes.
#[derive(Debug)]
pub enum Descriptors {
    /// All that were sent (none is the usual case).
    Arrived(DescriptorList),
    /// Some were sent that this process could not open: it is out of descriptors (EMFILE). These
    /// are the others.
    Lost(DescriptorList),
    /// More were sent than a message may carry; these are some of them.
    TooMany(DescriptorList),
}

/// Receives into `buffer`.
///
/// # Errors
/// Those of recvmsg(2); a time-out of the socket, and a signal meanwhile, are
/// [`io::ErrorKind::WouldBlock`].
///
/// # References
/// recvmsg(2) `MSG_CTRUNC`; at EMFILE the kernel reports only that flag, and no error.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], wait: Wait) -> io::Result<Received> {
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    flags.set(RecvFlags::DONTWAIT, wait == Wait::Never);
    flags.set(RecvFlags::WAITALL, wait == Wait::Fill);
    let mut space = [MaybeUninit::uninit(); RECEIVED_CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = match net::recvmsg(socket, &mut parts, &mut control, flags) {
        // Waiting again would wait for the socket's whole time-out again: the caller decides.
        Err(rustix::io::Errno::INTR) => return Err(io::ErrorKind::WouldBlock.into()),
        other => other?,
    };
    let mut arrived = DescriptorList::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = item {
            arrived.extend(descriptors);
        }
    }
    let truncated = message.flags.contains(ReturnFlags::CTRUNC);
    let descriptors = match arrived.len() {
        count if count > DESCRIPTORS_MAX => Descriptors::TooMany(arrived),
        DESCRIPTORS_MAX if truncated => Descriptors::TooMany(arrived),
        _ if truncated => Descriptors::Lost(arrived),
        _ => Descriptors::Arrived(arrived),
    };
    Ok(Received { bytes: message.bytes, descriptors })
}

/// Makes a connected socket of unknown origin fit for [`receive`]: with SO_PASSCRED on it, the
/// kernel would end a read between bytes of different writers, which looks like an empty socket.
///
/// # Errors
/// Those of setsockopt(2).
pub fn prepare(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(net::sockopt::set_socket_passcred(socket, false)?)
}

/// Who is on the other side of a Unix socket: of a listener, who called listen(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process; none if it lives in a PID namespace that this process can't see into.
    pub pid: Option<u32>,
    /// The effective user id; [`overflow_uid`] if it has no name in this user namespace.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
}

/// Asks the kernel who is on the other side.
///
/// # Errors
/// Those of getsockopt(2).
///
/// # References
/// unix(7) `SO_PEERCRED`
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes into `found`, a plain C struct of that size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let pid = u32::try_from(found.pid).ok().filter(|&pid| pid != 0);
    Ok(Credentials { pid, uid: found.uid, gid: found.gid })
}

/// The user id that stands for every user who has no name in this user namespace (usually 65534).
pub fn overflow_uid() -> u32 {
    std::fs::read_to_string("/proc/sys/kernel/overflowuid")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(OVERFLOW_UID_DEFAULT)
}

/// Takes over the descriptors that a service manager passed to this process, close-on-exec; empty
/// if it passed none or they were taken before.
///
/// # References
/// sd_listen_fds(3)
pub fn listen_fds() -> Vec<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let variable = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let ours = variable("LISTEN_PID") == Some(std::process::id());
    let count = variable("LISTEN_FDS").unwrap_or(0).min(LISTEN_FDS_MAX);
    if !ours || TAKEN.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    (0..count).filter_map(|index| take_passed(LISTEN_FDS_START + index as i32)).collect()
}

fn take_passed(number: i32) -> Option<OwnedFd> {
    // SAFETY: fcntl on a number that may be closed is an error return, not a fault.
    let is_open = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
    // SAFETY: open, as just seen. Its ownership was passed to this very process by its parent
    // (LISTEN_PID names us), and `TAKEN` lets us take it once.
    is_open.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Takes the stream socket that a parent process handed over as standard input.
///
/// # Errors
/// Those of dup(2), and `InvalidInput` when standard input is no Unix stream socket.
pub fn stream_from_stdin() -> io::Result<UnixStream> {
    let fd = io::stdin().as_fd().try_clone_to_owned()?;
    let is_unix = net::sockopt::socket_domain(&fd).is_ok_and(|f| f == net::AddressFamily::UNIX);
    if !is_unix {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "standard input is no Unix socket: this command is started by its parent process",
        ));
    }
    Ok(UnixStream::from(fd))
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));
/// Room for as many as the kernel lets through: those that find none it closes itself, on the
/// thread that receives, and closing what a stranger has opened can wait for the stranger. With
/// SO_PASSCRED (a service manager may have set it on the listener) it puts credentials before them.
const RECEIVED_CONTROL_BYTES: usize =
    rustix::cmsg_space!(ScmCredentials(1), ScmRights(KERNEL_DESCRIPTORS_MAX));
/// The kernel's `SCM_MAX_FD`.
const KERNEL_DESCRIPTORS_MAX: usize = 253;
const OVERFLOW_UID_DEFAULT: u32 = 65_534;
const LISTEN_FDS_START: i32 = 3;
const LISTEN_FDS_MAX: u32 = 64;
