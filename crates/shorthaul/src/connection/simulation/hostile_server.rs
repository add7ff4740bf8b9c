//! A client alone with a hostile server.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

#[cfg(test)]
use super::choices::Announce;
use super::choices::Random;
use super::hostile::Hostile;
use super::pair::{FromServer, LIMITS, METHOD, Plan, REMAINING_NS, REQUEST, payload};
use super::plans::some_plan;
use super::random::STEPS;
use super::tokens::{Counted, Kind};
use crate::connection::Violation;
use crate::connection::client::{Answered, ClientConnection, ClientEvent, OutgoingCall};
use crate::limits::{CLIENT_TURN_FRAMES_MAX, PAYLOAD_ALIGNMENT};
use crate::payload::MemoryPool;
use crate::wire::{Fill, LaneNumber, Room, Span, Upload};

/// One run.
pub(super) struct Run {
    peer: Hostile,
    client: ClientConnection<Counted, Counted>,
    pool: Arc<MemoryPool>,
    /// Calls that the caller waits for, or has taken back.
    calls: HashMap<u64, (Room, bool)>,
    /// Tokens that came back.
    tokens: Vec<Counted>,
    started: u64,
    payload_bytes_started: u64,
    has_ended: bool,
    reach: Reach,
}

/// What was reached, each a number of events.
#[derive(Debug, Default)]
pub(super) struct Reach {
    pub(super) answers: usize,
    pub(super) sealed: usize,
    pub(super) failures: usize,
    pub(super) let_go: usize,
    pub(super) retired: usize,
    pub(super) discards: usize,
    pub(super) violations: usize,
}

