//! From a call as it was put together to what is sent: checked on this side, so that nothing goes
//! out that the server must refuse.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shorthaul_platform::memory::{HugePages, Memfd, huge_page_bytes};
use smallvec::SmallVec;

use super::auto::{Auto, Direction, MethodKey, Plan, buffer_bytes};
use super::buffer::{Buffer, Home};
use super::call::{Bulk, Outgoing, Wanted};
use super::reply::{CallError, Common, Guess, Held};
use crate::error::{Error, Result};
use crate::lane::{Lane, Reason};
use crate::limits::{LAST_WORD_GRACE, Limits, METHOD_BYTES_MAX, PAYLOAD_ALIGNMENT};
use crate::object::SealedObject;
use crate::parts::{Parts, parts_bytes};
use crate::payload::PooledMemory;
use crate::threads::deadline_after;
use crate::wire::{Fill, Room, Span, Upload};

/// A call that was checked, with all that it needs.
#[derive(Debug)]
pub(super) struct Prepared<'a> {
    pub(super) method: &'a str,
    pub(super) request: &'a [u8],
    pub(super) room: Room,
    pub(super) upload: Upload,
    pub(super) parts: Parts,
    pub(super) payload: Option<PooledMemory>,
    /// The inline payload where it stays in the caller's memory, else empty.
    pub(super) borrowed: &'a [u8],
    pub(super) descriptors: SmallVec<[OwnedFd; 2]>,
    /// Boxed: it is moved a dozen times on its way there and back.
    pub(super) held: Box<Held>,
    pub(super) deadline: Instant,
}

/// The connection that a call is for.
#[derive(Debug)]
pub(super) struct Way<'a> {
    pub(super) peer: Limits,
    pub(super) takes_sealed: bool,
    /// Whether the server relays into descriptors.
    pub(super) takes_descriptors: bool,
    pub(super) common: &'a Common,
    pub(super) home: &'a Arc<dyn Home>,
    /// When the caller stops waiting.
    pub(super) deadline: Instant,
    /// Whether the caller's memory is there until the call has ended, so that a payload may be sent
    /// from where it is.
    pub(super) may_borrow: bool,
}

impl Way<'_> {
    /// Whether an automatic choice may be a sealed memory file.
    fn may_seal(&self) -> bool {
        self.takes_sealed && self.common.auto.policy().sealed
    }
}

/// What was chosen for a call that leaves the choice to the client.
#[derive(Debug, Default)]
pub(super) struct Choices {
    answer: Option<Choice>,
    upload: Option<Choice>,
}

#[derive(Debug)]
struct Choice {
    plan: Plan,
    buffer: Option<Buffer>,
}

impl Choices {
    /// Chooses, where `call` leaves that to the client. `make` registers a buffer.
    ///
    /// # Errors
    /// What ended the connection; that the call's time is over.
    pub(super) fn make(
        call: &Outgoing<'_>,
        auto: &Auto,
        peer: &Limits,
        mut make: impl FnMut(usize) -> Result<Buffer>,
    ) -> Result<Self> {
        let mut choices = Self::default();
        if let Wanted::Auto(bytes_max) = call.wanted {
            let plan = auto.plan(Direction::Answer, MethodKey::of(call.method), bytes_max, peer);
            choices.answer = Some(Choice::make(plan, auto, peer, &mut make)?);
        }
        if let Some(bytes) = call.bulk.automatic_bytes() {
            match Choice::make_for_upload(call.method, bytes, auto, peer, &mut make) {
                Ok(choice) => choices.upload = Some(choice),
                Err(error) => {
                    choices.give_back(auto);
                    return Err(error);
                }
            }
        }
        Ok(choices)
    }

    /// Gives back what was chosen for a call that is not made.
    fn give_back(self, auto: &Auto) {
        let chosen = self.answer.into_iter().chain(self.upload);
        chosen.filter_map(|choice| choice.buffer).for_each(|buffer| auto.give_back(buffer));
    }
}

impl Choice {
    fn make_for_upload(
        method: &str,
        bytes: usize,
        auto: &Auto,
        peer: &Limits,
        make: &mut impl FnMut(usize) -> Result<Buffer>,
    ) -> Result<Self> {
        let method = MethodKey::of(method);
        let plan = auto.plan(Direction::Upload, method, bytes, peer);
        auto.learn(Direction::Upload, method, bytes);
        let mut choice = Self::make(plan, auto, peer, make)?;
        if choice.buffer.as_ref().is_some_and(|buffer| buffer.len() < bytes) {
            choice.buffer.take().into_iter().for_each(|buffer| auto.give_back(buffer));
            choice.plan = Plan::NoBuffer(Reason::BufferTooSmall);
        }
        Ok(choice)
    }

