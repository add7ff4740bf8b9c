//! Models of threads that close what strangers have opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::sync::explore;

/// What was seen of the remains of two users.
#[derive(Default)]
struct Seen {
    /// How many each user's line has had dropped.
    dropped: Mutex<[usize; 2]>,
    changed: Condvar,
    at_line: [AtomicUsize; 2],
    /// Two threads were at one line.
    is_shared: AtomicUsize,
}

/// Something of a user's, whose end waits until so many of the other's have ended.
struct Thing {
    seen: Arc<Seen>,
    user: usize,
    others: usize,
}

impl Seen {
    fn wait(&self, is_enough: impl Fn([usize; 2]) -> bool) {
        let mut dropped = self.dropped.lock().unwrap();
        while !is_enough(*dropped) {
            dropped = self.changed.wait(dropped).unwrap();
        }
    }
}

impl Remains for Thing {
    fn calm(&self) {}
}

impl Drop for Thing {
    fn drop(&mut self) {
        let Self { seen, user, others } = self;
        let among = seen.at_line[*user].fetch_add(1, Ordering::Relaxed);
        seen.is_shared.fetch_add(among, Ordering::Relaxed);
        seen.wait(|dropped| dropped[1 - *user] >= *others);
        seen.at_line[*user].fetch_sub(1, Ordering::Relaxed);
        seen.dropped.lock().unwrap()[*user] += 1;
        seen.changed.notify_all();
    }
}

struct Model {
    undertaker: &'static Undertaker,
    seen: Arc<Seen>,
}

impl Model {
    fn new(threads_max: usize) -> Self {
        Self::with(threads_max, 1)
    }

    fn with(threads_max: usize, threads_per_user_max: usize) -> Self {
        let undertaker = Undertaker::new(threads_max, threads_per_user_max);
        let undertaker = Box::leak(Box::new(undertaker));
        Self { undertaker, seen: Arc::default() }
    }

    /// Buries a thing whose end waits for so many of the other user's.
    fn bury(&self, user: usize, others: usize) {
        let thing = Thing { seen: Arc::clone(&self.seen), user, others };
        self.undertaker.bury(user as u32, Box::new(thing));
    }

    /// Waits for the end of so many things of each; nothing else ends them.
    fn end(self, dropped: [usize; 2]) {
        self.seen.wait(|seen| seen == dropped);
        let threads = self.undertaker.lock().threads;
        assert!(threads <= self.undertaker.threads_max, "{threads} threads");
        let is_shared = self.seen.is_shared.load(Ordering::Relaxed) > 0;
        let may_be_shared = self.undertaker.threads_per_user_max > 1;
        assert!(!is_shared || may_be_shared, "two threads at one line");
        // A thread that is left is idle, or will be.
        self.undertaker.arrived.pass_for_ever();
    }
}

#[test]
fn what_comes_while_the_last_thread_leaves_is_served() {
    explore(|| {
        let model = Model::new(1);
        model.bury(0, 0);
        model.undertaker.arrived.pass_for_ever();
        model.bury(1, 0);
        model.end([1, 1]);
    });
}

#[test]
fn what_comes_while_a_thread_falls_idle_is_served() {
    explore(|| {
        let model = Model::new(1);
        model.bury(0, 0);
        model.bury(1, 0);
        model.end([1, 1]);
    });
}

#[test]
fn a_thread_that_is_woken_for_one_user_is_not_counted_on_for_another() {
    explore(|| {
        let model = Model::new(2);
        model.bury(0, 0);
        model.bury(0, 1);
        model.bury(1, 0);
        model.end([2, 1]);
    });
}

#[test]
fn one_thread_is_at_a_line_and_no_more_than_may_be_in_all() {
    explore(|| {
        let model = Model::new(2);
        model.bury(0, 0);
        model.bury(1, 0);
        model.bury(0, 0);
        model.end([2, 1]);
    });
}

#[test]
fn one_that_waits_does_not_hold_up_the_others_of_its_user() {
    explore(|| {
        let model = Model::with(2, 2);
        model.bury(0, 1);
        model.bury(0, 0);
        model.bury(1, 0);
        model.end([2, 1]);
    });
}
