//! A one-way queue of frames in memory that both sides share: no system call while the receiver
//! looks at it.
//!
//! The cursors run freely, each has one writer, and each lies on lines of its own. Whatever the
//! other side writes is copied once, then checked, then used; a queue that makes no sense ends the
//! connection. Who sleeps says so in the queue and is woken through the socket, where the liveness
//! of the peer is seen too.
//!
//! An eventfd would be no bell for strangers: its open file is shared, so that a peer could fill
//! its counter and make it blocking, and who rings would sleep.

use std::sync::Arc;

use shorthaul_platform::memory::{SharedMapping, SharedWindow};

use crate::sync::fence;

/// Memory that rings lie in.
pub(crate) trait Memory {
    type Part<'a>: Part
    where
        Self: 'a;

    /// The part that a ring lies in, which starts at byte `start`.
    fn part(&self, start: usize) -> Self::Part<'_>;
}

/// Memory that one ring lies in.
pub(crate) trait Part {
    /// The word at byte `at`, with what was stored before it.
    fn load(&self, at: usize) -> u32;
    fn store(&self, at: usize, value: u32);
    fn copy_in(&self, at: usize, bytes: &[u8]);
    fn copy_out(&self, at: usize, bytes: &mut [u8]);
}

/// The end that frames go into.
#[derive(Debug)]
pub(crate) struct Sender<M = SharedMapping> {
    memory: Arc<M>,
    start: usize,
    produced: u32,
    /// As it was when it was last looked at.
    consumed: u32,
}

/// The end that frames come out of.
#[derive(Debug)]
pub(crate) struct Receiver<M = SharedMapping> {
    memory: Arc<M>,
    start: usize,
    consumed: u32,
    /// What this side has told the sender: whether it looks, and its CPU and 1.
    looks: bool,
    cpu: u32,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The receiver will see it.
    Seen,
    /// It is in the ring, but the receiver went to sleep meanwhile: wake it.
    Unseen,
    /// It is not in the ring: there is no room, or the receiver sleeps anyway.
    No,
}

/// The other side has written what no ring can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its ring holds what no ring can hold")]
pub(crate) struct Broken;

/// Which of the two rings of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

impl Direction {
    fn start(self) -> usize {
        if let Self::ToServer = self { 0 } else { ONE_WAY_BYTES }
    }
}

impl<M: Memory> Sender<M> {
    /// The end of a ring that nothing has gone through.
    pub(crate) fn new(memory: Arc<M>, direction: Direction) -> Self {
        Self { memory, start: direction.start(), produced: 0, consumed: 0 }
    }

    /// Adds a frame, to be taken when the receiver has taken `after` frames out of the socket. Of a
    /// receiver that sleeps it is not worth it: the frame can wake it.
    pub(crate) fn send(&mut self, frame: &[u8], after: u32) -> Result<Sent, Broken> {
        let bytes = record_bytes(frame.len());
        let ring = self.memory.part(self.start);
        let is_looked_into = frame.len() <= FRAME_BYTES_MAX && ring.load(LOOKS) != 0;
        if !is_looked_into || !has_room(&ring, self.produced, &mut self.consumed, bytes)? {
            return Ok(Sent::No);
        }
        let at = self.produced as usize % DATA_BYTES;
        ring.store(DATA + at, frame.len() as u32);
        ring.store(DATA + at + 4, after);
        let first = frame.len().min(DATA_BYTES - at - RECORD_HEAD_BYTES);
        ring.copy_in(DATA + at + RECORD_HEAD_BYTES, &frame[..first]);
        if first < frame.len() {
            ring.copy_in(DATA, &frame[first..]);
        }
        self.produced = self.produced.wrapping_add(bytes);
        ring.store(PRODUCED, self.produced);
        // Against the one in `Receiver::fall_asleep`: one of the two sees what the other wrote.
        fence();
        Ok(if ring.load(LOOKS) == 0 { Sent::Unseen } else { Sent::Seen })
    }

    /// The CPU that the receiver was last on, if it has said so.
    pub(crate) fn receivers_cpu(&self) -> Option<u32> {
        self.memory.part(self.start).load(CPU).checked_sub(1)
    }
}

/// Whether so many bytes more fit into a ring. `consumed` is what was last seen of that cursor.
fn has_room(
    ring: &impl Part,
    produced: u32,
    consumed: &mut u32,
    bytes: u32,
) -> Result<bool, Broken> {
    let fits = |consumed: u32| {
        let used = produced.wrapping_sub(consumed);
        let free = (DATA_BYTES as u32).checked_sub(used).ok_or(Broken)?;
        Ok(bytes <= free)
    };
    if fits(*consumed)? {
        return Ok(true);
    }
    let now = ring.load(CONSUMED);
    let has_room = fits(now)?;
    *consumed = now;
    Ok(has_room)
}

impl<M: Memory> Receiver<M> {
    /// The end of a ring that nothing has gone through.
    pub(crate) fn new(memory: Arc<M>, direction: Direction) -> Self {
        Self { memory, start: direction.start(), consumed: 0, looks: false, cpu: 0 }
    }

