//! The automatic choice of a lane: by size, by what the server can do, and by what earlier calls
//! have taught.

use std::hash::BuildHasher;
use std::num::NonZeroUsize;
use std::sync::{Arc, PoisonError};

use lru::LruCache;
use rustc_hash::FxBuildHasher;

use super::buffer::Buffer;
use crate::lane::{Lane, Reason};
use crate::limits::{AUTO_METHODS_MAX, Limits, PAYLOAD_ALIGNMENT};
use crate::sync::{Mutex, MutexGuard};

/// Where the automatic choice changes its mind. The defaults were measured: see
/// docs/BENCHMARKS.md, "auto".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoPolicy {
    /// Payloads of at most so many bytes travel inline: what is copied twice then costs less than
    /// it costs to hold a buffer.
    pub inline_bytes_max: u32,
    /// The largest buffer that is kept for later calls; larger payloads travel inline, or sealed
    /// where they are over the limit for that. 0: none are kept.
    pub buffer_bytes_max: usize,
    /// Bytes of all buffers that are kept while no call uses them.
    pub kept_bytes_max: usize,
    /// Whether sealed memory files may be used at all. Without them an answer that is larger than
    /// the buffer which earlier ones made one expect is OUT_OF_RANGE; the next call has room for
    /// it.
    pub sealed: bool,
}

impl Default for AutoPolicy {
    fn default() -> Self {
        Self {
            inline_bytes_max: 1024,
            buffer_bytes_max: 128 << 20,
            kept_bytes_max: 512 << 20,
            sealed: true,
        }
    }
}

/// What a client keeps and knows for its automatic choices.
#[derive(Debug)]
pub(super) struct Auto {
    policy: AutoPolicy,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Buffers that no call uses, by when they came back.
    spare: Vec<Buffer>,
    spare_bytes: usize,
    /// By direction, by the hash of the method's name: two that collide only share their guess.
    learnt: [LruCache<u64, Learnt, FxBuildHasher>; 3],
    /// A buffer could not be had, because of this; none is asked for again until so many calls have
    /// gone by.
    rest: (u32, Reason),
    /// The connection has ended: nothing is kept any more. A buffer knows its connection, and that
    /// has this: what stayed here would hold itself for ever.
    is_closed: bool,
}

/// Which payload of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Answer,
    Upload,
    /// An answer into memory of its own, of which only its pages are to be made: no lane is chosen.
    Fresh,
}

/// A method, as far as guesses go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MethodKey(u64);

impl MethodKey {
    pub(super) fn of(method: &str) -> Self {
        Self(FxBuildHasher.hash_one(method))
    }
}

/// What a method's payloads were like.
#[derive(Clone, Copy, Debug, Default)]
struct Learnt {
    /// The largest of the recent ones.
    bytes: usize,
    /// Calls since one came near that size.
    since: u32,
}

/// What to do about one payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// It is small, or was so far.
    Inline,
    /// Use a buffer of at least so many bytes, for what fits it.
    Buffer(usize),
    /// No buffer, because of this.
    NoBuffer(Reason),
}

impl Auto {
    pub(super) fn new(policy: AutoPolicy) -> Arc<Self> {
        let methods_max = NonZeroUsize::new(AUTO_METHODS_MAX).unwrap_or(NonZeroUsize::MIN);
        let state = State {
            spare: Vec::new(),
            spare_bytes: 0,
            learnt: [(); 3].map(|()| LruCache::with_hasher(methods_max, FxBuildHasher)),
            rest: (0, Reason::PeerCannot),
            is_closed: false,
        };
        Arc::new(Self { policy, state: Mutex::new(state) })
    }

    pub(super) fn policy(&self) -> &AutoPolicy {
        &self.policy
    }

    /// What to do about a payload of `method` that has at most `bytes_max` bytes.
    pub(super) fn plan(
        &self,
        direction: Direction,
        method: MethodKey,
        bytes_max: usize,
        peer: &Limits,
    ) -> Plan {
        if bytes_max <= self.policy.inline_bytes_max as usize {
            return Plan::Inline;
        }
        let mut state = self.lock();
        let Some(learnt) = state.learnt[direction as usize].get(&method.0).copied() else {
            return Plan::NoBuffer(Reason::SizeUnknown);
        };
        let bytes = learnt.bytes.min(bytes_max);
        if bytes <= self.policy.inline_bytes_max as usize {
            return Plan::Inline;
        }
        if bytes > self.policy.buffer_bytes_max {
            return Plan::NoBuffer(Reason::TooLargeToKeep);
        }
        if bytes as u64 > peer.region_bytes_max || peer.regions_max == 0 {
            return Plan::NoBuffer(Reason::PeerCannot);
        }
        if let Some(reason) = state.rests_because() {
            return Plan::NoBuffer(reason);
        }
        Plan::Buffer(bytes)
    }

