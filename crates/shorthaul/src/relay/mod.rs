//! Relays: a byte range of a file, pipe or socket into another, or into a registered buffer,
//! without the caller touching the bytes.
//!
//! ```
//! use std::fs::File;
//! use std::io::{Seek, SeekFrom, Write};
//! use std::os::unix::net::UnixStream;
//! use shorthaul::relay::Relay;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut file = tempfile::tempfile()?;
//! file.write_all(b"bytes that nobody has to touch")?;
//! let (socket, _peer) = UnixStream::pair()?;
//!
//! let relayed = Relay::new().run(&file, 6..10, &socket)?;
//! println!("{} bytes by {} in {} calls", relayed.bytes, relayed.method, relayed.calls);
//! # assert_eq!(relayed.bytes, 4);
//! # Ok(())
//! # }
//! ```
//!
//! # What can be relied on
//! - All of the range, or an error that says how much of it is in the sink.
//! - The range is fixed at the start: what is appended to a file meanwhile is not relayed. The file
//!   is the one that is open, whatever has its name since. One that is cut under way is an error:
//!   no hang, no signal. (What of the cut-off part was relayed before may be zeros.)
//! - The source's own position stays where it is; a sink is written where it stands.
//! - Nobody's modes are changed: a descriptor that waits goes on doing so, one that doesn't is
//!   polled. (With a deadline or a [`Cancel`], a socket that waits has its SO_SNDTIMEO lowered
//!   while splice(2) and sendfile(2) write to it.)
//! - A pipe that still holds bytes is never used again.
//! - No SIGPIPE and no SIGXFSZ: a sink that nobody reads is [`Fault::SinkClosed`].
//!
//! # What can't
//! - **A file that is overwritten in place under way**, or after it while bytes are still in the
//!   sink: splice(2) and sendfile(2) put the file's own pages into sockets and pipes, so that their
//!   reader gets what the file has *then*. Nobody can notice. Take [`Method::ReadWrite`] for
//!   files that are changed in place.
//! - Mapping a sparse file in memory (a memfd or a file of tmpfs) allocates the pages that it
//!   lacks. [`Method::Auto`] maps none to copy it.
//! - Deadlines and cancels are looked at between chunks where a call can't be kept from waiting:
//!   disks and terminals.

mod auto;
mod copy_file_range;
mod ends;
mod flow;
mod memory;
mod method;
mod mmap;
mod outcome;
mod rw;
mod sendfile;
mod splice;
mod wait;

use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use shorthaul_platform::memory::{PrivateMemory, SharedMapping};
use shorthaul_platform::pipe::Pipe;
use shorthaul_platform::signals::QuietSignals;

use self::ends::{Sink, Source, SourceKind};
use self::flow::{Flow, Halt};
pub use self::method::Method;
pub use self::outcome::{Fault, RelayError, Relayed};
pub use self::wait::Cancel;
use self::wait::Patience;
use crate::limits::RELAY_CHUNK_BYTES_MAX;
use crate::threads::deadline_after;

/// Moves byte ranges from sources to sinks. It keeps a buffer and a pipe, so one that is used for
/// many runs spares making them.
pub struct Relay {
    method: Method,
    chunk_bytes: usize,
    deadline: Option<Duration>,
    cancel: Option<Cancel>,
    on_progress: Option<Box<ProgressFn>>,
    tools: Tools,
}

/// How far a relay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes that are in the sink.
    pub bytes: u64,
    /// Bytes of the range, if it is known where it ends.
    pub bytes_in_all: Option<u64>,
}

/// Somebody who wants to know.
type ProgressFn = dyn FnMut(Progress) + Send;

/// What is used again by later runs.
#[derive(Debug, Default)]
struct Tools {
    buffer: Option<PrivateMemory>,
    pipe: Option<Pipe>,
}

impl Default for Relay {
    fn default() -> Self {
        Self::new()
    }
}

