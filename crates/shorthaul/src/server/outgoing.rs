//! The payload of an answer: one way to write it, whatever lane it takes.

use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use shorthaul_platform::memory::{Draft, SharedMapping};
use shorthaul_platform::store::Store;

use super::given::GivenSink;
use super::region::{Holder, Region, Share, Whose};
use super::shared::Shared;
use crate::error::{Code, Status, memory_advice};
use crate::lane::Lane;
use crate::limits::{LENT_LOOKS, PARTS_MAX};
use crate::object::{MEMFD_NAME, SealedObject};
use crate::parts::{Parts, aligned};
use crate::payload::PooledMemory;
use crate::wire::{Fill, LaneNumber, Room};

/// How a client's buffer is filled.
#[derive(Clone, Copy, Debug)]
pub struct FillPolicy {
    /// Through a mapping, or through the kernel.
    pub method: FillMethod,
    /// Whether a mapping is kept for the next call on the same buffer.
    pub keep_mapping: bool,
    /// How bytes are stored into a mapping, and into inline memory.
    pub store: Store,
}

impl Default for FillPolicy {
    /// A mapping that is kept, and ordinary stores: the fastest for buffers that are used again.
    fn default() -> Self {
        Self { method: FillMethod::Map, keep_mapping: true, store: Store::Ordinary }
    }
}

/// The two ways into a client's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillMethod {
    /// Map it and store into it.
    Map,
    /// pwrite(2) to it.
    Write,
}

/// Where the payload of an answer may go, checked.
#[derive(Debug)]
pub(crate) struct Target {
    /// What the caller offers; of its `fill` only the size counts here.
    pub(super) room: Room,
    pub(super) fill: FillTarget,
    /// Bytes of the largest sealed memory file that the client takes.
    pub(super) file_bytes_max: u64,
    /// Who is charged for sealed memory.
    pub(super) account: Holder,
}

/// What of the client's may be filled.
#[derive(Debug)]
pub(crate) enum FillTarget {
    None,
    /// It was refused; whoever asks for a payload is told why.
    Refused(Status),
    /// A descriptor to be relayed into that nobody has looked at yet.
    Unopened(OwnedFd, Share),
    /// One that payloads may be relayed into.
    Given(GivenSink),
    Region {
        region: Arc<Region>,
        offset: usize,
        /// The mapping kept from an earlier call.
        kept: Option<Arc<SharedMapping>>,
        /// Whether the client may name the region again.
        is_registered: bool,
    },
}

/// Which of the places that a call offers is taken.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    Nowhere,
    Inline,
    Fill,
    Sealed,
}

impl Target {
    pub(super) fn bytes_max(&self) -> u64 {
        self.room.bytes_max()
    }

    /// The first place that has room for `bytes` bytes, in the order that the protocol names.
    fn choose(&self, bytes: u64) -> Result<Choice, Status> {
        let Room { fill, inline_first_bytes, sealed_bytes, .. } = self.room;
        let inline_bytes_max = self.room.inline_bytes_max();
        let is_small = bytes <= u64::from(inline_first_bytes) && bytes <= inline_bytes_max;
        let has_fill = fill != Fill::None && bytes <= fill.bytes();
        if inline_first_bytes > 0 && is_small {
            Ok(Choice::Inline)
        } else if has_fill {
            Ok(Choice::Fill)
        } else if inline_bytes_max > 0 && bytes <= inline_bytes_max {
            Ok(Choice::Inline)
        } else if sealed_bytes > 0 && bytes <= sealed_bytes {
            Ok(Choice::Sealed)
        } else if bytes == 0 {
            Ok(Choice::Nowhere)
        } else {
            Err(too_large(bytes, self.bytes_max()))
        }
    }

    /// Whether `bytes` bytes go to what is to be filled.
    pub(super) fn fills(&self, bytes: u64) -> Result<bool, Status> {
        Ok(self.choose(bytes)? == Choice::Fill)
    }

