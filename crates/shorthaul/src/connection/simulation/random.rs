//! Random runs: whatever the applications do and the sockets suffer, every call ends exactly once,
//! and nothing is lost, doubled or mixed up.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
use super::choices::Announce;
use super::choices::Random;
use super::model::{Model, ModelRegion, Phase, Reach};
use super::pair::{LIMITS, Pair, read, write};
use super::plans::some_plan;
use super::tokens::Kind;
use crate::connection::Violation;
use crate::limits::{CANCEL_ACK_TIMEOUT, PAYLOAD_ALIGNMENT};
use crate::payload::MemoryPool;
use crate::wire::Span;

/// One run.
pub(super) struct Run {
    random: Random,
    pair: Pair,
    model: Model,
    next_id: u64,
    /// The most bytes of one read or write.
    piece_bytes: u64,
    /// Both sides run out of descriptors now and then.
    is_lossy: bool,
    /// Whether the connection is lost when all is done, or in the middle of everything.
    is_finished: bool,
}

impl Run {
    pub(super) fn new(mut random: Random, pool: &Arc<MemoryPool>) -> Self {
        let is_lossy = random.once_in(3);
        let wire_bytes = [40, 700, 9_000, 200_000][random.below(4) as usize];
        Self {
            pair: Pair::new(pool, wire_bytes),
            model: Model { is_lossy, ..Model::default() },
            next_id: 1,
            piece_bytes: [1, 17, 300, 5_000, 100_000][random.below(5) as usize],
            is_lossy,
            is_finished: random.once_in(2),
            random,
        }
    }

    /// Runs, and returns what it has reached.
    pub(super) fn go(mut self) -> Reach {
        for _ in 0..STEPS {
            if self.random.is_spent() {
                break;
            }
            self.step();
            self.check();
        }
        if self.is_finished {
            self.finish();
        }
        let mut reach = std::mem::take(&mut self.model.reach);
        reach.retired = self.model.count(|phase| phase == Phase::Retired);
        self.cut();
        reach
    }

    fn step(&mut self) {
        let is_open = self.pair.client.link.is_open();
        match self.random.below(16) {
            0..3 if is_open => self.start_call(),
            3 if is_open => self.register(),
            4 if is_open => self.release(),
            5 => self.cancel(),
            6 => self.notify(),
            7..9 => self.model.answer_one(&mut self.pair, &mut self.random),
            9 => self.let_time_pass(),
            _ => self.pump(),
        }
    }

    fn start_call(&mut self) {
        let call = self.new_id();
        let spans = [self.part_of_a_region(), self.part_of_a_region()];
        let plan = some_plan(&mut self.random, spans);
        self.pair.start_with(call, plan.clone());
        self.model.add_call(call, plan);
    }

    /// Of one that is registered, was, will be, or never was.
    fn part_of_a_region(&mut self) -> Span {
        let mut known: Vec<u64> = self.model.regions.keys().copied().collect();
        known.sort_unstable();
        let region = match known.len() as u64 {
            // One of the latest, which may be registered.
            count if count > 0 && self.random.once_in(2) => {
                known[(count - 1 - self.random.below(count.min(3))) as usize]
            }
            _ => self.random.below(self.next_id) + 1,
        };
        let bytes = self.model.regions.get(&region).map_or(99, |r| r.bytes);
        let offset = self.random.up_to(bytes) / PAYLOAD_ALIGNMENT * PAYLOAD_ALIGNMENT;
        Span { region, offset, bytes: bytes - offset + u64::from(self.random.once_in(20)) }
    }

    fn register(&mut self) {
        let (region, bytes) = (self.new_id(), self.random.up_to(LIMITS.region_bytes_max + 9));
        self.pair.register(region, bytes);
        self.model.regions.insert(region, ModelRegion::new(bytes));
    }

    fn release(&mut self) {
        let region = self.random.below(self.next_id) + 1;
        if self.model.regions.contains_key(&region) {
            self.pair.client.release(region);
        }
    }

    fn cancel(&mut self) {
        let call = self.random.below(self.next_id) + 1;
        let was_waiting =
            self.model.calls.get(&call).is_some_and(|call| call.phase == Phase::Waiting);
        assert_eq!(self.pair.client.cancel(call, self.pair.now), was_waiting);
        if was_waiting {
            let cancelled = Phase::Cancelled(self.pair.now);
            self.model.calls.get_mut(&call).unwrap().phase = cancelled;
        }
    }

    fn notify(&mut self) {
        let topic = self.random.next() as u32;
        let data = vec![topic as u8; self.random.up_to(300) as usize];
        if self.pair.server.notify(topic, &data) {
            self.model.notices.push_back((topic, data));
        }
    }

    /// A little at any time; much only when nothing is half-way, for that is an offence.
    fn let_time_pass(&mut self) {
        if self.random.once_in(4) {
            self.settle();
            self.pair.pass(CANCEL_ACK_TIMEOUT);
            self.settle();
        } else {
            self.pair.pass(Duration::from_millis(self.random.below(20)));
        }
    }

    /// Moves some bytes some way.
    fn pump(&mut self) {
        let bytes_max = self.random.below(self.piece_bytes) as usize + 1;
        let is_lossy = self.is_lossy && self.random.once_in(3);
        let all = self.random.once_in(3);
        let now = self.pair.now;
        let pair = &mut self.pair;
        match self.random.below(4) {
            0 => drop(write(&mut pair.client.link, &mut pair.up, bytes_max, now, all)),
            1 => drop(write(&mut pair.server.link, &mut pair.down, bytes_max, now, all)),
            2 => self.server_takes(bytes_max, is_lossy).map(drop).unwrap(),
            _ => self.client_takes(bytes_max, is_lossy).map(drop).unwrap(),
        }
    }

