//! Signals that would end a process where an error return will do.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// Makes a write past RLIMIT_FSIZE an error (`EFBIG`) instead of the end of the process (SIGXFSZ).
/// For programs, early in `main`: a library leaves signals alone.
///
/// # References
/// setrlimit(2) `RLIMIT_FSIZE`, signal(2)
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal installs no handler of ours, so there is none that could misbehave.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    debug_assert!(before != libc::SIG_ERR, "SIGXFSZ can be ignored");
}

/// While it lives, what this thread writes raises neither SIGPIPE nor SIGXFSZ: there are only the
/// errors `EPIPE` and `EFBIG`, whatever the process does with the signals.
///
/// Both are sent to the thread that writes, so they are blocked in it, and what was raised is taken
/// away before the thread gets its own mask back. One that waited already is left alone.
///
/// # References
/// pthread_sigmask(3), sigtimedwait(2), signal(7)
#[derive(Debug)]
pub struct QuietSignals {
    mask_before: libc::sigset_t,
    /// Those of the two that did not wait already.
    ours: libc::sigset_t,
    /// The mask is a thread's own.
    _of_this_thread: PhantomData<*const ()>,
}

impl QuietSignals {
    /// Blocks the two signals in this thread.
    pub fn begin() -> Self {
        let mut ours = empty_set();
        add(&mut ours, libc::SIGPIPE);
        add(&mut ours, libc::SIGXFSZ);
        let mask_before = change_mask(libc::SIG_BLOCK, &ours);
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            // Only what was blocked can have been waiting.
            if has(&mask_before, signal) && has(&pending(), signal) {
                remove(&mut ours, signal);
            }
        }
        Self { mask_before, ours, _of_this_thread: PhantomData }
    }
}

impl Drop for QuietSignals {
    fn drop(&mut self) {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // Ends: each turn takes one away, and only writes of this thread bring new ones.
        loop {
            // SAFETY: the set and the time are ours; no information is asked for.
            let taken = unsafe {
                libc::sigtimedwait(&raw const self.ours, ptr::null_mut(), &raw const at_once)
            };
            if taken <= 0 {
                break;
            }
        }
        change_mask(libc::SIG_SETMASK, &self.mask_before);
    }
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the pointer is good for one set, which the call writes.
    let done = unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    debug_assert_eq!(done, 0);
    // SAFETY: sigemptyset has written all of it.
    unsafe { set.assume_init() }
}

fn add(set: &mut libc::sigset_t, signal: libc::c_int) {
    // SAFETY: the set is initialised and borrowed exclusively.
    let done = unsafe { libc::sigaddset(set, signal) };
    debug_assert_eq!(done, 0);
}

fn remove(set: &mut libc::sigset_t, signal: libc::c_int) {
    // SAFETY: the set is initialised and borrowed exclusively.
    let done = unsafe { libc::sigdelset(set, signal) };
    debug_assert_eq!(done, 0);
}

fn has(set: &libc::sigset_t, signal: libc::c_int) -> bool {
    // SAFETY: the set is initialised.
    unsafe { libc::sigismember(set, signal) == 1 }
}

/// The signals that wait for this thread or the process.
fn pending() -> libc::sigset_t {
    let mut set = empty_set();
    // SAFETY: the set is ours to be written.
    let done = unsafe { libc::sigpending(&raw mut set) };
    debug_assert_eq!(done, 0);
    set
}

/// Changes this thread's mask and gives the one before.
fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = empty_set();
    // SAFETY: both sets are initialised, and `before` is ours to be written.
    let done = unsafe { libc::pthread_sigmask(how, set, &raw mut before) };
    debug_assert_eq!(done, 0, "the arguments are good");
    before
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use std::io::{self, Write};

    use super::*;

    /// A signal that nothing ignores or handles waits while it is blocked: so its absence shows.
    #[test]
    fn what_was_raised_is_taken_away() {
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        let mut pipe_signal = empty_set();
        add(&mut pipe_signal, libc::SIGPIPE);
        change_mask(libc::SIG_BLOCK, &pipe_signal);
        {
            let _quiet = QuietSignals::begin();
            assert_eq!(writer.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
            assert!(has(&pending(), libc::SIGPIPE));
        }
        assert!(!has(&pending(), libc::SIGPIPE));
        // One that waited before stays.
        writer.write(b"x").unwrap_err();
        drop(QuietSignals::begin());
        assert!(has(&pending(), libc::SIGPIPE));
    }

    #[test]
    fn the_mask_is_given_back() {
        let unchanged = || change_mask(libc::SIG_BLOCK, &empty_set());
        let before = has(&unchanged(), libc::SIGXFSZ);
        let quiet = QuietSignals::begin();
        assert!(has(&unchanged(), libc::SIGXFSZ));
        drop(quiet);
        assert_eq!(has(&unchanged(), libc::SIGXFSZ), before);
    }
}
