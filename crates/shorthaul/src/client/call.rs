//! A call on its way to be made: what is asked, where the payload is wanted, by when.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shorthaul_platform::memory::Memfd;

use super::buffer::{Buffer, Home};
use super::reply::{CallError, Outcome, Reply};
use crate::error::Error;
use crate::limits::{Limits, METHOD_BYTES_MAX, PAYLOAD_ALIGNMENT};
use crate::payload::{MemoryPool, PooledMemory};
use crate::threads::deadline_after;
use crate::wire::Place;

/// A way to make calls: a [`Client`](super::Client) or a [`DirectClient`](super::DirectClient).
pub trait Transport: sealed::Transport {}

impl<T: sealed::Transport> Transport for T {}

pub(crate) mod sealed {
    use super::{Outcome, Outgoing};

    /// Makes calls; not to be implemented elsewhere.
    pub trait Transport {
        /// Makes a call and waits for its outcome.
        #[doc(hidden)]
        #[allow(private_interfaces)]
        fn execute(self, call: Outgoing<'_>) -> Outcome;
    }
}

/// A call that is being put together; [`Call::send`] makes it.
#[derive(Debug)]
#[must_use = "nothing is sent before `send`"]
pub struct Call<'a, T> {
    transport: T,
    outgoing: Outgoing<'a>,
}

/// What is to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) method: &'a str,
    pub(crate) request: &'a [u8],
    pub(crate) payload: &'a [u8],
    pub(crate) wanted: Wanted,
    pub(crate) timeout: Option<Duration>,
}

/// Where the payload of the answer is wanted.
#[derive(Debug)]
pub(crate) enum Wanted {
    Nothing,
    Inline(u64),
    Buffer(Buffer, Range<usize>),
    Fresh(usize),
}

impl<'a, T: Transport> Call<'a, T> {
    pub(crate) fn new(transport: T, method: &'a str) -> Self {
        let wanted = Wanted::Nothing;
        let outgoing = Outgoing { method, request: &[], payload: &[], wanted, timeout: None };
        Self { transport, outgoing }
    }

    /// The request: small, for bulk there is [`Call::payload`].
    pub fn request(mut self, request: &'a [u8]) -> Self {
        self.outgoing.request = request;
        self
    }

    /// Bulk that goes with the request, inline.
    pub fn payload(mut self, payload: &'a [u8]) -> Self {
        self.outgoing.payload = payload;
        self
    }

    /// Wants the payload of the answer in `buffer`, from its start.
    pub fn into(self, buffer: Buffer) -> Self {
        let range = 0..buffer.len();
        self.into_part(buffer, range)
    }

    /// Wants the payload of the answer in a part of `buffer` that starts at a multiple of 64.
    pub fn into_part(mut self, buffer: Buffer, range: Range<usize>) -> Self {
        self.outgoing.wanted = Wanted::Buffer(buffer, range);
        self
    }

    /// Wants the payload of the answer in memory made for this call alone: a memory file of `bytes`
    /// bytes that travels with it. Slower than a buffer that is used again, by the cost of fresh
    /// pages.
    pub fn into_fresh(mut self, bytes: usize) -> Self {
        self.outgoing.wanted = Wanted::Fresh(bytes);
        self
    }

    /// Wants the payload of the answer behind the reply, at most `bytes_max` bytes.
    pub fn inline(mut self, bytes_max: usize) -> Self {
        self.outgoing.wanted = Wanted::Inline(bytes_max as u64);
        self
    }

    /// Gives up after `timeout`; without it, after the client's default.
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.outgoing.timeout = Some(timeout);
        self
    }

    /// Makes the call and waits for its answer.
    ///
    /// # Errors
    /// A [`CallError`], with the buffer if there was one and the server has let go of it:
    /// [`Error::Status`] is the service's own answer, [`Error::DeadlineExceeded`] leaves the
    /// outcome unknown, [`Error::Misuse`] and [`Error::LimitReached`] have sent nothing.
    pub fn send(self) -> Result<Reply, CallError> {
        self.transport.execute(self.outgoing)
    }

    pub(crate) fn into_parts(self) -> (T, Outgoing<'a>) {
        (self.transport, self.outgoing)
    }
}

/// A call that was checked against the peer's limits, with all that it needs.
#[derive(Debug)]
pub(crate) struct Prepared<'a> {
    pub(crate) method: &'a str,
    pub(crate) request: &'a [u8],
    pub(crate) place: Place,
    pub(crate) payload: Option<PooledMemory>,
    pub(crate) descriptor: Option<std::os::fd::OwnedFd>,
    pub(crate) buffer: Option<Buffer>,
    /// Where in the buffer the payload will start.
    pub(crate) offset: usize,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Instant,
}

