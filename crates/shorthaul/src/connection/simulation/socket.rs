//! One direction of a stream socket, with the kernel's way of carrying descriptors.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::tokens::Counted;
use crate::connection::{Arrival, Transmit};

/// What was written and not read: pieces as the kernel queues them.
#[derive(Debug)]
pub(super) struct Wire {
    pieces: VecDeque<Piece>,
    held_bytes: usize,
    pub(super) capacity_bytes: usize,
}

/// The bytes of one write, and the descriptors that a read of any of them brings.
#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    read: usize,
    descriptors: SmallVec<[Counted; 4]>,
}

impl Wire {
    pub(super) fn new(capacity_bytes: usize) -> Self {
        Self { pieces: VecDeque::new(), held_bytes: 0, capacity_bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Writes at most `bytes_max` bytes; none when it is full.
    pub(super) fn write(
        &mut self,
        transmit: &Transmit<'_, Counted>,
        bytes_max: usize,
    ) -> Option<usize> {
        let room = self.capacity_bytes.saturating_sub(self.held_bytes);
        let mut left = room.min(bytes_max.max(1));
        if left == 0 {
            return None;
        }
        let mut bytes = Vec::new();
        for part in &transmit.parts {
            let taken = left.min(part.len());
            bytes.extend_from_slice(&part[..taken]);
            left -= taken;
        }
        assert!(!bytes.is_empty(), "a transmit without bytes");
        let descriptors = transmit.descriptors.iter().map(Counted::duplicate).collect();
        Some(self.push(bytes, descriptors))
    }

    /// Writes bytes and descriptors as they are, whatever the room.
    pub(super) fn push(&mut self, bytes: Vec<u8>, descriptors: SmallVec<[Counted; 4]>) -> usize {
        let written = bytes.len();
        self.held_bytes += written;
        self.pieces.push_back(Piece { bytes, read: 0, descriptors });
        written
    }

    /// Reads at most `bytes_max` bytes. The descriptors of a piece come with the first byte that is
    /// read of it, and the read stops behind that piece. `is_lossy`: the reader has room for one
    /// descriptor less than comes.
    pub(super) fn read(
        &mut self,
        space: &mut [u8],
        bytes_max: usize,
        is_lossy: bool,
    ) -> (usize, Arrival<Counted>) {
        let room = space.len().min(bytes_max.max(1));
        let mut filled = 0;
        let mut arrived = SmallVec::new();
        while filled < room
            && arrived.is_empty()
            && let Some(piece) = self.pieces.front_mut()
        {
            let taken = (room - filled).min(piece.bytes.len() - piece.read);
            let source = &piece.bytes[piece.read..piece.read + taken];
            space[filled..filled + taken].copy_from_slice(source);
            filled += taken;
            piece.read += taken;
            arrived = std::mem::take(&mut piece.descriptors);
            if piece.read == piece.bytes.len() {
                self.pieces.pop_front();
            }
        }
        self.held_bytes -= filled;
        let arrival = match (arrived.is_empty(), is_lossy) {
            (true, _) => Arrival::None,
            (false, true) => {
                arrived.pop();
                Arrival::Lost(arrived)
            }
            (false, false) => Arrival::Some(arrived),
        };
        (filled, arrival)
    }
}
