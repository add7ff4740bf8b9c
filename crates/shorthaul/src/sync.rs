//! What threads hand over by: the standard library's locks, signals and atomics; in models loom's,
//! which try every order in which the threads can go (`.ci/models`).
//!
//! Only what has a model is taken from here. A plain counter is taken from the standard library.

#[cfg(not(shorthaul_models))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize};
    pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread;
    use std::time::Instant;

    pub(crate) use mio::Waker;
    pub(crate) use rustix::event::poll;
    pub(crate) use rustix::io::write;

    /// What this thread wrote before it is seen by who does the same, or the other way round.
    #[inline]
    pub(crate) fn fence() {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// What time it is.
    #[inline]
    pub(crate) fn now() -> Instant {
        Instant::now()
    }
}

#[cfg(not(shorthaul_models))]
pub(crate) use self::real::*;

#[cfg(shorthaul_models)]
mod modelled;

#[cfg(shorthaul_models)]
pub(crate) use self::modelled::*;
