//! News from a server that no call asked for.

use std::collections::VecDeque;

use crate::limits::NOTICES_MAX;
use crate::payload::MessageBytes;

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

#[cfg(test)]
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
