//! A server alone with a hostile client.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

#[cfg(test)]
use super::choices::Announce;
use super::choices::Random;
use super::hostile::Hostile;
use super::pair::{ANSWER, FromClient, Incoming, LIMITS, Region, payload};
use super::plans::{lanes, some_parts};
use super::random::STEPS;
use super::tokens::{Counted, Kind};
use crate::connection::Violation;
use crate::connection::server::{
    Answer, IncomingFill, IncomingSpan, IncomingUpload, ServerConnection, ServerEvent,
};
use crate::error::{Code, Status};
use crate::limits::PAYLOAD_ALIGNMENT;
use crate::parts::Parts;
use crate::payload::{MemoryPool, MessageBytes};
use crate::wire::{Fill, LaneNumber};

/// One run.
pub(super) struct Run {
    peer: Hostile,
    server: ServerConnection<Counted, Rc<Region>>,
    pool: Arc<MemoryPool>,
    running: Vec<Incoming>,
    cancelled: HashSet<u64>,
    /// What is registered, by the client's number: its descriptor, and how long it is.
    registered: HashMap<u64, (u64, u64)>,
    /// Every region that was ever accepted.
    regions: Vec<Rc<Region>>,
    payload_bytes_answered: u64,
    has_ended: bool,
    reach: Reach,
}

/// What was reached, each a number of events.
#[derive(Debug, Default)]
pub(super) struct Reach {
    pub(super) calls: usize,
    pub(super) cancels: usize,
    pub(super) regions: usize,
    pub(super) releases: usize,
    pub(super) discards: usize,
    pub(super) violations: usize,
}

impl Run {
    pub(super) fn new(random: Random, pool: &Arc<MemoryPool>) -> Self {
        let now = Instant::now();
        let mut server = ServerConnection::new(LIMITS, pool.uncounted(), now);
        server.take_given_descriptors();
        Self {
            peer: Hostile::new(random, now),
            server,
            pool: Arc::clone(pool),
            running: Vec::new(),
            cancelled: HashSet::new(),
            registered: HashMap::new(),
            regions: Vec::new(),
            payload_bytes_answered: 0,
            has_ended: false,
            reach: Reach::default(),
        }
    }

    /// Runs until the peer is caught, and returns what was reached.
    pub(super) fn go(mut self) -> Reach {
        for _ in 0..STEPS {
            if self.peer.random.is_spent() || self.has_ended {
                break;
            }
            if self.step().is_err() {
                self.reach.violations += 1;
                self.has_ended = true;
            }
            self.check();
        }
        self.end()
    }

    fn step(&mut self) -> Result<(), Violation> {
        match self.peer.random.below(16) {
            0..6 => self.peer.send(true, &[]),
            6..9 => drop(self.read()?),
            9..11 => self.peer.take(&mut self.server.link),
            11..14 => self.answer_one(),
            14 => drop(self.server.notify(3, b"news")),
            _ => self.let_time_pass()?,
        }
        Ok(())
    }

    fn let_time_pass(&mut self) -> Result<(), Violation> {
        // A frame that is half-way must not stay so for long.
        while !self.peer.is_odd() && self.read()? {}
        self.peer.let_time_pass();
        let now = self.peer.now;
        self.server.link.check_time(now)?;
        let deadline = self.server.link.deadline();
        assert!(deadline.is_none_or(|by| by > now), "a deadline that nobody keeps");
        Ok(())
    }

    /// Takes what happened, reads, and takes what happened then: whether it may go on.
    fn read(&mut self) -> Result<bool, Violation> {
        let has_read = self.take_events()? && self.peer.deliver(&mut self.server.link)?;
        Ok(has_read && self.take_events()?)
    }

    /// Takes events until there are none: false if there may be more.
    fn take_events(&mut self) -> Result<bool, Violation> {
        while !self.has_ended && self.peer.may_read(&mut self.server.link) {
            let Some(event) = self.server.next_event(self.peer.now)? else {
                return Ok(true);
            };
            self.on_event(event);
        }
        Ok(false)
    }

