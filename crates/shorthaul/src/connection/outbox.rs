//! Frames that wait to be written, and which part of them comes next.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

#[cfg(any(all(test, not(shorthaul_models)), fuzzing))]
use crate::limits::STAGING_BYTES;
use crate::limits::{OUTBOX_BYTES_MAX, OUTBOX_FRAMES_MAX, WRITE_STALL_TIMEOUT};
use crate::payload::{MemoryPool, PooledMemory};
use crate::ring::{Broken, Sender, Sent};
use crate::wire::Frame;

/// The queue of outgoing frames. `D` is what a descriptor is.
#[derive(Debug)]
pub(super) struct Outbox<D> {
    frames: VecDeque<OutFrame<D>>,
    /// All their heads, one behind the other, from `heads_start` on.
    heads: Vec<u8>,
    heads_start: usize,
    /// Bytes of the first frame that are written already.
    written: usize,
    /// When the peer last took something, while something waits.
    moved_at: Option<Instant>,
    /// Frames that were given to the socket.
    queued: u32,
    ring: Option<Sender>,
    /// The peer has made nonsense of its ring, which is not used any more.
    is_ring_broken: bool,
}

/// One frame on its way out.
#[derive(Debug)]
struct OutFrame<D> {
    /// Bytes of its head.
    head_bytes: usize,
    rest: Rest<D>,
}

/// What of a frame follows its head, or goes with it.
#[derive(Debug)]
pub(super) struct Rest<D> {
    /// Where the payload is. None of a frame that has one: in memory of the caller's, who hands it
    /// in whenever something is to be written.
    pub(super) payload: Option<PooledMemory>,
    /// How many bytes of the payload's memory are sent.
    pub(super) payload_bytes: usize,
    pub(super) descriptors: SmallVec<[D; 2]>,
}

/// What to write next: parts of one or more frames, and the descriptors that go with the first
/// byte.
#[derive(Debug)]
pub(crate) struct Transmit<'a, D> {
    pub(crate) parts: SmallVec<[IoSlice<'a>; PARTS_MAX]>,
    pub(crate) descriptors: &'a [D],
}

impl<D> Outbox<D> {
    pub(super) fn new() -> Self {
        Self {
            frames: VecDeque::new(),
            heads: Vec::new(),
            heads_start: 0,
            written: 0,
            moved_at: None,
            queued: 0,
            ring: None,
            is_ring_broken: false,
        }
    }

    /// From now on frames may go through a ring.
    pub(super) fn use_ring(&mut self, ring: Sender) {
        self.ring = Some(ring);
    }

    pub(super) fn ring(&self) -> Option<&Sender> {
        self.ring.as_ref()
    }

    pub(super) fn is_ring_broken(&self) -> bool {
        self.is_ring_broken
    }

    /// Sends a frame: through the ring if it fits and the peer looks there, else through the
    /// socket. Order is kept: a frame of the ring says how many of the socket's come before it, and
    /// the peer looks into the ring before it takes one out of the socket.
    pub(super) fn push(&mut self, frame: &Frame<'_>, rest: Rest<D>) {
        let start = self.heads.len();
        frame.encode_behind(&mut self.heads, rest.payload_bytes as u64);
        let is_head_alone = rest.descriptors.is_empty() && rest.payload_bytes == 0;
        if let Some(ring) = self.ring.as_mut().filter(|_| is_head_alone) {
            match ring.send(&self.heads[start..], self.queued) {
                Ok(Sent::Seen) => return self.heads.truncate(start),
                Ok(Sent::Unseen) => {
                    self.heads.truncate(start);
                    Frame::Bell.encode_behind(&mut self.heads, 0);
                }
                Ok(Sent::No) => {}
                Err(Broken) => (self.ring, self.is_ring_broken) = (None, true),
            }
        }
        self.queue(start, rest);
    }

    /// Queues the frame whose head was put at `start` for the socket.
    fn queue(&mut self, start: usize, rest: Rest<D>) {
        self.queued = self.queued.wrapping_add(1);
        self.frames.push_back(OutFrame { head_bytes: self.heads.len() - start, rest });
    }

