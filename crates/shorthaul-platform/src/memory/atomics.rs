//! Atomics in shared memory, at checked and aligned offsets.

use std::io;
#[cfg(not(shorthaul_models))]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[cfg(not(shorthaul_models))]
use rustix::thread::futex;
use rustix::time::Timespec;

#[cfg(shorthaul_models)]
use self::modelled::{AtomicU32, futex};

/// A 32-bit word in a mapping that both sides use as an atomic, and may sleep on.
///
/// The same memory model holds between processes as between threads, as long as both sides use
/// atomics of one size on the word.
#[derive(Clone, Copy, Debug)]
pub struct SharedWord<'a> {
    word: &'a AtomicU32,
}

impl SharedWord<'_> {
    /// # Safety
    /// - `word` is mapped readable and writable for the lifetime chosen
    /// - it is aligned to 4 bytes
    #[inline]
    pub(super) unsafe fn at(word: *mut u32) -> Self {
        #[cfg(not(shorthaul_models))]
        // SAFETY: mapped and aligned is the caller's duty; atomics may be shared with anyone.
        let word = unsafe { AtomicU32::from_ptr(word) };
        #[cfg(shorthaul_models)]
        let word = modelled::in_mapping(word);
        Self { word }
    }

    /// Reads the word; what the other side stored before its `store` is visible after it.
    #[inline]
    pub fn load(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Writes the word; what this side stored before is visible to who loads it.
    #[inline]
    pub fn store(&self, value: u32) {
        self.word.store(value, Ordering::Release);
    }

    /// Sleeps while the word is `value`, at most `timeout`. May wake for no reason: look again.
    ///
    /// # Errors
    /// Those of futex(2), but for a changed word, a signal and the time-out, which are no errors.
    pub fn wait(&self, value: u32, timeout: Duration) -> io::Result<()> {
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match futex::wait(self.word, futex::Flags::empty(), value, Some(&timeout)) {
            Err(error) if !is_ordinary(error) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Wakes one sleeper of any process that sleeps on this word.
    ///
    /// # Errors
    /// Those of futex(2).
    pub fn wake_one(&self) -> io::Result<()> {
        futex::wake(self.word, futex::Flags::empty(), 1)?;
        Ok(())
    }
}

fn is_ordinary(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(error, Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT)
}

#[cfg(shorthaul_models)]
mod modelled;

#[cfg(all(test, shorthaul_models))]
mod models;
