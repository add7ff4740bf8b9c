//! Where a caller waits for its answer.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::reply::Outcome;

/// One waiting place. Used again for call after call, so that waiting allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Slot {
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Debug, Default)]
#[allow(clippy::large_enum_variant, reason = "an answer is what a slot is for")]
enum State {
    #[default]
    Waiting,
    Answered(Outcome),
    /// The caller has gone; what comes is nobody's.
    Abandoned,
}

/// The reactor's end of a slot: gives the outcome exactly once.
#[derive(Debug)]
pub(super) struct Ticket {
    slot: Arc<Slot>,
}

impl Slot {
    /// Makes a slot that nobody else holds ready for a call.
    pub(super) fn ticket(self: &Arc<Self>) -> Ticket {
        *self.lock() = State::Waiting;
        Ticket {
            slot: Arc::clone(self),
        }
    }

    /// Waits for the outcome until `by`. None if it didn't come: then it never will, here.
    pub(super) fn wait(&self, by: Instant) -> Option<Outcome> {
        let mut state = self.lock();
        loop {
            if let State::Answered(_) = *state {
                let State::Answered(outcome) = std::mem::take(&mut *state) else {
                    return None;
                };
                return Some(outcome);
            }
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                *state = State::Abandoned;
                return None;
            }
            let waited = self.answered.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Gives the outcome to who waits; gives it back if nobody does any more.
    #[allow(clippy::result_large_err, reason = "it is moved on, not up")]
    pub(super) fn answer(self, outcome: Outcome) -> Result<(), Outcome> {
        let mut state = self.slot.lock();
        if let State::Abandoned = *state {
            return Err(outcome);
        }
        *state = State::Answered(outcome);
        drop(state);
        self.slot.answered.notify_one();
        Ok(())
    }
}