    /// The largest of the method's recent payloads, if there was one.
    pub(super) fn seen(&self, direction: Direction, method: MethodKey) -> Option<usize> {
        let mut state = self.lock();
        state.learnt[direction as usize].get(&method.0).map(|learnt| learnt.bytes)
    }

    /// Notes how large a payload of `method` was.
    pub(super) fn learn(&self, direction: Direction, method: MethodKey, bytes: usize) {
        let mut state = self.lock();
        let methods = &mut state.learnt[direction as usize];
        match methods.get_mut(&method.0) {
            Some(learnt) => learnt.see(bytes),
            None => drop(methods.put(method.0, Learnt { bytes, since: 0 })),
        }
    }

    /// Notes that there is no room for a buffer at the moment.
    pub(super) fn rest(&self, reason: Reason) {
        self.lock().rest = (REST_CALLS, reason);
    }

    /// The smallest kept buffer of at least `bytes` bytes.
    pub(super) fn take(&self, bytes: usize) -> Option<Buffer> {
        let mut state = self.lock();
        // Of equals the one that came back last: its memory is warm.
        let spare = state.spare.iter().enumerate().rev();
        let fitting = spare.filter(|(_, spare)| spare.len() >= bytes);
        let (index, _) = fitting.min_by_key(|(_, spare)| spare.len())?;
        let buffer = state.spare.remove(index);
        state.spare_bytes -= buffer.len();
        Some(buffer)
    }

    /// Lets go of what is kept, and of what comes back later.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.let_go();
    }

    /// Lets go of all buffers that no call uses: their place at the server is wanted for another.
    /// Whether there were any.
    pub(super) fn let_go(&self) -> bool {
        let mut state = self.lock();
        state.spare_bytes = 0;
        let spare = std::mem::take(&mut state.spare);
        // Unmapping takes its time: not under the lock.
        drop(state);
        !spare.is_empty()
    }

    /// Takes a buffer back, and lets go of those that were not used for longest.
    pub(super) fn give_back(&self, buffer: Buffer) {
        let mut let_go = Vec::new();
        let mut state = self.lock();
        if state.is_closed {
            drop(state);
            return drop(buffer);
        }
        state.spare_bytes += buffer.len();
        state.spare.push(buffer);
        while state.spare_bytes > self.policy.kept_bytes_max && !state.spare.is_empty() {
            let oldest = state.spare.remove(0);
            state.spare_bytes -= oldest.len();
            let_go.push(oldest);
        }
        // Unmapping takes its time: not under the lock.
        drop(state);
        drop(let_go);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn rests_because(&mut self) -> Option<Reason> {
        let (calls, reason) = self.rest;
        self.rest.0 = calls.saturating_sub(1);
        (calls > 0).then_some(reason)
    }
}

impl Learnt {
    /// The largest counts until it hasn't come near for a while.
    fn see(&mut self, bytes: usize) {
        self.since += 1;
        if bytes >= self.bytes / 2 {
            self.since = 0;
        }
        if bytes > self.bytes || self.since >= FORGET_CALLS {
            *self = Self { bytes, since: 0 };
        }
    }
}

/// Bytes of a buffer that is made for payloads of `bytes` bytes: a power of two, so that few sizes
/// serve all; at most what the server takes.
pub(super) fn buffer_bytes(bytes: usize, peer: &Limits) -> usize {
    let most = usize::try_from(peer.region_bytes_max).unwrap_or(usize::MAX);
    bytes.max(BUFFER_BYTES_MIN).checked_next_power_of_two().unwrap_or(bytes).min(most).max(bytes)
}

impl AutoPolicy {
    /// Why a payload of `bytes` bytes took its lane, given the plan that was made for it.
    pub(super) fn reason(&self, plan: &Plan, lane: Lane, bytes: usize) -> Reason {
        match (lane, plan) {
            (Lane::None, _) => Reason::Asked,
            (Lane::FillMap | Lane::FillWrite | Lane::CopyOut, _) => Reason::BufferFits,
            (_, Plan::NoBuffer(reason)) => *reason,
            (Lane::Inline, _) if bytes <= self.inline_bytes_max as usize => Reason::Small,
            (_, Plan::Inline | Plan::Buffer(_)) => Reason::BufferTooSmall,
        }
    }
}

