//! Locks, and signals that can be waited for until some time: loom's know of none.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, LockResult};
use std::time::{Duration, Instant};

use loom::sync::{Condvar as Bell, Mutex as Raw, MutexGuard as RawGuard};

use super::{later, now};

/// A lock whose guards know it.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(Raw<T>);

#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    lock: &'a Mutex<T>,
    inner: RawGuard<'a, T>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Raw::new(value))
    }

    #[track_caller]
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        Ok(MutexGuard { lock: self, inner: self.0.lock().unwrap() })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A signal. Who waits is woken by a notification or by the time, never by both, and never for
/// nothing: what one takes along is missing to another.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    line: Raw<Line>,
}

#[derive(Debug, Default)]
struct Line {
    /// Who waits longest is first.
    sleepers: VecDeque<Arc<Sleeper>>,
    /// Whether whatever time is waited for is over.
    is_late_for_all: bool,
}

#[derive(Debug)]
struct Sleeper {
    by: Option<Instant>,
    /// Why it was woken, once it was.
    end: std::sync::Mutex<Option<WaitTimeoutResult>>,
    bell: Bell,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub(crate) fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    #[track_caller]
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        Ok(self.sleep(guard, None).0)
    }

    #[track_caller]
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        time: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        Ok(self.sleep(guard, Some(time)))
    }

    #[track_caller]
    fn sleep<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        time: Option<Duration>,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        let lock = guard.lock;
        let mut line = self.line.lock().unwrap();
        let is_late = time.is_some() && line.is_late_for_all;
        // Threads that the model leaves behind have no clock any more.
        let by = time.filter(|_| !is_late).map(|time| now() + time);
        let end = is_late.then_some(WaitTimeoutResult(true));
        let me = Arc::new(Sleeper { by, end: end.into(), bell: Bell::new() });
        if !is_late {
            line.sleepers.push_back(Arc::clone(&me));
        }
        // Nobody is notified between this and the wait: that takes the line.
        drop(guard);
        let end = loop {
            if let Some(end) = *me.end.lock().unwrap() {
                break end;
            }
            line = me.bell.wait(line).unwrap();
        };
        drop(line);
        (lock.lock().unwrap(), end)
    }

    #[track_caller]
    pub(crate) fn notify_one(&self) {
        if let Some(first) = self.line.lock().unwrap().sleepers.pop_front() {
            first.wake(false);
        }
    }

    #[track_caller]
    pub(crate) fn notify_all(&self) {
        let mut line = self.line.lock().unwrap();
        line.sleepers.drain(..).for_each(|sleeper| sleeper.wake(false));
    }

    /// Lets time pass, and ends the waits that are over by then. `lock` is what they were begun
    /// under: who has looked at the clock under it has fallen asleep too, or looks again.
    pub(crate) fn pass<T>(&self, time: Duration, lock: &Mutex<T>) {
        let held = lock.lock().unwrap();
        let now = later(time);
        self.wake_late(|by| by <= now);
        drop(held);
    }

    /// From now on no wait that has an end is worth while.
    pub(crate) fn pass_for_ever(&self) {
        self.line.lock().unwrap().is_late_for_all = true;
        self.wake_late(|_| true);
    }

    fn wake_late(&self, is_over: impl Fn(Instant) -> bool) {
        let mut line = self.line.lock().unwrap();
        line.sleepers.retain(|sleeper| {
            let is_late = sleeper.by.is_some_and(&is_over);
            if is_late {
                sleeper.wake(true);
            }
            !is_late
        });
    }
}

impl Sleeper {
    fn wake(&self, is_late: bool) {
        *self.end.lock().unwrap() = Some(WaitTimeoutResult(is_late));
        self.bell.notify_one();
    }
}