    fn make(
        plan: Plan,
        auto: &Auto,
        peer: &Limits,
        make: &mut impl FnMut(usize) -> Result<Buffer>,
    ) -> Result<Self> {
        let Plan::Buffer(bytes) = plan else {
            return Ok(Self { plan, buffer: None });
        };
        if let Some(buffer) = auto.take(bytes) {
            return Ok(Self { plan, buffer: Some(buffer) });
        }
        match make(buffer_bytes(bytes, peer)) {
            Ok(buffer) => Ok(Self { plan, buffer: Some(buffer) }),
            // No room for another one: it goes without.
            Err(error @ (Error::Status(_) | Error::LimitReached(_) | Error::Io { .. })) => {
                let is_ours = matches!(error, Error::Io { .. });
                let reason = if is_ours { Reason::NoMemory } else { Reason::PeerCannot };
                auto.rest(reason);
                auto.let_go();
                Ok(Self { plan: Plan::NoBuffer(reason), buffer: None })
            }
            Err(error) => Err(error),
        }
    }
}

impl Bulk<'_> {
    /// Bytes of a payload whose lane is the client's choice.
    fn automatic_bytes(&self) -> Option<usize> {
        match self {
            Self::Auto(bytes) => Some(bytes.len()),
            Self::AutoParts(parts) => parts_bytes_of(parts),
            _ => None,
        }
        .filter(|&bytes| bytes > 0)
    }
}

impl<'a> Outgoing<'a> {
    /// Whether [`Choices`] must be made for it.
    pub(super) fn is_automatic(&self) -> bool {
        matches!(self.wanted, Wanted::Auto(_)) || self.bulk.automatic_bytes().is_some()
    }

    /// When the caller stops waiting.
    pub(super) fn deadline(&self, timeout_default: Duration) -> Instant {
        deadline_after(self.timeout.unwrap_or(timeout_default))
    }

    /// Checks everything on this side.
    pub(super) fn prepare(
        self,
        way: &Way<'_>,
        choices: Choices,
    ) -> Result<Prepared<'a>, CallError> {
        if let Err(error) = self.check(way) {
            choices.give_back(&way.common.auto);
            return Err(self.into_error(error));
        }
        let Self { method, request, bulk, part_lengths, wanted, .. } = self;
        let mut prepared = Prepared {
            method,
            request,
            room: Room::default(),
            upload: Upload::None,
            parts: Parts::default(),
            payload: None,
            borrowed: &[],
            descriptors: SmallVec::new(),
            held: Box::default(),
            deadline: way.deadline,
        };
        if choices.answer.is_some() || choices.upload.is_some() {
            prepared.held.guess = Some(Box::new(Guess {
                auto: Arc::clone(&way.common.auto),
                method: MethodKey::of(method),
                answer: None,
                upload_reason: None,
                keeps_upload: false,
            }));
        }
        // Both, whatever comes of the first: each keeps its buffer, to be given back.
        let offered = prepared.offer(wanted, choices.answer, way);
        let brought = prepared.bring(bulk, part_lengths, choices.upload, way);
        match offered.and(brought) {
            Ok(()) => {
                let lane = prepared.held.upload_lane;
                if lane != Lane::None {
                    way.common.lanes.count_upload(lane, prepared.parts.bytes() as u64);
                }
                Ok(prepared)
            }
            Err(error) => Err(prepared.held.into_error(error)),
        }
    }

    fn check(&self, way: &Way<'_>) -> Result<()> {
        let Limits { message_bytes_max, .. } = way.peer;
        let (method, request) = (self.method.len(), self.request.len());
        if method > METHOD_BYTES_MAX {
            let message = format!("a method's name of {method} bytes is over {METHOD_BYTES_MAX}");
            return Err(Error::Misuse(message));
        }
        if request > message_bytes_max as usize {
            return Err(Error::LimitReached(format!(
                "a request of {request} bytes is over the server's limit of {message_bytes_max}: \
                 send bulk as payload"
            )));
        }
        if let Wanted::Buffer(buffer, range) = &self.wanted {
            span(buffer, range, way.home)?;
        }
        if let Bulk::Buffer(buffer, range) = &self.bulk {
            span(buffer, range, way.home)?;
        }
        Ok(())
    }
}

