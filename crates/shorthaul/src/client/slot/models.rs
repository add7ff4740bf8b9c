//! Models of callers that wait.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::client::reply::CallError;
use crate::error::Error;
use crate::inbox::Inbox;
use crate::sync::{explore, thread};

fn outcome(call: u32) -> Outcome {
    Err(CallError::without_buffers(Error::Misuse(call.to_string())))
}

fn call_of(outcome: &Outcome) -> u32 {
    outcome.as_ref().unwrap_err().to_string().parse().unwrap()
}

fn answer(ticket: Ticket, call: u32) -> thread::JoinHandle<Option<u32>> {
    thread::spawn(move || ticket.answer(outcome(call)).err().map(|back| call_of(&back)))
}

/// The deadline passes at some time.
fn time_out(slot: &Arc<Slot>) -> thread::JoinHandle<()> {
    let slot = Arc::clone(slot);
    thread::spawn(move || slot.answered.pass(PATIENCE, &slot.state))
}

#[test]
fn an_answer_always_wakes_who_waits() {
    explore(|| {
        let slot = Arc::new(Slot::default());
        let reactor = answer(slot.ticket(), 1);
        let delivered = slot.wait(now() + PATIENCE).unwrap();
        assert_eq!((call_of(&delivered), reactor.join().unwrap()), (1, None));
    });
}

#[test]
fn an_answer_is_delivered_or_given_back_whenever_the_time_is_over() {
    explore(|| {
        let slot = Arc::new(Slot::default());
        let by = now() + PATIENCE;
        let (reactor, clock) = (answer(slot.ticket(), 1), time_out(&slot));
        let delivered = slot.wait(by).as_ref().map(call_of);
        let given_back = reactor.join().unwrap();
        assert_eq!(delivered.xor(given_back), Some(1), "{delivered:?} and {given_back:?}");
        clock.join().unwrap();
    });
}

#[test]
fn a_slot_that_is_used_again_gets_the_answer_to_its_own_call() {
    explore(|| {
        let slot = Arc::new(Slot::default());
        let by = now() + PATIENCE;
        let clock = time_out(&slot);
        let first = answer(slot.ticket(), 1);
        if let Some(delivered) = slot.wait(by) {
            assert_eq!(call_of(&delivered), 1);
            // The one who answered may still be about to ring.
            let second = answer(slot.ticket(), 2);
            let delivered = slot.wait(by + PATIENCE).unwrap();
            assert_eq!((call_of(&delivered), second.join().unwrap()), (2, None));
        }
        first.join().unwrap();
        clock.join().unwrap();
    });
}

/// What a reactor does until the connection is lost: it answers what has come, and tells the rest.
fn serve(inbox: &Inbox<Ticket>) -> Vec<u32> {
    let mut tickets = Vec::new();
    inbox.take_or_sleep(&mut tickets);
    let answered = tickets.drain(..).map(|ticket| ticket.answer(outcome(ANSWER)));
    let mut given_back: Vec<_> = answered.filter_map(Result::err).collect();
    let left = inbox.close().into_iter().map(|ticket| ticket.answer(outcome(LOST)));
    given_back.extend(left.filter_map(Result::err));
    given_back.iter().map(call_of).collect()
}

#[test]
fn a_call_ends_once_by_its_answer_its_deadline_or_the_end_of_the_connection() {
    explore(|| {
        let inbox = Arc::new(Inbox::modelled(Vec::new()));
        let by = now() + PATIENCE;
        let slots = [(); 2].map(|()| Arc::new(Slot::default()));
        let clock = time_out(&slots[0]);
        let reactor = thread::spawn({
            let inbox = Arc::clone(&inbox);
            move || serve(&inbox)
        });
        let other = thread::spawn({
            let (inbox, slot) = (Arc::clone(&inbox), Arc::clone(&slots[1]));
            move || match inbox.push(slot.ticket()) {
                Ok(()) => slot.wait(by + PATIENCE).is_some(),
                Err(_) => true,
            }
        });
        let refused = inbox.push(slots[0].ticket()).is_err();
        let ended = if refused { None } else { slots[0].wait(by).as_ref().map(call_of) };
        assert!(other.join().unwrap(), "one who can wait was told nothing");
        let given_back = reactor.join().unwrap();
        let ends = usize::from(refused) + usize::from(ended.is_some()) + given_back.len();
        assert_eq!(ends, 1, "{refused} {ended:?} {given_back:?}");
        clock.join().unwrap();
    });
}

const ANSWER: u32 = 1;
const LOST: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(10);
