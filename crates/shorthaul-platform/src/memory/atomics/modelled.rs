//! A word and a futex that models can have in any order.

pub(super) use loom::sync::atomic::AtomicU32;

pub(super) mod futex {
    use std::sync::atomic::Ordering;

    use loom::sync::{Condvar, Mutex};
    use rustix::io::{Errno, Result};
    pub(in super::super) use rustix::thread::futex::Flags;
    use rustix::time::Timespec;

    use super::AtomicU32;

    loom::lazy_static! {
        /// All sleepers, on whatever word.
        static ref BUCKET: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    /// The kernel looks at the word under the lock that wakers take. No time passes.
    pub(in super::super) fn wait(
        word: &AtomicU32,
        _: Flags,
        value: u32,
        _: Option<&Timespec>,
    ) -> Result<()> {
        let (lock, sleepers) = &*BUCKET;
        let bucket = lock.lock().unwrap();
        if word.load(Ordering::SeqCst) != value {
            return Err(Errno::AGAIN);
        }
        drop(sleepers.wait(bucket).unwrap());
        Ok(())
    }

    /// To who sleeps on another word it is a wake-up for no reason.
    pub(in super::super) fn wake(_: &AtomicU32, _: Flags, _: u32) -> Result<usize> {
        let (lock, sleepers) = &*BUCKET;
        drop(lock.lock().unwrap());
        sleepers.notify_all();
        Ok(1)
    }
}

/// Models have no mappings.
pub(super) fn in_mapping(_: *mut u32) -> &'static AtomicU32 {
    unreachable!("a word of a mapping in a model")
}