    /// Whether there may be a frame.
    pub(crate) fn has_some(&self) -> bool {
        self.memory.part(self.start).load(PRODUCED) != self.consumed
    }

    /// The same question, to be asked again and again.
    pub(crate) fn watch(&self) -> impl Fn() -> bool {
        let (ring, consumed) = (self.memory.part(self.start), self.consumed);
        move || ring.load(PRODUCED) != consumed
    }

    /// Takes the next frame into `frame`, if there is one whose turn it is: of what came through
    /// the socket, `taken` frames have been taken. Returns its length.
    pub(crate) fn take(&mut self, taken: u32, frame: &mut [u8]) -> Result<Option<usize>, Broken> {
        let ring = self.memory.part(self.start);
        let Some((bytes, at)) = next(&ring, self.consumed, taken)? else {
            return Ok(None);
        };
        let first = bytes.min(DATA_BYTES - at - RECORD_HEAD_BYTES);
        ring.copy_out(DATA + at + RECORD_HEAD_BYTES, &mut frame[..first]);
        if first < bytes {
            ring.copy_out(DATA, &mut frame[first..bytes]);
        }
        self.consumed = self.consumed.wrapping_add(record_bytes(bytes));
        ring.store(CONSUMED, self.consumed);
        Ok(Some(bytes))
    }

    /// Says which CPU this side is on.
    pub(crate) fn show_cpu(&mut self, cpu: u32) {
        let shown = cpu.wrapping_add(1);
        if self.cpu != shown {
            self.cpu = shown;
            self.memory.part(self.start).store(CPU, shown);
        }
    }

    /// Whether this side has said that it looks.
    pub(crate) fn looks(&self) -> bool {
        self.looks
    }

    /// Says that this side looks from now on.
    pub(crate) fn begin_to_look(&mut self) {
        if !self.looks {
            self.looks = true;
            self.memory.part(self.start).store(LOOKS, 1);
        }
    }

    /// Says that this side looks no more, unless there is something to take: then it goes on, and
    /// the answer is no.
    pub(crate) fn fall_asleep(&mut self, taken: u32) -> Result<bool, Broken> {
        if !self.looks {
            return Ok(true);
        }
        let ring = self.memory.part(self.start);
        ring.store(LOOKS, 0);
        fence();
        // What waits for a frame of the socket's is woken for by that.
        self.looks = next(&ring, self.consumed, taken)?.is_some();
        if self.looks {
            ring.store(LOOKS, 1);
        }
        Ok(!self.looks)
    }
}

/// How long the next frame is and where it starts, if it is its turn.
fn next(ring: &impl Part, consumed: u32, taken: u32) -> Result<Option<(usize, usize)>, Broken> {
    let used = ring.load(PRODUCED).wrapping_sub(consumed);
    if used == 0 {
        return Ok(None);
    }
    let at = consumed as usize % DATA_BYTES;
    let bytes = ring.load(DATA + at) as usize;
    let after = ring.load(DATA + at + 4);
    let fits = bytes <= FRAME_BYTES_MAX && record_bytes(bytes) <= used;
    if !fits || used > DATA_BYTES as u32 || !used.is_multiple_of(RECORD_ALIGNMENT) {
        return Err(Broken);
    }
    let is_its_turn = after.wrapping_sub(taken).cast_signed() <= 0;
    Ok(is_its_turn.then_some((bytes, at)))
}

impl Memory for SharedMapping {
    type Part<'a> = SharedWindow<'a>;

    #[inline]
    fn part(&self, start: usize) -> SharedWindow<'_> {
        self.window(start..start + ONE_WAY_BYTES)
    }
}

impl Part for SharedWindow<'_> {
    #[inline]
    fn load(&self, at: usize) -> u32 {
        self.word(at).load()
    }

    #[inline]
    fn store(&self, at: usize, value: u32) {
        self.word(at).store(value);
    }

    #[inline]
    fn copy_in(&self, at: usize, bytes: &[u8]) {
        self.copy_in(at, bytes);
    }

    #[inline]
    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        self.copy_out(at, bytes);
    }
}

fn record_bytes(frame_bytes: usize) -> u32 {
    ((frame_bytes + RECORD_HEAD_BYTES) as u32).next_multiple_of(RECORD_ALIGNMENT)
}

/// Bytes of the memory file that both rings of a connection lie in.
pub(crate) const RINGS_BYTES: usize = 2 * ONE_WAY_BYTES;
/// Longer frames go through the socket.
pub(crate) const FRAME_BYTES_MAX: usize = 4096;

/// Where in a ring its words lie: lines of their own, and two to each, for CPUs fetch in pairs.
const PRODUCED: usize = 0;
const CONSUMED: usize = 128;
/// 1 while the receiver looks.
const LOOKS: usize = 256;
/// The receiver's CPU and 1.
const CPU: usize = 260;
const DATA: usize = 512;
const ONE_WAY_BYTES: usize = DATA + DATA_BYTES;
#[cfg(not(shorthaul_models))]
const DATA_BYTES: usize = 32 << 10;
/// Small enough to be full in a model.
#[cfg(shorthaul_models)]
const DATA_BYTES: usize = 128;
/// Before each frame: its length, and how many frames of the socket's come first.
const RECORD_HEAD_BYTES: usize = 8;
/// A line, so that writing one record disturbs nobody who reads another.
const RECORD_ALIGNMENT: u32 = 64;

