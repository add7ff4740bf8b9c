//! The payload of an answer out of a descriptor of the service's: into whatever the call offers.

use std::cell::Cell;
use std::io;
use std::ops::RangeBounds;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use shorthaul_platform::memory::Draft;

use super::call::Open;
use super::outgoing::{FillTarget, Out, PayloadOut, no_memory};
use super::peer::Peer;
use super::shared::Shared;
use crate::error::{Code, Status};
use crate::limits::{DEADLINE_DEFAULT, RELAYS_KEPT_MAX, WRITE_STALL_TIMEOUT};
use crate::relay::{Fault, Measured, RelayError, measure};
use crate::threads::deadline_after;

impl Open {
    /// Relays a range of `source`, and makes it the payload.
    pub(super) fn relay(
        &mut self,
        source: BorrowedFd<'_>,
        range: &impl RangeBounds<u64>,
    ) -> Result<u64, Status> {
        self.begin_payload()?;
        let measured = measure(source, range)?;
        let room = self.target.room.fill.bytes();
        let fills = self.target.fills(measured.bytes.unwrap_or(room))?;
        let bytes = match &self.target.fill {
            // Before a source is read that can't be read again.
            FillTarget::Refused(status) if fills => return Err(status.clone()),
            FillTarget::Given(_) if fills => self.relay_into_given(source, measured)?,
            _ => self.relay_into_memory(source, measured)?,
        };
        self.has_relayed = true;
        Ok(bytes)
    }

    /// Gives what was staged to the client's descriptor; returns how many bytes are in it, and what
    /// went wrong.
    pub(super) fn give_staged(&self, draft: Draft, bytes: usize) -> (u64, Result<(), Status>) {
        let staged = draft.seal(bytes).map_err(|error| no_memory(bytes, &error));
        match staged {
            Ok(_) if bytes == 0 => (0, Ok(())),
            Ok(staged) => {
                let (given, failed) = self.give(staged.as_fd(), 0, Some(bytes as u64));
                (given, failed.map_or(Ok(()), |(status, _)| Err(status)))
            }
            Err(status) => (0, Err(status)),
        }
    }

    /// Relays into the descriptor that the client has handed over. However it ends, what is in it
    /// is the payload.
    fn relay_into_given(
        &mut self,
        source: BorrowedFd<'_>,
        measured: Measured,
    ) -> Result<u64, Status> {
        let Measured { start, bytes, is_stream } = measured;
        let room = self.target.room.fill.bytes();
        // No file has more bytes, so that such a room is no limit.
        let limit = Some(room).filter(|room| start.saturating_add(*room) < i64::MAX as u64);
        let (given, failed) = self.give(source, start, bytes.or(limit));
        self.out = Some(Out::relayed(usize::try_from(given).unwrap_or(usize::MAX)));
        // Some of it is where it can't be taken back from.
        self.has_relayed = given > 0;
        match failed {
            // Where it would end was not known.
            Some((_, true)) if bytes.is_none() => {}
            Some((status, _)) => return Err(status),
            None => {}
        }
        if bytes.is_none() && limit == Some(given) {
            let mut rest = Reader::new(source, start + given, is_stream, self.patience());
            if rest.read(&mut [0])? > 0 {
                return Err(too_much(room));
            }
        }
        Ok(given)
    }

    /// Runs a relay into the client's descriptor. Returns how many bytes are in it, and what went
    /// wrong, if something did, and whether that was that the source has ended.
    fn give(
        &self,
        source: BorrowedFd<'_>,
        start: u64,
        bytes: Option<u64>,
    ) -> (u64, Option<(Status, bool)>) {
        let FillTarget::Given(sink) = &self.target.fill else {
            return (0, None);
        };
        let patience = self.patience();
        let stall = Arc::new(Stall::default());
        let watched = Arc::clone(&stall);
        let mut relay = self.shared.take_relay().on_progress(move |progress| {
            watched.moved.store(progress.bytes, Ordering::Relaxed);
        });
        let watch = stall.watch();
        let is_unwanted =
            |waits_for_source| patience.is_unwanted() || watch.is_over(waits_for_source);
        let end = bytes.map_or(std::ops::Bound::Unbounded, |bytes| {
            std::ops::Bound::Excluded(start.saturating_add(bytes))
        });
        let range = (std::ops::Bound::Included(start), end);
        let ran =
            relay.run_for_stranger(source, &range, sink.as_fd(), patience.until, &is_unwanted);
        self.shared.keep_relay(relay);
        match ran {
            Ok(relayed) => (relayed.bytes, None),
            Err(error) => {
                let (given, has_ended) =
                    (error.relayed.bytes, matches!(error.fault, Fault::SourceEnded { .. }));
                (given, Some((watch.status(error, &patience), has_ended)))
            }
        }
    }