impl<'a> Prepared<'a> {
    /// Until when the server's word is waited for: a little longer where only that says how much is
    /// in the caller's descriptor.
    pub(super) fn waits_until(&self) -> Instant {
        match self.room.fill {
            Fill::Descriptor { .. } => {
                self.deadline.checked_add(LAST_WORD_GRACE).unwrap_or(self.deadline)
            }
            _ => self.deadline,
        }
    }

    /// Offers room for the answer.
    fn offer(&mut self, wanted: Wanted<'_>, choice: Option<Choice>, way: &Way<'_>) -> Result<()> {
        match wanted {
            Wanted::Nothing => {}
            Wanted::Inline(bytes_max) => self.room.inline_bytes = bytes_max as u64,
            Wanted::Sealed(bytes_max) => self.room.sealed_bytes = bytes_max as u64,
            Wanted::Buffer(buffer, range) => {
                self.held.offset = range.start;
                let span = span(&buffer, &range, way.home);
                self.held.answer = Some(buffer);
                self.room.fill = Fill::Region(span?);
            }
            Wanted::Fresh(bytes) => {
                ensure_region_bytes(bytes, &way.peer)?;
                let huge_bytes = self.huge_bytes(bytes, way.common);
                let (descriptor, buffer) = fresh(bytes, huge_bytes, way.common.huge_pages)?;
                self.descriptors.push(descriptor);
                self.held.answer = Some(buffer);
                self.room.fill = Fill::OneShot { bytes: bytes as u64 };
            }
            Wanted::Auto(bytes_max) => self.offer_automatically(bytes_max, choice, way)?,
            Wanted::Descriptor(descriptor, bytes) => {
                self.offer_descriptor(descriptor, bytes, way)?
            }
        }
        Ok(())
    }

    /// How much of memory for one call is worth huge pages: all of it, until the method's answers
    /// turn out to be smaller. They cost memory and time whether they are filled or not.
    fn huge_bytes(&mut self, bytes: usize, common: &Common) -> usize {
        let huge = huge_page_bytes();
        if common.huge_pages == HugePages::Never || bytes < huge {
            return 0;
        }
        let method = MethodKey::of(self.method);
        self.held.fresh = Some(method);
        let seen = common.auto.seen(Direction::Fresh, method);
        // One that is filled by less than half costs more than small ones.
        seen.map_or(bytes, |seen| (seen.min(bytes) + huge / 2) / huge * huge)
    }

    fn offer_descriptor(
        &mut self,
        descriptor: BorrowedFd<'_>,
        bytes: u64,
        way: &Way<'_>,
    ) -> Result<()> {
        // Nothing is in it unless the server says so.
        self.held.descriptor_bytes = Some(0);
        if !way.takes_descriptors {
            return Err(Error::Misuse(
                "the server takes no descriptors to be relayed into (ServerOptions::descriptors): \
                 offer a buffer, or room inline"
                    .into(),
            ));
        }
        let sent = descriptor
            .try_clone_to_owned()
            .map_err(|error| Error::io("the descriptor can't be sent", error))?;
        self.descriptors.push(sent);
        self.room.fill = Fill::Descriptor { bytes };
        Ok(())
    }

    fn offer_automatically(
        &mut self,
        bytes_max: usize,
        choice: Option<Choice>,
        way: &Way<'_>,
    ) -> Result<()> {
        let Some(Choice { plan, buffer }) = choice else { return Ok(()) };
        let policy = way.common.auto.policy();
        let small = bytes_max.min(policy.inline_bytes_max as usize);
        self.room.inline_first_bytes = u32::try_from(small).unwrap_or(u32::MAX);
        self.room.inline_bytes = small as u64;
        if way.may_seal() {
            self.room.sealed_bytes = bytes_max as u64;
        }
        match buffer {
            Some(buffer) => {
                let span = span(&buffer, &(0..bytes_max.min(buffer.len())), way.home);
                self.held.answer = Some(buffer);
                self.room.fill = Fill::Region(span?);
            }
            // What doesn't fit inline on this side travels sealed.
            None => {
                let inline_bytes_max = way.common.limits.inline_bytes_max;
                self.room.inline_bytes = (bytes_max as u64).min(inline_bytes_max).max(small as u64);
            }
        }
        if let Some(guess) = &mut self.held.guess {
            guess.answer = Some(plan);
        }
        Ok(())
    }

