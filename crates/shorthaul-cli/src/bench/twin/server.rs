//! The other process of the twins.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use clap::Args;
use shorthaul::FillMethod;
use shorthaul_platform::memory::{PeerMemfd, PrivateMemory, SealedMapping, SharedMapping};
use shorthaul_platform::socket::stream_from_stdin;
use shorthaul_platform::store::sum_slice;

use super::{Maker, OPERATION, REGION, REGISTER, receive, receive_all, send};
use crate::bench::method::{Kind, Memory, Put};
use crate::bench::process::die_with_parent;
use crate::bench::work::{Pages, REQUEST_BYTES, RESPONSE_BYTES, Work};

/// Answer as a method does, without RPC; its client is standard input.
#[derive(Clone, Debug, Args)]
pub(crate) struct TwinArgs {
    /// CPU to run on.
    #[arg(long)]
    cpu: u32,
    /// Largest payload, in bytes.
    #[arg(long)]
    bytes_max: usize,
    /// Which pages its memory has.
    #[arg(long, value_enum)]
    huge_pages: Pages,
}

/// Answers until the client has gone.
pub(crate) fn serve(args: &TwinArgs) -> Result<()> {
    die_with_parent(args.cpu)?;
    TwinServer::new(stream_from_stdin()?, args.bytes_max, args.huge_pages)?.run()
}

/// The server's end of the socket, and its memory.
pub(super) struct TwinServer {
    stream: UnixStream,
    regions: Vec<Region>,
    maker: Maker,
    /// What payloads that travel on the socket are made in, and uploads are received into.
    page: PrivateMemory,
}

/// A buffer of the client's.
struct Region {
    file: PeerMemfd,
    /// What `s-reuse` keeps.
    kept: SharedMapping,
}

impl TwinServer {
    pub(super) fn new(stream: UnixStream, bytes_max: usize, pages: Pages) -> Result<Self> {
        let (maker, page) = (Maker::new(bytes_max, pages)?, pages.private(bytes_max)?);
        Ok(Self { stream, regions: Vec::new(), maker, page })
    }

    pub(super) fn run(&mut self) -> Result<()> {
        // Ends with the client.
        while let Some((request, descriptor)) = receive::<REQUEST_BYTES>(&self.stream)? {
            let work = Work::decode(&request).context("not a request of a twin")?;
            if request[OPERATION] == REGISTER {
                self.register(&work, descriptor.context("no buffer came")?)?;
                continue;
            }
            let stride = work.consume.stride();
            match work.method.kind {
                Kind::Fill { memory, fill, keeps_mapping } => {
                    let region = (memory == Memory::Reused).then_some(request[REGION].into());
                    self.fill(&work, fill, keeps_mapping, region, descriptor)?;
                }
                Kind::Sidecar => self.sidecar(&work)?,
                Kind::Sealed => {
                    let file = self.maker.make_sealed(&work)?;
                    send(&self.stream, &[&[0; RESPONSE_BYTES]], &[file.as_fd()])?;
                }
                Kind::Put(put) => {
                    let sum = self.put(put, &work, stride, request[REGION].into(), descriptor)?;
                    send(&self.stream, &[&sum.to_le_bytes()], &[])?;
                }
                Kind::Auto => bail!("{} has no twin", work.method),
            }
        }
        Ok(())
    }

    fn register(&mut self, work: &Work, descriptor: OwnedFd) -> Result<()> {
        let file = PeerMemfd::parse(descriptor, work.bytes as u64)?;
        let kept = file.map()?;
        self.regions.push(Region { file, kept });
        self.answer()
    }

    fn fill(
        &mut self,
        work: &Work,
        fill: FillMethod,
        keeps_mapping: bool,
        region: Option<usize>,
        descriptor: Option<OwnedFd>,
    ) -> Result<()> {
        let Self { regions, maker, .. } = self;
        let region = region.map(|number| regions.get(number).context("no such buffer"));
        let region = region.transpose()?;
        // Closed after the answer, as the library does it.
        let fresh = descriptor.map(|descriptor| PeerMemfd::parse(descriptor, work.bytes as u64));
        let fresh = fresh.transpose()?;
        let file = region.map(|region| &region.file).or(fresh.as_ref());
        let file = file.context("no memory came")?;
        match (fill, region) {
            (FillMethod::Write, _) => {
                maker
                    .make_by_write(work, |bytes, at| Ok(file.write_all_at(at as usize, bytes)?))?;
            }
            (FillMethod::Map, Some(region)) if keeps_mapping => {
                maker.make_shared(&region.kept, work);
            }
            (FillMethod::Map, _) => {
                let mapping = file.map()?;
                maker.make_shared(&mapping, work);
                self.answer()?;
                drop(mapping);
                return Ok(());
            }
        }
        self.answer()
    }

    fn sidecar(&mut self, work: &Work) -> Result<()> {
        self.maker.make_private(&mut self.page, work);
        send(&self.stream, &[&[0; RESPONSE_BYTES], &self.page[..work.bytes]], &[])
    }

    /// Takes in an upload, and reads it.
    fn put(
        &mut self,
        put: Put,
        work: &Work,
        stride: Option<usize>,
        region: usize,
        descriptor: Option<OwnedFd>,
    ) -> Result<u64> {
        let page = &mut self.page[..work.bytes];
        let sum = |bytes: &[u8]| stride.map_or(0, |stride| sum_slice(bytes, stride));
        Ok(match put {
            Put::Inline => {
                receive_all(&self.stream, page)?;
                sum(page)
            }
            Put::Region => {
                // The client may write it at any moment: what is read must hold still.
                let region = self.regions.get(region).context("no such buffer")?;
                region.kept.copy_out(0, page);
                sum(page)
            }
            Put::Sealed => {
                let descriptor = descriptor.context("no sealed memory came")?;
                sum(&SealedMapping::parse(descriptor, work.bytes as u64)?)
            }
            Put::Auto => bail!("{} has no twin", work.method),
        })
    }

    fn answer(&self) -> Result<()> {
        send(&self.stream, &[&[0; RESPONSE_BYTES]], &[])
    }
}