    /// A frame with nothing behind it.
    pub(super) fn push_head(&mut self, frame: &Frame<'_>) {
        let (payload, descriptors) = (None, SmallVec::new());
        self.push(frame, Rest { payload, payload_bytes: 0, descriptors });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether so much waits that the peer should be given no reason for more.
    pub(super) fn is_crowded(&self) -> bool {
        let head_bytes = self.heads.len() - self.heads_start;
        self.frames.len() >= OUTBOX_FRAMES_MAX || head_bytes >= OUTBOX_BYTES_MAX
    }

    /// The next parts to write. `borrowed` is the payload that lies in memory of the caller's, if a
    /// frame has such a one: at most one frame has. Descriptors ride on the first byte of their own
    /// frame, so a frame that has any starts a write of its own.
    pub(super) fn transmit<'a>(&'a self, borrowed: &'a [u8]) -> Option<Transmit<'a, D>> {
        let first = self.frames.front()?;
        let descriptors = &first.rest.descriptors[..];
        let mut parts = SmallVec::new();
        let mut skip = self.written;
        let mut heads = &self.heads[self.heads_start..];
        for (index, frame) in self.frames.iter().enumerate() {
            if parts.len() + 2 > PARTS_MAX || (index > 0 && !frame.rest.descriptors.is_empty()) {
                break;
            }
            let (head, heads_behind) = heads.split_at(frame.head_bytes);
            heads = heads_behind;
            for part in [head, frame.rest.payload_part(borrowed)] {
                let skipped = skip.min(part.len());
                skip -= skipped;
                if skipped < part.len() {
                    parts.push(IoSlice::new(&part[skipped..]));
                }
            }
        }
        Some(Transmit { parts, descriptors })
    }

    /// Says that `bytes` bytes of the last transmit were written; its descriptors went with them.
    /// Returns the bytes of inline payload in frames that are now written whole.
    pub(super) fn sent(&mut self, bytes: usize, now: Instant) -> u64 {
        if let Some(first) = self.frames.front_mut()
            && bytes > 0
        {
            first.rest.descriptors.clear();
        }
        self.written += bytes;
        let mut payload_bytes = 0;
        while let Some(first) = self.frames.front()
            && self.written >= first.bytes()
        {
            self.written -= first.bytes();
            self.heads_start += first.head_bytes;
            payload_bytes += first.rest.payload_bytes as u64;
            self.frames.pop_front();
        }
        self.forget_heads();
        self.moved_at = (!self.frames.is_empty()).then_some(now);
        payload_bytes
    }

    /// Copies the payload that lies in memory of the caller's, if it is still needed: the caller
    /// wants it back.
    pub(super) fn own(&mut self, borrowed: &[u8], pool: &Arc<MemoryPool>) -> io::Result<()> {
        for frame in self.frames.iter_mut().filter(|frame| frame.rest.is_borrowed()) {
            let mut copy = pool.take(borrowed.len())?;
            copy.copy_from_slice(borrowed);
            frame.rest.payload = Some(copy);
        }
        Ok(())
    }

    /// Forgets all that waits; the descriptors come back. Of use only at the end.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = D> {
        (self.heads_start, self.written, self.moved_at) = (0, 0, None);
        self.heads = Vec::new();
        self.frames.drain(..).flat_map(|frame| frame.rest.descriptors)
    }

    /// Makes room where heads were that are written.
    fn forget_heads(&mut self) {
        if self.frames.is_empty() {
            self.heads_start = 0;
            self.heads.clear();
            self.heads.shrink_to(HEAD_BYTES_KEPT);
        } else if self.heads_start >= self.heads.len().max(HEAD_BYTES_KEPT) / 2 {
            self.heads.drain(..self.heads_start);
            self.heads_start = 0;
        }
    }

    /// Says that the peer takes nothing at the moment.
    pub(super) fn blocked(&mut self, now: Instant) {
        self.moved_at.get_or_insert(now);
    }

    /// What is true at any time if the sender heeds [`Self::is_crowded`]: what is refused while one
    /// read is looked at comes on top.
    #[cfg(any(all(test, not(shorthaul_models)), fuzzing))]
    pub(super) fn check(&self) {
        let frames = self.frames.len();
        assert!(frames <= OUTBOX_FRAMES_MAX + STAGING_BYTES / 64, "{frames} frames wait");
        let is_begun = self.frames.front().is_some_and(|first| self.written < first.bytes());
        assert!(is_begun || self.written == 0, "{} bytes of nothing are written", self.written);
        let head_bytes: usize = self.frames.iter().map(|frame| frame.head_bytes).sum();
        assert_eq!(self.heads.len() - self.heads_start, head_bytes);
        assert!(self.heads_start <= head_bytes.max(HEAD_BYTES_KEPT), "heads that are written stay");
    }

    /// When a peer that is owed bytes has taken none for too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.moved_at.map(|at| at + WRITE_STALL_TIMEOUT)
    }
}

impl<D> OutFrame<D> {
    fn bytes(&self) -> usize {
        self.head_bytes + self.rest.payload_bytes
    }
}

impl<D> Rest<D> {
    fn payload_part<'a>(&'a self, borrowed: &'a [u8]) -> &'a [u8] {
        let whole = self.payload.as_deref().unwrap_or(borrowed);
        &whole[..self.payload_bytes]
    }

    fn is_borrowed(&self) -> bool {
        self.payload.is_none() && self.payload_bytes > 0
    }
}

/// Parts of one write: eight frames' worth, far below the kernel's 1024.
const PARTS_MAX: usize = 16;
/// Memory for heads that a connection keeps while it is idle.
const HEAD_BYTES_KEPT: usize = 1024;