    /// Reads into whatever else the call offers.
    fn relay_into_memory(
        &mut self,
        source: BorrowedFd<'_>,
        measured: Measured,
    ) -> Result<u64, Status> {
        let Measured { start, bytes, is_stream } = measured;
        let reader = Reader::new(source, start, is_stream, self.patience());
        let read = match bytes {
            Some(bytes) => self.read_all(reader, bytes),
            None => self.read_to_end(reader),
        };
        if read.is_err() {
            // Half a payload is none.
            self.out = None;
        }
        read
    }

    /// A source whose size is known.
    fn read_all(&mut self, mut reader: Reader<'_>, bytes: u64) -> Result<u64, Status> {
        let bytes_wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut out = self.payload_out(bytes_wanted)?;
        let mut scratch = match reader.is_stream {
            true => Some(out.shared.pool.take(bytes_wanted.min(CHUNK_BYTES))?),
            false => None,
        };
        while out.remaining() > 0 {
            let chunk_bytes = out.remaining().min(CHUNK_BYTES);
            let read = match &mut scratch {
                Some(scratch) => {
                    let read = reader.read(&mut scratch[..chunk_bytes])?;
                    out.copy_from(&scratch[..read])?;
                    read
                }
                None => reader.read_into(&mut out, chunk_bytes)?,
            };
            if read == 0 {
                let read = bytes_wanted - out.remaining();
                let message = format!("the source ended after {read} of {bytes} bytes");
                return Err(Status::new(Code::DataLoss, message));
            }
        }
        Ok(bytes)
    }

    /// A source that ends where reading ends. What ends soon takes the place that is for its size;
    /// else the largest is taken.
    fn read_to_end(&mut self, mut reader: Reader<'_>) -> Result<u64, Status> {
        let mut scratch = self.shared.pool.take(SCRATCH_BYTES)?;
        let (mut filled, mut has_ended) = (0, false);
        while filled < SCRATCH_BYTES && !has_ended {
            let read = reader.read(&mut scratch[filled..])?;
            filled += read;
            has_ended = read == 0;
        }
        let room = self.target.bytes_max();
        let reserved = usize::try_from(room.min(UNSIZED_BYTES_MAX)).unwrap_or(usize::MAX);
        if !has_ended && reserved < filled {
            return Err(too_much(room));
        }
        let mut out = self.payload_out(if has_ended { filled } else { reserved })?;
        out.copy_from(&scratch[..filled])?;
        while !has_ended {
            let read = reader.read(&mut scratch)?;
            has_ended = read == 0;
            if read > out.remaining() {
                return Err(too_much(reserved as u64));
            }
            out.copy_from(&scratch[..read])?;
        }
        Ok(out.written() as u64)
    }

    fn patience(&self) -> Patience {
        let until = self.deadline.unwrap_or_else(|| deadline_after(DEADLINE_DEFAULT));
        Patience { peer: self.peer.clone(), call: self.call, until }
    }
}

/// How long a relay may go on: until its call's time is over, or nobody waits for it any more.
#[derive(Debug)]
struct Patience {
    peer: Peer,
    call: u64,
    until: Instant,
}

impl Patience {
    fn is_unwanted(&self) -> bool {
        self.peer.is_cancelled(self.call)
    }

    fn check(&self) -> Result<(), Status> {
        if self.is_unwanted() {
            return Err(Status::new(Code::Cancelled, "the call was taken back"));
        }
        if Instant::now() >= self.until {
            let message = "the deadline passed before the source was read";
            return Err(Status::new(Code::DeadlineExceeded, message));
        }
        Ok(())
    }

    /// Waits until `source` has bytes, or ends.
    fn wait_for(&self, source: BorrowedFd<'_>) -> Result<(), Status> {
        let mut ends = [PollFd::from_borrowed_fd(source, PollFlags::IN)];
        // Ends when the source is ready, or patience is.
        loop {
            self.check()?;
            let left = self.until.saturating_duration_since(Instant::now()).min(LOOK_INTERVAL);
            let timeout = Timespec::try_from(left).ok();
            match event::poll(&mut ends, timeout.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }
}

/// How far a relay is, to tell whether its sink takes anything still.
#[derive(Debug, Default)]
struct Stall {
    moved: AtomicU64,
}

/// Who looks at it, now and then.
struct Watch<'a> {
    stall: &'a Stall,
    /// What had moved when it was seen to move last, and when that was.
    seen: Cell<(u64, Instant)>,
    is_over: Cell<bool>,
}

impl Stall {
    fn watch(&self) -> Watch<'_> {
        let (seen, is_over) = (Cell::new((0, Instant::now())), Cell::new(false));
        Watch { stall: self, seen, is_over }
    }
}

