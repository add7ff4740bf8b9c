//! A peer that sends anything: noise, frames that are nearly in order, descriptors with whatever
//! byte it likes; and takes what it is sent as slowly as it likes.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::choices::Random;
use super::pair::{LIMITS, Plan};
use super::plans::some_plan;
use super::socket::Wire;
use super::tokens::{Counted, Kind, Ledger};
use crate::connection::{Arrival, Link, Violation};
use crate::error::Code;
use crate::limits::{CANCEL_ACK_TIMEOUT, FRAME_STALL_TIMEOUT, HANDSHAKE_TIMEOUT};
use crate::parts::Parts;
use crate::wire::{Call, Frame, Hello, LaneNumber, Reply, Span, Upload, VERSION};

/// The peer, and the kernel between it and the side that is tried.
#[derive(Debug)]
pub(super) struct Hostile {
    pub(super) random: Random,
    pub(super) ledger: Ledger,
    pub(super) now: Instant,
    wire: Wire,
    /// Descriptors sent, each with a number of its own.
    issued: u64,
    /// Those that nobody will look at again, kept so that none is counted as lost.
    pub(super) buried: Vec<Counted>,
    /// Bytes of inline payload that the peer was sent whole.
    pub(super) payload_bytes_sent: u64,
    is_paused: bool,
}

impl Hostile {
    pub(super) fn new(random: Random, now: Instant) -> Self {
        Self {
            random,
            ledger: Ledger::default(),
            now,
            wire: Wire::new(0),
            issued: 0,
            buried: Vec::new(),
            payload_bytes_sent: 0,
            is_paused: false,
        }
    }

    /// Sends something.
    pub(super) fn send(&mut self, is_client: bool) {
        let (mut bytes, announced) = match self.random.below(12) {
            0 => {
                let count = self.random.below(40) + 1;
                (self.random.noise(count), 0)
            }
            1 => (self.some_hello(), 0),
            _ => self.some_frame(is_client),
        };
        match self.random.below(24) {
            0 => {
                let at = self.random.below(bytes.len() as u64) as usize;
                bytes[at] = self.random.below(256) as u8;
            }
            1 => {
                let at = self.random.below(bytes.len().min(120) as u64) as usize;
                bytes[at] ^= 1 << self.random.below(8);
            }
            2 => bytes.truncate(self.random.below(bytes.len() as u64) as usize + 1),
            _ => {}
        }
        let is_honest = !self.random.once_in(16);
        let count = if is_honest { announced } else { self.random.below(4) as u8 };
        let descriptors: SmallVec<_> = (0..count).map(|_| self.descriptor()).collect();
        self.wire.push(bytes, descriptors);
    }

    fn descriptor(&mut self) -> Counted {
        self.issued += 1;
        self.ledger.issue(Kind::Descriptor, self.issued)
    }

    /// A hello that is mostly in order.
    pub(super) fn some_hello(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        let odd = random.once_in(8);
        let (version_min, version_max) = match odd {
            true => (random.below(4) as u16, random.below(4) as u16),
            false => (VERSION, VERSION),
        };
        let features = random.below(4);
        let hello = Hello { version_min, version_max, features, limits: LIMITS };
        Frame::Hello(hello).encode(0).to_vec()
    }

    fn some_frame(&mut self, is_client: bool) -> (Vec<u8>, u8) {
        let random = &mut self.random;
        let (id, number) = (random.below(8) + 1, random.below(16) as u32);
        // Now and then what only the other side may send.
        let is_clients = is_client != random.once_in(24);
        let code = Code::from_number(number).unwrap_or(Code::Internal);
        let frame = match (random.below(12), is_clients) {
            (0, _) => Frame::Goodbye { code, message: "that's it" },
            (1 | 2, true) => Frame::Cancel { call: id },
            (3 | 4, true) => {
                let bytes = some_number(random, LIMITS.region_bytes_max);
                Frame::Register { region: id, bytes }
            }
            (5, true) => Frame::Release { region: id },
            (_, true) => return self.some_call(id),
            (1 | 2, false) => Frame::Registered { region: id, code, message: "so be it" },
            (3, false) => Frame::Notice { topic: number, data: b"news" },
            (_, false) => return self.some_reply(id, code),
        };
        let descriptors = u8::from(matches!(frame, Frame::Register { .. }));
        (frame.encode(0).to_vec(), descriptors)
    }

    fn some_call(&mut self, call: u64) -> (Vec<u8>, u8) {
        let spans = [self.some_span(), self.some_span()];
        let random = &mut self.random;
        let Plan { room, upload, parts } = some_plan(random, spans);
        let remaining_ns = some_number(random, 1_000_000);
        let count = random.up_to(u64::from(LIMITS.message_bytes_max) + 9) as usize;
        let (method, request) = ("method", &vec![7; count][..]);
        let call = Call { call, remaining_ns, room, upload, parts, method, request };
        let descriptors = call.descriptors();
        let inline_bytes = if let Upload::Inline { bytes } = upload { bytes } else { 0 };
        (with_payload(&Frame::Call(call), inline_bytes), descriptors)
    }

    fn some_span(&mut self) -> Span {
        let random = &mut self.random;
        let region = random.below(8) + 1;
        let offset = random.below(9) * 64 + u64::from(random.once_in(16));
        Span { region, offset, bytes: some_number(random, LIMITS.region_bytes_max) }
    }

