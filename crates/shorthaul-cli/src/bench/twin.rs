//! The bare twin of a method: two pinned processes and a socketpair, one message each way, and the
//! method's own memory calls in the order in which the library makes them. No RPC: nothing is
//! framed, checked, queued or looked up. What a method's cell has less is what the library costs.

mod server;

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{self, MemfdFlags, SealFlags};
use rustix::net::{RecvFlags, recv};
use shorthaul_platform::memory::{
    Draft, Memfd, PrivateMemory, SealedMapping, SharedMapping, huge_page_bytes,
};
use shorthaul_platform::socket::{self, DescriptorList, Descriptors, Wait};
use shorthaul_platform::store::{Store, sum_slice};
use shorthaul_platform::topology::pin_current_thread;
use shorthaul_platform::usage::Usage;

pub(crate) use self::server::{TwinArgs, serve};
use super::measure::{CellRun, Engine, Job, keep_in_flight};
use super::method::{Kind, Memory, Put};
use super::process::{PATIENCE, ServerProcess, spawn};
use super::stats::Times;
use super::work::{Pages, REQUEST_BYTES, RESPONSE_BYTES, Source, Work, warm_source};

/// The client's side of all twins of a placement.
pub(crate) struct Twin {
    client_cpu: u32,
    peer: Peer,
    server: ServerProcess,
    times: Times,
}

impl Twin {
    /// Starts the server process. Both run where a direct call would.
    pub(crate) fn start(
        client_cpu: u32,
        server_cpu: u32,
        bytes_max: usize,
        pages: Pages,
    ) -> Result<Self> {
        let (cpu, bytes) = (server_cpu.to_string(), bytes_max.to_string());
        let options =
            [("--cpu", cpu), ("--bytes-max", bytes), ("--huge-pages", pages.name().into())];
        let arguments = options.map(|(name, value)| [name.to_owned(), value]).concat();
        let (stream, server) = spawn("bench-twin", &arguments)?;
        let peer = Peer::new(stream, bytes_max, pages)?;
        Ok(Self { client_cpu, peer, server, times: Times::new() })
    }

    pub(crate) fn server(&self) -> u32 {
        self.server.id()
    }

    /// Makes calls as the job says, one at a time, for `time`, after one that is not counted.
    pub(crate) fn run(&mut self, job: &Job, time: Duration) -> Result<CellRun> {
        pin_current_thread(self.client_cpu)?;
        let measured = self.peer.run(job, time, &mut self.times);
        measured.with_context(|| format!("the bare twin of {} of {} bytes", job.method, job.bytes))
    }
}

/// The client's end of the socket, and its memory.
struct Peer {
    stream: UnixStream,
    /// Buffers that the server has been sent, by their size.
    regions: Vec<SharedMapping>,
    maker: Maker,
    /// What payloads that travel on the socket are received into, and sent from.
    page: PrivateMemory,
    sequence: u64,
}

impl Peer {
    fn new(stream: UnixStream, bytes_max: usize, pages: Pages) -> Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let (maker, page) = (Maker::new(bytes_max, pages)?, pages.private(bytes_max)?);
        Ok(Self { stream, regions: Vec::new(), maker, page, sequence: 0 })
    }

    fn run(&mut self, job: &Job, time: Duration, times: &mut Times) -> Result<CellRun> {
        let region = if job.method.reuses_buffer() { self.region(job.bytes)? } else { 0 };
        let mut calls = Calls { peer: self, job, region };
        let warm = calls.start()?;
        calls.finish(warm)?;
        let stretch = keep_in_flight(&mut calls, 1, time, times)?;
        Ok(CellRun::new(job.bytes, stretch, times.take(), Usage::default()))
    }

    /// The number of the buffer of a size, made and sent if there is none.
    fn region(&mut self, bytes: usize) -> Result<usize> {
        if let Some(number) = self.regions.iter().position(|region| region.len() == bytes) {
            return Ok(number);
        }
        let pages = self.maker.pages.into();
        let (file, memory) = Memfd::create_mapped(MEMFD_NAME, bytes, pages)?;
        let mut request = [0; REQUEST_BYTES];
        request[OPERATION] = REGISTER;
        request[16..24].copy_from_slice(&(bytes as u64).to_le_bytes());
        send(&self.stream, &[&request], &[file.as_fd()])?;
        receive::<RESPONSE_BYTES>(&self.stream)?.context("the twin's server has ended")?;
        self.regions.push(memory);
        Ok(self.regions.len() - 1)
    }
}

/// Calls of one job.
struct Calls<'a> {
    peer: &'a mut Peer,
    job: &'a Job,
    region: usize,
}

/// A call under way, with the memory that is its own.
struct Open {
    work: Work,
    fresh: Option<SharedMapping>,
}

