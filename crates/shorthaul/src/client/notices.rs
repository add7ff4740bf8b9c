//! News from a server that no call asked for.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Instant;

use crate::limits::NOTICES_MAX;
use crate::payload::MessageBytes;
use crate::sync::{Condvar, Mutex, MutexGuard, now};

/// A notice from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What it is about, by the service's own numbering.
    pub topic: u32,
    /// What it says.
    pub data: MessageBytes,
    /// How many older ones were pushed out before anybody looked at them.
    pub lost_before: u64,
}

/// The notices that nobody has looked at yet; the oldest go when there are too many.
#[derive(Debug, Default)]
pub(super) struct Notices {
    waiting: VecDeque<Notice>,
    lost: u64,
}

/// Notices that any thread may wait for.
#[derive(Debug, Default)]
pub(super) struct NoticeBoard {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    notices: Notices,
    /// No more will come.
    is_closed: bool,
}

impl Notices {
    pub(super) fn push(&mut self, topic: u32, data: MessageBytes) {
        if self.waiting.len() >= NOTICES_MAX {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(Notice { topic, data, lost_before: 0 });
    }

    pub(super) fn pop(&mut self) -> Option<Notice> {
        let mut notice = self.waiting.pop_front()?;
        notice.lost_before = std::mem::take(&mut self.lost);
        Some(notice)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl NoticeBoard {
    pub(super) fn push(&self, topic: u32, data: MessageBytes) {
        self.lock().notices.push(topic, data);
        self.changed.notify_one();
    }

    /// Lets all go who wait.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits until `by` for a notice. None if none came, or every one was taken and no more will
    /// come.
    pub(super) fn wait(&self, by: Instant) -> Option<Notice> {
        let mut state = self.lock();
        while state.notices.is_empty() && !state.is_closed {
            let left = by.saturating_duration_since(now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.notices.pop()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, shorthaul_models))]
mod models;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_pushed_out_and_counted() {
        let mut notices = Notices::default();
        for topic in 0..NOTICES_MAX as u32 + 3 {
            notices.push(topic, MessageBytes::new());
        }
        let first = notices.pop().unwrap();
        assert_eq!((first.topic, first.lost_before), (3, 3));
        assert_eq!(notices.pop().unwrap().lost_before, 0);
    }
}
