//! Closes what strangers have opened. close(2) can wait for whoever made the file (a TCP socket
//! that lingers, a file of a slow file system), so it is done on threads of its own, and the
//! remains of one user never wait behind another's.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{OnceLock, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;
use rustix::net::sockopt;
use shorthaul_platform::socket::{self, Descriptors, Wait};

use crate::limits::{UNDERTAKERS_MAX, UNDERTAKERS_PER_USER_MAX};
use crate::origin::Origin;
use crate::sync::{Condvar, Mutex, MutexGuard, thread};

/// Drops `remains`, which user `uid` has opened, elsewhere. What waits is bounded by what it is
/// made of: descriptors, of which this process can have only so many.
pub(crate) fn bury(uid: u32, remains: impl Remains + 'static) {
    static UNDERTAKER: OnceLock<(Origin, Undertaker)> = OnceLock::new();
    let new = || (Origin::here(), Undertaker::new(UNDERTAKERS_MAX, UNDERTAKERS_PER_USER_MAX));
    let (origin, undertaker) = UNDERTAKER.get_or_init(new);
    // A forked child has none of its threads, and only copies of what is to be closed.
    if origin.is_here() {
        undertaker.bury(uid, Box::new(remains));
    }
}

/// What strangers have opened, and what is to be given back after it is closed.
pub(crate) trait Remains: Send {
    /// Has its closing wait for as few as possible.
    fn calm(&self);
}

impl Remains for OwnedFd {
    /// A TCP socket's last close doesn't wait for its other end then; what is in it is still sent.
    fn calm(&self) {
        // Refused for what is no socket.
        sockopt::set_socket_linger(self, None).ok();
    }
}

impl Remains for Vec<OwnedFd> {
    fn calm(&self) {
        self.iter().for_each(OwnedFd::calm);
    }
}

impl Remains for UnixStream {
    /// Descriptors that nobody has read would be closed with it as they are.
    fn calm(&self) {
        // Nothing more can come after this, so that there is an end.
        self.shutdown(Shutdown::Read).ok();
        let mut space = [0; UNREAD_BYTES];
        while let Ok(received) = socket::receive(self.as_fd(), &mut space, Wait::Never) {
            let (Descriptors::Arrived(strangers)
            | Descriptors::Lost(strangers)
            | Descriptors::TooMany(strangers)) = received.descriptors;
            strangers.iter().for_each(OwnedFd::calm);
            if received.bytes == 0 {
                break;
            }
        }
    }
}

impl<T: Remains> Remains for Option<T> {
    fn calm(&self) {
        self.iter().for_each(T::calm);
    }
}

impl<T: Remains, S: Send> Remains for (T, S) {
    fn calm(&self) {
        self.0.calm();
    }
}

/// A line of remains for each user. Threads are started as they are needed, and end when there is
/// nothing to do. Several may be at one line, so that one of its remains that waits doesn't hold up
/// the others at once; no user has so many that none is left for the rest.
struct Undertaker {
    threads_max: usize,
    threads_per_user_max: usize,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    lines: FxHashMap<u32, Line>,
    /// Users whose line another thread may serve.
    turn: VecDeque<u32>,
    threads: usize,
    idle_threads: usize,
}

/// There as long as something waits in it or is being dropped.
#[derive(Default)]
struct Line {
    waiting: VecDeque<Box<dyn Remains>>,
    /// Threads that are dropping something of it.
    threads: usize,
    is_in_turn: bool,
}

impl Undertaker {
    fn new(threads_max: usize, threads_per_user_max: usize) -> Self {
        let (state, arrived) = Default::default();
        Self { threads_max, threads_per_user_max, state, arrived }
    }

    fn bury(&'static self, uid: u32, remains: Box<dyn Remains>) {
        let mut state = self.lock();
        state.lines.entry(uid).or_default().waiting.push_back(remains);
        self.call_for_threads(state, uid);
    }

