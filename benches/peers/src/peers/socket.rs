//! A Unix socket without anything around it.

use std::io::{Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;

use anyhow::Result;
use memmap2::MmapMut;
use rustix::net::sockopt;

use super::window::InOrder;
use super::{Caller, Habits, Peer};
use crate::meeting::Meeting;
use crate::work::{Load, REQUEST_BYTES, Request};

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    vec![Box::new(Socket { is_tuned: false }), Box::new(Socket { is_tuned: true })]
}

#[derive(Clone, Copy, Debug)]
struct Socket {
    is_tuned: bool,
}

impl Peer for Socket {
    fn name(&self) -> &'static str {
        if self.is_tuned { "unix socket tuned" } else { "unix socket" }
    }

    fn about(&self) -> &'static str {
        if self.is_tuned {
            "socketpair, socket buffers of 8 MiB, page-aligned buffers kept on both sides"
        } else {
            "socketpair with its default buffers, a Vec kept on both sides"
        }
    }

    fn habits(&self) -> Habits {
        Habits { pipelines: true, ..Habits::default() }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        self.tune(&meeting.link)?;
        meeting.ready()?;
        answer(&meeting.link, &meeting.link, Kept::new(meeting.bytes, self.is_tuned)?)
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        self.tune(&meeting.link)?;
        let kept = Kept::new(meeting.bytes, self.is_tuned)?;
        let (requests, answers) = (meeting.link.try_clone()?, meeting.link.try_clone()?);
        Ok(Box::new(Stream { requests, answers, kept }))
    }
}

impl Socket {
    fn tune(self, link: &UnixStream) -> Result<()> {
        if self.is_tuned {
            // Past what the administrator has set if we may, else up to it.
            if sockopt::set_socket_send_buffer_size_force(link, SOCKET_BYTES).is_err() {
                sockopt::set_socket_send_buffer_size(link, SOCKET_BYTES)?;
            }
            sockopt::set_socket_recv_buffer_size(link, SOCKET_BYTES)?;
        }
        Ok(())
    }
}

/// Answers requests in order, as sockets and pipes do.
pub(super) fn answer(
    mut requests: impl Read,
    mut answers: impl Write,
    mut kept: Kept,
) -> Result<()> {
    let mut encoded = [0; REQUEST_BYTES];
    loop {
        requests.read_exact(&mut encoded)?;
        let request = Request::decode(&encoded)?;
        let made = &mut kept[..request.answer_bytes()];
        request.make(made);
        answers.write_all(made)?;
    }
}

/// A client's two ends, and where it receives.
pub(super) struct Stream<W, R> {
    pub(super) requests: W,
    pub(super) answers: R,
    pub(super) kept: Kept,
}

impl<W: Write, R: Read> InOrder for Stream<W, R> {
    fn send(&mut self, request: Request) -> Result<()> {
        Ok(self.requests.write_all(&request.encode())?)
    }

    fn receive(&mut self, request: Request) -> Result<()> {
        let received = &mut self.kept[..request.answer_bytes()];
        self.answers.read_exact(received)?;
        request.check(received)
    }
}

impl<W: Write, R: Read> Caller for Stream<W, R> {
    fn run(&mut self, load: &Load) -> Result<()> {
        InOrder::run(self, load)
    }
}

/// Memory that is kept from call to call.
pub(super) enum Kept {
    /// As a program has it that doesn't think of it: large ones lie 16 bytes into a page.
    Vec(Vec<u8>),
    /// At the start of a page.
    Pages(MmapMut),
}

impl Kept {
    /// Room for an answer of `bytes` bytes, and for an empty one.
    pub(super) fn new(bytes: usize, is_aligned: bool) -> Result<Self> {
        let bytes = bytes.max(crate::work::EMPTY_ANSWER_BYTES);
        let mut kept = if is_aligned {
            Self::Pages(MmapMut::map_anon(bytes)?)
        } else {
            Self::Vec(vec![0; bytes])
        };
        kept.fill(1);
        Ok(kept)
    }
}

impl Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Vec(memory) => memory,
            Self::Pages(memory) => memory,
        }
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Vec(memory) => memory,
            Self::Pages(memory) => memory,
        }
    }
}

const SOCKET_BYTES: usize = 8 << 20;