    /// Whether `bytes` bytes of an object go out as they are: few are copied sooner, and the client
    /// gets all of the object.
    fn takes_object(&self, bytes: u64, object: &SealedObject) -> bool {
        let Room { inline_first_bytes, sealed_bytes, .. } = self.room;
        bytes > u64::from(inline_first_bytes)
            && bytes <= sealed_bytes
            && object.len() as u64 <= self.file_bytes_max
    }
}

/// A payload under way.
#[derive(Debug)]
pub(crate) struct Out {
    pub(super) sink: Sink,
    /// Bytes asked for.
    bytes: usize,
    /// Bytes written so far, which become valid with the answer.
    pub(super) written: usize,
    /// The parts that have ended; none if there is only one.
    ended: Vec<Range<usize>>,
    /// Where the part under way begins.
    part_start: usize,
    store: Store,
}

#[derive(Debug)]
pub(super) enum Sink {
    /// Of no bytes, for a caller who takes none.
    Nowhere,
    Inline(PooledMemory),
    Map {
        mapping: Arc<SharedMapping>,
        /// Whether it was kept from an earlier call.
        is_reused: bool,
        /// Whether it should be kept, and is not yet.
        is_for_keeping: bool,
    },
    Write,
    Sealed {
        draft: Draft,
        share: Share,
    },
    /// A sealed object of the service's, from this byte on.
    Object(SealedObject, usize),
    /// What is relayed into the client's descriptor when the call is answered.
    Staged {
        draft: Draft,
        _share: Share,
    },
    /// What was relayed there already.
    Relayed,
}

impl Out {
    /// Makes ready for a payload of `bytes` bytes.
    pub(super) fn begin(
        target: &Target,
        bytes: usize,
        policy: FillPolicy,
        shared: &Shared,
    ) -> Result<Self, Status> {
        let sink = match (target.choose(bytes as u64)?, &target.fill) {
            (Choice::Nowhere, _) => Sink::Nowhere,
            (Choice::Sealed, _) => begin_sealed(target, bytes, shared)?,
            (Choice::Fill, FillTarget::Refused(status)) => return Err(status.clone()),
            (Choice::Fill, FillTarget::Region { region, kept, is_registered, .. }) => {
                let keep = policy.keep_mapping && *is_registered;
                let kept = kept.as_ref().filter(|_| policy.keep_mapping);
                begin_fill(region, kept, keep, policy.method, shared)?
            }
            (Choice::Fill, FillTarget::Given(_)) => begin_staged(target, bytes, shared)?,
            (Choice::Inline | Choice::Fill, _) => {
                let purse = shared.pool.counted(target.account.inline_bytes());
                Sink::Inline(purse.take(bytes).map_err(|error| no_memory(bytes, &error))?)
            }
        };
        Ok(Self::with(sink, bytes, policy.store))
    }

    /// A part of an object as payload, if the caller takes sealed memory; else none.
    pub(super) fn of_object(
        target: &Target,
        object: &SealedObject,
        range: &Range<usize>,
    ) -> Option<Self> {
        let is_sealed = target.takes_object(range.len() as u64, object);
        // What starts elsewhere would reach the client unaligned.
        let is_aligned = aligned(range.start) == Some(range.start);
        (is_sealed && is_aligned).then(|| {
            let sink = Sink::Object(object.clone(), range.start);
            let out = Self::with(sink, range.len(), Store::Ordinary);
            Self { written: range.len(), ..out }
        })
    }

    /// A payload of which so many bytes are in the client's descriptor.
    pub(super) fn relayed(bytes: usize) -> Self {
        Self { written: bytes, ..Self::with(Sink::Relayed, bytes, Store::Ordinary) }
    }

    fn with(sink: Sink, bytes: usize, store: Store) -> Self {
        Self { sink, bytes, written: 0, ended: Vec::new(), part_start: 0, store }
    }

    /// The lane that its payload takes.
    pub(super) fn lane(&self) -> LaneNumber {
        match &self.sink {
            Sink::Nowhere => LaneNumber::None,
            Sink::Inline(_) => LaneNumber::Inline,
            Sink::Map { .. } => LaneNumber::FillMap,
            Sink::Write => LaneNumber::FillWrite,
            Sink::Sealed { .. } | Sink::Object(..) => LaneNumber::Sealed,
            Sink::Staged { .. } | Sink::Relayed => LaneNumber::Descriptor,
        }
    }

