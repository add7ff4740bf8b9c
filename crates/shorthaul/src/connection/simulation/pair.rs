//! A client and a server, and the two wires between them.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::socket::Wire;
use super::tokens::{Counted, Kind, Ledger};
use crate::connection::client::{ClientConnection, ClientEvent, OutgoingCall};
use crate::connection::server::{Answer, IncomingCall, ServerConnection, ServerEvent};
use crate::connection::{Link, Violation};
use crate::limits::{Limits, PAYLOAD_ALIGNMENT};
use crate::parts::Parts;
use crate::payload::{MemoryPool, MessageBytes, PooledMemory};
use crate::wire::{Fill, LaneNumber, Room, Span, Upload};

pub(super) type FromServer = ClientEvent<Counted, Counted>;
pub(super) type FromClient = ServerEvent<Counted, Rc<Region>>;
pub(super) type Incoming = IncomingCall<Counted, Rc<Region>>;

/// What a server makes of a descriptor that it accepted.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) descriptor: Counted,
    _handle: Counted,
}

impl Region {
    pub(super) fn new(descriptor: Counted, handle: Counted) -> Self {
        Self { descriptor, _handle: handle }
    }
}

/// Both sides, at one moment of a simulated time.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) client: ClientConnection<Counted, Counted>,
    pub(super) server: ServerConnection<Counted, Rc<Region>>,
    pub(super) up: Wire,
    pub(super) down: Wire,
    pub(super) now: Instant,
    pub(super) pool: Arc<MemoryPool>,
    pub(super) ledger: Ledger,
}

/// What a call offers and brings.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) room: Room,
    pub(super) upload: Upload,
    pub(super) parts: Parts,
}

/// Limits small enough to be reached.
pub(super) const LIMITS: Limits = Limits {
    calls_max: 6,
    regions_max: 3,
    message_bytes_max: 600,
    inline_bytes_max: 48 << 10,
    region_bytes_max: 1 << 20,
};

impl Pair {
    pub(super) fn new(pool: &Arc<MemoryPool>, wire_bytes: usize) -> Self {
        let now = Instant::now();
        Self {
            client: ClientConnection::new(LIMITS, pool.uncounted(), now),
            server: ServerConnection::new(LIMITS, pool.uncounted(), now),
            up: Wire::new(wire_bytes),
            down: Wire::new(wire_bytes),
            now,
            pool: Arc::clone(pool),
            ledger: Ledger::default(),
        }
    }