    /// Brings the request's payload along.
    fn bring(
        &mut self,
        bulk: Bulk<'a>,
        part_lengths: &[usize],
        choice: Option<Choice>,
        way: &Way<'_>,
    ) -> Result<()> {
        match bulk {
            Bulk::None => {}
            Bulk::Inline(bytes) => {
                self.parts = parts(bytes.len(), part_lengths)?;
                self.bring_inline(&[bytes], way)?;
            }
            Bulk::Auto(bytes) => {
                let choice = self.hold_chosen(choice);
                self.parts = parts(bytes.len(), part_lengths)?;
                self.bring_automatically(&[bytes], choice, way)?;
            }
            Bulk::AutoParts(pieces) => {
                let choice = self.hold_chosen(choice);
                let lengths: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
                let bytes = parts_bytes(&lengths).ok_or_else(too_many_bytes)?;
                self.parts = parts(bytes, &lengths)?;
                self.bring_automatically(pieces, choice, way)?;
            }
            Bulk::Buffer(buffer, range) => {
                let span = span(&buffer, &range, way.home);
                self.held.upload = Some(buffer);
                self.upload = Upload::Region(span?);
                self.held.upload_lane = Lane::CopyOut;
                self.parts = parts(range.len(), part_lengths)?;
            }
            Bulk::Sealed(object, range) => self.bring_sealed(&object, &range, part_lengths, way)?,
        }
        Ok(())
    }

    /// Takes the buffer that was chosen, if one was; what was planned is left.
    fn hold_chosen(&mut self, choice: Option<Choice>) -> Option<Plan> {
        let Choice { plan, buffer } = choice?;
        self.held.upload = buffer;
        if let Some(guess) = &mut self.held.guess {
            guess.keeps_upload = true;
        }
        Some(plan)
    }

