//! Shared memory with nothing around it: what the machine can do, so the floor of every table.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use memmap2::{MmapOptions, MmapRaw};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::thread::futex;

use super::{Caller, Habits, Peer, descriptors};
use crate::meeting::Meeting;
use crate::work::{EMPTY_ANSWER_BYTES, Load, REQUEST_BYTES, Request};

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    [Bell::Spin, Bell::Eventfd, Bell::Futex]
        .into_iter()
        .map(|bell| Box::new(bell) as Box<dyn Peer>)
        .collect()
}

/// How one side tells the other that it is its turn.
#[derive(Clone, Copy, Debug)]
enum Bell {
    Spin,
    Eventfd,
    Futex,
}

impl Peer for Bell {
    fn name(&self) -> &'static str {
        match self {
            Self::Spin => "bare spin",
            Self::Eventfd => "bare eventfd",
            Self::Futex => "bare futex",
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Self::Spin => "one shared mapping, prefaulted; both sides spin on a flag",
            Self::Eventfd => "one shared mapping, prefaulted; two blocking eventfds",
            Self::Futex => "one shared mapping, prefaulted; two futexes",
        }
    }

    fn habits(&self) -> Habits {
        Habits { spins: matches!(self, Self::Spin), ..Habits::default() }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        let memory = memfd_create("peers", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, (PAYLOAD_AT + meeting.bytes) as u64)?;
        let flags = EventfdFlags::CLOEXEC;
        let bells = [eventfd(0, flags)?, eventfd(0, flags)?];
        let mut shared = Shared::map(&memory, meeting.bytes, *self)?;
        meeting.ready()?;
        let sent = [memory.as_fd(), bells[0].as_fd(), bells[1].as_fd()];
        descriptors::send(&meeting.link, &[0], &sent)?;
        let [request_bell, answer_bell] = &bells;
        for turn in 1.. {
            shared.wait(REQUEST_FLAG_AT, turn, request_bell)?;
            let request = Request::decode(&shared.copy::<REQUEST_BYTES>(REQUEST_AT))?;
            if request.payload_bytes() > 0 {
                request.make(shared.payload());
            }
            shared.store(ANSWER_AT, &request.sequence().to_le_bytes());
            shared.ring(ANSWER_FLAG_AT, turn, answer_bell)?;
        }
        Ok(())
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        let [memory, request_bell, answer_bell] = descriptors::receive_exactly(&meeting.link)?;
        let shared = Shared::map(&memory, meeting.bytes, *self)?;
        Ok(Box::new(Client { shared, request_bell, answer_bell, turn: 0 }))
    }
}

struct Client {
    shared: Shared,
    request_bell: OwnedFd,
    answer_bell: OwnedFd,
    turn: u32,
}

impl Caller for Client {
    fn run(&mut self, load: &Load) -> Result<()> {
        while let Some(request) = load.next() {
            self.turn = self.turn.wrapping_add(1);
            self.shared.store(REQUEST_AT, &request.encode());
            self.shared.ring(REQUEST_FLAG_AT, self.turn, &self.request_bell)?;
            self.shared.wait(ANSWER_FLAG_AT, self.turn, &self.answer_bell)?;
            if request.payload_bytes() == 0 {
                request.check(&self.shared.copy::<EMPTY_ANSWER_BYTES>(ANSWER_AT))?;
            } else {
                request.check(self.shared.payload())?;
            }
        }
        Ok(())
    }
}

/// The mapping. Who has the turn has all of it but the flags.
struct Shared {
    mapping: MmapRaw,
    bytes: usize,
    bell: Bell,
}

impl Shared {
    fn map(memory: &OwnedFd, bytes: usize, bell: Bell) -> Result<Self> {
        let mut options = MmapOptions::new();
        let mapping = options.len(PAYLOAD_AT + bytes).populate().map_raw(memory)?;
        Ok(Self { mapping, bytes, bell })
    }

    fn flag(&self, at: usize) -> &AtomicU32 {
        let flag = self.mapping.as_mut_ptr().wrapping_add(at).cast();
        // SAFETY: it lies in the mapping's first page, aligned, and both sides take it for an
        // atomic alone.
        unsafe { AtomicU32::from_ptr(flag) }
    }

    /// Waits until the flag says that it is our turn.
    fn wait(&self, flag_at: usize, turn: u32, bell: &OwnedFd) -> Result<()> {
        let flag = self.flag(flag_at);
        match self.bell {
            Bell::Spin => {
                while flag.load(Ordering::Acquire) != turn {
                    std::hint::spin_loop();
                }
            }
            // Its read orders what was written before the other side's write.
            Bell::Eventfd => drop(rustix::io::read(bell, &mut [0; 8])?),
            Bell::Futex => loop {
                let seen = flag.load(Ordering::Acquire);
                if seen == turn {
                    break;
                }
                match futex::wait(flag, futex::Flags::empty(), seen, None) {
                    Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            },
        }
        Ok(())
    }

    /// Gives the turn to the other side.
    fn ring(&self, flag_at: usize, turn: u32, bell: &OwnedFd) -> Result<()> {
        let flag = self.flag(flag_at);
        match self.bell {
            Bell::Spin => flag.store(turn, Ordering::Release),
            Bell::Eventfd => drop(rustix::io::write(bell, &1_u64.to_ne_bytes())?),
            Bell::Futex => {
                flag.store(turn, Ordering::Release);
                futex::wake(flag, futex::Flags::empty(), 1)?;
            }
        }
        Ok(())
    }

    fn store(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= PAYLOAD_AT, "a message lies in the first page");
        let to = self.mapping.as_mut_ptr().wrapping_add(at);
        // SAFETY: it lies in the mapping, and it is our turn: the other side waits.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    fn copy<const BYTES: usize>(&self, at: usize) -> [u8; BYTES] {
        assert!(at + BYTES <= PAYLOAD_AT, "a message lies in the first page");
        let from = self.mapping.as_ptr().wrapping_add(at).cast();
        // SAFETY: it lies in the mapping, and it is our turn: the other side waits.
        unsafe { std::ptr::read_unaligned(from) }
    }

    fn payload(&mut self) -> &mut [u8] {
        let start = self.mapping.as_mut_ptr().wrapping_add(PAYLOAD_AT);
        // SAFETY: it lies in the mapping, and it is our turn: the other side waits until the
        // borrow, which ends before the bell is rung, is over.
        unsafe { std::slice::from_raw_parts_mut(start, self.bytes) }
    }
}

/// A flag and what it announces lie beside each other, those of the two sides on lines apart.
const REQUEST_FLAG_AT: usize = 0;
const REQUEST_AT: usize = 64;
const ANSWER_FLAG_AT: usize = 1024;
const ANSWER_AT: usize = ANSWER_FLAG_AT + 8;
const PAYLOAD_AT: usize = 4096;
