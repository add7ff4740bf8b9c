//! A peer that sends anything: noise, frames that are nearly in order, descriptors with whatever
//! byte it likes; and takes what it is sent as slowly as it likes.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::choices::Random;
use super::pair::{LIMITS, NOTHING, Plan};
use super::plans::{lanes, some_plan};
use super::socket::Wire;
use super::tokens::{Counted, Kind, Ledger};
use crate::connection::{Arrival, Link, Violation};
use crate::error::Code;
use crate::limits::{CANCEL_ACK_TIMEOUT, FRAME_STALL_TIMEOUT, HANDSHAKE_TIMEOUT};
use crate::parts::Parts;
use crate::wire::{Call, Frame, Hello, LaneNumber, Reply, Room, Span, Upload, VERSION};

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
    has_begun: bool,
    /// One step in so many is odd.
    honesty: u64,
    /// The number of the latest call or region.
    latest: u64,
}

impl Hostile {
    pub(super) fn new(mut random: Random, now: Instant) -> Self {
        Self {
            has_begun: false,
            honesty: [4, 40, 250][random.below(3) as usize],
            latest: 0,
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

    /// Sends something: a hello first, if this peer is not too odd. `open` are the calls that it
    /// could answer.
    pub(super) fn send(&mut self, is_client: bool, open: &[(u64, Room)]) {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let is_odd = self.is_odd();
        let (mut bytes, announced) = match (is_first, is_odd) {
            (true, false) => (self.some_hello(), 0),
            (false, true) if self.random.once_in(2) => (self.some_hello(), 0),
            (_, true) => {
                let count = self.random.below(40) + 1;
                (self.random.noise(count), 0)
            }
            (false, false) => self.some_frame(is_client, open),
        };
        if self.is_odd() {
            self.corrupt(&mut bytes);
        }
        let count = if self.is_odd() { self.random.below(4) as u8 } else { announced };
        let descriptors: SmallVec<_> = (0..count).map(|_| self.descriptor()).collect();
        self.wire.push(bytes, descriptors);
    }

    /// Whether it does now what no honest peer would.
    pub(super) fn is_odd(&mut self) -> bool {
        self.random.once_in(self.honesty)
    }

    fn corrupt(&mut self, bytes: &mut Vec<u8>) {
        let at = self.random.below(bytes.len().min(120) as u64) as usize;
        match self.random.below(3) {
            0 => bytes[at] = self.random.below(256) as u8,
            1 => bytes[at] ^= 1 << self.random.below(8),
            _ => bytes.truncate(self.random.below(bytes.len() as u64) as usize + 1),
        }
    }

    fn descriptor(&mut self) -> Counted {
        self.issued += 1;
        self.ledger.issue(Kind::Descriptor, self.issued)
    }

    /// A hello that is mostly in order.
    pub(super) fn some_hello(&mut self) -> Vec<u8> {
        let odd = self.is_odd();
        let random = &mut self.random;
        let (version_min, version_max) = match odd {
            true => (random.below(4) as u16, random.below(4) as u16),
            false => (VERSION, VERSION),
        };
        let features = random.below(4);
        let hello = Hello { version_min, version_max, features, limits: LIMITS };
        Frame::Hello(hello).encode(0).to_vec()
    }

    fn some_frame(&mut self, is_client: bool, open: &[(u64, Room)]) -> (Vec<u8>, u8) {
        // Now and then what only the other side may send.
        let is_clients = is_client != self.is_odd();
        let fresh = self.fresh();
        let known = self.known();
        let says_goodbye = self.is_odd();
        let random = &mut self.random;
        let number = random.below(16) as u32;
        let code = Code::from_number(number).unwrap_or(Code::Internal);
        let frame = match (random.below(12), is_clients) {
            _ if says_goodbye => Frame::Goodbye { code, message: "that's it" },
            (0..3, true) => Frame::Cancel { call: known },
            (3 | 4, true) => {
                let bytes = some_number(random, LIMITS.region_bytes_max);
                Frame::Register { region: fresh, bytes }
            }
            (5, true) => Frame::Release { region: known },
            (_, true) => return self.some_call(fresh),
            (0 | 1, false) => Frame::Registered { region: known, code, message: "so be it" },
            (2, false) => Frame::Notice { topic: number, data: b"news" },
            (_, false) => return self.some_reply(open, code),
        };
        let descriptors = u8::from(matches!(frame, Frame::Register { .. }));
        (frame.encode(0).to_vec(), descriptors)
    }

    /// A number that was not used before, mostly.
    fn fresh(&mut self) -> u64 {
        if self.is_odd() {
            return self.known();
        }
        self.latest += 1;
        self.latest
    }

    /// One of the latest numbers.
    fn known(&mut self) -> u64 {
        self.latest.saturating_sub(self.random.below(12))
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
        let region = self.known();
        let random = &mut self.random;
        let offset = random.below(9) * 64 + u64::from(random.once_in(16));
        Span { region, offset, bytes: some_number(random, LIMITS.region_bytes_max) }
    }

    /// An answer to one of the open calls, on a lane that it offers, mostly.
    fn some_reply(&mut self, open: &[(u64, Room)], code: Code) -> (Vec<u8>, u8) {
        let is_odd = self.is_odd() || open.is_empty();
        if is_odd && !self.is_odd() {
            return (Frame::Notice { topic: 1, data: b"more news" }.encode(0).to_vec(), 0);
        }
        let random = &mut self.random;
        let (call, room) = match open.len() as u64 {
            0 => (random.below(8), NOTHING),
            count => open[random.below(count) as usize],
        };
        let offered = lanes(&room);
        let (lane, bytes_max) = match is_odd {
            true => (LANES[random.below(LANES.len() as u64) as usize], 1 << 16),
            false => offered[random.below(offered.len() as u64) as usize],
        };
        let is_good = !random.once_in(4);
        let (code, lane) = match is_good {
            true => (Code::Ok, lane),
            false if is_odd => (code, lane),
            false => (code, LaneNumber::None),
        };
        let payload_bytes = match lane {
            LaneNumber::None => 0,
            LaneNumber::Inline => random.up_to(bytes_max.min(LIMITS.inline_bytes_max)),
            _ => random.up_to(bytes_max) + u64::from(is_odd),
        };
        let is_sealed = lane == LaneNumber::Sealed;
        let offset = if is_sealed { random.below(9) * 64 + u64::from(is_odd) } else { 0 };
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
            1 if self.is_odd() => Arrival::TooMany(list),
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
        let time = match self.random.below(8) {
            0 => CANCEL_ACK_TIMEOUT,
            1 if self.is_odd() => HANDSHAKE_TIMEOUT,
            2 if self.is_odd() => FRAME_STALL_TIMEOUT - Duration::from_nanos(1),
            _ => Duration::from_millis(self.random.below(200)),
        };
        self.now += time;
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
