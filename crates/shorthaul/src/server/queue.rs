//! Calls that wait for a worker: a line for each connection, served by deficit round robin.
//!
//! Each connection in turn may be served a quantum of bytes; what a call moves beyond that is a
//! debt which later rounds pay. So a client with many large calls gets its share of bytes and no
//! more, and one small call waits for at most the calls that the workers are at, and one round.
//!
//! What a call will move is not known before it is done: it is charged an estimate first, and the
//! rest when it is answered.
//!
//! # References
//! M. Shreedhar, G. Varghese: *Efficient Fair Queueing Using Deficit Round Robin*, 1996

use std::collections::VecDeque;
use std::sync::PoisonError;

use rustc_hash::FxHashMap;

use super::peer::Charge;
use crate::limits::{CALL_COST_BYTES, INLINE_BYTES_UNDER_WAY_MAX, QUANTUM_BYTES};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// What waits in the queue: a call, as far as the queue is concerned.
pub(crate) trait Queued {
    /// Its id within its connection.
    fn id(&self) -> u64;
    /// The most bytes that it may move.
    fn bytes_max(&self) -> u64;
    /// The most bytes of memory that its inline answer may take.
    fn inline_bytes(&self) -> u64;
}

/// The queue of one server. A connection is named by a number that is never used again.
#[derive(Debug)]
pub(crate) struct ServiceQueue<C> {
    state: Mutex<State<C>>,
    ready: Condvar,
}

/// A call for a worker, and what it was charged.
#[derive(Debug)]
pub(crate) struct Popped<C> {
    pub(crate) call: C,
    pub(crate) charged_bytes: u64,
}

#[derive(Debug)]
struct State<C> {
    lines: FxHashMap<u64, Line<C>>,
    /// Connections with calls that may run.
    turn: VecDeque<u64>,
    clock: Clock,
    idle_workers: usize,
    is_closed: bool,
}

/// What passes while a line has nothing that may run.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    rounds: i64,
    /// Times that a worker found nothing to do.
    idle_spells: u64,
}

#[derive(Debug)]
struct Line<C> {
    calls: VecDeque<C>,
    /// Bytes that it may still be served in this round; negative is a debt.
    deficit: i64,
    /// Inline bytes of answers being made or waiting to be written.
    inline_bytes: u64,
    is_in_turn: bool,
    /// When it left the turn.
    left_at: Clock,
}

impl<C: Queued> ServiceQueue<C> {
    pub(crate) fn new() -> Self {
        let state = State {
            lines: FxHashMap::default(),
            turn: VecDeque::new(),
            clock: Clock::default(),
            idle_workers: 0,
            is_closed: false,
        };
        Self { state: Mutex::new(state), ready: Condvar::new() }
    }

    /// Adds a call to its connection's line. The connection bounds how many there can be.
    pub(crate) fn push(&self, connection: u64, call: C) {
        let mut state = self.lock();
        state.lines.entry(connection).or_default().calls.push_back(call);
        state.join_turn(connection);
        let wake = state.idle_workers > 0;
        drop(state);
        if wake {
            self.ready.notify_one();
        }
    }

    /// Waits for the next call; none when the queue was closed and is empty.
    pub(crate) fn pop(&self) -> Option<Popped<C>> {
        let mut state = self.lock();
        loop {
            if let Some(popped) = state.take() {
                // A line that has just got room may hold more than the one call that woke us.
                let wake = state.idle_workers > 0 && !state.turn.is_empty();
                drop(state);
                if wake {
                    self.ready.notify_one();
                }
                return Some(popped);
            }
            if state.is_closed {
                return None;
            }
            state.clock.idle_spells += 1;
            state.idle_workers += 1;
            // Woken by a push, by room made, or by the closing of the queue.
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle_workers -= 1;
        }
    }

    /// Takes a call that has not begun out of its line.
    pub(crate) fn remove(&self, connection: u64, call: u64) -> Option<C> {
        let mut state = self.lock();
        let calls = &mut state.lines.get_mut(&connection)?.calls;
        let index = calls.iter().position(|waiting| waiting.id() == call)?;
        let removed = calls.remove(index);
        // It may have been the one whose answer had no room, with others behind it that have.
        self.rejoin(state, connection);
        removed
    }

    /// Says that an answer is made: `moved_bytes` is what it really moves, `charged_bytes` what it
    /// was charged, and its inline memory is `inline_bytes` instead of `inline_bytes_max`.
    pub(crate) fn answered(
        &self,
        connection: u64,
        charged_bytes: u64,
        moved_bytes: u64,
        inline_bytes_max: u64,
        inline_bytes: u64,
    ) {
        let mut state = self.lock();
        let Some(line) = state.lines.get_mut(&connection) else {
            return;
        };
        let moved_bytes = moved_bytes.min(MOVED_BYTES_MAX) + CALL_COST_BYTES;
        // What was charged too much is given back, but credit is not saved up by it either.
        let credit_max = if line.is_in_turn { QUANTUM_BYTES } else { 0 };
        line.deficit += charged_bytes as i64 - moved_bytes as i64;
        line.deficit = line.deficit.min(credit_max as i64);
        let unused = inline_bytes_max.saturating_sub(inline_bytes);
        self.make_room(state, connection, unused);
    }

    /// Says that so many inline bytes are written to the socket.
    pub(crate) fn written(&self, connection: u64, inline_bytes: u64) {
        if inline_bytes > 0 {
            self.make_room(self.lock(), connection, inline_bytes);
        }
    }