impl Relay {
    /// A relay that chooses its method, in chunks of [`CHUNK_BYTES`], without a deadline.
    pub fn new() -> Self {
        Self {
            method: Method::Auto,
            chunk_bytes: CHUNK_BYTES,
            deadline: None,
            cancel: None,
            on_progress: None,
            tools: Tools::default(),
        }
    }

    /// Takes this method and no other.
    #[must_use]
    pub fn method(self, method: Method) -> Self {
        Self { method, ..self }
    }

    /// Moves at most so many bytes with one system call. Between two, deadline and cancel are
    /// looked at and progress is told. At least 1; more than
    /// [`RELAY_CHUNK_BYTES_MAX`] are taken as that.
    #[must_use]
    pub fn chunk_bytes(self, bytes: usize) -> Self {
        Self { chunk_bytes: bytes.clamp(1, RELAY_CHUNK_BYTES_MAX), ..self }
    }

    /// Gives each run so much time. Without, it waits as long as the sink takes.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Lets others end its runs.
    #[must_use]
    pub fn cancel(self, cancel: &Cancel) -> Self {
        Self { cancel: Some(cancel.clone()), ..self }
    }

    /// Calls `on_progress` whenever bytes have arrived in the sink.
    #[must_use]
    pub fn on_progress(self, on_progress: impl FnMut(Progress) + Send + 'static) -> Self {
        Self { on_progress: Some(Box::new(on_progress)), ..self }
    }

    /// Moves the bytes of `range` from `source` to `sink`.
    ///
    /// A range without an end goes to the end that the source has now; of what has no size (pipes,
    /// sockets, devices, files of /proc and /sys) to where reading ends. Streams have no offsets:
    /// a range of theirs begins at 0, which is the byte that comes next.
    ///
    /// # Errors
    /// A [`RelayError`], which says how many bytes are in the sink all the same.
    ///
    /// # References
    /// splice(2), sendfile(2), copy_file_range(2)
    pub fn run(
        &mut self,
        source: impl AsFd,
        range: impl RangeBounds<u64>,
        sink: impl AsFd,
    ) -> Result<Relayed, RelayError> {
        let until = self.deadline.map(deadline_after);
        let sink = Sink::look_at(sink.as_fd());
        self.run_between(
            source.as_fd(),
            Span::of(&range),
            sink,
            Bounds { until, is_unwanted: None },
        )
    }

    /// Like [`Relay::run`], into a descriptor whose open file is shared with somebody who is not
    /// trusted and may change its modes under way: pipes and sockets are written only in ways that
    /// don't wait whatever those are. It ends at `until`, and soon after it `is_unwanted`, which
    /// is told whether the source is what the relay waits for.
    pub(crate) fn run_for_stranger(
        &mut self,
        source: BorrowedFd<'_>,
        range: &impl RangeBounds<u64>,
        sink: BorrowedFd<'_>,
        until: Instant,
        is_unwanted: &dyn Fn(bool) -> bool,
    ) -> Result<Relayed, RelayError> {
        let bounds = Bounds { until: Some(until), is_unwanted: Some(is_unwanted) };
        let sink = Sink::look_at(sink).map(|sink| Sink { is_strangers: true, ..sink });
        self.run_between(source, Span::of(range), sink, bounds)
    }

    /// Moves the bytes of `range` from `source` into `memory` at `room.start`; into no more than
    /// `room`, and of a source that tells no size no more than fits.
    pub(crate) fn run_into_memory(
        &mut self,
        source: impl AsFd,
        range: impl RangeBounds<u64>,
        memory: &SharedMapping,
        room: Range<usize>,
    ) -> Result<Relayed, RelayError> {
        let method = self.method;
        let bounds = Bounds { until: self.deadline.map(deadline_after), is_unwanted: None };
        let Prepared { mut flow, .. } = self.prepare(source.as_fd(), Span::of(&range), bounds)?;
        let moved = match method {
            Method::Auto | Method::ReadWrite => memory::run(&mut flow, memory, room),
            _ => Err(Halt::Unsupported("memory of this process is read into".into())),
        };
        flow.finish(method, moved, "memory")
    }

