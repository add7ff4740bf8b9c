//! A fresh memory file for every call: shared memory without keeping any.

use anyhow::{Context, Result};
use memmap2::{Mmap, MmapMut};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::window::InOrder;
use super::{Caller, Habits, Peer, descriptors};
use crate::meeting::Meeting;
use crate::work::{EMPTY_ANSWER_BYTES, Load, REQUEST_BYTES, Request};

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    vec![Box::new(Memfd)]
}

#[derive(Clone, Copy, Debug)]
struct Memfd;

impl Peer for Memfd {
    fn name(&self) -> &'static str {
        "fresh memfd"
    }

    fn about(&self) -> &'static str {
        "a memfd made, mapped, filled and sent (SCM_RIGHTS) for every call; the client maps it"
    }

    fn habits(&self) -> Habits {
        Habits { pipelines: true, ..Habits::default() }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        meeting.ready()?;
        let mut encoded = [0; REQUEST_BYTES];
        loop {
            (&meeting.link).read_exact(&mut encoded)?;
            answer(&meeting.link, Request::decode(&encoded)?)?;
        }
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        Ok(Box::new(Client { link: meeting.link.try_clone()? }))
    }
}

fn answer(link: &UnixStream, request: Request) -> Result<()> {
    let sequence = request.sequence().to_le_bytes();
    if request.payload_bytes() == 0 {
        return descriptors::send(link, &sequence, &[]);
    }
    let memory = memfd_create("peers", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, request.payload_bytes() as u64)?;
    // SAFETY: nobody else has the file yet.
    let mut mapping = unsafe { MmapMut::map_mut(&memory) }?;
    request.make(&mut mapping);
    descriptors::send(link, &sequence, &[memory.as_fd()])
}

struct Client {
    link: UnixStream,
}

impl InOrder for Client {
    fn send(&mut self, request: Request) -> Result<()> {
        Ok(self.link.write_all(&request.encode())?)
    }

    fn receive(&mut self, request: Request) -> Result<()> {
        let mut sequence = [0; EMPTY_ANSWER_BYTES];
        let memory = descriptors::receive(&self.link, &mut sequence)?.pop();
        if request.payload_bytes() == 0 {
            return request.check(&sequence);
        }
        let memory = memory.context("a payload came without its descriptor")?;
        // SAFETY: the server has written it and lets go of it; nobody cuts it.
        let mapping = unsafe { Mmap::map(&memory) }?;
        request.check(&mapping)
    }
}

impl Caller for Client {
    fn run(&mut self, load: &Load) -> Result<()> {
        InOrder::run(self, load)
    }
}
