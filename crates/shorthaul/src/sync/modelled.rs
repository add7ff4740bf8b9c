//! The same names as models have them.

#![allow(dead_code, reason = "the library is built with them, models alone use all")]

use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize as Count, Ordering};
use std::time::{Duration, Instant};

pub(crate) use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize};
pub(crate) use loom::thread;
use mio::{Registry, Token};
use rustix::event::{self, PollFd, Timespec};

pub(crate) use self::locks::{Condvar, Mutex, MutexGuard};

mod locks;

pub(crate) fn fence() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// The event that ends a reactor's poll: rung before it sleeps, it does not sleep.
#[derive(Debug, Default)]
pub(crate) struct Waker {
    is_rung: loom::sync::Mutex<bool>,
    rung: loom::sync::Condvar,
}

impl Waker {
    pub(crate) fn new(_: &Registry, _: Token) -> io::Result<Self> {
        Ok(Self::default())
    }

    pub(crate) fn wake(&self) -> io::Result<()> {
        *self.is_rung.lock().unwrap() = true;
        self.rung.notify_one();
        Ok(())
    }

    /// Sleeps as a poll does.
    pub(crate) fn poll(&self) {
        let mut is_rung = self.is_rung.lock().unwrap();
        while !std::mem::take(&mut *is_rung) {
            is_rung = self.rung.wait(is_rung).unwrap();
        }
    }
}

/// poll(2) without a time-out: one that would go on for ever fails the model.
pub(crate) fn poll(ends: &mut [PollFd<'_>], _: Option<&Timespec>) -> rustix::io::Result<usize> {
    loop {
        DESCRIPTORS.fetch_add(1, Ordering::AcqRel);
        let ready = event::poll(ends, Some(&Timespec::default()))?;
        if ready > 0 {
            return Ok(ready);
        }
        thread::yield_now();
    }
}

/// write(2), at a time that a poll may be before or after.
pub(crate) fn write(descriptor: impl AsFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    DESCRIPTORS.fetch_add(1, Ordering::AcqRel);
    rustix::io::write(descriptor, bytes)
}

loom::lazy_static! {
    /// Times that the kernel was asked about what descriptors hold.
    static ref DESCRIPTORS: AtomicU64 = AtomicU64::new(0);
    /// Seconds that have passed in this execution.
    static ref CLOCK: AtomicU64 = AtomicU64::new(0);
}

/// What time it is: it passes only by [`Condvar::pass`].
pub(crate) fn now() -> Instant {
    the_beginning() + Duration::from_secs(CLOCK.load(Ordering::Acquire))
}

/// Lets time pass; what time it is then.
fn later(time: Duration) -> Instant {
    CLOCK.fetch_add(time.as_secs(), Ordering::AcqRel);
    now()
}

fn the_beginning() -> Instant {
    static BEGINNING: OnceLock<Instant> = OnceLock::new();
    *BEGINNING.get_or_init(Instant::now)
}

/// Runs a model in every order that its threads can go in, with so many preemptions of any thread
/// as `LOOM_MAX_PREEMPTIONS` says. A wait that nothing ends fails it.
pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
    let executions = std::sync::Arc::new(Count::new(0));
    let counted = std::sync::Arc::clone(&executions);
    loom::model::Builder::new().check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let executions = executions.load(Ordering::Relaxed);
    println!("{executions} executions");
    assert!(executions > 1, "nothing was tried");
}
