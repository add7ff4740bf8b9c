//! How payloads travel, why, and how many did.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::LaneNumber;

/// How a payload travelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lane {
    /// There was none.
    None,
    /// Behind the frame on the socket.
    Inline,
    /// The server wrote it into the caller's buffer with pwrite(2).
    FillWrite,
    /// The server stored it into the caller's buffer through a mapping.
    FillMap,
    /// In a memory file of the sender's that nobody can change any more.
    Sealed,
    /// The server copied it out of the caller's buffer (uploads).
    CopyOut,
    /// The server relayed it into a descriptor of the caller's.
    Descriptor,
}

impl Lane {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::Inline,
        Self::FillWrite,
        Self::FillMap,
        Self::Sealed,
        Self::CopyOut,
        Self::Descriptor,
    ];
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Inline => "inline",
            Self::FillWrite => "fill(write)",
            Self::FillMap => "fill(map)",
            Self::Sealed => "sealed",
            Self::CopyOut => "copy-out",
            Self::Descriptor => "descriptor",
        })
    }
}

impl From<LaneNumber> for Lane {
    fn from(number: LaneNumber) -> Self {
        match number {
            LaneNumber::None => Self::None,
            LaneNumber::Inline => Self::Inline,
            LaneNumber::FillWrite => Self::FillWrite,
            LaneNumber::FillMap => Self::FillMap,
            LaneNumber::Sealed => Self::Sealed,
            LaneNumber::Descriptor => Self::Descriptor,
        }
    }
}

/// Why a payload took the lane that it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The call asked for this lane, or there was no payload.
    Asked,
    /// *auto*: it is so small that copying it costs less than anything else.
    Small,
    /// *auto*: a buffer kept from earlier calls has room for it.
    BufferFits,
    /// *auto*: nobody knew yet how large it is, so that no buffer was made for it.
    SizeUnknown,
    /// *auto*: it is larger than the buffer that earlier calls made one expect.
    BufferTooSmall,
    /// *auto*: it is larger than buffers that are kept.
    TooLargeToKeep,
    /// *auto*: the other side can't do better, or has no room for a buffer.
    PeerCannot,
    /// *auto*: this side can't have a buffer: there is no memory, or memory files are refused.
    NoMemory,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Asked => "the call asked for it",
            Self::Small => "small enough to be copied",
            Self::BufferFits => "a kept buffer has room for it",
            Self::SizeUnknown => "its size was not known yet",
            Self::BufferTooSmall => "larger than expected from earlier calls",
            Self::TooLargeToKeep => "larger than buffers that are kept",
            Self::PeerCannot => "the other side can't do better",
            Self::NoMemory => "this side has no memory for a buffer",
        })
    }
}

/// Calls and payload bytes that took one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCount {
    /// Calls.
    pub calls: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

/// What took which lane so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    answers: [LaneCount; Lane::ALL.len()],
    uploads: [LaneCount; Lane::ALL.len()],
}

impl LaneCounts {
    /// Payloads of answers.
    pub fn answers(&self, lane: Lane) -> LaneCount {
        self.answers[lane as usize]
    }

    /// Payloads of requests.
    pub fn uploads(&self, lane: Lane) -> LaneCount {
        self.uploads[lane as usize]
    }
}

/// Counts that many threads add to.
#[derive(Debug, Default)]
pub(crate) struct LaneCounters {
    answers: [Counters; Lane::ALL.len()],
    uploads: [Counters; Lane::ALL.len()],
}

#[derive(Debug, Default)]
struct Counters {
    calls: AtomicU64,
    bytes: AtomicU64,
}

impl LaneCounters {
    pub(crate) fn count_answer(&self, lane: Lane, bytes: u64) {
        self.answers[lane as usize].add(bytes);
    }

    pub(crate) fn count_upload(&self, lane: Lane, bytes: u64) {
        self.uploads[lane as usize].add(bytes);
    }

    pub(crate) fn get(&self) -> LaneCounts {
        LaneCounts {
            answers: std::array::from_fn(|lane| self.answers[lane].get()),
            uploads: std::array::from_fn(|lane| self.uploads[lane].get()),
        }
    }
}

impl Counters {
    fn add(&self, bytes: u64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn get(&self) -> LaneCount {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LaneCount { calls: read(&self.calls), bytes: read(&self.bytes) }
    }
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_counted_apart() {
        let counters = LaneCounters::default();
        for lane in Lane::ALL {
            counters.count_answer(lane, 10 + lane as u64);
            counters.count_upload(lane, 1);
        }
        let counts = counters.get();
        for lane in Lane::ALL {
            assert_eq!(counts.answers(lane), LaneCount { calls: 1, bytes: 10 + lane as u64 });
            assert_eq!(counts.uploads(lane).bytes, 1);
        }
    }
}
