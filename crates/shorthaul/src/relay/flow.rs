//! A relay under way: what is to be moved, how far it is, and how its calls are made.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};

use super::ends::{Sink, SinkKind, Source};
use super::method::Method;
use super::outcome::{Fault, RelayError, Relayed};
use super::wait::Patience;
use super::{Progress, ProgressFn};

/// A relay under way.
pub(super) struct Flow<'a> {
    pub(super) source: Source<'a>,
    /// The sink, if it is one that can hang up: then there is nothing to wait for any more.
    pub(super) watched: Option<BorrowedFd<'a>>,
    /// Offset of the first byte.
    pub(super) start: u64,
    /// Bytes in all, if that is known.
    pub(super) bytes: Option<u64>,
    /// Whether somebody has asked for just these; else they are what the source says it has.
    pub(super) is_end_asked: bool,
    pub(super) chunk_bytes: usize,
    pub(super) patience: Patience<'a>,
    pub(super) on_progress: Option<&'a mut ProgressFn>,
    /// Bytes taken from the source.
    pub(super) taken: u64,
    /// Bytes that are in the sink.
    pub(super) given: u64,
    pub(super) calls: u64,
    /// Whether there is no other method to go on with.
    pub(super) is_last_resort: bool,
}

/// Why a method stopped before the end.
#[derive(Debug)]
pub(super) enum Halt {
    /// The kernel can't do this between these two.
    Unsupported(String),
    Fault(Fault),
}

impl From<Fault> for Halt {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The end of a relay that a call is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum End<'a> {
    Source,
    Sink(BorrowedFd<'a>),
    /// A splice between two streams: it doesn't tell which of them has to be waited for.
    Either(BorrowedFd<'a>),
}

impl Flow<'_> {
    /// Bytes of the next chunk; 0 when all are taken.
    pub(super) fn next_chunk(&self) -> usize {
        match self.bytes {
            Some(bytes) => usize::try_from(bytes - self.taken)
                .map_or(self.chunk_bytes, |left| left.min(self.chunk_bytes)),
            None => self.chunk_bytes,
        }
    }

    /// Where in the source the next byte is.
    pub(super) fn offset(&self) -> u64 {
        self.start + self.taken
    }

    /// Whether others follow the next `bytes` that are given.
    pub(super) fn has_more_than(&self, bytes: usize) -> bool {
        self.bytes.is_some_and(|all| all - self.given > bytes as u64)
    }

    /// Takes note of bytes that are in the sink, and looks whether to go on.
    pub(super) fn arrived(&mut self, bytes: usize) -> Result<(), Halt> {
        self.given += bytes as u64;
        if let Some(on_progress) = &mut self.on_progress {
            on_progress(Progress { bytes: self.given, bytes_in_all: self.bytes });
        }
        if self.bytes == Some(self.given) {
            return Ok(());
        }
        Ok(self.patience.check()?)
    }

    /// What it means that the source has no more: the end, or that it came too soon.
    pub(super) fn source_ended(&self) -> Result<(), Halt> {
        let Some(bytes) = self.bytes else { return Ok(()) };
        if !self.is_end_asked && self.source.tells_wrong_sizes() {
            return Ok(());
        }
        let (at, end) = (self.offset(), self.start + bytes);
        Err(Halt::Fault(Fault::SourceEnded { at, end }))
    }

    /// Makes a call that moves bytes, again as long as it has to wait for `end`.
    pub(super) fn call(
        &mut self,
        end: End<'_>,
        mut call: impl FnMut() -> io::Result<usize>,
    ) -> Result<usize, Halt> {
        let mut waits = 0_u32;
        // Ends: each turn waits, as long as patience lets it.
        loop {
            self.calls += 1;
            let error = match call() {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            match error.kind() {
                io::ErrorKind::Interrupted => self.patience.check()?,
                io::ErrorKind::WouldBlock => {
                    self.wait(end)?;
                    // An end that says it is ready and then is not must not make us spin.
                    waits += 1;
                    if waits > TURNS_WITHOUT_NAP {
                        std::thread::sleep(NAP);
                    }
                }
                _ => return Err(self.halt(end, error)),
            }
        }
    }

    /// Waits until the source has bytes, or ends.
    pub(super) fn wait_for_source(&self) -> Result<(), Fault> {
        self.patience.wait_for_source(self.source.fd, self.watched)
    }

    fn wait(&self, end: End<'_>) -> Result<(), Fault> {
        match end {
            End::Source => self.wait_for_source(),
            End::Sink(sink) => self.patience.wait_for_sink(sink),
            End::Either(sink) => {
                self.wait_for_source()?;
                self.patience.wait_for_sink(sink)
            }
        }
    }

    /// What an error of a call means.
    fn halt(&self, end: End<'_>, cause: io::Error) -> Halt {
        let context = match (end, Errno::from_io_error(&cause)) {
            (_, Some(errno)) if !self.is_last_resort && NOT_POSSIBLE.contains(&errno) => {
                return Halt::Unsupported(cause.to_string());
            }
            (End::Source, _) => "can't read the source",
            (_, Some(Errno::PIPE)) | (End::Sink(_), Some(Errno::CONNRESET)) => {
                return Halt::Fault(Fault::SinkClosed);
            }
            (End::Sink(_), _) => "can't write to the sink",
            (End::Either(_), _) => "can't move bytes from the source to the sink",
        };
        Halt::Fault(Fault::Io { context, cause })
    }

    /// Gives all of `bytes` by `write`, which is told how many of them are given already.
    pub(super) fn give_all(
        &mut self,
        sink: BorrowedFd<'_>,
        bytes: usize,
        mut write: impl FnMut(usize) -> io::Result<usize>,
    ) -> Result<(), Halt> {
        let mut given = 0;
        while given < bytes {
            let part = self.call(End::Sink(sink), || write(given))?;
            if part == 0 {
                let cause = io::ErrorKind::WriteZero.into();
                return Err(Halt::Fault(Fault::Io { context: "can't write to the sink", cause }));
            }
            given += part;
            self.arrived(part)?;
        }
        Ok(())
    }

    /// Checks that the source is not shorter than the range now: for methods that would not have
    /// noticed.
    pub(super) fn ensure_not_cut(&self) -> Result<(), Halt> {
        let Some(bytes) = self.bytes else { return Ok(()) };
        let end = self.start + bytes;
        match self.source.size_now() {
            Ok(Some(at)) if at < end => Err(Fault::SourceEnded { at, end }.into()),
            Ok(_) => Ok(()),
            Err(cause) => {
                Err(Halt::Fault(Fault::Io { context: "can't look at the source", cause }))
            }
        }
    }

    /// How it went, in public words.
    pub(super) fn finish(
        self,
        method: Method,
        moved: Result<(), Halt>,
        sink_kind: &'static str,
    ) -> Result<Relayed, RelayError> {
        let relayed = Relayed { bytes: self.given, calls: self.calls, method };
        let fault = match moved {
            Ok(()) => return Ok(relayed),
            Err(Halt::Fault(fault)) => fault,
            Err(Halt::Unsupported(why)) => {
                let source_kind = self.source.name();
                Fault::Unsupported { method, source_kind, sink_kind, why }
            }
        };
        let bytes_lost = if self.source.is_stream() { self.taken - self.given } else { 0 };
        Err(RelayError { fault, relayed, bytes_lost })
    }

    /// For methods whose calls wait for a socket however they are made.
    pub(super) fn limit_sends<'s>(&self, sink: &Sink<'s>) -> Option<SendLimit<'s>> {
        let waits = sink.kind == SinkKind::Socket && !sink.is_nonblocking;
        (waits && self.patience.is_bounded()).then(|| SendLimit::begin(sink)).flatten()
    }
}

