//! A relay under way: what is to be moved, how far it is, and how its calls are made.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};

use super::ends::{Sink, SinkKind, Source};
use super::method::Method;
use super::outcome::Fault;
use super::wait::Patience;
use super::{Progress, ProgressFn};

/// A relay under way.
pub(super) struct Flow<'a> {
    pub(super) source: Source<'a>,
    pub(super) sink: Sink<'a>,
    /// Offset of the first byte.
    pub(super) start: u64,
    /// Bytes in all, if that is known.
    pub(super) bytes: Option<u64>,
    pub(super) chunk_bytes: usize,
    pub(super) patience: Patience<'a>,
    pub(super) on_progress: Option<&'a mut ProgressFn>,
    /// Bytes taken from the source.
    pub(super) taken: u64,
    /// Bytes that are in the sink.
    pub(super) given: u64,
    pub(super) calls: u64,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Sink,
    /// A splice between two streams: it doesn't tell which of them has to be waited for.
    Either,
}

impl<'a> Flow<'a> {
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
        match self.bytes {
            None => Ok(()),
            Some(bytes) => {
                let (at, end) = (self.offset(), self.start + bytes);
                Err(Halt::Fault(Fault::SourceEnded { at, end }))
            }
        }
    }

    /// Makes a call that moves bytes, again as long as it has to wait for `end`.
    pub(super) fn call(
        &mut self,
        end: End,
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

    fn wait(&self, end: End) -> Result<(), Fault> {
        if end != End::Sink {
            self.patience.wait_for_source(self.source.fd, Some(self.sink.fd))?;
        }
        if end != End::Source {
            self.patience.wait_for_sink(self.sink.fd)?;
        }
        Ok(())
    }

    /// What an error of a call means.
    fn halt(&self, end: End, cause: io::Error) -> Halt {
        let errno = Errno::from_io_error(&cause);
        if errno.is_some_and(|errno| NOT_POSSIBLE.contains(&errno)) {
            return Halt::Unsupported(cause.to_string());
        }
        let is_of_sink = end != End::Source;
        if is_of_sink && matches!(errno, Some(Errno::PIPE | Errno::CONNRESET)) {
            return Halt::Fault(Fault::SinkClosed);
        }
        let context = match end {
            End::Source => "can't read the source",
            End::Sink => "can't write to the sink",
            End::Either => "can't move bytes from the source to the sink",
        };
        Halt::Fault(Fault::Io { context, cause })
    }

    /// Gives all of what `write` can give: it is told where to begin, and how many bytes are left.
    pub(super) fn give_all(
        &mut self,
        bytes: usize,
        mut write: impl FnMut(usize) -> io::Result<usize>,
    ) -> Result<(), Halt> {
        let mut given = 0;
        while given < bytes {
            let part = self.call(End::Sink, || write(given))?;
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

    /// For methods whose calls wait for a socket however they are made.
    pub(super) fn limit_sends(&self) -> Option<SendLimit<'a>> {
        let waits = self.sink.kind == SinkKind::Socket && !self.sink.is_nonblocking;
        (waits && self.patience.is_bounded()).then(|| SendLimit::begin(&self.sink)).flatten()
    }

    /// That the method can't do this, in the words of the public error.
    pub(super) fn unsupported(&self, method: Method, why: String) -> Fault {
        let (source_kind, sink_kind) = (self.source.name(), self.sink.name());
        Fault::Unsupported { method, source_kind, sink_kind, why }
    }
}

/// While it lives, calls wait for the socket for a short time only, so that whoever makes them can
/// look around. The time-out is the socket's own, and is given back.
pub(super) struct SendLimit<'a> {
    sink: Sink<'a>,
    before: Option<Duration>,
}

impl<'a> SendLimit<'a> {
    fn begin(sink: &Sink<'a>) -> Option<Self> {
        let before = sockopt::socket_timeout(sink.fd, Timeout::Send).ok()?;
        if before.is_some_and(|before| before <= SEND_WAIT_MAX) {
            return None;
        }
        sockopt::set_socket_timeout(sink.fd, Timeout::Send, Some(SEND_WAIT_MAX)).ok()?;
        Some(Self { sink: *sink, before })
    }
}

impl Drop for SendLimit<'_> {
    fn drop(&mut self) {
        // It was set before, so that it can be set again.
        sockopt::set_socket_timeout(self.sink.fd, Timeout::Send, self.before).ok();
    }
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
