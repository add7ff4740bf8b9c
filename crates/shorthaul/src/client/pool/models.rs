//! Models of callers that wait for a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::sync::{explore, thread};

type Shared = Arc<(Places<u32>, AtomicUsize)>;

fn places(max: usize) -> Shared {
    Arc::new((Places::new(max), AtomicUsize::new(0)))
}

/// Takes a place and gives it back with something in it; whether there was one.
fn visit(shared: &Shared, by: Instant, thing: u32) -> bool {
    let (places, lent) = &**shared;
    let taken = places.take(by, |_| true);
    if taken.is_some() {
        assert!(lent.fetch_add(1, Ordering::Relaxed) < places.max, "lent to too many");
        lent.fetch_sub(1, Ordering::Relaxed);
        places.give_back(Some(thing));
    }
    taken.is_some()
}

fn visitor(shared: &Shared, by: Instant, thing: u32) -> thread::JoinHandle<bool> {
    let shared = Arc::clone(shared);
    thread::spawn(move || visit(&shared, by, thing))
}

#[test]
fn a_place_that_is_given_back_wakes_who_waits() {
    explore(|| {
        let shared = places(1);
        let never = now() + PATIENCE;
        let visitors = [1, 2].map(|thing| visitor(&shared, never, thing));
        assert!(visit(&shared, never, 3));
        assert!(visitors.into_iter().all(|visitor| visitor.join().unwrap()));
        let state = shared.0.lock();
        assert_eq!((state.idle.len(), state.lent), (1, 0));
    });
}

#[test]
fn one_whose_time_is_over_takes_no_wake_up_along() {
    explore(|| {
        let shared = places(1);
        let by = now() + PATIENCE;
        assert_eq!(shared.0.take(by, |_| true), Some(None));
        let waiting = [visitor(&shared, by, 1), visitor(&shared, by + PATIENCE, 2)];
        let late = Arc::clone(&shared);
        let clock = thread::spawn(move || late.0.returned.pass(PATIENCE, &late.0.state));
        shared.0.give_back(None);
        let [_, patient] = waiting.map(|visitor| visitor.join().unwrap());
        assert!(patient);
        clock.join().unwrap();
    });
}

#[test]
fn a_thing_that_is_of_no_use_leaves_its_place_to_who_waits() {
    explore(|| {
        let shared = places(2);
        let never = now() + PATIENCE;
        let [first, second] = [1, 2].map(|_| shared.0.take(never, |_| true).unwrap());
        assert_eq!((first, second), (None, None));
        let waiting = [1, 2].map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.0.take(never, |thing| *thing != DEAD).unwrap())
        });
        shared.0.give_back(Some(DEAD));
        shared.0.give_back(Some(1));
        let mut taken = waiting.map(|visitor| visitor.join().unwrap());
        taken.sort_unstable();
        assert!(taken[0].is_none() && taken[1] != Some(DEAD), "{taken:?}");
        assert_eq!(shared.0.lock().lent, 2);
    });
}

const PATIENCE: Duration = Duration::from_secs(10);
const DEAD: u32 = 13;
