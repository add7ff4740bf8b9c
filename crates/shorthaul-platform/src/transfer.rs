//! Giving bytes to a descriptor of any kind, waiting for it or not.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::ioctl;

/// How bytes are given to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteWay {
    /// write(2): waits as the descriptor's own mode says.
    Plain,
    /// send(2) to a socket: waits as its own mode says, and raises no SIGPIPE.
    Send,
    /// send(2) to a socket that returns [`io::ErrorKind::WouldBlock`] instead of waiting, whatever
    /// the socket's own mode.
    SendNow,
    /// pwritev2(2) with `RWF_NOWAIT`, for pipes: the same without a socket. `EOPNOTSUPP` where the
    /// kernel can't.
    PlainNow,
}

/// Writes up to all of `bytes` to `sink`, and returns how many went.
///
/// # Errors
/// Those of write(2), send(2) and pwritev2(2). But for the two ways that send, `EPIPE` comes with a
/// SIGPIPE: see [`QuietSignals`](crate::signals::QuietSignals).
///
/// # References
/// write(2), send(2), pwritev2(2)
#[inline]
pub fn write(sink: BorrowedFd<'_>, bytes: &[u8], way: WriteWay) -> io::Result<usize> {
    // SAFETY: pointer and length are those of a slice that we borrow.
    unsafe { write_raw(sink, bytes.as_ptr(), bytes.len(), way) }
}

/// Writes up to `bytes` bytes from `start` on.
///
/// # Safety
/// - The range must be mapped until this returns. What others do to its contents is no matter: only
///   the kernel reads it.
#[inline]
pub(crate) unsafe fn write_raw(
    sink: BorrowedFd<'_>,
    start: *const u8,
    bytes: usize,
    way: WriteWay,
) -> io::Result<usize> {
    let (fd, start) = (sink.as_raw_fd(), start.cast());
    let written = match way {
        // SAFETY: the caller's range is mapped, and the kernel reads no more than it.
        WriteWay::Plain => unsafe { libc::write(fd, start, bytes) },
        // SAFETY: as above.
        WriteWay::Send => unsafe { libc::send(fd, start, bytes, libc::MSG_NOSIGNAL) },
        WriteWay::SendNow => {
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: as above.
            unsafe { libc::send(fd, start, bytes, flags) }
        }
        WriteWay::PlainNow => {
            let part = libc::iovec { iov_base: start.cast_mut(), iov_len: bytes };
            // SAFETY: as above; the one part is on our stack. An offset of -1 is "where the
            // descriptor stands", the only one that streams have.
            unsafe { libc::pwritev2(fd, &raw const part, 1, -1, libc::RWF_NOWAIT) }
        }
    };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Bytes of a block device.
///
/// # Errors
/// `ENOTTY` if it is none.
///
/// # References
/// ioctl(2), `BLKGETSIZE64` in linux/fs.h
pub fn block_device_bytes(device: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: this request of the kernel's writes one u64 and reads nothing.
    let get_bytes = unsafe { ioctl::Getter::<BLOCK_DEVICE_BYTES, u64>::new() };
    // SAFETY: the getter is for this very request.
    Ok(unsafe { ioctl::ioctl(device, get_bytes) }?)
}

/// Its type is told as size_t, whatever the pointer's size.
const BLOCK_DEVICE_BYTES: ioctl::Opcode = ioctl::opcode::read::<usize>(0x12, 114);