    fn run_between(
        &mut self,
        source: BorrowedFd<'_>,
        span: Span,
        sink: Result<Sink<'_>, Fault>,
        bounds: Bounds<'_>,
    ) -> Result<Relayed, RelayError> {
        let method = self.method;
        let sink = sink.map_err(|fault| RelayError::before_any(fault, method))?;
        let Prepared { mut flow, tools } = self.prepare(source, span, bounds)?;
        if flow.source.kind == SourceKind::Pipe && ends::are_the_same(flow.source.fd, sink.fd) {
            let message = "source and sink are one pipe: what is written would be read again";
            return flow.finish(method, Err(Fault::Misuse(message.into()).into()), sink.name());
        }
        flow.watched = sink.can_hang_up().then_some(sink.fd);
        // Writing to what nobody reads is an error here, not a signal.
        let quiet = QuietSignals::begin();
        let (method, moved) = run_methods(method, &mut flow, &sink, tools);
        drop(quiet);
        flow.finish(method, moved, sink.name())
    }

    fn prepare<'a>(
        &'a mut self,
        source: BorrowedFd<'a>,
        span: Span,
        bounds: Bounds<'a>,
    ) -> Result<Prepared<'a>, RelayError> {
        let Bounds { until, is_unwanted } = bounds;
        let source = Source::look_at(source);
        let spanned = source.and_then(|source| Ok((source, span.within(&source)?)));
        let (source, bytes) =
            spanned.map_err(|fault| RelayError::before_any(fault, self.method))?;
        let flow = Flow {
            source,
            watched: None,
            start: span.start,
            bytes,
            is_end_asked: span.end.is_some(),
            chunk_bytes: self.chunk_bytes,
            patience: Patience { until, cancel: self.cancel.as_ref(), is_unwanted },
            on_progress: self.on_progress.as_deref_mut(),
            taken: 0,
            given: 0,
            calls: 0,
            is_last_resort: self.method == Method::ReadWrite,
        };
        Ok(Prepared { flow, tools: &mut self.tools })
    }
}

/// What may end a run, beside its [`Cancel`].
struct Bounds<'a> {
    until: Option<Instant>,
    is_unwanted: Option<&'a dyn Fn(bool) -> bool>,
}

/// What a run works with.
struct Prepared<'a> {
    flow: Flow<'a>,
    tools: &'a mut Tools,
}

/// Runs one method, or with `auto` one after the other until one can; each goes on where the one
/// before it has stopped.
fn run_methods(
    method: Method,
    flow: &mut Flow<'_>,
    sink: &Sink<'_>,
    tools: &mut Tools,
) -> (Method, Result<(), Halt>) {
    if flow.bytes == Some(0) {
        return (method, Ok(()));
    }
    let is_choice = matches!(method, Method::Auto | Method::ReadWrite);
    if !is_choice && flow.source.is_empty_file() {
        // A method that can't take files of no size can take this one.
        return (method, flow.source_ended());
    }
    let only = [method];
    let methods = match method {
        Method::Auto => auto::methods(&flow.source, sink),
        _ => &only,
    };
    let mut moved = (method, flow.patience.check().map_err(Halt::Fault));
    for &method in methods {
        let can_go_on = matches!(moved.1, Ok(()) | Err(Halt::Unsupported(_)));
        if !can_go_on {
            break;
        }
        if !flow.source.is_stream() {
            // What a method took and didn't give is read again.
            flow.taken = flow.given;
        }
        flow.is_last_resort = method == Method::ReadWrite;
        moved = (method, run_method(method, flow, sink, tools));
        if moved.1.is_ok() {
            break;
        }
    }
    moved
}

fn run_method(
    method: Method,
    flow: &mut Flow<'_>,
    sink: &Sink<'_>,
    tools: &mut Tools,
) -> Result<(), Halt> {
    match method {
        Method::Auto | Method::ReadWrite => rw::run(flow, sink, tools),
        Method::Map => mmap::run(flow, sink),
        Method::Splice => splice::run(flow, sink, tools),
        Method::SendFile => sendfile::run(flow, sink),
        Method::CopyFileRange => copy_file_range::run(flow, sink),
    }
}

