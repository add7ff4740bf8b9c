//! Threads that end: joining one with a deadline; the reaper, for what takes long to let go of:
//! unmapping a large region or closing the last descriptor of one frees its pages, which takes
//! milliseconds that no reactor has; and the undertaker, for what strangers have opened.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};

/// When a wait of `timeout` that begins now is over; far away if that can't be computed.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + FOR_EVER)
}

/// Joins a thread that should end soon; leaves it behind if it doesn't.
pub(crate) fn join_by<T>(thread: JoinHandle<T>, by: Instant) -> bool {
    while !thread.is_finished() {
        if Instant::now() >= by {
            return false;
        }
        thread::sleep(JOIN_POLL);
    }
    thread.join().is_ok()
}

/// Drops something on a thread made for that: it may take as long as it likes. For what is rare.
pub(crate) fn drop_elsewhere(remains: impl Send + 'static) {
    // Where no thread can be had it is dropped here, by the closure that comes to nothing.
    thread::Builder::new().name("shorthaul-undt".into()).spawn(move || drop(remains)).ok();
}

/// Drops what it is given, on a thread of its own. Stopped and joined when it is dropped itself.
pub(crate) struct Reaper {
    graves: Option<Sender<Box<dyn Send>>>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let (graves, burials) = channel();
        let thread = thread::Builder::new().name(name.into()).spawn(move || drop_all(&burials))?;
        Ok(Self { graves: Some(graves), thread: Some(thread) })
    }

    /// Drops `remains` elsewhere. What waits is bounded by what it is made of: each of the remains
    /// is a descriptor or a mapping of this process, of which it can have only so many. Dropping
    /// one here because many wait would stop the caller, which is what a hostile peer would want.
    pub(crate) fn bury(&self, remains: impl Send + 'static) {
        if let Some(graves) = &self.graves {
            // The thread ends only after this sender.
            graves.send(Box::new(remains)).ok();
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.graves = None;
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // One that is stuck in a stranger's descriptor is left behind.
            join_by(thread, Instant::now() + REAPER_TIMEOUT);
        }
    }
}

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper").finish_non_exhaustive()
    }
}

/// Closes what strangers have opened, which can wait for the stranger: a socket that lingers, a
/// file on a FUSE mount. A thread that is held up so has another take its place, so one stranger's
/// descriptor delays nothing of others before there are [`UNDERTAKERS_MAX`] of that kind. Stopped
/// when it is dropped itself.
pub(crate) struct Undertaker {
    yard: Arc<Yard>,
}

#[derive(Default)]
struct Yard {
    state: Mutex<Burials>,
    changed: Condvar,
}

#[derive(Default)]
struct Burials {
    waiting: VecDeque<Box<dyn Send>>,
    threads: usize,
    idle: usize,
    is_over: bool,
}

impl Undertaker {
    pub(crate) fn start() -> io::Result<Self> {
        let yard = Arc::<Yard>::default();
        yard.lock().threads = 1;
        Yard::start_thread(&yard)?;
        Ok(Self { yard })
    }

    /// Drops `remains` elsewhere. As with [`Reaper::bury`], what waits is bounded by what it is
    /// made of.
    pub(crate) fn bury(&self, remains: impl Send + 'static) {
        let mut state = self.yard.lock();
        state.waiting.push_back(Box::new(remains));
        if state.idle >= state.waiting.len() {
            self.yard.changed.notify_one();
        } else if state.threads < UNDERTAKERS_MAX {
            state.threads += 1;
            drop(state);
            if Yard::start_thread(&self.yard).is_err() {
                // Those that are there get round to it; the first of them never ends.
                self.yard.lock().threads -= 1;
            }
        }
    }
}

impl Drop for Undertaker {
    fn drop(&mut self) {
        let mut state = self.yard.lock();
        state.is_over = true;
        self.yard.changed.notify_all();
        // Those that are stuck in a stranger's descriptor are left behind.
        let is_busy = |state: &mut Burials| state.threads > 0;
        drop(self.yard.changed.wait_timeout_while(state, REAPER_TIMEOUT, is_busy));
    }
}

impl Yard {
    fn start_thread(yard: &Arc<Self>) -> io::Result<()> {
        let yard = Arc::clone(yard);
        thread::Builder::new().name("shorthaul-undt".into()).spawn(move || yard.work()).map(drop)
    }

    fn lock(&self) -> MutexGuard<'_, Burials> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            // What is in the queue is dropped by this loop alone, and outside the lock.
            if let Some(remains) = state.waiting.pop_front() {
                drop(state);
                drop(remains);
                state = self.lock();
                continue;
            }
            if state.is_over {
                break;
            }
            state.idle += 1;
            let slept = self.changed.wait_timeout(state, UNDERTAKER_REST);
            let rest_is_over;
            (state, rest_is_over) = slept.map(|(s, r)| (s, r.timed_out())).unwrap_or_else(|e| {
                let (state, rest) = e.into_inner();
                (state, rest.timed_out())
            });
            state.idle -= 1;
            if rest_is_over && state.waiting.is_empty() && state.idle > 0 {
                break;
            }
        }
        state.threads -= 1;
        self.changed.notify_all();
    }
}

fn drop_all(burials: &Receiver<Box<dyn Send>>) {
    // Ends when the last sender is gone.
    for remains in burials {
        drop(remains);
    }
}

const JOIN_POLL: Duration = Duration::from_millis(1);
const REAPER_TIMEOUT: Duration = Duration::from_secs(2);
/// Threads that strangers' descriptors may hold up at a time.
const UNDERTAKERS_MAX: usize = 64;
/// How long a thread that is not the only idle one waits for work before it ends.
const UNDERTAKER_REST: Duration = Duration::from_secs(1);
/// Stands for a time too far away to be computed.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);
