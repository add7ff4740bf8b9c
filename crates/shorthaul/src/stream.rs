//! Between a stream socket and the state machine of a connection; for both sides.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use shorthaul_platform::socket::{self, Descriptors, Wait};
use smallvec::SmallVec;

use crate::connection::{Arrival, Link, Violation};

/// What one read brought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) bytes: usize,
    /// Whether it found the end of the stream: nothing came though there was room.
    pub(crate) is_end: bool,
    /// Whether nothing was left in the socket: fewer bytes came than there was room for. (Not so
    /// when descriptors came: the kernel stops behind them.)
    ///
    /// # References
    /// epoll(7), on edge-triggered stream sockets
    pub(crate) is_drained: bool,
}

/// How far a flush got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    All,
    /// The socket takes no more.
    Blocked,
    /// As much was written as it was allowed to.
    Paused,
}

/// Why nothing could be received.
#[derive(Debug)]
pub(crate) enum ReceiveError {
    Io(io::Error),
    Violation(Violation),
}

/// Reads once, without waiting.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    link: &mut Link<OwnedFd>,
    now: Instant,
) -> Result<Read, ReceiveError> {
    receive_with(socket, link, Wait::Never, || now)
}

/// Reads once; `now` is asked when the read has returned.
pub(crate) fn receive_with(
    socket: BorrowedFd<'_>,
    link: &mut Link<OwnedFd>,
    wait: Wait,
    now: impl FnOnce() -> Instant,
) -> Result<Read, ReceiveError> {
    let space = link.space();
    let room = space.len();
    let received = socket::receive(socket, space, wait).map_err(ReceiveError::Io)?;
    let (arrival, none_came) = match received.descriptors {
        Descriptors::Arrived(list) if list.is_empty() => (Arrival::None, true),
        Descriptors::Arrived(list) => (Arrival::Some(list), false),
        Descriptors::Lost(list) => (Arrival::Lost(list), false),
        Descriptors::TooMany(list) => (Arrival::TooMany(list), false),
    };
    let bytes = received.bytes;
    link.received(bytes, arrival, now()).map_err(ReceiveError::Violation)?;
    Ok(Read { bytes, is_end: bytes == 0 && room > 0, is_drained: none_came && bytes < room })
}

/// Writes until there is nothing to write, the socket takes no more, or `bytes_max` bytes or more
/// are written. `on_sent` is told of the inline payload bytes in frames that were written whole.
pub(crate) fn flush(
    socket: BorrowedFd<'_>,
    link: &mut Link<OwnedFd>,
    now: Instant,
    bytes_max: usize,
    on_sent: impl FnMut(u64),
) -> io::Result<Flushed> {
    flush_with(socket, link, &[], now, bytes_max, on_sent)
}

/// Like [`flush`], with the payload that lies in memory of the caller's.
pub(crate) fn flush_with(
    socket: BorrowedFd<'_>,
    link: &mut Link<OwnedFd>,
    borrowed: &[u8],
    now: Instant,
    bytes_max: usize,
    mut on_sent: impl FnMut(u64),
) -> io::Result<Flushed> {
    let mut written = 0;
    // Each round writes something, and what waits is bounded.
    while written < bytes_max {
        let sent = {
            let Some(transmit) = link.transmit(borrowed) else {
                return Ok(Flushed::All);
            };
            let descriptors: SmallVec<[_; 2]> =
                transmit.descriptors.iter().map(AsFd::as_fd).collect();
            socket::send(socket, &transmit.parts, &descriptors, Wait::Never)
        };
        match sent {
            Ok(bytes) => {
                written += bytes;
                on_sent(link.sent(bytes, now));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                link.write_blocked(now);
                return Ok(Flushed::Blocked);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Flushed::Paused)
}
