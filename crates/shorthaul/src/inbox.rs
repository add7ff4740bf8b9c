//! The way from any thread to a reactor: a queue, and a bell that is rung only for a sleeper.

use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mio::{Registry, Token, Waker};

use crate::limits::INBOX_MAX;

/// Commands for one reactor.
///
/// Whether the reactor sleeps is kept under the same lock as the queue, so no wake-up can be lost:
/// it goes to sleep only with the queue seen empty, and whoever fills it next sees it asleep.
pub(crate) struct Inbox<C> {
    state: Mutex<State<C>>,
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
        let state = State {
            commands: Vec::new(),
            is_asleep: false,
            is_closed: false,
        };
        Ok(Self {
            state: Mutex::new(state),
            bell: Waker::new(registry, token)?,
        })
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
        std::mem::swap(&mut self.lock().commands, taken);
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

    fn ring(&self, mut state: MutexGuard<'_, State<C>>) {
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