impl Engine for Calls<'_> {
    type Call = Open;

    fn start(&mut self) -> Result<Open> {
        let Job { method, source, bytes, consume, .. } = *self.job;
        self.peer.sequence += 1;
        let work = Work { method, source, consume, sequence: self.peer.sequence, bytes };
        let mut request = work.encode();
        request[OPERATION] = CALL;
        request[REGION] = self.region as u8;
        let fresh = self.send(&work, &request)?;
        Ok(Open { work, fresh })
    }

    fn finish(&mut self, Open { work, fresh }: Open) -> Result<bool> {
        let stream = &self.peer.stream;
        let ended = "the twin's server has ended";
        let (response, descriptor) = receive::<RESPONSE_BYTES>(stream)?.context(ended)?;
        let memory = fresh.as_ref().or(self.peer.regions.get(self.region));
        let stride = self.job.consume.stride();
        let sum = match (work.method.kind, stride) {
            (Kind::Put(_), _) => Some(u64::from_le_bytes(response)),
            (Kind::Sealed, _) => {
                let descriptor = descriptor.context("no sealed memory came")?;
                let mapping = SealedMapping::parse(descriptor, work.bytes as u64)?;
                stride.map(|stride| sum_slice(&mapping, stride))
            }
            (Kind::Sidecar, _) => {
                let page = &mut self.peer.page[..work.bytes];
                receive_all(stream, page)?;
                stride.map(|stride| sum_slice(page, stride))
            }
            (Kind::Fill { .. }, Some(stride)) => {
                let memory = memory.context("a filled payload has no memory")?;
                Some(memory.sum(0..work.bytes, stride))
            }
            _ => None,
        };
        if let (Some(sum), Some(stride)) = (sum, stride) {
            work.check_sum(sum, stride)?;
        }
        Ok(false)
    }
}

impl Calls<'_> {
    /// Sends the request with what goes along; gives back memory that is this call's alone.
    fn send(&mut self, work: &Work, request: &[u8]) -> Result<Option<SharedMapping>> {
        let Peer { stream, regions, maker, page, .. } = &mut *self.peer;
        match work.method.kind {
            Kind::Fill { memory: Memory::Fresh, .. } => {
                let file = Memfd::create(MEMFD_NAME, work.bytes)?;
                let memory = file.map()?;
                memory.make_huge(work.bytes, maker.pages.into());
                send(stream, &[request], &[file.as_fd()])?;
                return Ok(Some(memory));
            }
            Kind::Put(Put::Inline) => {
                maker.make_private(page, work);
                send(stream, &[request, &page[..work.bytes]], &[])?;
            }
            Kind::Put(Put::Region) => {
                let region = regions.get(self.region).context("the buffer has been made")?;
                maker.make_shared(region, work);
                send(stream, &[request], &[])?;
            }
            Kind::Put(Put::Sealed) => {
                let file = maker.make_sealed(work)?;
                send(stream, &[request], &[file.as_fd()])?;
            }
            Kind::Auto | Kind::Put(Put::Auto) => bail!("{} has no twin", work.method),
            Kind::Fill { .. } | Kind::Sidecar | Kind::Sealed => send(stream, &[request], &[])?,
        }
        Ok(None)
    }
}

/// Makes payloads, on whichever side.
struct Maker {
    pages: Pages,
    warm: PrivateMemory,
    /// What is to be written by the kernel is made here, a chunk at a time.
    chunk: PrivateMemory,
}

impl Maker {
    fn new(bytes_max: usize, pages: Pages) -> Result<Self> {
        let chunk = PrivateMemory::new(bytes_max.min(CHUNK_BYTES))?;
        Ok(Self { pages, warm: warm_source(bytes_max, pages)?, chunk })
    }

    fn warm(&self, work: &Work) -> &[u8] {
        &self.warm[work.warm_start()..][..work.bytes]
    }

    fn make_shared(&self, memory: &SharedMapping, work: &Work) {
        let store = work.method.store();
        match work.source {
            Source::Fill => memory.fill(0..work.bytes, work.fill_byte(), store),
            Source::Warm => memory.copy_in(0, self.warm(work), store),
        }
    }

    fn make_private(&self, memory: &mut PrivateMemory, work: &Work) {
        let store = work.method.store();
        match work.source {
            Source::Fill => memory.fill(0..work.bytes, work.fill_byte(), store),
            Source::Warm => memory.copy_in(0, self.warm(work), store),
        }
    }