    fn server_takes(&mut self, bytes_max: usize, is_lossy: bool) -> Result<bool, Violation> {
        // Before the read too: the application may have left events untaken.
        for _ in 0..2 {
            while let Some(event) = self.pair.server.next_event(self.pair.now)? {
                self.model.on_client_says(event, &mut self.pair, &mut self.random);
            }
            let pair = &mut self.pair;
            let link = &mut pair.server.link;
            if !read(link, &mut pair.up, bytes_max, is_lossy, pair.now)? {
                return Ok(false);
            }
        }
        while let Some(event) = self.pair.server.next_event(self.pair.now)? {
            self.model.on_client_says(event, &mut self.pair, &mut self.random);
        }
        Ok(true)
    }

    fn client_takes(&mut self, bytes_max: usize, is_lossy: bool) -> Result<bool, Violation> {
        let pair = &mut self.pair;
        let got = read(&mut pair.client.link, &mut pair.down, bytes_max, is_lossy, pair.now)?;
        while let Some(event) = self.pair.client.next_event()? {
            self.model.on_server_says(event, self.pair.now);
        }
        while let Some(event) = self.pair.client.handle_timeout(self.pair.now)? {
            self.model.on_server_says(event, self.pair.now);
        }
        Ok(got)
    }

    /// Moves everything.
    fn settle(&mut self) {
        loop {
            let now = self.pair.now;
            let pair = &mut self.pair;
            let mut moved = write(&mut pair.client.link, &mut pair.up, usize::MAX, now, true);
            moved |= write(&mut pair.server.link, &mut pair.down, usize::MAX, now, true);
            moved |= self.server_takes(usize::MAX, false).unwrap();
            moved |= self.client_takes(usize::MAX, false).unwrap();
            if !moved && self.pair.server.link.is_flushed() && self.pair.client.link.is_flushed() {
                return;
            }
        }
    }

    /// What is true at any time.
    fn check(&self) {
        let waiting = self.model.count(|phase| phase == Phase::Waiting);
        let cancelled = self.model.count(|phase| matches!(phase, Phase::Cancelled(_)));
        let retired = self.model.count(|phase| phase == Phase::Retired);
        let open = self.pair.client.open_calls();
        assert!(open >= waiting + cancelled && open <= waiting + cancelled + retired);
        assert_eq!(
            self.pair.ledger.count(Kind::Call),
            waiting + cancelled,
            "a token is held exactly as long as its call is open"
        );
        assert_eq!(self.pair.server.open_calls(), self.model.running.len());
        assert!(self.pair.server.regions().count() <= LIMITS.regions_max as usize);
        assert!(self.model.running.len() <= LIMITS.calls_max as usize);
    }

    /// Everything is answered and taken in: both sides agree that nothing is open.
    fn finish(&mut self) {
        self.settle();
        while !self.model.running.is_empty() {
            self.model.answer_one(&mut self.pair, &mut self.random);
            self.settle();
        }
        assert_eq!(self.pair.client.open_calls(), 0);
        assert_eq!(self.pair.server.open_calls(), 0);
        assert!(self.model.notices.is_empty());
        assert_eq!(self.pair.client.deadline(), None);
        assert_eq!(self.pair.server.link.deadline(), None);
        let registered = self.pair.server.regions().count();
        assert_eq!(self.pair.ledger.count(Kind::Region), registered);
        assert_eq!(self.pair.ledger.count(Kind::Descriptor), registered);
    }

    /// The connection is lost here and now: what the client is owed comes back, all else is gone.
    fn cut(self) {
        let Pair { mut client, mut server, up, down, ledger, .. } = self.pair;
        let tokens: Vec<_> = client.drain_tokens().collect();
        let taken: Vec<_> =
            client.take_descriptors().into_iter().chain(server.take_descriptors()).collect();
        let files: HashSet<u64> = taken.iter().map(|file| file.name).collect();
        assert_eq!(files.len(), taken.len(), "a descriptor came out twice");
        assert!(client.take_descriptors().is_empty() && server.take_descriptors().is_empty());
        drop((client, taken));
        let names: HashSet<u64> = tokens.iter().map(|token| token.name).collect();
        assert_eq!(names.len(), tokens.len());
        for (id, call) in &self.model.calls {
            let is_owed = matches!(call.phase, Phase::Waiting | Phase::Cancelled(_));
            assert_eq!(names.contains(id), is_owed, "call {id}: {call:?}");
        }
        drop((tokens, server, up, down, self.model));
        ledger.assert_empty();
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

#[test]
fn every_call_ends_exactly_once() {
    let pool = Arc::default();
    let mut reach = Reach::default();
    for seed in 0..SEEDS {
        let _announce = Announce(seed);
        reach.add(&Run::new(Random::of_seed(seed), &pool).go());
    }
    assert!(reach.retired > 1_000, "the runs no longer reach what they are for: {reach:?}");
    assert!(reach.calls.as_flattened().iter().all(|&calls| calls > 100), "{reach:?}");
    assert!(reach.sealed.iter().all(|&answers| answers > 100), "{reach:?}");
    assert!(reach.cut_short > 100, "{reach:?}");
}

const SEEDS: u64 = 2_000;
pub(super) const STEPS: usize = 250;
