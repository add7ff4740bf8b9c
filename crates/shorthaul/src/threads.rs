//! Threads that end: joining one with a deadline; and the reaper, for what takes long to let go of:
//! unmapping a large region or closing the last descriptor of one frees its pages, which takes
//! milliseconds that no reactor has.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};

/// When a wait of `timeout` that begins now is over; far away if that can't be computed.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    after(Instant::now(), timeout)
}

/// When a wait of `timeout` that begins at `now` is over; far away if that can't be computed.
pub(crate) fn after(now: Instant, timeout: Duration) -> Instant {
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
            join_by(thread, Instant::now() + REAPER_TIMEOUT);
        }
    }
}

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper").finish_non_exhaustive()
    }
}

/// A reaper that is started when there is something to bury.
#[derive(Debug)]
pub(crate) struct LazyReaper {
    name: &'static str,
    reaper: Option<Reaper>,
}

impl LazyReaper {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, reaper: None }
    }

    /// Drops `remains` elsewhere; here if no thread can be had.
    pub(crate) fn bury(&mut self, remains: impl Send + 'static) {
        if self.reaper.is_none() {
            self.reaper = Reaper::start(self.name).ok();
        }
        if let Some(reaper) = &self.reaper {
            reaper.bury(remains);
        }
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
/// Stands for a time too far away to be computed.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);