#[cfg(all(test, shorthaul_models))]
mod models;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use shorthaul_platform::memory::Memfd;

    use super::*;

    /// Both ends of a ring whose receiver looks, and its memory.
    fn ring() -> (Sender, Receiver, Arc<SharedMapping>) {
        let memory = Arc::new(Memfd::create("test", RINGS_BYTES).unwrap().map().unwrap());
        let sender = Sender::new(Arc::clone(&memory), Direction::ToClient);
        let mut receiver = Receiver::new(Arc::clone(&memory), Direction::ToClient);
        receiver.show_cpu(3);
        receiver.begin_to_look();
        (sender, receiver, memory)
    }

    fn take(receiver: &mut Receiver, taken: u32) -> Option<Vec<u8>> {
        let mut frame = [0; FRAME_BYTES_MAX];
        let bytes = receiver.take(taken, &mut frame).unwrap()?;
        Some(frame[..bytes].to_vec())
    }

    fn word(word: usize) -> usize {
        ONE_WAY_BYTES + word
    }

    #[test]
    fn frames_of_all_sizes_come_out_as_they_went_in() {
        let (mut sender, mut receiver, _) = ring();
        for turn in 0..5000_usize {
            let frame: Vec<u8> = (0..turn * 37 % 4097).map(|at| (at + turn) as u8).collect();
            assert_eq!(sender.send(&frame, 0), Ok(Sent::Seen));
            assert!(receiver.has_some());
            assert_eq!(take(&mut receiver, 0), Some(frame));
            assert!(!receiver.has_some());
        }
    }

    #[test]
    fn a_full_ring_takes_no_more_until_something_is_taken() {
        let (mut sender, mut receiver, _) = ring();
        let mut sent = 0;
        while sender.send(&[sent; 1000], 0) == Ok(Sent::Seen) {
            sent += 1;
        }
        assert_eq!(usize::from(sent), DATA_BYTES / 1024);
        assert_eq!(take(&mut receiver, 0), Some(vec![0; 1000]));
        assert_eq!(sender.send(&[sent; 1000], 0), Ok(Sent::Seen));
        assert_eq!(sender.send(&[0; FRAME_BYTES_MAX + 1], 0), Ok(Sent::No));
    }

    #[test]
    fn a_frame_waits_for_those_of_the_socket_that_come_before_it() {
        let (mut sender, mut receiver, _) = ring();
        for (after, taken) in [(5, 4), (1, u32::MAX), (u32::MAX, u32::MAX - 1)] {
            sender.send(b"frame", after).unwrap();
            assert_eq!(take(&mut receiver, taken), None);
            assert!(receiver.fall_asleep(taken).unwrap(), "the socket wakes it");
            receiver.begin_to_look();
            assert_eq!(take(&mut receiver, taken.wrapping_add(2)), Some(b"frame".to_vec()));
        }
    }

    #[test]
    fn who_sleeps_is_sent_nothing_and_who_has_something_does_not_sleep() {
        let (mut sender, mut receiver, memory) = ring();
        assert_eq!(sender.receivers_cpu(), Some(3));
        assert_eq!(sender.send(b"seen", 0), Ok(Sent::Seen));
        assert_eq!(receiver.fall_asleep(0), Ok(false));
        assert_eq!(take(&mut receiver, 0), Some(b"seen".to_vec()));
        assert_eq!(receiver.fall_asleep(0), Ok(true));
        assert_eq!(sender.send(b"not seen", 0), Ok(Sent::No));
        assert!(!receiver.has_some());
        drop(memory);
    }

    #[test]
    fn what_no_ring_can_hold_is_noticed() {
        // Whatever a hostile sender writes: used bytes, then the length of the frame.
        for (used, bytes) in [
            (DATA_BYTES as u32 + 64, 8),
            (u32::MAX, 8),
            (63, 8),
            (64, 57),
            (64, FRAME_BYTES_MAX as u32 + 1),
            (64, u32::MAX),
            (0x8000_0000, 8),
        ] {
            let (_, mut receiver, memory) = ring();
            memory.word(word(PRODUCED)).store(used);
            memory.word(word(DATA)).store(bytes);
            let mut frame = [0; FRAME_BYTES_MAX];
            assert_eq!(receiver.take(0, &mut frame), Err(Broken), "{used} {bytes}");
            assert_eq!(receiver.fall_asleep(0), Err(Broken), "{used} {bytes}");
        }
        // And a hostile receiver: it can't have taken what was not sent.
        let (mut sender, _receiver, memory) = ring();
        while sender.send(&[0; 1000], 0) == Ok(Sent::Seen) {}
        memory.word(word(CONSUMED)).store(sender.produced.wrapping_add(64));
        assert_eq!(sender.send(&[0; 1000], 0), Err(Broken));
    }
}