    /// Puts a line into the turn if another thread may serve it, and sees to it that one comes.
    fn call_for_threads(&'static self, mut state: MutexGuard<'_, State>, uid: u32) {
        if !state.join_turn(uid, self.threads_per_user_max) {
            return;
        }
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

    fn work(&'static self) {
        while let Some((uid, remains)) = self.next() {
            remains.calm();
            drop(remains);
            let mut state = self.lock();
            state.end_service(uid);
            state.join_turn(uid, self.threads_per_user_max);
        }
    }

    /// The next of the remains; none when there was nothing to do for a while, for a thread that
    /// ends then.
    fn next(&'static self) -> Option<(u32, Box<dyn Remains>)> {
        let mut state = self.lock();
        loop {
            if let Some((uid, remains)) = state.take() {
                self.call_for_threads(state, uid);
                return Some((uid, remains));
            }
            state.idle_threads += 1;
            let waited = self.arrived.wait_timeout(state, IDLE);
            let (again, wait) = waited.unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle_threads -= 1;
            if wait.timed_out() && state.turn.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Puts a line into the turn if something waits in it and another thread may serve it.
    fn join_turn(&mut self, uid: u32, threads_max: usize) -> bool {
        let Some(line) = self.lines.get_mut(&uid) else { return false };
        let joins = !line.is_in_turn && !line.waiting.is_empty() && line.threads < threads_max;
        if joins {
            line.is_in_turn = true;
            self.turn.push_back(uid);
        }
        joins
    }

    /// Takes the first of the line whose turn it is.
    fn take(&mut self) -> Option<(u32, Box<dyn Remains>)> {
        let uid = self.turn.pop_front()?;
        let line = self.lines.get_mut(&uid)?;
        line.is_in_turn = false;
        line.threads += 1;
        // It joined the turn with something, which only this takes.
        Some((uid, line.waiting.pop_front()?))
    }

    fn end_service(&mut self, uid: u32) {
        if let Some(line) = self.lines.get_mut(&uid) {
            line.threads -= 1;
            if line.threads == 0 && line.waiting.is_empty() {
                self.lines.remove(&uid);
            }
        }
    }
}

/// What is read at a time of what nobody will look at.
const UNREAD_BYTES: usize = 4096;
/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);

#[cfg(all(test, shorthaul_models))]
mod models;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use std::sync::LazyLock;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Something whose end waits for somebody else.
    struct Slow(Receiver<()>, Sender<u32>, u32);

    impl Remains for Slow {
        fn calm(&self) {}
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.recv_timeout(PATIENCE).ok();
            self.1.send(self.2).unwrap();
        }
    }

    #[test]
    fn nobodys_remains_wait_behind_another_users() {
        static UNDERTAKER: LazyLock<Undertaker> = LazyLock::new(|| Undertaker::new(5, 2));
        let undertaker = &*UNDERTAKER;
        let (ended, ends) = channel();
        let bury = |uid, number| {
            let (release, released) = channel();
            undertaker.bury(uid, Box::new(Slow(released, ended.clone(), number)));
            release
        };
        // Two keep all the threads that their user may have; the third waits.
        let stuck = [bury(1, 10), bury(1, 11)];
        bury(1, 12).send(()).unwrap();
        for round in 0..100 {
            bury(2, round).send(()).unwrap();
            assert_eq!(ends.recv_timeout(PATIENCE), Ok(round), "it waits for user 1");
        }
        assert!(undertaker.lock().threads <= 5);
        stuck[1].send(()).unwrap();
        assert_eq!(ends.recv_timeout(PATIENCE), Ok(11));
        // One that waits doesn't hold up the others of its user.
        assert_eq!(ends.recv_timeout(PATIENCE), Ok(12));
        stuck[0].send(()).unwrap();
        assert_eq!(ends.recv_timeout(PATIENCE), Ok(10));
    }

    #[test]
    fn threads_are_bounded_and_what_waits_is_served_at_last() {
        static UNDERTAKER: LazyLock<Undertaker> = LazyLock::new(|| Undertaker::new(2, 2));
        let undertaker = &*UNDERTAKER;
        let (ended, ends) = channel();
        let release: Vec<_> = (0..40)
            .map(|number| {
                let (release, released) = channel();
                undertaker.bury(number % 20, Box::new(Slow(released, ended.clone(), number)));
                release
            })
            .collect();
        assert_eq!(undertaker.lock().threads, 2);
        release.iter().for_each(|release| release.send(()).unwrap());
        let mut seen: Vec<_> = (0..40).map(|_| ends.recv_timeout(PATIENCE).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..40).collect::<Vec<_>>());
        let is_empty = || {
            let state = undertaker.lock();
            state.lines.is_empty() && state.turn.is_empty()
        };
        while !is_empty() {
            thread::yield_now();
        }
    }

    const PATIENCE: Duration = Duration::from_secs(20);
}