impl Watch<'_> {
    /// A source that has nothing is no fault of the sink's.
    fn is_over(&self, waits_for_source: bool) -> bool {
        let (moved, at) = (self.stall.moved.load(Ordering::Relaxed), self.seen.get().1);
        if waits_for_source || moved != self.seen.get().0 {
            self.seen.set((moved, Instant::now()));
        } else if at.elapsed() >= WRITE_STALL_TIMEOUT {
            self.is_over.set(true);
        }
        self.is_over.get()
    }

    /// What the caller is told.
    fn status(&self, error: RelayError, patience: &Patience) -> Status {
        let is_stalled = self.is_over.get() && !patience.is_unwanted();
        if !(is_stalled && matches!(error.fault, Fault::Cancelled)) {
            return error.into();
        }
        let (seconds, bytes) = (WRITE_STALL_TIMEOUT.as_secs(), error.relayed.bytes);
        let message = format!(
            "the descriptor took nothing for {seconds} s, after {bytes} bytes: read its other end \
             faster"
        );
        Status::new(Code::DeadlineExceeded, message)
    }
}

/// Reads a source from some byte on, without waiting longer for it than patience lasts.
struct Reader<'a> {
    source: BorrowedFd<'a>,
    at: u64,
    is_stream: bool,
    patience: Patience,
}

impl<'a> Reader<'a> {
    fn new(source: BorrowedFd<'a>, at: u64, is_stream: bool, patience: Patience) -> Self {
        Self { source, at, is_stream, patience }
    }

    /// What is there next; 0 at the end.
    fn read(&mut self, target: &mut [u8]) -> Result<usize, Status> {
        let (source, is_stream, at) = (self.source, self.is_stream, self.at);
        self.read_by(|| match is_stream {
            true => Ok(rustix::io::read(source, &mut *target)?),
            false => Ok(rustix::io::pread(source, &mut *target, at)?),
        })
    }

    /// The same, straight to where the payload goes; of files alone.
    fn read_into(&mut self, out: &mut PayloadOut<'_>, bytes: usize) -> Result<usize, Status> {
        let (source, at) = (self.source, self.at);
        self.read_by(|| out.read_some(source, at, bytes))
    }

    fn read_by(&mut self, mut read: impl FnMut() -> io::Result<usize>) -> Result<usize, Status> {
        // Ends when something was read, or patience does.
        loop {
            match self.is_stream {
                true => self.patience.wait_for(self.source)?,
                false => self.patience.check()?,
            }
            match read() {
                Ok(bytes) => {
                    self.at += bytes as u64;
                    return Ok(bytes);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {}
                    _ => return Err(error.into()),
                },
            }
        }
    }
}

impl Shared {
    /// One that was used before, if there is one: it has its buffer and its pipe.
    fn take_relay(&self) -> crate::relay::Relay {
        self.relays().pop().unwrap_or_default()
    }

    fn keep_relay(&self, relay: crate::relay::Relay) {
        let mut relays = self.relays();
        if relays.len() < RELAYS_KEPT_MAX {
            relays.push(relay);
        }
    }
}

fn too_much(room: u64) -> Status {
    let message = format!("the source has more than the {room} bytes that there is room for");
    Status::new(Code::OutOfRange, message)
}

/// What is read of a file before it is asked whether the call is wanted still.
const CHUNK_BYTES: usize = 4 << 20;
/// What is read of a stream at a time.
const SCRATCH_BYTES: usize = 64 << 10;
/// Most bytes of a source that tells no size, into memory.
const UNSIZED_BYTES_MAX: u64 = 1 << 30;
/// How often is asked whether the call is wanted still, while its source has nothing.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    #[test]
    fn a_sink_that_takes_nothing_is_given_up_but_not_for_its_source() {
        let stall = Stall::default();
        let long_ago = Instant::now() - WRITE_STALL_TIMEOUT;
        let seen = |moved| Watch {
            stall: &stall,
            seen: Cell::new((moved, long_ago)),
            is_over: Cell::new(false),
        };
        assert!(seen(0).is_over(false));
        let waits_for_source = seen(0);
        assert!(!waits_for_source.is_over(true));
        assert!(!waits_for_source.is_over(false), "it counts from now on");
        assert!(!seen(1).is_over(false), "bytes have moved since");
    }
}
