//! Bytes and descriptors as they arrive, to whole frames.
//!
//! A stream socket delivers a descriptor with the bytes it was sent with, but one read may join
//! earlier bytes to those, and may stop right after them. So bytes and descriptors queue apart, and
//! each set of descriptors remembers the stretch of the stream that came with it: a frame may claim
//! only a set in whose stretch its own first byte lies, and only all of it.

use std::ops::Range;
use std::time::Instant;

use smallvec::SmallVec;

use super::{Arrival, Violation};
#[cfg(any(all(test, not(shorthaul_models)), fuzzing))]
use crate::limits::BODY_BYTES_MAX;
use crate::limits::{FRAME_STALL_TIMEOUT, Limits, STAGING_BYTES};
use crate::payload::{PooledMemory, Purse};
use crate::ring::{Broken, FRAME_BYTES_MAX, Receiver};
use crate::wire::{Frame, HEADER_BYTES, Header};

/// Turns what arrives into frames. `D` is what a descriptor is.
#[derive(Debug)]
pub(super) struct Assembler<D> {
    limits: Limits,
    purse: Purse,
    staging: Vec<u8>,
    /// The part of `staging` that holds bytes not consumed yet.
    held: Range<usize>,
    /// Where in the stream `held.start` lies.
    position: u64,
    /// Descriptors that no frame has claimed yet.
    sets: SmallVec<[DescriptorSet<D>; 2]>,
    state: State<D>,
    /// Descriptors that came with what was refused, or without the others of their frame.
    spoiled: Vec<D>,
    /// The body of the frame whose payload is under way or was just completed.
    body: Vec<u8>,
    /// When the frame that is under way last grew.
    grew_at: Option<Instant>,
    /// Frames that were taken out of the socket's bytes.
    taken: u32,
    ring: Option<Ring>,
}

/// The ring that frames come out of, and the one that was taken last.
#[derive(Debug)]
struct Ring {
    receiver: Receiver,
    frame: Box<[u8; FRAME_BYTES_MAX]>,
}

#[derive(Debug)]
struct DescriptorSet<D> {
    /// The stretch of the stream that came with the set.
    stretch: Range<u64>,
    arrival: Arrival<D>,
}

#[derive(Debug)]
enum State<D> {
    Header,
    Body {
        header: Header,
        claim: Option<Claim<D>>,
    },
    /// Without memory for it the payload is passed over: that is its frame's misfortune alone.
    Payload {
        header: Header,
        claim: Option<Claim<D>>,
        memory: Option<PooledMemory>,
        filled: u64,
    },
}

/// A whole frame.
#[derive(Debug)]
pub(super) struct Assembled<'a, D> {
    pub(super) frame: Frame<'a>,
    /// The descriptors that the frame said it carries.
    pub(super) descriptors: Option<Claim<D>>,
    /// The inline payload, if the header announced one and there was memory for it.
    pub(super) payload: Option<PooledMemory>,
    /// It came through the ring, which the peer may fill again at once.
    pub(super) is_from_ring: bool,
}

/// What became of the descriptors that a frame said it carries.
#[derive(Debug)]
pub(super) enum Claim<D> {
    /// Exactly so many as it said.
    Arrived(SmallVec<[D; 2]>),
    Lost,
}

impl<D> Claim<D> {
    pub(super) fn into_arrived(self) -> SmallVec<[D; 2]> {
        if let Self::Arrived(descriptors) = self { descriptors } else { SmallVec::new() }
    }
}

impl<D> Assembler<D> {
    pub(super) fn new(limits: Limits, purse: Purse) -> Self {
        Self {
            limits,
            purse,
            staging: vec![0; STAGING_BYTES],
            held: 0..0,
            position: 0,
            sets: SmallVec::new(),
            state: State::Header,
            spoiled: Vec::new(),
            body: Vec::new(),
            grew_at: None,
            taken: 0,
            ring: None,
        }
    }

    /// From now on frames may come through a ring.
    pub(super) fn use_ring(&mut self, receiver: Receiver) {
        self.ring = Some(Ring { receiver, frame: Box::new([0; FRAME_BYTES_MAX]) });
    }

