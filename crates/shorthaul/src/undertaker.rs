//! Closes what strangers have opened. close(2) can wait for whoever made the file (a TCP socket that
//! lingers, a file of a slow file system), so it is done on threads of its own, and the remains of
//! one user never wait behind another's.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{OnceLock, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::limits::UNDERTAKERS_MAX;
use crate::origin::Origin;
use crate::sync::{Condvar, Mutex, MutexGuard, thread};

/// Drops `remains`, which user `uid` has opened, elsewhere. What waits is bounded by what it is made
/// of: descriptors, of which this process can have only so many.
pub(crate) fn bury(uid: u32, remains: impl Send + 'static) {
    static UNDERTAKER: OnceLock<(Origin, Undertaker)> = OnceLock::new();
    let new = || (Origin::here(), Undertaker::new(UNDERTAKERS_MAX));
    let (origin, undertaker) = UNDERTAKER.get_or_init(new);
    // A forked child has none of its threads, and only copies of what is to be closed.
    if origin.is_here() {
        undertaker.bury(uid, Box::new(remains));
    }
}

type Remains = Box<dyn Any + Send>;

/// A line of remains for each user. Threads are started as they are needed, are at one line at a
/// time, and end when there is nothing to do. To keep all of them waiting takes as many users.
struct Undertaker {
    threads_max: usize,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    /// Of each user that has remains, or whose last ones are being dropped.
    lines: FxHashMap<u32, VecDeque<Remains>>,
    /// Users whose line no thread is at.
    turn: VecDeque<u32>,
    threads: usize,
    idle_threads: usize,
}

impl Undertaker {
    fn new(threads_max: usize) -> Self {
        Self { threads_max, state: Mutex::default(), arrived: Condvar::new() }
    }

    fn bury(&'static self, uid: u32, remains: Remains) {
        let mut state = self.lock();
        if let Some(line) = state.lines.get_mut(&uid) {
            line.push_back(remains);
            return;
        }
        state.lines.insert(uid, VecDeque::from([remains]));
        state.turn.push_back(uid);
        if state.idle_threads >= state.turn.len() {
            self.arrived.notify_one();
        } else if state.threads < self.threads_max {
            state.threads += 1;
            drop(state);
            self.start_thread();
        }
    }

    fn start_thread(&'static self) {
        let thread = thread::Builder::new().name("shorthaul-undt".into());
        if thread.spawn(|| self.work()).is_err() {
            let mut state = self.lock();
            state.threads -= 1;
            // Without a single thread there is nowhere else to do it.
            if state.threads == 0 {
                let unserved = std::mem::take(&mut *state);
                drop(state);
                drop(unserved.lines);
            }
        }
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            let Some(uid) = state.turn.pop_front() else {
                state.idle_threads += 1;
                let (again, wait) =
                    self.arrived.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                state = again;
                state.idle_threads -= 1;
                if wait.timed_out() && state.turn.is_empty() {
                    state.threads -= 1;
                    return;
                }
                continue;
            };
            let remains = state.lines.get_mut(&uid).and_then(VecDeque::pop_front);
            drop(state);
            drop(remains);
            state = self.lock();
            // Until now the line was there, so that no other thread began with it.
            if state.lines.get(&uid).is_some_and(VecDeque::is_empty) {
                state.lines.remove(&uid);
            } else {
                state.turn.push_back(uid);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);

#[cfg(all(test, shorthaul_models))]
mod models;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Something whose end waits for somebody else.
    struct Slow(Receiver<()>, Sender<u32>, u32);

    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.recv_timeout(PATIENCE).ok();
            self.1.send(self.2).unwrap();
        }
    }

    #[test]
    fn nobodys_remains_wait_behind_another_users() {
        let undertaker: &'static Undertaker = Box::leak(Box::new(Undertaker::new(3)));
        let (ended, ends) = channel();
        let bury = |uid, number| {
            let (release, released) = channel();
            undertaker.bury(uid, Box::new(Slow(released, ended.clone(), number)));
            release
        };
        let [stuck, behind] = [bury(1, 10), bury(1, 11)];
        behind.send(()).unwrap();
        for round in 0..100 {
            bury(2, round).send(()).unwrap();
            assert_eq!(ends.recv_timeout(PATIENCE), Ok(round), "it waits for user 1");
        }
        assert!(undertaker.lock().threads <= 3);
        stuck.send(()).unwrap();
        assert_eq!(ends.recv_timeout(PATIENCE), Ok(10));
        assert_eq!(ends.recv_timeout(PATIENCE), Ok(11));
    }

    #[test]
    fn threads_are_bounded_and_what_waits_is_served_at_last() {
        let undertaker: &'static Undertaker = Box::leak(Box::new(Undertaker::new(2)));
        let (ended, ends) = channel();
        let release: Vec<_> = (0..20)
            .map(|uid| {
                let (release, released) = channel();
                undertaker.bury(uid, Box::new(Slow(released, ended.clone(), uid)));
                release
            })
            .collect();
        assert_eq!(undertaker.lock().threads, 2);
        release.iter().for_each(|release| release.send(()).unwrap());
        let mut seen: Vec<_> = (0..20).map(|_| ends.recv_timeout(PATIENCE).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..20).collect::<Vec<_>>());
    }

    const PATIENCE: Duration = Duration::from_secs(20);
}
