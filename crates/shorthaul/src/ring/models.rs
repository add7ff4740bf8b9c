//! Every order in which a sender and a receiver that falls asleep can go.

use loom::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::sync::{Waker, thread};

/// Words alone, in which bytes are kept four by four.
struct Words(Vec<AtomicU32>);

impl Words {
    fn new() -> Self {
        Self((0..RINGS_BYTES / 4).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Memory for Words {
    type Part<'a> = &'a [AtomicU32];

    fn part(&self, start: usize) -> &[AtomicU32] {
        &self.0[start / 4..]
    }
}

impl Part for &[AtomicU32] {
    fn load(&self, at: usize) -> u32 {
        self[at / 4].load(Ordering::Acquire)
    }

    fn store(&self, at: usize, value: u32) {
        self[at / 4].store(value, Ordering::Release);
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        for (index, part) in bytes.chunks_exact(4).enumerate() {
            let word = u32::from_ne_bytes(part.try_into().unwrap());
            self[at / 4 + index].store(word, Ordering::Relaxed);
        }
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
            let word = self[at / 4 + index].load(Ordering::Relaxed);
            part.copy_from_slice(&word.to_ne_bytes());
        }
    }
}

/// A sender of `count` frames, which wakes by a bell as the socket does; the receiver looks once,
/// then sleeps, until it has them all. A wake-up that is lost would be a deadlock.
fn all_arrive(count: u32) {
    loom::model(move || {
        let memory = Arc::new(Words::new());
        let bell = crate::sync::Arc::new(Waker::default());
        let mut receiver = Receiver::new(Arc::clone(&memory), Direction::ToServer);
        receiver.begin_to_look();
        let mut sender = Sender::new(memory, Direction::ToServer);
        let socket = crate::sync::Arc::new(AtomicU32::new(0));
        let sends = {
            let (bell, socket) = (bell.clone(), socket.clone());
            thread::spawn(move || {
                for number in 1..=count {
                    match sender.send(&number.to_ne_bytes(), 0).unwrap() {
                        Sent::Seen => {}
                        Sent::Unseen => bell.wake().unwrap(),
                        // As the socket carries it.
                        Sent::No => {
                            socket.fetch_add(number, Ordering::AcqRel);
                            bell.wake().unwrap();
                        }
                    }
                }
            })
        };
        let wanted = count * (count + 1) / 2;
        let (mut sum, mut last) = (0, 0);
        loop {
            let mut frame = [0; FRAME_BYTES_MAX];
            while let Some(bytes) = receiver.take(0, &mut frame).unwrap() {
                assert_eq!(bytes, 4);
                let number = u32::from_ne_bytes(frame[..4].try_into().unwrap());
                assert!(number > last, "in order");
                last = number;
                sum += number;
            }
            if sum + socket.load(Ordering::Acquire) == wanted {
                break;
            }
            if receiver.fall_asleep(0).unwrap() {
                bell.poll();
            }
        }
        sends.join().unwrap();
    });
}

#[test]
fn one_frame_is_seen_or_wakes() {
    all_arrive(1);
}

#[test]
fn two_frames_are_seen_or_wake() {
    all_arrive(2);
}

#[test]
fn more_frames_than_there_is_room_for_arrive() {
    all_arrive(3);
}