    pub(super) fn ring(&self) -> Option<&Receiver> {
        self.ring.as_ref().map(|ring| &ring.receiver)
    }

    pub(super) fn ring_mut(&mut self) -> Option<&mut Receiver> {
        self.ring.as_mut().map(|ring| &mut ring.receiver)
    }

    /// See [`Receiver::fall_asleep`].
    pub(super) fn fall_asleep(&mut self) -> Result<bool, Violation> {
        match &mut self.ring {
            Some(ring) => Ok(ring.receiver.fall_asleep(self.taken)?),
            None => Ok(true),
        }
    }

    /// Where the next bytes read belong: straight into a payload that is under way, else into the
    /// staging buffer. Never empty as long as [`Self::next`] was called until it gave nothing.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.is_in_payload() {
            let State::Payload { header, memory, filled, .. } = &mut self.state else {
                unreachable!()
            };
            return match memory {
                Some(memory) => &mut memory[*filled as usize..],
                // What is passed over: nothing else is in the staging buffer then.
                None => {
                    let rest = header.payload_bytes - *filled;
                    let room = self.staging.len();
                    &mut self.staging[..room.min(usize::try_from(rest).unwrap_or(room))]
                }
            };
        }
        self.make_room();
        &mut self.staging[self.held.end..]
    }

    /// Whether nothing of a frame is here.
    fn is_at_rest(&self) -> bool {
        self.held.is_empty() && self.sets.is_empty() && matches!(self.state, State::Header)
    }

    /// Whether [`Self::space`] is the rest of a payload: exactly what is to come next.
    pub(super) fn is_in_payload(&self) -> bool {
        matches!(self.state, State::Payload { .. })
    }

    /// Says that `bytes` bytes were read into [`Self::space`] and what descriptors came with them.
    pub(super) fn commit(
        &mut self,
        bytes: usize,
        arrival: Arrival<D>,
        now: Instant,
    ) -> Result<(), Violation> {
        let start = self.position + self.held.len() as u64;
        if let State::Payload { filled, .. } = &mut self.state {
            *filled += bytes as u64;
            self.position += bytes as u64;
        } else {
            self.held.end += bytes;
        }
        if bytes > 0 {
            self.grew_at = Some(now);
        }
        let is_too_many = matches!(arrival, Arrival::TooMany(_));
        if !matches!(arrival, Arrival::None) {
            // Kept even if they are too many: they are closed where the connection is.
            let stretch = start..start + bytes as u64;
            self.sets.push(DescriptorSet { stretch, arrival });
        }
        if is_too_many {
            return Err(Violation::TooManyDescriptors);
        }
        Ok(())
    }

    /// The next whole frame, if it has arrived. The ring is looked at first: what is in it now was
    /// sent before the bytes that nobody has read.
    pub(super) fn next(&mut self) -> Result<Option<Assembled<'_, D>>, Violation> {
        if let Some(bytes) = self.take_from_ring()? {
            return self.in_ring(bytes).map(Some);
        }
        if self.is_at_rest() {
            self.grew_at = None;
            return Ok(None);
        }
        if !self.advance()? {
            return self.pause().map(|()| None);
        }
        self.taken = self.taken.wrapping_add(1);
        let (header, claim, memory, body) = match std::mem::replace(&mut self.state, State::Header)
        {
            State::Payload { header, claim, memory, .. } => (header, claim, memory, &self.body[..]),
            State::Body { header, claim } => {
                let range = consume(&mut self.held, &mut self.position, frame_bytes(&header));
                (header, claim, None, &self.staging[range][HEADER_BYTES..])
            }
            State::Header => return Ok(None),
        };
        match Frame::decode(&header, body) {
            Ok(frame) => Ok(Some(Assembled {
                frame,
                descriptors: claim,
                payload: memory,
                is_from_ring: false,
            })),
            Err(error) => {
                self.spoiled.extend(claim.into_iter().flat_map(Claim::into_arrived));
                Err(error.into())
            }
        }
    }

    fn take_from_ring(&mut self) -> Result<Option<usize>, Violation> {
        match &mut self.ring {
            Some(Ring { receiver, frame }) if receiver.has_some() => {
                Ok(receiver.take(self.taken, &mut frame[..])?)
            }
            _ => Ok(None),
        }
    }

    /// The frame that was taken out of the ring, which is one without descriptors or payload.
    fn in_ring(&self, bytes: usize) -> Result<Assembled<'_, D>, Violation> {
        let whole = self.ring.as_ref().map_or(&[][..], |ring| &ring.frame[..bytes]);
        let (header, body) = whole.split_first_chunk().ok_or(Broken)?;
        let header = Header::decode(header, &self.limits)?;
        if header.payload_bytes > 0 || header.descriptors > 0 {
            return Err(Broken.into());
        }
        let frame = Frame::decode(&header, body)?;
        Ok(Assembled { frame, descriptors: None, payload: None, is_from_ring: true })
    }

    /// A descriptor that arrived without the others of its frame, which has none of them then. To
    /// be asked for after each frame: the process is out of descriptors.
    pub(super) fn pop_spoiled(&mut self) -> Option<D> {
        self.spoiled.pop()
    }

    /// Takes out every descriptor that arrived and was not handed on; of use only at the end.
    pub(super) fn take_descriptors(&mut self, taken: &mut Vec<D>) {
        taken.append(&mut self.spoiled);
        for set in self.sets.drain(..) {
            match set.arrival {
                Arrival::None => {}
                Arrival::Some(list) | Arrival::Lost(list) | Arrival::TooMany(list) => {
                    taken.extend(list);
                }
            }
        }
        if let State::Body { claim, .. } | State::Payload { claim, .. } = &mut self.state {
            taken.extend(claim.take().into_iter().flat_map(Claim::into_arrived));
        }
    }

    /// Says that nothing is read for a while, by this side's own choice: a frame that is half-way
    /// stays so through no fault of the peer.
    pub(super) fn pause_reading(&mut self) {
        self.grew_at = None;
    }

    /// Says that reading goes on: a frame that is half-way must grow from now on.
    pub(super) fn resume_reading(&mut self, now: Instant) {
        self.grew_at = Some(now);
    }

    /// What is true at any time, whatever has arrived.
    #[cfg(any(all(test, not(shorthaul_models)), fuzzing))]
    pub(super) fn check(&self) {
        let Range { start, end } = self.held;
        assert!(start <= end && end <= self.staging.len(), "{:?} are held", self.held);
        let frame_bytes_max = HEADER_BYTES + BODY_BYTES_MAX as usize;
        assert!(self.staging.len() <= frame_bytes_max && self.body.len() <= frame_bytes_max);
        assert!(self.sets.len() <= 2, "{} sets of descriptors wait", self.sets.len());
        if let State::Payload { header, memory, filled, .. } = &self.state {
            assert!(*filled <= header.payload_bytes);
            let has_its_bytes = |memory: &PooledMemory| memory.len() as u64 == header.payload_bytes;
            assert!(memory.as_ref().is_none_or(has_its_bytes));
            assert!(header.payload_bytes <= self.limits.inline_bytes_max);
        }
    }

    /// When the frame that is under way has stalled for too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.grew_at.map(|at| at + FRAME_STALL_TIMEOUT)
    }

    /// Moves on as far as the bytes held allow; true when a frame is whole.
    fn advance(&mut self) -> Result<bool, Violation> {
        if matches!(self.state, State::Header) {
            let Some(bytes) = self.staging[self.held.clone()].first_chunk::<HEADER_BYTES>() else {
                return Ok(false);
            };
            let header = Header::decode(bytes, &self.limits)?;
            let claim = self.claim(&header)?;
            self.state = State::Body { header, claim };
        }
        if let State::Body { header, .. } = &self.state {
            if self.held.len() < frame_bytes(header) {
                return Ok(false);
            }
            if header.payload_bytes == 0 {
                return Ok(true);
            }
            self.begin_payload();
        }
        match &self.state {
            State::Payload { header, filled, .. } => Ok(*filled == header.payload_bytes),
            _ => Ok(false),
        }
    }

    /// Takes exactly the descriptors that the header announces, if they came with its first byte.
    fn claim(&mut self, header: &Header) -> Result<Option<Claim<D>>, Violation> {
        let first_byte = self.position;
        if self.sets.first().is_some_and(|set| set.stretch.end <= first_byte) {
            return Err(Violation::UnclaimedDescriptors);
        }
        if header.descriptors == 0 {
            return Ok(None);
        }
        let announced = usize::from(header.descriptors);
        let is_claimed = self.sets.first().is_some_and(|set| {
            set.stretch.contains(&first_byte)
                && match &set.arrival {
                    Arrival::Lost(_) => true,
                    Arrival::Some(found) => found.len() == announced,
                    Arrival::None | Arrival::TooMany(_) => false,
                }
        });
        if !is_claimed {
            return Err(Violation::DescriptorCount { announced: header.descriptors });
        }
        Ok(Some(match self.sets.remove(0).arrival {
            Arrival::Some(found) => Claim::Arrived(found.into_iter().collect()),
            Arrival::Lost(others) => {
                self.spoiled.extend(others);
                Claim::Lost
            }
            Arrival::None | Arrival::TooMany(_) => Claim::Lost,
        }))
    }

    /// The body is whole and a payload follows: what of it is here already is moved into memory of
    /// its own, the rest will be read straight into that.
    fn begin_payload(&mut self) {
        let State::Body { header, claim } = &mut self.state else { return };
        let bytes = usize::try_from(header.payload_bytes).unwrap_or(usize::MAX);
        let mut memory = self.purse.take(bytes).ok();
        let (header, claim) = (*header, claim.take());
        let body = self.consume(frame_bytes(&header));
        self.body.clear();
        self.body.extend_from_slice(&self.staging[body][HEADER_BYTES..]);
        let here = self.consume(bytes.min(self.held.len()));
        let filled = here.len() as u64;
        if let Some(memory) = &mut memory {
            memory[..here.len()].copy_from_slice(&self.staging[here]);
        }
        self.state = State::Payload { header, claim, memory, filled };
    }

    /// Nothing more can be made of what is there. Descriptors that nobody claimed are in order only
    /// while they came with the first byte of a header that is still incomplete.
    fn pause(&mut self) -> Result<(), Violation> {
        let in_header = matches!(self.state, State::Header);
        if in_header && self.held.is_empty() {
            self.grew_at = None;
        }
        let first_byte = self.position;
        let may_wait = in_header && !self.held.is_empty() && self.sets.len() <= 1;
        let in_order = |set: &DescriptorSet<D>| may_wait && set.stretch.contains(&first_byte);
        if self.sets.iter().all(in_order) { Ok(()) } else { Err(Violation::UnclaimedDescriptors) }
    }

    fn consume(&mut self, bytes: usize) -> Range<usize> {
        consume(&mut self.held, &mut self.position, bytes)
    }

    /// Makes room for the rest of the frame that is under way, or for a new one.
    fn make_room(&mut self) {
        let wanted = match &self.state {
            State::Body { header, .. } => frame_bytes(header),
            _ => STAGING_BYTES / 2,
        };
        if self.held.is_empty() {
            self.held = 0..0;
        }
        if self.staging.len() - self.held.start < wanted.max(self.held.len() + 1) {
            self.staging.copy_within(self.held.clone(), 0);
            self.held = 0..self.held.len();
        }
        if self.staging.len() < wanted {
            self.staging.resize(wanted, 0);
        }
    }
}

/// Takes `bytes` off the front of what is held; they stay in the staging buffer until the next
/// read.
fn consume(held: &mut Range<usize>, position: &mut u64, bytes: usize) -> Range<usize> {
    let taken = held.start..held.start + bytes;
    held.start = taken.end;
    *position += bytes as u64;
    taken
}

fn frame_bytes(header: &Header) -> usize {
    HEADER_BYTES + header.body_bytes as usize
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests;
