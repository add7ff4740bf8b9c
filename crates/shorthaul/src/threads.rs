//! Threads that end: joining one with a deadline; and the reaper, for what takes long to let go of:
//! unmapping a large region or closing the last descriptor of one frees its pages, which takes
//! milliseconds that no reactor has.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};

use crate::limits::REAPER_QUEUE_MAX;

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
    graves: Option<SyncSender<Box<dyn Send>>>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let (graves, burials) = sync_channel(REAPER_QUEUE_MAX);
        let thread = thread::Builder::new().name(name.into()).spawn(move || drop_all(&burials))?;
        Ok(Self { graves: Some(graves), thread: Some(thread) })
    }

    /// Drops `remains` elsewhere; or here, if too much waits for that already.
    pub(crate) fn bury(&self, remains: impl Send + 'static) {
        if let Some(graves) = &self.graves {
            // A full queue gives the remains back inside the error, which drops them.
            graves.try_send(Box::new(remains)).ok();
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.graves = None;
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            thread.join().ok();
        }
    }
}

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper").finish_non_exhaustive()
    }
}

fn drop_all(burials: &Receiver<Box<dyn Send>>) {
    // Ends when the last sender is gone.
    for remains in burials {
        drop(remains);
    }
}

const JOIN_POLL: Duration = Duration::from_millis(1);
