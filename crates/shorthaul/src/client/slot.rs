//! Where a caller waits for its answer.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::reply::Outcome;
use crate::sync::{Condvar, Mutex, MutexGuard, now};

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
        Ticket { slot: Arc::clone(self) }
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
            let left = by.saturating_duration_since(now());
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

#[cfg(all(test, shorthaul_models))]
mod models;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::client::reply::CallError;
    use crate::error::Error;

    fn outcome(call: u32) -> Outcome {
        Err(CallError::without_buffers(Error::Misuse(call.to_string())))
    }

    fn call_of(outcome: &Outcome) -> u32 {
        let text = outcome.as_ref().unwrap_err().to_string();
        text.parse().unwrap()
    }

    /// Answers all calls; returns how many outcomes came back.
    fn answer_all(tickets: &Receiver<(u32, Ticket)>) -> u32 {
        let mut given_back = 0;
        for (call, ticket) in tickets {
            if let Err(back) = ticket.answer(outcome(call)) {
                assert_eq!(call_of(&back), call);
                given_back += 1;
            }
        }
        given_back
    }

    #[test]
    fn an_answer_races_the_time_out_and_one_of_them_wins() {
        let (sender, tickets) = channel();
        thread::scope(|scope| {
            let reactor = scope.spawn(move || answer_all(&tickets));
            let (mut slot, mut delivered) = (Arc::new(Slot::default()), 0);
            for call in 0..CALLS {
                sender.send((call, slot.ticket())).unwrap();
                // Some can't be missed, some are hopeless, the others are close.
                let patience = match call % 16 {
                    0 => Duration::from_secs(10),
                    1 => Duration::ZERO,
                    step => Duration::from_micros(u64::from(step)),
                };
                match slot.wait(Instant::now() + patience) {
                    Some(outcome) => {
                        assert_eq!(call_of(&outcome), call, "the answer to another call");
                        delivered += 1;
                    }
                    None => {
                        assert_ne!(call % 16, 0, "a wake-up was lost");
                        slot = Arc::default();
                    }
                }
            }
            drop(sender);
            assert_eq!(delivered + reactor.join().unwrap(), CALLS);
            assert!(delivered >= CALLS / 16);
        });
    }

    const CALLS: u32 = 100_000;
}