    /// The parts that were written.
    pub(super) fn parts(&mut self) -> Result<Parts, Status> {
        // Where there is no payload there are no parts either: the client would hang up.
        if self.ended.is_empty() || matches!(self.sink, Sink::Nowhere) {
            return Ok(Parts::one(self.written));
        }
        self.ended.push(self.part_start..self.written);
        let lengths = self.ended.iter().map(|range| range.len() as u64);
        Parts::of_lengths(self.written as u64, lengths)
            .ok_or_else(|| Status::new(Code::Internal, "the parts of the payload don't add up"))
    }
}

fn begin_sealed(target: &Target, bytes: usize, shared: &Shared) -> Result<Sink, Status> {
    if let Err(why) = &shared.config.may_lend {
        let message = format!(
            "this server can't tell who holds sealed memory ({why}), and makes none: offer a \
             buffer, or room inline"
        );
        return Err(Status::new(Code::FailedPrecondition, message));
    }
    // What came back is let go of first, and here: the new file gets its pages while they are warm.
    drop(shared.accounts.take_returned_by(target.account.uid(), LENT_LOOKS));
    let share = shared.charge(&target.account, Whose::Server, bytes as u64)?;
    let draft = draft(bytes, shared)?;
    Ok(Sink::Sealed { draft, share })
}

/// What a handler writes into a descriptor is memory of the server's first: a handler that is slow,
/// or fails half-way, leaves nothing half-written with the client.
fn begin_staged(target: &Target, bytes: usize, shared: &Shared) -> Result<Sink, Status> {
    let share = shared.charge(&target.account, Whose::Server, bytes as u64)?;
    let draft = draft(bytes, shared)?;
    Ok(Sink::Staged { draft, _share: share })
}

fn draft(bytes: usize, shared: &Shared) -> Result<Draft, Status> {
    let draft = Draft::create(MEMFD_NAME, bytes).map_err(|error| no_memory(bytes, &error))?;
    Ok(draft.with_pages(shared.config.huge_pages))
}

fn begin_fill(
    region: &Region,
    kept: Option<&Arc<SharedMapping>>,
    keep: bool,
    method: FillMethod,
    shared: &Shared,
) -> Result<Sink, Status> {
    if method == FillMethod::Write || !shared.config.may_map_peers {
        return Ok(Sink::Write);
    }
    if let Some(mapping) = kept {
        shared.stats.mappings_reused.add(1);
        return Ok(Sink::Map {
            mapping: Arc::clone(mapping),
            is_reused: true,
            is_for_keeping: false,
        });
    }
    let mapping = region.file.map().map_err(|error| no_memory(region.file.len(), &error))?;
    shared.stats.mappings_made.add(1);
    Ok(Sink::Map { mapping: Arc::new(mapping), is_reused: false, is_for_keeping: keep })
}

/// Writes the payload of an answer, in order. What is written becomes valid when the call is
/// answered; what is not, the client does not see as payload.
#[derive(Debug)]
pub struct PayloadOut<'a> {
    pub(super) out: &'a mut Out,
    pub(super) target: &'a Target,
    pub(super) shared: &'a Shared,
}