    fn some_reply(&mut self, call: u64, code: Code) -> (Vec<u8>, u8) {
        let random = &mut self.random;
        let lane = LANES[random.below(LANES.len() as u64) as usize];
        let is_good = !random.once_in(3);
        let code = if is_good { Code::Ok } else { code };
        let bytes_max = if lane == LaneNumber::Inline { LIMITS.inline_bytes_max } else { 1 << 20 };
        let payload_bytes = match lane {
            LaneNumber::None if is_good => 0,
            _ => random.up_to(bytes_max),
        };
        let offset = if lane == LaneNumber::Sealed { random.below(9) * 64 } else { 0 };
        let offset = offset + u64::from(lane == LaneNumber::Sealed && random.once_in(16));
        let parts = Parts::one(payload_bytes as usize);
        let (response, message) = (&b"an answer"[..], "a word");
        let reply = Reply { call, code, lane, payload_bytes, offset, parts, response, message };
        let descriptors = reply.descriptors();
        let inline_bytes = if lane == LaneNumber::Inline { payload_bytes } else { 0 };
        (with_payload(&Frame::Reply(reply), inline_bytes), descriptors)
    }

    /// Lets the side read once, which it does when its events are used up; false if there is
    /// nothing.
    pub(super) fn deliver(&mut self, link: &mut Link<Counted>) -> Result<bool, Violation> {
        if self.wire.is_empty() {
            return Ok(false);
        }
        let space = link.space();
        assert!(!space.is_empty(), "a read without room");
        let bytes_max = [1, 7, 100, 1 << 20][self.random.below(4) as usize];
        let (bytes, arrival) = self.wire.read(space, bytes_max, false);
        let arrival = self.suffer(arrival);
        link.received(bytes, arrival, self.now)?;
        Ok(true)
    }

    /// Now and then the kernel has no room for all descriptors, or more came than are taken.
    fn suffer(&mut self, arrival: Arrival<Counted>) -> Arrival<Counted> {
        let Arrival::Some(mut list) = arrival else { return arrival };
        match self.random.below(16) {
            0 => {
                self.buried.extend(list.pop());
                Arrival::Lost(list)
            }
            1 if self.random.once_in(4) => Arrival::TooMany(list),
            _ => Arrival::Some(list),
        }
    }

    /// Takes some of what the side wants to send.
    pub(super) fn take(&mut self, link: &mut Link<Counted>) {
        let transmit = link.transmit(&[]);
        let offered =
            transmit.map(|transmit| transmit.parts.iter().map(|part| part.len()).sum::<usize>());
        let Some(offered) = offered else { return };
        assert!(offered > 0, "a transmit without bytes");
        match self.random.below(4) {
            0 => link.write_blocked(self.now),
            1 => {
                let bytes = self.random.below(offered as u64) as usize + 1;
                self.payload_bytes_sent += link.sent(bytes, self.now);
            }
            _ => self.payload_bytes_sent += link.sent(offered, self.now),
        }
    }

    pub(super) fn let_time_pass(&mut self) {
        self.now += match self.random.below(8) {
            0 => HANDSHAKE_TIMEOUT,
            1 => CANCEL_ACK_TIMEOUT,
            2 => FRAME_STALL_TIMEOUT - Duration::from_nanos(1),
            3 => FRAME_STALL_TIMEOUT,
            _ => Duration::from_millis(self.random.below(200)),
        };
    }

    /// Says whether anything may be taken from the peer, as a reactor does.
    pub(super) fn may_read(&mut self, link: &mut Link<Counted>) -> bool {
        let is_paused = link.is_crowded();
        match (self.is_paused, is_paused) {
            (false, true) => link.pause_reading(),
            (true, false) => link.resume_reading(self.now),
            _ => {}
        }
        self.is_paused = is_paused;
        !is_paused
    }

    /// What is true at any time.
    pub(super) fn check(&self, link: &Link<Counted>) {
        link.assembler.check();
        link.outbox.check();
        let living = self.ledger.count(Kind::Descriptor) as u64;
        assert_eq!(living, self.issued, "a connection neither closes a descriptor nor doubles it");
    }

    /// Where each descriptor is in the end: with the application, which gives these names, given
    /// back by the connection, or not read.
    pub(super) fn account(mut self, taken: Vec<Counted>, with_application: Vec<u64>) {
        let mut names = with_application;
        self.buried.extend(taken);
        while !self.wire.is_empty() {
            let (_, arrival) = self.wire.read(&mut [0; 4096], usize::MAX, false);
            if let Arrival::Some(list) = arrival {
                self.buried.extend(list);
            }
        }
        names.extend(self.buried.iter().map(|descriptor| descriptor.name));
        let different: HashSet<u64> = names.iter().copied().collect();
        assert_eq!(different.len(), names.len(), "a descriptor is in two places: {names:?}");
        assert_eq!(names.len() as u64, self.issued, "a descriptor is nowhere: {names:?}");
    }
}

/// A frame, and as many bytes of payload as it announces.
fn with_payload(frame: &Frame<'_>, payload_bytes: u64) -> Vec<u8> {
    let mut bytes = frame.encode(payload_bytes).to_vec();
    bytes.resize(bytes.len() + payload_bytes as usize, 7);
    bytes
}

/// A number of a reasonable size, or any at all.
fn some_number(random: &mut Random, usual_max: u64) -> u64 {
    match random.below(16) {
        0 => random.next(),
        1 => u64::MAX - random.below(65),
        2 => usual_max + random.below(3),
        _ => random.up_to(usual_max),
    }
}

const LANES: [LaneNumber; 6] = [
    LaneNumber::None,
    LaneNumber::Inline,
    LaneNumber::FillWrite,
    LaneNumber::FillMap,
    LaneNumber::Sealed,
    LaneNumber::Descriptor,
];