    /// Forgets a connection; returns the calls that had not begun.
    pub(crate) fn forget(&self, connection: u64) -> VecDeque<C> {
        let line = self.lock().lines.remove(&connection);
        line.map(|line| line.calls).unwrap_or_default()
    }

    /// Lets workers go when everything that waits is done.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.ready.notify_all();
    }

    fn make_room(&self, mut state: MutexGuard<'_, State<C>>, connection: u64, bytes: u64) {
        let Some(line) = state.lines.get_mut(&connection) else {
            return;
        };
        line.inline_bytes = line.inline_bytes.saturating_sub(bytes);
        self.rejoin(state, connection);
    }

    fn rejoin(&self, mut state: MutexGuard<'_, State<C>>, connection: u64) {
        let wake = state.join_turn(connection) && state.idle_workers > 0;
        drop(state);
        if wake {
            self.ready.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that a call of one of two queues was answered by `moved_bytes` bytes, of which
/// `inline_bytes` will be written to the socket. Until then those of calls that may wait count in
/// both, for they go the same way as all others. Tell both what is written.
pub(crate) fn settle<C: Queued>(
    [queue, waiting_queue]: [&ServiceQueue<C>; 2],
    connection: u64,
    charge: Charge,
    moved_bytes: u64,
    inline_bytes: u64,
) {
    let Charge { bytes, inline_bytes: inline_bytes_max, may_wait } = charge;
    if !may_wait {
        return queue.answered(connection, bytes, moved_bytes, inline_bytes_max, inline_bytes);
    }
    if inline_bytes > 0 {
        queue.lock().lines.entry(connection).or_default().inline_bytes += inline_bytes;
    }
    waiting_queue.answered(connection, bytes, moved_bytes, inline_bytes_max, inline_bytes);
}

impl<C: Queued> State<C> {
    /// Puts a connection into the round if it has a call that may run; true if it was added.
    fn join_turn(&mut self, connection: u64) -> bool {
        let Some(line) = self.lines.get_mut(&connection) else {
            return false;
        };
        let joins = !line.is_in_turn && line.may_run();
        if joins {
            line.is_in_turn = true;
            line.pay_off(self.clock);
            self.turn.push_back(connection);
        }
        joins
    }

    /// The next call in the round.
    fn take(&mut self) -> Option<Popped<C>> {
        let mut without_credit = 0;
        while let Some(connection) = self.turn.pop_front() {
            let Some(line) = self.lines.get_mut(&connection) else {
                continue;
            };
            if !line.may_run() {
                line.leave_turn(self.clock);
                continue;
            }
            if line.deficit > 0 {
                let popped = line.pop()?;
                if line.may_run() {
                    self.turn.push_front(connection);
                } else {
                    line.leave_turn(self.clock);
                }
                return Some(popped);
            }
            self.turn.push_back(connection);
            without_credit += 1;
            if without_credit >= self.turn.len() {
                self.next_round();
                without_credit = 0;
            }
        }
        None
    }

    /// Everybody is in debt or served: as many rounds pass as it takes for one to have credit.
    fn next_round(&mut self) {
        let debt = |connection: &u64| self.lines.get(connection).map(|line| -line.deficit);
        let least = self.turn.iter().filter_map(debt).min().unwrap_or(0).max(0);
        let rounds = least / QUANTUM_BYTES as i64 + 1;
        self.clock.rounds += rounds;
        for connection in &self.turn {
            if let Some(line) = self.lines.get_mut(connection) {
                line.deficit += rounds * QUANTUM_BYTES as i64;
            }
        }
    }
}

impl<C: Queued> Line<C> {
    /// Whether a call waits, and its answer has room; one answer always has.
    fn may_run(&self) -> bool {
        let has_room = |call: &C| {
            self.inline_bytes == 0
                || self.inline_bytes.saturating_add(call.inline_bytes())
                    <= INLINE_BYTES_UNDER_WAY_MAX
        };
        self.calls.front().is_some_and(has_room)
    }

    fn pop(&mut self) -> Option<Popped<C>> {
        let call = self.calls.pop_front()?;
        let charged_bytes = call.bytes_max().min(QUANTUM_BYTES) + CALL_COST_BYTES;
        self.deficit -= charged_bytes as i64;
        self.inline_bytes += call.inline_bytes();
        Some(Popped { call, charged_bytes })
    }

    /// Rounds that passed meanwhile have paid off as much of a debt as if it had stayed; all of it,
    /// if a worker had nothing to do: then it has kept nobody waiting.
    fn pay_off(&mut self, now: Clock) {
        let rounds = now.rounds - self.left_at.rounds;
        let paid = rounds.saturating_mul(QUANTUM_BYTES as i64);
        let was_idle = now.idle_spells != self.left_at.idle_spells;
        self.deficit = if was_idle { 0 } else { self.deficit.saturating_add(paid).min(0) };
    }

    /// Credit is not saved up by who has nothing to do; a debt stays.
    fn leave_turn(&mut self, now: Clock) {
        self.is_in_turn = false;
        self.left_at = now;
        self.deficit = self.deficit.min(0);
    }
}

impl<C> Default for Line<C> {
    fn default() -> Self {
        Self {
            calls: VecDeque::new(),
            deficit: 0,
            inline_bytes: 0,
            is_in_turn: false,
            left_at: Clock::default(),
        }
    }
}

/// Far beyond any payload, and far from where the arithmetic would overflow.
const MOVED_BYTES_MAX: u64 = 1 << 50;

#[cfg(all(test, shorthaul_models))]
mod models;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests;