/// While it lives, calls wait for the socket for a short time only, so that whoever makes them can
/// look around. The time-out is the socket's own, and is given back by the last of those that write
/// to it at once: to the others it would be as if they had no end.
pub(super) struct SendLimit<'a> {
    sink: Sink<'a>,
    socket: SocketId,
}

impl<'a> SendLimit<'a> {
    fn begin(sink: &Sink<'a>) -> Option<Self> {
        let socket = SocketId::of(sink.fd)?;
        let mut limits = limits();
        if let Some(limited) = limits.iter_mut().find(|limited| limited.socket == socket) {
            limited.users += 1;
            return Some(Self { sink: *sink, socket });
        }
        let before = sockopt::socket_timeout(sink.fd, Timeout::Send).ok()?;
        if before.is_some_and(|before| before <= SEND_WAIT_MAX) {
            return None;
        }
        sockopt::set_socket_timeout(sink.fd, Timeout::Send, Some(SEND_WAIT_MAX)).ok()?;
        limits.push(Limited { socket, before, users: 1 });
        Some(Self { sink: *sink, socket })
    }
}

impl Drop for SendLimit<'_> {
    fn drop(&mut self) {
        let mut limits = limits();
        let found = limits.iter().position(|limited| limited.socket == self.socket);
        let Some(index) = found else { return };
        limits[index].users -= 1;
        if limits[index].users == 0 {
            let before = limits.swap_remove(index).before;
            // It was set before, so that it can be set again.
            sockopt::set_socket_timeout(self.sink.fd, Timeout::Send, before).ok();
        }
    }
}

/// A socket whose time-out is lowered.
struct Limited {
    socket: SocketId,
    before: Option<Duration>,
    users: usize,
}

/// A socket, whatever descriptors it has.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SocketId(u64, u64);

impl SocketId {
    fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        fs::fstat(socket).ok().map(|stat| Self(stat.st_dev, stat.st_ino))
    }
}

fn limits() -> MutexGuard<'static, Vec<Limited>> {
    static LIMITS: Mutex<Vec<Limited>> = Mutex::new(Vec::new());
    LIMITS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the kernel says when it can't do a call between such ends at all; also a filter of system
/// calls (seccomp) in its place.
const NOT_POSSIBLE: [Errno; 10] = [
    Errno::INVAL,
    Errno::XDEV,
    Errno::NOSYS,
    Errno::OPNOTSUPP,
    Errno::BADF,
    Errno::PERM,
    Errno::ACCESS,
    Errno::NODEV,
    Errno::SPIPE,
    Errno::TXTBSY,
];
/// Calls in a row that find an end not ready though it had said so.
const TURNS_WITHOUT_NAP: u32 = 16;
const NAP: Duration = Duration::from_millis(1);
/// How long one call may wait for a socket while somebody else may want to end it.
const SEND_WAIT_MAX: Duration = Duration::from_millis(50);