    /// A pair whose hellos are exchanged.
    pub(super) fn open() -> Self {
        let mut pair = Self::new(&Arc::default(), 1 << 20);
        let (to_client, to_server) = pair.settle().unwrap();
        assert!(matches!(to_client[..], [ClientEvent::Open]));
        assert!(to_server.is_empty());
        pair
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    pub(super) fn start(&mut self, call: u64, room: Room) {
        self.start_with(call, Plan { room, ..Plan::default() });
    }

    pub(super) fn start_with(&mut self, call: u64, plan: Plan) {
        let Plan { room, upload, parts } = plan;
        let mut descriptors = SmallVec::new();
        if let Fill::OneShot { .. } | Fill::Descriptor { .. } = room.fill {
            descriptors.push(self.ledger.issue(Kind::Descriptor, call));
        }
        let mut carried = None;
        match upload {
            Upload::Inline { bytes } => {
                carried = Some(payload(&self.pool, REQUEST, call, bytes as usize));
            }
            Upload::Sealed { .. } => {
                descriptors.push(self.ledger.issue(Kind::Descriptor, UPLOAD_FILE + call));
            }
            Upload::None | Upload::Region(_) => {}
        }
        let request = request(call);
        let outgoing = OutgoingCall {
            call,
            remaining_ns: REMAINING_NS,
            room,
            upload,
            parts,
            method: METHOD,
            request: &request,
        };
        let token = self.ledger.issue(Kind::Call, call);
        self.client.start(outgoing, carried, descriptors, token);
    }

    pub(super) fn register(&mut self, region: u64, bytes: u64) {
        let descriptor = self.ledger.issue(Kind::Descriptor, region);
        self.client.register(region, bytes, descriptor);
    }

    pub(super) fn accept_region(&mut self, region: u64, descriptor: Counted, bytes: u64) {
        assert_eq!(descriptor.name, region, "a descriptor of another region");
        let handle = self.ledger.issue(Kind::Region, region);
        let accepted = Rc::new(Region::new(descriptor, handle));
        self.server.region_accepted(region, accepted, bytes);
    }

    /// Answers success without a payload.
    pub(super) fn answer(&mut self, call: u64) {
        self.answer_by(call, LaneNumber::None, 0);
    }

    pub(super) fn answer_by(&mut self, call: u64, lane: LaneNumber, payload_bytes: u64) {
        self.answer_with(call, lane, Parts::one(payload_bytes as usize));
    }

    pub(super) fn answer_with(&mut self, call: u64, lane: LaneNumber, parts: Parts) {
        let is_inline = lane == LaneNumber::Inline && parts.bytes() > 0;
        let payload = is_inline.then(|| payload(&self.pool, ANSWER, call, parts.bytes()));
        let sealed = (lane == LaneNumber::Sealed).then(|| {
            let descriptor = self.ledger.issue(Kind::Descriptor, ANSWER_FILE + call);
            (descriptor, sealed_offset(call))
        });
        let response = MessageBytes::from_slice(&response(call));
        let answer = Answer { status: None, lane, parts, response, payload, sealed };
        self.server.answer(call, answer);
    }

    /// Moves all that can be moved; returns what it led to.
    pub(super) fn settle(&mut self) -> Result<(Vec<FromServer>, Vec<FromClient>), Violation> {
        let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
        loop {
            while let Some(event) = self.server.next_event(self.now)? {
                to_server.push(event);
            }
            while let Some(event) = self.client.next_event()? {
                to_client.push(event);
            }
            if !self.move_all()? {
                return Ok((to_client, to_server));
            }
        }
    }

    /// Reads and writes on both sides, when the events are used up; whether anything moved.
    fn move_all(&mut self) -> Result<bool, Violation> {
        let (now, all) = (self.now, usize::MAX);
        let (up, down) = (&mut self.up, &mut self.down);
        let (client, server) = (&mut self.client.link, &mut self.server.link);
        let got = read(server, up, all, false, now)? | read(client, down, all, false, now)?;
        Ok(got | write(client, up, all, now, true) | write(server, down, all, now, true))
    }

    pub(super) fn settle_for_client(&mut self) -> Vec<FromServer> {
        let (to_client, to_server) = self.settle().unwrap();
        assert!(to_server.is_empty(), "{to_server:?}");
        to_client
    }

    pub(super) fn settle_for_server(&mut self) -> Vec<FromClient> {
        let (to_client, to_server) = self.settle().unwrap();
        assert!(to_client.is_empty(), "{to_client:?}");
        to_server
    }
}

/// Writes once (or all that the wire takes); whether anything was written.
pub(super) fn write(
    link: &mut Link<Counted>,
    wire: &mut Wire,
    bytes_max: usize,
    now: Instant,
    all: bool,
) -> bool {
    let mut wrote = false;
    loop {
        let written = link.transmit(&[]).map(|transmit| wire.write(&transmit, bytes_max));
        match written {
            Some(Some(bytes)) => {
                link.sent(bytes, now);
                wrote = true;
            }
            Some(None) => link.write_blocked(now),
            None => {}
        }
        if !all || !matches!(written, Some(Some(_))) {
            return wrote;
        }
    }
}

/// Reads once, if there is something; call it when the events are used up.
pub(super) fn read(
    link: &mut Link<Counted>,
    wire: &mut Wire,
    bytes_max: usize,
    is_lossy: bool,
    now: Instant,
) -> Result<bool, Violation> {
    if wire.is_empty() {
        return Ok(false);
    }
    let space = link.space();
    assert!(!space.is_empty(), "a read without room");
    let (bytes, arrival) = wire.read(space, bytes_max, is_lossy);
    link.received(bytes, arrival, now)?;
    Ok(true)
}

/// The bytes that belong to a call, and to no other.
pub(super) fn payload(pool: &Arc<MemoryPool>, way: u64, call: u64, bytes: usize) -> PooledMemory {
    let mut memory = pool.take(bytes).unwrap();
    for (at, byte) in memory.iter_mut().enumerate() {
        *byte = byte_at(way, call, at);
    }
    memory
}

pub(super) fn assert_payload(found: &[u8], way: u64, call: u64) {
    for (at, byte) in found.iter().enumerate() {
        assert_eq!(*byte, byte_at(way, call, at), "byte {at} of call {call}");
    }
}

fn byte_at(way: u64, call: u64, at: usize) -> u8 {
    let mixed = (call * 2 + way).wrapping_mul(0x9e37_79b9).wrapping_add(at as u64 * 37);
    (mixed ^ (mixed >> 11)) as u8
}

/// Requests and responses differ in length as well, so that frames do.
pub(super) fn request(call: u64) -> Vec<u8> {
    (0..call * 7 % 500).map(|at| (at ^ call) as u8).collect()
}

pub(super) fn response(call: u64) -> Vec<u8> {
    (0..call * 11 % 400).map(|at| (at + call) as u8).collect()
}

/// Where in its memory file a sealed answer lies.
pub(super) fn sealed_offset(call: u64) -> u64 {
    call % 5 * PAYLOAD_ALIGNMENT
}

pub(super) const NOTHING: Room =
    Room { fill: Fill::None, inline_bytes: 0, inline_first_bytes: 0, sealed_bytes: 0 };

pub(super) const fn inline(inline_bytes: u64) -> Room {
    Room { inline_bytes, ..NOTHING }
}

pub(super) const fn sealed(sealed_bytes: u64) -> Room {
    Room { sealed_bytes, ..NOTHING }
}

pub(super) const fn one_shot(bytes: u64) -> Room {
    Room { fill: Fill::OneShot { bytes }, ..NOTHING }
}

pub(super) const fn given(bytes: u64) -> Room {
    Room { fill: Fill::Descriptor { bytes }, ..NOTHING }
}

pub(super) const fn region(region: u64, offset: u64, bytes: u64) -> Room {
    Room { fill: Fill::Region(Span { region, offset, bytes }), ..NOTHING }
}

/// Descriptors are named after what they belong to. Those to be filled have the number of
/// their call, these that number and this.
pub(super) const UPLOAD_FILE: u64 = 1 << 32;
pub(super) const ANSWER_FILE: u64 = 2 << 32;

/// The call that a memory file belongs to.
pub(super) fn call_of_file(name: u64) -> u64 {
    name % UPLOAD_FILE
}

pub(super) const METHOD: &str = "method";
pub(super) const REMAINING_NS: u64 = 1_000_000;
/// Payloads of requests and of answers differ.
pub(super) const REQUEST: u64 = 0;
pub(super) const ANSWER: u64 = 1;