    fn on_event(&mut self, event: FromClient) {
        assert!(
            self.server.link.is_open() || matches!(event, ServerEvent::Discard(_)),
            "{event:?}"
        );
        match event {
            ServerEvent::Call(incoming) => {
                assert!(self.running.iter().all(|other| other.call != incoming.call));
                self.check_call(&incoming);
                self.running.push(*incoming);
                self.reach.calls += 1;
            }
            ServerEvent::Register { region, bytes, descriptor } => {
                assert!(bytes <= LIMITS.region_bytes_max);
                if self.peer.random.once_in(4) {
                    self.peer.buried.push(descriptor);
                    let status = Status::new(Code::InvalidArgument, "not this one");
                    return self.server.region_refused(region, &status);
                }
                self.accept(region, bytes, descriptor);
            }
            ServerEvent::Rings { descriptor } => {
                self.peer.buried.push(descriptor);
                self.server.rings_refused(&Status::new(Code::Unimplemented, "no rings here"));
            }
            ServerEvent::Released(region) => {
                self.reach.releases += 1;
                let name = region.descriptor.name;
                let before = self.registered.len();
                self.registered.retain(|_, (descriptor, _)| *descriptor != name);
                assert_eq!(self.registered.len() + 1, before, "{region:?} was not registered");
            }
            ServerEvent::Discard(descriptor) => {
                self.reach.discards += 1;
                self.peer.buried.push(descriptor);
            }
            ServerEvent::Cancel { call } => {
                self.reach.cancels += 1;
                assert!(self.running.iter().any(|running| running.call == call));
                assert!(self.cancelled.insert(call), "call {call} was taken back before");
            }
            ServerEvent::Goodbye => self.has_ended = true,
            ServerEvent::Passed => {}
        }
    }

    fn accept(&mut self, region: u64, bytes: u64, descriptor: Counted) {
        self.reach.regions += 1;
        let name = descriptor.name;
        let handle = self.peer.ledger.issue(Kind::Region, name);
        let accepted = Rc::new(Region::new(descriptor, handle));
        self.regions.push(Rc::clone(&accepted));
        self.server.region_accepted(region, accepted, bytes);
        assert_eq!(self.registered.insert(region, (name, bytes)), None, "registered twice");
    }

    /// A call that the application sees is in order, whoever sent it.
    fn check_call(&self, incoming: &Incoming) {
        assert!(incoming.text.len() - incoming.method_bytes <= LIMITS.message_bytes_max as usize);
        match (&incoming.fill, incoming.room.fill) {
            (IncomingFill::None, Fill::None)
            | (IncomingFill::Descriptor { .. }, Fill::Descriptor { .. }) => {}
            (IncomingFill::Region(span), Fill::Region(asked)) => {
                self.check_span(span, asked.region, asked.bytes);
            }
            (IncomingFill::OneShot { bytes, .. }, Fill::OneShot { bytes: asked }) => {
                assert!(*bytes == asked && asked <= LIMITS.region_bytes_max);
            }
            (found, asked) => panic!("{found:?} for {asked:?}"),
        }
        let bytes = incoming.parts.bytes() as u64;
        match &incoming.upload {
            IncomingUpload::None => assert_eq!(bytes, 0),
            IncomingUpload::Inline(payload) => {
                assert!(bytes > 0 && bytes <= LIMITS.inline_bytes_max);
                assert_eq!(payload.len() as u64, bytes);
            }
            IncomingUpload::Region(span) => {
                self.check_span(span, self.number_of(&span.region), bytes);
            }
            IncomingUpload::Sealed { offset, bytes: said, .. } => {
                assert_eq!(*said, bytes);
                assert!(offset.is_multiple_of(PAYLOAD_ALIGNMENT));
                assert!(offset.checked_add(bytes).unwrap() <= LIMITS.region_bytes_max);
            }
        }
    }

    fn number_of(&self, region: &Region) -> u64 {
        let mut registered = self.registered.iter();
        let found = registered.find(|(_, (name, _))| *name == region.descriptor.name);
        *found.expect("it is registered").0
    }