/// What is known of a range of a source before any of it is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) start: u64,
    /// Bytes of the range, if it is known where it ends.
    pub(crate) bytes: Option<u64>,
    /// Whether bytes are had from the source once, and no offset names them.
    pub(crate) is_stream: bool,
}

/// Looks at a source as [`Relay::run`] would.
pub(crate) fn measure(
    source: BorrowedFd<'_>,
    range: &impl RangeBounds<u64>,
) -> Result<Measured, RelayError> {
    let span = Span::of(range);
    let measured = Source::look_at(source).and_then(|source| {
        let (start, told) = (span.start, span.within(&source)?);
        let is_known = span.end.is_some() || !source.tells_wrong_sizes();
        let bytes = told.filter(|_| is_known);
        Ok(Measured { start, bytes, is_stream: source.is_stream() })
    });
    measured.map_err(|fault| RelayError::before_any(fault, Method::Auto))
}

/// The bytes that were asked for.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u64,
    end: Option<u64>,
}

impl Span {
    fn of(range: &impl RangeBounds<u64>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => Some(last.saturating_add(1)),
            Bound::Excluded(&end) => Some(end),
            Bound::Unbounded => None,
        };
        Self { start, end }
    }

    /// How many bytes of `source` that are, as far as it can be told.
    fn within(self, source: &Source<'_>) -> Result<Option<u64>, Fault> {
        let Self { start, end } = self;
        if end.is_some_and(|end| end < start) {
            return Err(Fault::Misuse(format!("the range from {start} on ends before that")));
        }
        if end.unwrap_or(start) > i64::MAX as u64 {
            return Err(Fault::Misuse(format!("no file has a byte {}", end.unwrap_or(start))));
        }
        if source.is_stream() && start > 0 {
            let name = source.name();
            return Err(Fault::Misuse(format!("{name} has no byte {start} to begin at, but 0")));
        }
        match source.kind {
            SourceKind::Sized(size) => {
                let end = end.unwrap_or(size.max(start));
                // Better nothing than a part of what is not there, where that can be told.
                let is_short = end > size || start > size;
                if is_short && !source.tells_wrong_sizes() {
                    return Err(Fault::SourceEnded { at: size, end });
                }
                Ok(Some(end - start))
            }
            _ => Ok(end.map(|end| end - start)),
        }
    }
}

impl Tools {
    /// A page-aligned buffer: into one that starts a few bytes into a page, some CPUs copy several
    /// times slower.
    fn buffer(&mut self, bytes: usize) -> Result<&mut [u8], Halt> {
        if self.buffer.as_ref().is_none_or(|buffer| buffer.len() < bytes) {
            let buffer = PrivateMemory::new(bytes).map_err(|cause| {
                Halt::Fault(Fault::Io { context: "no memory for the buffer", cause })
            })?;
            self.buffer = Some(buffer);
        }
        let buffer = self.buffer.as_mut().expect("it was made above");
        Ok(&mut buffer[..bytes])
    }

    /// An empty pipe, with room for `bytes` if the kernel grants it.
    fn pipe(&mut self, bytes: usize) -> Result<Pipe, Halt> {
        let pipe = match self.pipe.take() {
            Some(pipe) => Ok(pipe),
            None => Pipe::new(),
        };
        let mut pipe = pipe.map_err(|error| Halt::Unsupported(format!("no pipe: {error}")))?;
        pipe.make_room(bytes);
        Ok(pipe)
    }

    fn keep_pipe(&mut self, pipe: Pipe) {
        debug_assert_eq!(pipe.held(), 0, "a pipe with bytes in it is not used again");
        self.pipe = Some(pipe);
    }
}

impl RelayError {
    fn before_any(fault: Fault, method: Method) -> Self {
        Self { fault, relayed: Relayed { bytes: 0, calls: 0, method }, bytes_lost: 0 }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("method", &self.method)
            .field("chunk_bytes", &self.chunk_bytes)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// Bytes of a chunk unless told otherwise.
pub const CHUNK_BYTES: usize = 256 << 10;