    /// As the library does it: each chunk is given to the kernel while it is in the cache; what is
    /// there already, in one piece.
    fn make_by_write(
        &mut self,
        work: &Work,
        write: impl Fn(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        if work.source == Source::Warm {
            return write(self.warm(work), 0);
        }
        let mut at = 0;
        while at < work.bytes {
            let part = self.chunk.len().min(work.bytes - at);
            self.chunk.fill(0..part, work.fill_byte(), Store::Ordinary);
            write(&self.chunk[..part], at as u64)?;
            at += part;
        }
        Ok(())
    }

    fn make_sealed(&mut self, work: &Work) -> Result<OwnedFd> {
        if self.pages == Pages::Auto && work.bytes >= huge_page_bytes() {
            return self.make_sealed_huge(work);
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = fs::memfd_create(MEMFD_NAME, flags)?;
        fs::ftruncate(&file, work.bytes as u64)?;
        self.make_by_write(work, |bytes, at| write_all_at(file.as_fd(), bytes, at))?;
        fs::fcntl_add_seals(&file, SEALED)?;
        Ok(file)
    }
}

impl Maker {
    fn make_sealed_huge(&self, work: &Work) -> Result<OwnedFd> {
        let mut draft = Draft::create(MEMFD_NAME, work.bytes)?.with_pages(self.pages.into());
        match work.source {
            Source::Fill => draft.as_mut_slice()?.fill(work.fill_byte()),
            Source::Warm => draft.as_mut_slice()?.copy_from_slice(self.warm(work)),
        }
        Ok(draft.seal(work.bytes)?.into_descriptor())
    }
}

fn write_all_at(file: BorrowedFd<'_>, mut bytes: &[u8], mut at: u64) -> Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(file, bytes, at)?;
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(())
}

/// One message, waiting until the socket has taken all of it.
fn send(stream: &UnixStream, parts: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let sent = match parts {
        [one] => socket::send(stream.as_fd(), &[IoSlice::new(one)], descriptors, Wait::Block),
        parts => {
            let parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
            socket::send(stream.as_fd(), &parts, descriptors, Wait::Block)
        }
    }?;
    ensure!(sent == bytes, "a twin's message of {bytes} bytes was cut after {sent}");
    Ok(())
}

/// One message of `N` bytes, and its descriptor if it has one; none at the end.
fn receive<const N: usize>(stream: &UnixStream) -> Result<Option<([u8; N], Option<OwnedFd>)>> {
    let mut message = [0; N];
    let received = socket::receive(stream.as_fd(), &mut message, Wait::Block)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    ensure!(received.bytes == N, "a twin's message of {N} bytes came in pieces");
    let mut descriptors = match received.descriptors {
        Descriptors::Arrived(list) => list,
        Descriptors::Lost(_) | Descriptors::TooMany(_) => DescriptorList::new(),
    };
    Ok(Some((message, descriptors.pop())))
}

/// What follows a message: in one call, for the socket may be asked for all of it.
fn receive_all(stream: &UnixStream, mut page: &mut [u8]) -> Result<()> {
    while !page.is_empty() {
        let (_, bytes) = recv(stream, &mut *page, RecvFlags::WAITALL)?;
        ensure!(bytes > 0, "a twin's payload was cut off");
        page = &mut page[bytes..];
    }
    Ok(())
}

/// Beside what [`Work::encode`] uses.
const OPERATION: usize = 2;
const REGION: usize = 4;
const CALL: u8 = 0;
const REGISTER: u8 = 1;
const MEMFD_NAME: &str = "shorthaul-twin";
/// What the library's write method makes at a time.
const CHUNK_BYTES: usize = 256 << 10;
const SEALED: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

#[cfg(test)]
mod tests {
    use std::thread;

    use super::server::TwinServer;
    use super::*;
    use crate::bench::method::Method;
    use crate::bench::work::Consume;

    fn run_all(source: Source, consume: Consume, pages: Pages) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server =
            thread::spawn(move || TwinServer::new(theirs, BYTES_MAX, pages).unwrap().run());
        let mut peer = Peer::new(ours, BYTES_MAX, pages).unwrap();
        for bytes in [0, 1, 4096, BYTES_MAX] {
            for method in Method::ALL.iter().filter(|method| method.has_twin()).copied() {
                let job = Job { method, bytes, source, consume, in_flight: 1 };
                let run = peer.run(&job, Duration::ZERO, &mut Times::new());
                let run = run.unwrap_or_else(|error| panic!("{method} of {bytes}: {error:#}"));
                assert_eq!(run.calls, 2);
            }
        }
        drop(peer);
        server.join().unwrap().unwrap();
    }

    /// Whatever is read sums up to what was asked for, or the call is an error.
    #[test]
    fn every_twin_brings_what_was_asked_for() {
        for consume in [Consume::None, Consume::Sample, Consume::All] {
            for source in [Source::Fill, Source::Warm] {
                run_all(source, consume, Pages::Never);
                run_all(source, consume, Pages::Auto);
            }
        }
    }

    #[test]
    fn where_the_library_chooses_there_is_no_twin() {
        let method = Method::ALL.into_iter().find(|method| !method.has_twin()).unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let job =
            Job { method, bytes: 1, source: Source::Fill, consume: Consume::All, in_flight: 1 };
        let run =
            Peer::new(ours, 1, Pages::Never).unwrap().run(&job, Duration::ZERO, &mut Times::new());
        assert!(run.unwrap_err().to_string().contains("has no twin"));
    }

    /// More than a chunk and than a huge page, and no whole number of pages.
    const BYTES_MAX: usize = CHUNK_BYTES * 9 + 1000;
}
