//! The way from any thread to a reactor: a queue, and a bell that is rung only for a sleeper.

use std::fmt;
use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use mio::{Registry, Token};

use crate::limits::INBOX_MAX;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Waker};

/// Commands for one reactor.
///
/// Whether the reactor sleeps is kept under the same lock as the queue, so no wake-up can be lost:
/// it goes to sleep only with the queue seen empty, and whoever fills it next sees it asleep.
pub(crate) struct Inbox<C> {
    state: Mutex<State<C>>,
    /// Whether a command waits: written under the lock, and read without it by who only looks.
    has_some: AtomicBool,
    bell: Waker,
}

struct State<C> {
    commands: Vec<C>,
    is_asleep: bool,
    is_closed: bool,
}

impl<C> Inbox<C> {
    /// An inbox whose bell is an event with `token`.
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let state = State { commands: Vec::new(), is_asleep: false, is_closed: false };
        let (state, has_some) = (Mutex::new(state), AtomicBool::new(false));
        Ok(Self { state, has_some, bell: Waker::new(registry, token)? })
    }

    /// Adds a command of a kind whose number is bounded elsewhere; gives it back when the reactor
    /// has ended.
    pub(crate) fn push(&self, command: C) -> Result<(), C> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(command);
        }
        state.commands.push(command);
        self.ring(state);
        Ok(())
    }

    /// Adds a command unless too many wait; false if it was not added.
    pub(crate) fn offer(&self, command: C) -> bool {
        let mut state = self.lock();
        let has_room = state.commands.len() < INBOX_MAX && !state.is_closed;
        if has_room {
            state.commands.push(command);
            self.ring(state);
        }
        has_room
    }

    /// Moves all commands into `taken`, which is empty; its memory is used for the next ones.
    pub(crate) fn take(&self, taken: &mut Vec<C>) {
        debug_assert!(taken.is_empty());
        let mut state = self.lock();
        std::mem::swap(&mut state.commands, taken);
        self.has_some.store(false, Ordering::Relaxed);
    }

    /// Whether a command waits, as far as is seen yet. Cheap: to be asked again and again, by who
    /// asks [`Inbox::fall_asleep`] before it sleeps.
    pub(crate) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Relaxed)
    }

    /// Takes no more commands; returns those that nobody will obey.
    pub(crate) fn close(&self) -> Vec<C> {
        let mut state = self.lock();
        state.is_closed = true;
        std::mem::take(&mut state.commands)
    }

    /// Goes to sleep if nothing waits; false if something does.
    pub(crate) fn fall_asleep(&self) -> bool {
        let mut state = self.lock();
        state.is_asleep = state.commands.is_empty();
        state.is_asleep
    }

    /// No bell needs to be rung from now on.
    pub(crate) fn wake_up(&self) {
        self.lock().is_asleep = false;
    }

    /// Says, of a command that was just added, that it is there.
    fn ring(&self, mut state: MutexGuard<'_, State<C>>) {
        self.has_some.store(true, Ordering::Relaxed);
        if std::mem::take(&mut state.is_asleep) {
            drop(state);
            // An eventfd write fails only when its counter is full, which is as good as rung.
            self.bell.wake().ok();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> fmt::Debug for Inbox<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

#[cfg(all(test, shorthaul_models))]
mod models;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use std::thread;
    use std::time::Duration;

    use mio::{Events, Poll};

    use super::*;

    fn inbox<C>() -> (Poll, Inbox<C>) {
        let poll = Poll::new().unwrap();
        let inbox = Inbox::new(poll.registry(), Token(0)).unwrap();
        (poll, inbox)
    }

    /// Takes all that comes as a reactor does, and falls asleep whenever it can.
    fn take_all(mut poll: Poll, inbox: &Inbox<u64>, wanted: usize) -> Vec<u64> {
        let (mut events, mut taken) = (Events::with_capacity(4), Vec::new());
        let mut all = Vec::new();
        while all.len() < wanted {
            inbox.take(&mut taken);
            all.append(&mut taken);
            if all.len() < wanted && inbox.fall_asleep() {
                poll.poll(&mut events, Some(Duration::from_secs(5))).unwrap();
                inbox.wake_up();
                assert!(!events.is_empty(), "a wake-up was lost");
            }
        }
        all
    }

    #[test]
    fn no_wake_up_is_lost() {
        let (poll, inbox) = inbox();
        thread::scope(|scope| {
            for pusher in 0..2 {
                let inbox = &inbox;
                scope.spawn(move || {
                    for number in 0..ITEMS / 2 {
                        inbox.push(number * 2 + pusher).unwrap();
                        // At times long enough for the other side to fall asleep.
                        (0..number * 7 % 256).for_each(|_| std::hint::spin_loop());
                    }
                });
            }
            let mut all = take_all(poll, &inbox, ITEMS as usize);
            for pusher in 0..2 {
                let from_one = all.iter().filter(|&&number| number % 2 == pusher);
                assert!(from_one.is_sorted(), "what one pushes stays in order");
            }
            all.sort_unstable();
            assert!(all.into_iter().eq(0..ITEMS), "lost or doubled");
        });
    }

    #[test]
    fn a_full_inbox_refuses_offers_and_a_closed_one_everything() {
        let (_poll, inbox) = inbox();
        assert!((0..INBOX_MAX).all(|number| inbox.offer(number)));
        assert!(!inbox.offer(0));
        inbox.push(1).unwrap();
        assert_eq!(inbox.close().len(), INBOX_MAX + 1);
        assert_eq!(inbox.push(7), Err(7));
        assert!(!inbox.offer(7));
    }

    #[test]
    fn nobody_sleeps_while_something_waits() {
        let (_poll, inbox) = inbox();
        assert!(inbox.fall_asleep());
        inbox.wake_up();
        inbox.push(1).unwrap();
        assert!(!inbox.fall_asleep());
    }

    const ITEMS: u64 = 100_000;
}