impl Run {
    pub(super) fn new(random: Random, pool: &Arc<MemoryPool>) -> Self {
        let now = Instant::now();
        Self {
            peer: Hostile::new(random, now),
            client: ClientConnection::new(LIMITS, pool.uncounted(), now),
            pool: Arc::clone(pool),
            calls: HashMap::new(),
            tokens: Vec::new(),
            started: 0,
            payload_bytes_started: 0,
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
        let is_open = self.client.link.is_open();
        match self.peer.random.below(16) {
            0..4 if is_open => self.start(),
            0..8 => {
                let open: Vec<_> = self.open_calls();
                self.peer.send(false, &open);
            }
            8..11 => drop(self.read()?),
            11..13 => self.peer.take(&mut self.client.link),
            13 => self.cancel(),
            14 if is_open => self.register(),
            _ => self.let_time_pass()?,
        }
        Ok(())
    }

    /// Starts a call, as callers do while little enough waits and is open.
    fn start(&mut self) {
        let is_full = self.client.open_calls() >= LIMITS.calls_max as usize;
        if is_full || self.client.link.is_crowded() {
            return;
        }
        self.started += 1;
        let (call, span) = (self.started, Span { region: 1, offset: 64, bytes: 5000 });
        let Plan { room, upload, parts } = some_plan(&mut self.peer.random, [span, span]);
        let mut descriptors = SmallVec::new();
        if let Fill::OneShot { .. } | Fill::Descriptor { .. } = room.fill {
            descriptors.push(self.peer.ledger.issue(Kind::Outgoing, call));
        }
        let mut carried = None;
        match upload {
            Upload::Inline { bytes } => {
                carried = Some(payload(&self.pool, REQUEST, call, bytes as usize));
                self.payload_bytes_started += bytes;
            }
            Upload::Sealed { .. } => {
                descriptors.push(self.peer.ledger.issue(Kind::Outgoing, call));
            }
            Upload::None | Upload::Region(_) => {}
        }
        let (remaining_ns, method, request) = (REMAINING_NS, METHOD, &b"request"[..]);
        let outgoing = OutgoingCall { call, remaining_ns, room, upload, parts, method, request };
        let token = self.peer.ledger.issue(Kind::Call, call);
        self.client.start(outgoing, carried, descriptors, token);
        assert_eq!(self.calls.insert(call, (room, true)), None);
    }

    /// What is open, in order: that of a map is another in each run.
    fn open_calls(&self) -> Vec<(u64, Room)> {
        let mut open: Vec<_> = self.calls.iter().map(|(&call, &(room, _))| (call, room)).collect();
        open.sort_unstable_by_key(|&(call, _)| call);
        open
    }

    fn cancel(&mut self) {
        let call = self.started.saturating_sub(self.peer.random.below(6));
        let was_waiting = self.calls.get(&call).is_some_and(|(_, is_waiting)| *is_waiting);
        assert_eq!(self.client.cancel(call, self.peer.now), was_waiting);
        if let Some((_, is_waiting)) = self.calls.get_mut(&call) {
            *is_waiting = false;
        }
    }

    fn register(&mut self) {
        if !self.client.link.is_crowded() {
            let region = self.peer.random.below(8) + 1;
            let descriptor = self.peer.ledger.issue(Kind::Outgoing, region);
            self.client.register(region, 4096, descriptor);
        }
    }

    fn let_time_pass(&mut self) -> Result<(), Violation> {
        // A frame that is half-way must not stay so for long.
        while !self.peer.is_odd() && self.read()? {}
        self.peer.let_time_pass();
        let now = self.peer.now;
        while let Some(event) = self.client.handle_timeout(now)? {
            self.on_event(event);
        }
        let deadline = self.client.deadline();
        assert!(deadline.is_none_or(|by| by > now), "a deadline that nobody keeps");
        Ok(())
    }

    /// Takes what happened, reads, and takes what happened then: whether it may go on.
    fn read(&mut self) -> Result<bool, Violation> {
        let has_read = self.take_events()? && self.peer.deliver(&mut self.client.link)?;
        Ok(has_read && self.take_events()?)
    }

    fn take_events(&mut self) -> Result<bool, Violation> {
        for _ in 0..CLIENT_TURN_FRAMES_MAX {
            if self.has_ended {
                return Ok(false);
            }
            let Some(event) = self.client.next_event()? else { return Ok(true) };
            self.on_event(event);
        }
        Ok(false)
    }

    fn on_event(&mut self, event: FromServer) {
        match event {
            ClientEvent::Open => assert_eq!(self.started, 0),
            ClientEvent::Answered { token, answer } => {
                let (room, is_waiting) = self.calls.remove(&token.name).expect("it is open");
                assert!(is_waiting, "an answer to a call that was taken back");
                check_answer(&room, &answer);
                self.reach.answers += usize::from(answer.status.is_none());
                self.reach.failures += usize::from(answer.status.is_some());
                self.reach.sealed += usize::from(answer.sealed.is_some());
                self.peer.buried.extend(answer.sealed.map(|(descriptor, _)| descriptor));
                self.tokens.push(token);
            }
            ClientEvent::LetGo { token } => {
                self.reach.let_go += 1;
                self.give_back(token);
            }
            ClientEvent::Retired { token } => {
                self.reach.retired += 1;
                self.give_back(token);
            }
            ClientEvent::Discard(descriptor) => {
                self.reach.discards += 1;
                self.peer.buried.push(descriptor);
            }
            ClientEvent::Registered { .. } | ClientEvent::Notice { .. } => {
                assert!(self.client.link.is_open());
            }
            ClientEvent::Goodbye { .. } => self.has_ended = true,
            ClientEvent::Passed => {}
        }
    }

    /// The token of a call that was taken back.
    fn give_back(&mut self, token: Counted) {
        let (_, is_waiting) = self.calls.remove(&token.name).expect("it is open");
        assert!(!is_waiting, "{token:?} came back and nobody asked for it");
        self.tokens.push(token);
    }

    /// What is true at any time.
    fn check(&self) {
        self.peer.check(&self.client.link);
        self.client.check();
        assert_eq!(self.peer.ledger.count(Kind::Call) as u64, self.started);
        assert_eq!(self.tokens.len() + self.calls.len(), self.started as usize);
        assert!(self.client.open_calls() >= self.calls.len());
        assert!(self.client.open_calls() <= LIMITS.calls_max as usize);
        let (sent, started) = (self.peer.payload_bytes_sent, self.payload_bytes_started);
        assert!(sent <= started);
        assert!(!self.client.link.is_flushed() || sent == started, "{sent} of {started}");
    }

    /// The connection is gone: every token comes back, and everything that came is somewhere, once.
    fn end(mut self) -> Reach {
        self.tokens.extend(self.client.drain_tokens());
        assert_eq!(self.client.drain_tokens().count(), 0);
        let mut names: Vec<u64> = self.tokens.iter().map(|token| token.name).collect();
        names.sort_unstable();
        assert!(names.into_iter().eq(1..=self.started), "a call did not end exactly once");
        // What was never sent comes back with what came.
        let mut taken = self.client.take_descriptors();
        taken.retain(|descriptor| descriptor.kind == Kind::Descriptor);
        assert!(self.client.take_descriptors().is_empty());
        let Self { peer, client, tokens, reach, .. } = self;
        let ledger = peer.ledger.clone();
        drop((client, tokens));
        assert_eq!(ledger.count(Kind::Outgoing), 0);
        peer.account(taken, Vec::new());
        ledger.assert_empty();
        reach
    }
}

/// An answer that a caller sees is one that it has asked for, whoever sent it.
fn check_answer(room: &Room, answer: &Answered<Counted>) {
    let bytes = answer.parts.bytes() as u64;
    let is_relay = matches!(room.fill, Fill::Descriptor { .. });
    assert!(answer.given_bytes <= if is_relay { room.fill.bytes() } else { 0 });
    if let Some((_, offset)) = &answer.sealed {
        assert!(answer.lane == LaneNumber::Sealed && answer.status.is_none());
        assert!(offset.is_multiple_of(PAYLOAD_ALIGNMENT));
    }
    if answer.status.is_some() {
        assert_eq!((answer.lane, bytes), (LaneNumber::None, 0));
        return;
    }
    let bytes_max = match answer.lane {
        LaneNumber::None => 0,
        LaneNumber::Inline => {
            assert_eq!(answer.payload.as_ref().map_or(0, |payload| payload.len() as u64), bytes);
            room.inline_bytes_max()
        }
        LaneNumber::FillMap | LaneNumber::FillWrite => room.fill.memory_bytes(),
        LaneNumber::Sealed => room.sealed_bytes,
        LaneNumber::Descriptor => {
            assert_eq!(answer.given_bytes, bytes);
            room.fill.bytes()
        }
    };
    assert!(bytes <= bytes_max, "{answer:?} for {room:?}");
}

#[cfg(test)]
#[test]
fn no_server_confuses_a_client() {
    let pool = Arc::default();
    let mut all = [0; 7];
    for seed in 0..SEEDS {
        let _announce = Announce(seed);
        let reach = Run::new(Random::of_seed(seed), &pool).go();
        let Reach { answers, sealed, failures, let_go, retired, discards, violations } = reach;
        let counts = [answers, sealed, failures, let_go, retired, discards, violations];
        all.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    assert!(all.iter().all(|&count| count > 100), "{all:?}");
}

#[cfg(test)]
const SEEDS: u64 = 4_000;