    fn check_span(&self, span: &IncomingSpan<Rc<Region>>, region: u64, bytes: u64) {
        let (name, region_bytes) = self.registered[&region];
        assert_eq!(span.region.descriptor.name, name);
        assert!(span.offset.is_multiple_of(PAYLOAD_ALIGNMENT));
        assert!(span.offset.checked_add(bytes).unwrap() <= region_bytes);
    }

    fn answer_one(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let random = &mut self.peer.random;
        let index = random.below(self.running.len() as u64) as usize;
        let incoming = self.running.swap_remove(index);
        self.cancelled.remove(&incoming.call);
        let answer = if random.once_in(4) {
            Answer::failure(Status::new(Code::Internal, "it failed"))
        } else {
            self.some_answer(&incoming)
        };
        self.server.answer(incoming.call, answer);
        self.bury(incoming);
    }

    fn some_answer(&mut self, incoming: &Incoming) -> Answer<Counted> {
        let random = &mut self.peer.random;
        let lanes = lanes(&incoming.room);
        let (lane, bytes_max) = lanes[random.below(lanes.len() as u64) as usize];
        let parts = match lane {
            LaneNumber::None => Parts::default(),
            _ => some_parts(random, bytes_max),
        };
        let is_inline = lane == LaneNumber::Inline && parts.bytes() > 0;
        let payload = is_inline.then(|| payload(&self.pool, ANSWER, 1, parts.bytes()));
        self.payload_bytes_answered += payload.as_ref().map_or(0, |payload| payload.len() as u64);
        let ledger = &self.peer.ledger;
        let sealed = (lane == LaneNumber::Sealed).then(|| (ledger.issue(Kind::Outgoing, 0), 64));
        Answer { status: None, lane, parts, response: MessageBytes::new(), payload, sealed }
    }

    fn bury(&mut self, incoming: Incoming) {
        if let IncomingFill::OneShot { descriptor, .. } | IncomingFill::Descriptor { descriptor } =
            incoming.fill
        {
            self.peer.buried.push(descriptor);
        }
        if let IncomingUpload::Sealed { descriptor, .. } = incoming.upload {
            self.peer.buried.push(descriptor);
        }
    }

    /// What is true at any time.
    fn check(&self) {
        self.peer.check(&self.server.link);
        assert_eq!(self.server.open_calls(), self.running.len());
        assert!(self.running.len() <= LIMITS.calls_max as usize);
        assert_eq!(self.server.regions().count(), self.registered.len());
        assert!(self.registered.len() <= LIMITS.regions_max as usize);
        let (sent, answered) = (self.peer.payload_bytes_sent, self.payload_bytes_answered);
        assert!(sent <= answered);
        assert!(!self.server.link.is_flushed() || sent == answered, "{sent} of {answered}");
    }

    /// The connection is gone: everything that came is somewhere, once.
    fn end(mut self) -> Reach {
        let taken = self.server.take_descriptors();
        assert!(self.server.take_descriptors().is_empty());
        for incoming in std::mem::take(&mut self.running) {
            self.bury(incoming);
        }
        let Self { peer, server, regions, reach, .. } = self;
        let ledger = peer.ledger.clone();
        drop(server);
        assert_eq!(ledger.count(Kind::Outgoing), 0);
        assert_eq!(ledger.count(Kind::Region), regions.len());
        let names = regions.iter().map(|region| region.descriptor.name);
        peer.account(taken, names.collect());
        drop(regions);
        ledger.assert_empty();
        reach
    }
}

#[cfg(test)]
#[test]
fn no_client_confuses_a_server() {
    let pool = Arc::default();
    let mut all = Reach::default();
    for seed in 0..SEEDS {
        let _announce = Announce(seed);
        let Reach { calls, cancels, regions, releases, discards, violations } =
            Run::new(Random::of_seed(seed), &pool).go();
        all.calls += calls;
        all.cancels += cancels;
        all.regions += regions;
        all.releases += releases;
        all.discards += discards;
        all.violations += violations;
    }
    let counts = [all.calls, all.cancels, all.regions, all.releases, all.discards, all.violations];
    assert!(counts.iter().all(|&count| count > 100), "{all:?}");
}

#[cfg(test)]
const SEEDS: u64 = 4_000;