impl<'a> Outgoing<'a> {
    /// Checks everything on this side, so that nothing is sent that the server must refuse.
    pub(crate) fn prepare(
        self,
        peer: &Limits,
        pool: &Arc<MemoryPool>,
        home: &Arc<dyn Home>,
        timeout_default: Duration,
    ) -> Result<Prepared<'a>, CallError> {
        if let Err(error) = self.check(peer) {
            return Err(CallError::new(error, self.wanted.into_buffer()));
        }
        let payload = match copy_payload(self.payload, pool) {
            Ok(payload) => payload,
            Err(error) => return Err(CallError::new(error, self.wanted.into_buffer())),
        };
        let (place, descriptor, buffer, offset) = match self.wanted {
            Wanted::Nothing => (Place::None, None, None, 0),
            Wanted::Inline(bytes_max) => (Place::Inline { bytes_max }, None, None, 0),
            Wanted::Buffer(buffer, range) => match check_part(&buffer, &range, home) {
                Ok(region) => {
                    let (offset, bytes) = (range.start as u64, range.len() as u64);
                    let place = Place::Region { region, offset, bytes };
                    (place, None, Some(buffer), range.start)
                }
                Err(error) => return Err(CallError::new(error, Some(buffer))),
            },
            Wanted::Fresh(bytes) => {
                let (descriptor, buffer) =
                    fresh(bytes).map_err(|error| CallError::new(error, None))?;
                (Place::OneShot { bytes: bytes as u64 }, Some(descriptor), Some(buffer), 0)
            }
        };
        let Self { method, request, .. } = self;
        let timeout = self.timeout.unwrap_or(timeout_default);
        let deadline = deadline_after(timeout);
        Ok(Prepared {
            method,
            request,
            place,
            payload,
            descriptor,
            buffer,
            offset,
            timeout,
            deadline,
        })
    }

    fn check(&self, peer: &Limits) -> Result<(), Error> {
        let (method, request, payload) =
            (self.method.len(), self.request.len(), self.payload.len());
        if method > METHOD_BYTES_MAX {
            let message = format!("a method's name of {method} bytes is over {METHOD_BYTES_MAX}");
            return Err(Error::Misuse(message));
        }
        if request > peer.message_bytes_max as usize {
            return Err(Error::LimitReached(format!(
                "a request of {request} bytes is over the server's limit of {}: send bulk as \
                 payload",
                peer.message_bytes_max
            )));
        }
        if payload as u64 > peer.inline_bytes_max {
            return Err(Error::LimitReached(format!(
                "a payload of {payload} bytes is over the server's limit of {}",
                peer.inline_bytes_max
            )));
        }
        if let Wanted::Fresh(bytes) = self.wanted
            && bytes as u64 > peer.region_bytes_max
        {
            return Err(Error::LimitReached(format!(
                "a buffer of {bytes} bytes is over the server's limit of {}",
                peer.region_bytes_max
            )));
        }
        Ok(())
    }
}

/// A time in nanoseconds as the wire has it; at least one, for 0 means no deadline.
pub(crate) fn wire_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}

impl Wanted {
    fn into_buffer(self) -> Option<Buffer> {
        if let Self::Buffer(buffer, _) = self { Some(buffer) } else { None }
    }
}

fn check_part(buffer: &Buffer, range: &Range<usize>, home: &Arc<dyn Home>) -> Result<u64, Error> {
    let Some(region) = buffer.region_at(home) else {
        return Err(Error::Misuse(
            "the buffer is registered with another connection (or is a reply's own): make one with \
             this client"
                .into(),
        ));
    };
    let (start, end, bytes) = (range.start, range.end, buffer.len());
    if start > end || end > bytes {
        return Err(Error::Misuse(format!("bytes {start}..{end} of a buffer of {bytes}")));
    }
    if !(start as u64).is_multiple_of(PAYLOAD_ALIGNMENT) {
        return Err(Error::Misuse(format!(
            "a part of a buffer starts at a multiple of {PAYLOAD_ALIGNMENT}, not at {start}"
        )));
    }
    Ok(region)
}

fn copy_payload(source: &[u8], pool: &Arc<MemoryPool>) -> Result<Option<PooledMemory>, Error> {
    if source.is_empty() {
        return Ok(None);
    }
    let mut copy = pool.take(source.len()).map_err(|error| {
        Error::LimitReached(format!("no memory for a payload of {} bytes: {error}", source.len()))
    })?;
    copy.copy_from_slice(source);
    Ok(Some(copy))
}

/// Memory for one call. Its pages are allocated where they are first touched: on the server.
fn fresh(bytes: usize) -> Result<(std::os::fd::OwnedFd, Buffer), Error> {
    let made = Memfd::create(MEMFD_NAME, bytes).and_then(|memfd| Ok((memfd.map()?, memfd)));
    let (memory, memfd) =
        made.map_err(|error| Error::io(format!("no memory file of {bytes} bytes"), error))?;
    Ok((memfd.into_descriptor(), Buffer::one_shot(memory)))
}

/// What the memory of buffers is called in /proc/PID/maps.
pub(crate) const MEMFD_NAME: &str = "shorthaul-buffer";
