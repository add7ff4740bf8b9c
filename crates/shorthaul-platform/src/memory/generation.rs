//! Whether this is still the process that made something, or a child that fork(2) has made of it.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::Advice;

use super::page_bytes;
use super::raw::RawMapping;

/// A number of this process, which no child that fork(2) makes of it has. Costs a load, where
/// asking for the process's id would cost a system call.
///
/// # References
/// madvise(2) `MADV_WIPEONFORK`
#[inline]
pub fn generation() -> u64 {
    match WIPED.get() {
        Some(Some(wiped)) => wiped.generation(),
        _ => without_page(),
    }
}

/// The page, once it was asked for; none on a kernel or in a sandbox without that advice.
static WIPED: OnceLock<Option<Wiped>> = OnceLock::new();

#[cold]
fn without_page() -> u64 {
    let wiped = WIPED.get_or_init(|| Wiped::new().ok());
    wiped.as_ref().map_or_else(|| u64::from(std::process::id()), Wiped::generation)
}

/// A page that is zero in each new child.
#[derive(Debug)]
struct Wiped(RawMapping);

impl Wiped {
    fn new() -> io::Result<Self> {
        let page = RawMapping::anonymous(page_bytes())?;
        if !page.advise(Advice::LinuxWipeOnFork) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self(page))
    }

    #[inline]
    fn generation(&self) -> u64 {
        match self.word().load(Ordering::Relaxed) {
            0 => self.begin(),
            generation => generation,
        }
    }

    /// The first question of a new process. Numbers only grow from parent to child, for a child has
    /// a copy of the last one.
    #[cold]
    fn begin(&self) -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let relaxed = Ordering::Relaxed;
        // Of two threads that ask at once, one has its number taken.
        self.word().compare_exchange(0, next, relaxed, relaxed).map_or_else(|first| first, |_| next)
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped readable and writable while `self` lives, starts at a page,
        // and is touched in no other way, but that the kernel zeroes it before a child runs.
        unsafe { AtomicU64::from_ptr(self.0.start().cast()) }
    }
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    #[test]
    fn it_stays_the_same_on_every_thread() {
        let here = generation();
        assert_ne!(here, 0);
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(generation)).collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == here));
    }

    #[test]
    fn the_page_can_be_had_here() {
        assert!(Wiped::new().unwrap().generation() > 0);
    }
}