impl PayloadOut<'_> {
    /// The lane that this payload takes.
    pub fn lane(&self) -> Lane {
        self.out.lane().into()
    }

    /// Ends the part under way; what is written next is another part, which starts at the next
    /// multiple of [`PAYLOAD_ALIGNMENT`](crate::limits::PAYLOAD_ALIGNMENT) bytes of the payload:
    /// that much room it takes, see [`parts_bytes`](crate::parts_bytes).
    ///
    /// # Errors
    /// OUT_OF_RANGE past the size that was asked for, or past
    /// [`PARTS_MAX`](crate::limits::PARTS_MAX) parts.
    pub fn next_part(&mut self) -> Result<(), Status> {
        let Out { bytes, written, part_start, .. } = *self.out;
        if self.out.ended.len() + 2 > PARTS_MAX {
            let message = format!("a payload has {PARTS_MAX} parts at most");
            return Err(Status::new(Code::OutOfRange, message));
        }
        let start = aligned(written).filter(|&start| start <= bytes);
        let start = start.ok_or_else(|| no_room(bytes, 0, written))?;
        if let Sink::Inline(memory) = &mut self.out.sink {
            // Here lay others' payloads.
            memory[written..start].fill(0);
        }
        self.out.ended.push(part_start..written);
        self.out.written = start;
        self.out.part_start = start;
        Ok(())
    }

    /// Writes the next `bytes` bytes through a slice, which is zero at first unless it is the
    /// client's own memory.
    ///
    /// The slice is where the payload goes if that memory is the server's own until the answer
    /// (inline, sealed), or the client's under
    /// [`ServerOptions::trust`](crate::ServerOptions::trust); else it is copied there afterwards.
    ///
    /// # Errors
    /// As [`PayloadOut::fill`]; what `write` returns, and then nothing counts as written.
    pub fn write_with<E: Into<Status>>(
        &mut self,
        bytes: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), Status> {
        self.ensure_room(bytes)?;
        let at = self.out.written;
        let write = |slice: &mut [u8]| write(slice).map_err(Into::into);
        match (&mut self.out.sink, self.shared.config.trust) {
            (Sink::Inline(memory), _) => {
                let slice = &mut memory[at..at + bytes];
                slice.fill(0);
                write(slice)?;
            }
            (Sink::Sealed { draft, .. } | Sink::Staged { draft, .. }, _) => {
                write(&mut draft.as_mut_slice()?[at..at + bytes])?;
            }
            (Sink::Map { mapping, is_reused, .. }, Some(trust)) => {
                let start = offset(self.target) + at;
                touch(mapping, *is_reused, start..start + bytes)?;
                write(mapping.trusted_mut(start..start + bytes, trust))?;
            }
            (Sink::Map { .. } | Sink::Write, _) => {
                let scratch = self.shared.pool.take(bytes);
                let mut scratch = scratch.map_err(|error| no_memory(bytes, &error))?;
                scratch.fill(0);
                write(&mut scratch)?;
                return self.copy_from(&scratch);
            }
            (Sink::Nowhere | Sink::Object(..) | Sink::Relayed, _) => write(&mut [])?,
        }
        self.out.written += bytes;
        Ok(())
    }

    /// Bytes that were written.
    pub(super) fn written(&self) -> usize {
        self.out.written
    }

    /// Bytes that can still be written.
    pub fn remaining(&self) -> usize {
        self.out.bytes - self.out.written
    }

    /// Whether it goes through a mapping that was kept from an earlier call.
    pub fn is_mapping_reused(&self) -> bool {
        matches!(self.out.sink, Sink::Map { is_reused: true, .. })
    }

    /// Writes `bytes` bytes of `value`.
    ///
    /// # Errors
    /// OUT_OF_RANGE past the size that was asked for; what the kernel says of a pwrite(2).
    pub fn fill(&mut self, value: u8, bytes: usize) -> Result<(), Status> {
        self.ensure_room(bytes)?;
        let (at, store) = (self.out.written, self.out.store);
        match &mut self.out.sink {
            Sink::Inline(memory) => memory.memory_mut().fill(at..at + bytes, value, store),
            Sink::Map { mapping, is_reused, .. } => {
                let start = offset(self.target) + at;
                touch(mapping, *is_reused, start..start + bytes)?;
                mapping.fill(start..start + bytes, value, store);
            }
            Sink::Sealed { draft, .. } | Sink::Staged { draft, .. } => {
                let filled = draft.fill(at, bytes, value, store);
                if !filled.map_err(|error| no_memory(bytes, &error))? {
                    return self.fill_by_write(value, bytes);
                }
            }
            Sink::Write => return self.fill_by_write(value, bytes),
            Sink::Nowhere | Sink::Object(..) | Sink::Relayed => {}
        }
        self.out.written += bytes;
        Ok(())
    }

    /// Writes a copy of `source`.
    ///
    /// # Errors
    /// As [`PayloadOut::fill`].
    pub fn copy_from(&mut self, source: &[u8]) -> Result<(), Status> {
        self.ensure_room(source.len())?;
        let (at, store) = (self.out.written, self.out.store);
        match &mut self.out.sink {
            Sink::Inline(memory) => memory.memory_mut().copy_in(at, source, store),
            Sink::Map { mapping, is_reused, .. } => {
                let start = offset(self.target) + at;
                touch(mapping, *is_reused, start..start + source.len())?;
                mapping.copy_in(start, source, store);
            }
            Sink::Write | Sink::Sealed { .. } | Sink::Staged { .. } => {
                let written = self.write_through_kernel(at, source);
                written.map_err(|error| no_memory(source.len(), &error))?;
            }
            Sink::Nowhere | Sink::Object(..) | Sink::Relayed => {}
        }
        self.out.written += source.len();
        Ok(())
    }

    /// Writes `bytes` bytes of `file` from `file_offset` on: into a mapping or inline memory the
    /// kernel reads them directly.
    ///
    /// # Errors
    /// As [`PayloadOut::fill`]; DATA_LOSS if the file ends before, with what came until then
    /// written; what the kernel says of a pread(2).
    pub fn copy_from_file(
        &mut self,
        file: impl AsFd,
        file_offset: u64,
        bytes: usize,
    ) -> Result<(), Status> {
        self.ensure_room(bytes)?;
        let mut done = 0;
        while done < bytes {
            let from = file_offset + done as u64;
            match self.read_some(file.as_fd(), from, bytes - done) {
                Ok(0) => return Err(file_too_short(done, bytes)),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// One pread; counts what it brought as written.
    pub(super) fn read_some(
        &mut self,
        file: std::os::fd::BorrowedFd<'_>,
        from: u64,
        bytes: usize,
    ) -> io::Result<usize> {
        let at = self.out.written;
        let read = match &mut self.out.sink {
            Sink::Inline(memory) => rustix::io::pread(file, &mut memory[at..at + bytes], from)?,
            Sink::Map { mapping, .. } => {
                let start = offset(self.target) + at;
                mapping.read_from(file, from, start..start + bytes)?
            }
            Sink::Write | Sink::Sealed { .. } | Sink::Staged { .. } => {
                let mut scratch = self.shared.pool.take(bytes.min(CHUNK_BYTES))?;
                let read = rustix::io::pread(file, &mut scratch[..], from)?;
                self.write_through_kernel(at, &scratch[..read])?;
                read
            }
            Sink::Nowhere | Sink::Object(..) | Sink::Relayed => 0,
        };
        self.out.written += read;
        Ok(read)
    }

    /// Makes each chunk and gives it to the kernel while it is still in the cache.
    fn fill_by_write(&mut self, value: u8, bytes: usize) -> Result<(), Status> {
        let chunk_bytes = bytes.min(CHUNK_BYTES);
        let mut scratch = self.shared.pool.take(chunk_bytes)?;
        let mut left = bytes;
        while left > 0 {
            let part = left.min(chunk_bytes);
            scratch.memory_mut().fill(0..part, value, self.out.store);
            let written = self.write_through_kernel(self.out.written, &scratch[..part]);
            written.map_err(|error| no_memory(bytes, &error))?;
            self.out.written += part;
            left -= part;
        }
        Ok(())
    }

    fn ensure_room(&self, bytes: usize) -> Result<(), Status> {
        if bytes <= self.remaining() {
            return Ok(());
        }
        Err(no_room(self.out.bytes, bytes, self.out.written))
    }

    fn write_through_kernel(&mut self, at: usize, source: &[u8]) -> io::Result<()> {
        match (&mut self.out.sink, &self.target.fill) {
            (Sink::Sealed { draft, .. } | Sink::Staged { draft, .. }, _) => {
                draft.write_at(at, source)
            }
            (_, FillTarget::Region { region, offset, .. }) => {
                region.file.write_all_at(offset + at, source)
            }
            _ => Ok(()),
        }
    }
}

impl Write for PayloadOut<'_> {
    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        let bytes = source.len().min(self.remaining());
        self.copy_from(&source[..bytes]).map_err(io::Error::other)?;
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes the page faults of a mapping made for this call all at once; a lack of memory is an error
/// here, where a store would be fatal.
fn touch(mapping: &SharedMapping, is_reused: bool, range: Range<usize>) -> Result<(), Status> {
    if is_reused || range.len() < TOUCH_BYTES_MIN {
        return Ok(());
    }
    let bytes = range.len();
    mapping.populate_part(range).map_err(|error| no_memory(bytes, &error))
}

fn offset(target: &Target) -> usize {
    if let FillTarget::Region { offset, .. } = &target.fill { *offset } else { 0 }
}

fn no_room(asked: usize, bytes: usize, written: usize) -> Status {
    let message =
        format!("the handler asked for a payload of {asked} bytes and writes {bytes} at {written}");
    Status::new(Code::OutOfRange, message)
}

fn too_large(bytes: u64, bytes_max: u64) -> Status {
    let message = if bytes_max == 0 {
        format!("the answer has a payload of {bytes} bytes, but the call offers no room for one")
    } else {
        format!(
            "the payload has {bytes} bytes, the caller has room for {bytes_max}: offer a buffer \
             of at least {bytes}"
        )
    };
    Status { code: Code::OutOfRange, message, bytes_needed: Some(bytes) }
}

pub(super) fn no_memory(bytes: usize, error: &io::Error) -> Status {
    let message = format!("no memory for {bytes} bytes{}: {error}", memory_advice(error));
    Status::new(Code::ResourceExhausted, message)
}

fn file_too_short(done: usize, bytes: usize) -> Status {
    Status::new(Code::DataLoss, format!("the file ended after {done} of {bytes} bytes"))
}

/// What the write method makes at a time: it stays in a core's cache between being made and being
/// copied by the kernel.
const CHUNK_BYTES: usize = 256 << 10;

/// Less than this is touched by storing into it.
const TOUCH_BYTES_MIN: usize = 64 << 10;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::super::region::Accounts;
    use super::*;
    use crate::limits::UserLimits;

    /// What is chosen for so many bytes, where only the offered sizes count.
    fn choose(room: Room, bytes: u64) -> Option<Choice> {
        let accounts = Accounts::new(UserLimits::default());
        let account = Holder::clone(accounts.join(1).unwrap().account());
        let fill = FillTarget::Refused(Status::new(Code::Internal, "never looked at"));
        Target { room, fill, account, file_bytes_max: u64::MAX }.choose(bytes).ok()
    }

    #[test]
    fn the_first_place_with_room_is_taken() {
        let all = Room {
            fill: Fill::OneShot { bytes: 1000 },
            inline_bytes: 500,
            inline_first_bytes: 100,
            sealed_bytes: 2000,
        };
        let expected = [
            (0, Some(Choice::Inline)),
            (100, Some(Choice::Inline)),
            (101, Some(Choice::Fill)),
            (1000, Some(Choice::Fill)),
            // Not inline: what a buffer is offered for would count against the room for inline.
            (1001, Some(Choice::Sealed)),
            (2001, None),
        ];
        for (bytes, choice) in expected {
            assert_eq!(choose(all, bytes), choice, "{bytes} bytes");
        }
        let no_fill = Room { fill: Fill::None, ..all };
        assert_eq!(choose(no_fill, 500), Some(Choice::Inline));
        assert_eq!(choose(no_fill, 501), Some(Choice::Sealed));
        let fill = Room { fill: Fill::OneShot { bytes: 10 }, ..Room::default() };
        assert_eq!((choose(fill, 0), choose(fill, 11)), (Some(Choice::Fill), None));
        let none = Room::default();
        assert_eq!((choose(none, 0), choose(none, 1)), (Some(Choice::Nowhere), None));
    }
}