    fn bring_automatically(
        &mut self,
        pieces: &[&'a [u8]],
        plan: Option<Plan>,
        way: &Way<'_>,
    ) -> Result<()> {
        let Some(plan) = plan else { return self.bring_inline(pieces, way) };
        let lane = match &mut self.held.upload {
            Some(buffer) => {
                match pieces {
                    [piece] => buffer.copy_from(0, piece),
                    pieces => {
                        for (piece, part) in pieces.iter().zip(self.parts.iter()) {
                            buffer.copy_from(part.start, piece);
                        }
                    }
                }
                self.upload = Upload::Region(span(buffer, &(0..self.parts.bytes()), way.home)?);
                self.held.upload_lane = Lane::CopyOut;
                Lane::CopyOut
            }
            None if self.parts.bytes() as u64 > way.peer.inline_bytes_max && way.may_seal() => {
                self.bring_copy(pieces, way)?;
                Lane::Sealed
            }
            None => {
                self.bring_inline(pieces, way)?;
                Lane::Inline
            }
        };
        if let Some(guess) = &mut self.held.guess {
            let reason = way.common.auto.policy().reason(&plan, lane, self.parts.bytes());
            guess.upload_reason = Some(reason);
        }
        Ok(())
    }

    /// Copies the pieces, each where its part is; one piece lies as its parts do, and is sent from
    /// there where that may be.
    fn bring_inline(&mut self, pieces: &[&'a [u8]], way: &Way<'_>) -> Result<()> {
        let bytes = self.parts.bytes();
        if bytes == 0 {
            return Ok(());
        }
        if bytes as u64 > way.peer.inline_bytes_max {
            return Err(Error::LimitReached(format!(
                "a payload of {bytes} bytes is over the server's limit of {} for what travels \
                 inline: send it from a buffer, or sealed",
                way.peer.inline_bytes_max
            )));
        }
        self.upload = Upload::Inline { bytes: bytes as u64 };
        self.held.upload_lane = Lane::Inline;
        if let ([piece], true) = (pieces, way.may_borrow) {
            self.borrowed = piece;
            return Ok(());
        }
        let mut memory = way.common.pool.take(bytes).map_err(|error| {
            Error::LimitReached(format!("no memory for a payload of {bytes} bytes: {error}"))
        })?;
        match pieces {
            [piece] => memory.copy_from_slice(piece),
            pieces => lay_out(pieces, &self.parts, &mut memory),
        }
        self.payload = Some(memory);
        Ok(())
    }

    fn bring_sealed(
        &mut self,
        object: &SealedObject,
        range: &Range<usize>,
        part_lengths: &[usize],
        way: &Way<'_>,
    ) -> Result<()> {
        if !object.contains(range) {
            let bytes = object.len();
            return Err(Error::Misuse(format!("bytes {range:?} of an object of {bytes}")));
        }
        ensure_aligned(range.start)?;
        ensure_region_bytes(range.end, &way.peer)?;
        if !way.takes_sealed {
            return Err(Error::LimitReached("the server takes no sealed memory".into()));
        }
        self.parts = parts(range.len(), part_lengths)?;
        self.attach(object, range)
    }

    /// Copies the pieces into sealed memory of this call's.
    fn bring_copy(&mut self, pieces: &[&[u8]], way: &Way<'_>) -> Result<()> {
        let bytes = self.parts.bytes();
        ensure_region_bytes(bytes, &way.peer)?;
        let pages = way.common.huge_pages;
        let object = match pieces {
            [piece] => SealedObject::copy_with(piece, pages)?,
            pieces => SealedObject::write_with(bytes, pages, |memory| {
                lay_out(pieces, &self.parts, memory);
                Ok(())
            })?,
        };
        self.attach(&object, &(0..bytes))
    }

    fn attach(&mut self, object: &SealedObject, range: &Range<usize>) -> Result<()> {
        let descriptor = object
            .descriptor()
            .map_err(|error| Error::io("no descriptor for a sealed object", error))?;
        self.descriptors.push(descriptor);
        self.upload = Upload::Sealed { offset: range.start as u64, bytes: range.len() as u64 };
        self.held.upload_lane = Lane::Sealed;
        Ok(())
    }
}

/// Puts each piece where its part is, and zeros between them: others' payloads may have lain there.
fn lay_out(pieces: &[&[u8]], parts: &Parts, memory: &mut [u8]) {
    let mut end = 0;
    for (piece, part) in pieces.iter().zip(parts.iter()) {
        memory[end..part.start].fill(0);
        end = part.end;
        memory[part].copy_from_slice(piece);
    }
}

/// The parts of a payload of `bytes` bytes, if these are their lengths.
fn parts(bytes: usize, lengths: &[usize]) -> Result<Parts> {
    if lengths.len() <= 1 && lengths.iter().all(|&length| length == bytes) {
        return Ok(Parts::one(bytes));
    }
    Parts::of_lengths(bytes as u64, lengths.iter().map(|&length| length as u64)).ok_or_else(|| {
        Error::Misuse(format!(
            "{} parts do not make up a payload of {bytes} bytes: each but the first starts at a \
             multiple of {PAYLOAD_ALIGNMENT}, and at most {} are possible",
            lengths.len(),
            crate::limits::PARTS_MAX
        ))
    })
}

fn parts_bytes_of(pieces: &[&[u8]]) -> Option<usize> {
    let lengths: SmallVec<[usize; 16]> = pieces.iter().map(|piece| piece.len()).collect();
    parts_bytes(&lengths)
}

fn too_many_bytes() -> Error {
    Error::Misuse("the parts of the payload have more bytes than there can be".into())
}

/// A time in nanoseconds as the wire has it; at least one, for 0 means no deadline.
pub(super) fn wire_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}

fn span(buffer: &Buffer, range: &Range<usize>, home: &Arc<dyn Home>) -> Result<Span> {
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
    ensure_aligned(start)?;
    Ok(Span { region, offset: start as u64, bytes: range.len() as u64 })
}

fn ensure_aligned(start: usize) -> Result<()> {
    if (start as u64).is_multiple_of(PAYLOAD_ALIGNMENT) {
        return Ok(());
    }
    Err(Error::Misuse(format!(
        "a part of a buffer or object starts at a multiple of {PAYLOAD_ALIGNMENT}, not at {start}"
    )))
}

/// Whether the server takes memory of `bytes` bytes.
pub(super) fn ensure_region_bytes(bytes: usize, peer: &Limits) -> Result<()> {
    if bytes as u64 <= peer.region_bytes_max {
        return Ok(());
    }
    Err(Error::LimitReached(format!(
        "a buffer of {bytes} bytes is over the server's limit of {}",
        peer.region_bytes_max
    )))
}

/// Memory for one call. Huge pages are made here; small ones are allocated where they are first
/// touched: on the server.
fn fresh(bytes: usize, huge_bytes: usize, pages: HugePages) -> Result<(OwnedFd, Buffer)> {
    let made = Memfd::create(MEMFD_NAME, bytes).and_then(|memfd| Ok((memfd.map()?, memfd)));
    let (memory, memfd) =
        made.map_err(|error| Error::memory(&format!("a buffer of {bytes} bytes"), error))?;
    memory.make_huge(huge_bytes, pages);
    Ok((memfd.into_descriptor(), Buffer::one_shot(memory)))
}

/// What the memory of buffers is called in /proc/PID/maps.
pub(super) const MEMFD_NAME: &str = "shorthaul-buffer";