/// Calls without one near the largest size after which that is forgotten.
const FORGET_CALLS: u32 = 64;
/// Automatic calls that do without after the server had no room for a buffer.
const REST_CALLS: u32 = 256;
const BUFFER_BYTES_MIN: usize = 64 << 10;
const _: () = assert!((BUFFER_BYTES_MIN as u64).is_multiple_of(PAYLOAD_ALIGNMENT));

#[cfg(all(test, shorthaul_models))]
mod models;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    const METHOD: MethodKey = MethodKey(1);
    const PEER: Limits = Limits {
        calls_max: 8,
        regions_max: 8,
        message_bytes_max: 1 << 10,
        inline_bytes_max: 1 << 20,
        region_bytes_max: 1 << 20,
    };

    fn auto() -> Arc<Auto> {
        Auto::new(AutoPolicy { inline_bytes_max: 4096, ..AutoPolicy::default() })
    }

    fn plan(auto: &Auto, bytes_max: usize) -> Plan {
        auto.plan(Direction::Answer, METHOD, bytes_max, &PEER)
    }

    #[test]
    fn what_was_seen_is_what_is_planned_for() {
        let auto = auto();
        assert_eq!(plan(&auto, 4096), Plan::Inline, "nothing larger can come");
        assert_eq!(plan(&auto, 4097), Plan::NoBuffer(Reason::SizeUnknown));
        auto.learn(Direction::Answer, METHOD, 100_000);
        assert_eq!(plan(&auto, 1 << 30), Plan::Buffer(100_000));
        assert_eq!(plan(&auto, 50_000), Plan::Buffer(50_000), "no more than is wanted");
        let upload = auto.plan(Direction::Upload, METHOD, 50_000, &PEER);
        assert_eq!(upload, Plan::NoBuffer(Reason::SizeUnknown), "uploads are another matter");
        auto.learn(Direction::Answer, METHOD, 2 << 20);
        assert_eq!(plan(&auto, 1 << 30), Plan::NoBuffer(Reason::PeerCannot), "too large for it");
    }

    #[test]
    fn a_size_that_is_long_gone_is_forgotten() {
        let auto = auto();
        auto.learn(Direction::Answer, METHOD, 900_000);
        for _ in 1..FORGET_CALLS {
            auto.learn(Direction::Answer, METHOD, 10_000);
            assert_eq!(plan(&auto, 1 << 30), Plan::Buffer(900_000));
        }
        auto.learn(Direction::Answer, METHOD, 10_000);
        assert_eq!(plan(&auto, 1 << 30), Plan::Buffer(10_000));
    }

    #[test]
    fn a_server_without_room_is_left_alone_for_a_while() {
        let auto = auto();
        auto.learn(Direction::Answer, METHOD, 10_000);
        auto.rest(Reason::NoMemory);
        for _ in 0..REST_CALLS {
            assert_eq!(plan(&auto, 1 << 30), Plan::NoBuffer(Reason::NoMemory));
        }
        assert_eq!(plan(&auto, 1 << 30), Plan::Buffer(10_000));
    }

    #[test]
    fn few_sizes_of_buffers_serve_all() {
        assert_eq!(buffer_bytes(1, &PEER), BUFFER_BYTES_MIN);
        assert_eq!(buffer_bytes(100_000, &PEER), 131_072);
        let peer = Limits { region_bytes_max: 100_000, ..PEER };
        assert_eq!(buffer_bytes(99_000, &peer), 100_000, "no more than the server takes");
        assert_eq!(buffer_bytes(usize::MAX, &PEER), usize::MAX);
    }

    #[test]
    fn reasons_follow_from_plan_and_lane() {
        let policy = AutoPolicy { inline_bytes_max: 10, ..AutoPolicy::default() };
        let reason = |plan: &Plan, lane, bytes| policy.reason(plan, lane, bytes);
        let buffer = Plan::Buffer(100);
        assert_eq!(reason(&buffer, Lane::FillMap, 100), Reason::BufferFits);
        assert_eq!(reason(&buffer, Lane::Inline, 10), Reason::Small);
        assert_eq!(reason(&buffer, Lane::Sealed, 101), Reason::BufferTooSmall);
        assert_eq!(reason(&Plan::Inline, Lane::Inline, 10), Reason::Small);
        assert_eq!(reason(&Plan::Inline, Lane::Inline, 11), Reason::BufferTooSmall);
        let without = Plan::NoBuffer(Reason::TooLargeToKeep);
        assert_eq!(reason(&without, Lane::Sealed, 11), Reason::TooLargeToKeep);
    }
}
