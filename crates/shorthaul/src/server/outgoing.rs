//! The payload of an answer: one way to write it, whatever lane it takes.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use shorthaul_platform::memory::SharedMapping;
use shorthaul_platform::store::Store;

use super::region::Region;
use super::shared::Shared;
use crate::error::{Code, Status};
use crate::payload::PooledMemory;
use crate::wire::LaneNumber;

/// How a client's buffer is filled.
#[derive(Clone, Copy, Debug)]
pub struct FillPolicy {
    /// Through a mapping, or through the kernel.
    pub method: FillMethod,
    /// Whether a mapping is kept for the next call on the same buffer.
    pub keep_mapping: bool,
    /// How bytes are stored into a mapping, and into inline memory.
    pub store: Store,
}

impl Default for FillPolicy {
    /// A mapping that is kept, and ordinary stores: the fastest for buffers that are used again.
    fn default() -> Self {
        Self { method: FillMethod::Map, keep_mapping: true, store: Store::Ordinary }
    }
}

/// The two ways into a client's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillMethod {
    /// Map it and store into it.
    Map,
    /// pwrite(2) to it.
    Write,
}

/// Where the payload of an answer belongs, checked.
#[derive(Debug)]
pub(crate) enum Target {
    None,
    /// The client's memory was refused; whoever asks for a payload is told why.
    Refused(Status),
    Inline {
        bytes_max: u64,
    },
    Region {
        region: Arc<Region>,
        offset: usize,
        bytes: usize,
        /// The mapping kept from an earlier call.
        kept: Option<Arc<SharedMapping>>,
        /// Whether the client may name the region again.
        is_registered: bool,
    },
}

impl Target {
    /// Where an answer to a call that brought its own memory file belongs.
    pub(super) fn one_shot(region: Region, kept: Option<Arc<SharedMapping>>, bytes: u64) -> Self {
        let region = Arc::new(region);
        Self::Region { region, offset: 0, bytes: bytes as usize, kept, is_registered: false }
    }

    pub(super) fn bytes_max(&self) -> u64 {
        match self {
            Self::None | Self::Refused(_) => 0,
            Self::Inline { bytes_max } => *bytes_max,
            Self::Region { bytes, .. } => *bytes as u64,
        }
    }
}

/// A payload under way.
#[derive(Debug)]
pub(crate) struct Out {
    pub(super) sink: Sink,
    /// Bytes asked for.
    bytes: usize,
    /// Bytes written so far, which become valid with the answer.
    pub(super) written: usize,
    store: Store,
}

#[derive(Debug)]
pub(super) enum Sink {
    Inline(PooledMemory),
    Map {
        mapping: Arc<SharedMapping>,
        /// Whether it was kept from an earlier call.
        is_reused: bool,
        /// Whether it should be kept, and is not yet.
        is_for_keeping: bool,
    },
    Write,
}

impl Out {
    /// Makes ready for a payload of `bytes` bytes.
    pub(super) fn begin(
        target: &Target,
        bytes: usize,
        policy: FillPolicy,
        shared: &Shared,
    ) -> Result<Self, Status> {
        if let Target::Refused(status) = target {
            return Err(status.clone());
        }
        if bytes as u64 > target.bytes_max() {
            return Err(too_large(bytes as u64, target.bytes_max()));
        }
        let sink = match target {
            Target::Region { region, kept, is_registered, .. } => {
                let keep = policy.keep_mapping && *is_registered;
                let kept = kept.as_ref().filter(|_| policy.keep_mapping);
                begin_fill(region, kept, keep, policy.method, shared)?
            }
            _ => Sink::Inline(shared.pool.take(bytes).map_err(|error| no_memory(bytes, &error))?),
        };
        Ok(Self { sink, bytes, written: 0, store: policy.store })
    }

    /// The lane that its payload takes: none if the caller offered none, and nothing was written.
    pub(super) fn lane(&self, target: &Target) -> LaneNumber {
        match (&self.sink, target) {
            (_, Target::None | Target::Refused(_)) => LaneNumber::None,
            (Sink::Inline(_), _) => LaneNumber::Inline,
            (Sink::Map { .. }, _) => LaneNumber::FillMap,
            (Sink::Write, _) => LaneNumber::FillWrite,
        }
    }
}

fn begin_fill(
    region: &Region,
    kept: Option<&Arc<SharedMapping>>,
    keep: bool,
    method: FillMethod,
    shared: &Shared,
) -> Result<Sink, Status> {
    if method == FillMethod::Write || !shared.config.may_map_peers {
        return Ok(Sink::Write);
    }
    if let Some(mapping) = kept {
        shared.stats.mappings_reused.add(1);
        return Ok(Sink::Map {
            mapping: Arc::clone(mapping),
            is_reused: true,
            is_for_keeping: false,
        });
    }
    let mapping = region.file.map().map_err(|error| no_memory(region.file.len(), &error))?;
    shared.stats.mappings_made.add(1);
    Ok(Sink::Map { mapping: Arc::new(mapping), is_reused: false, is_for_keeping: keep })
}

/// Writes the payload of an answer, in order. What is written becomes valid when the call is
/// answered; what is not, the client does not see as payload.
#[derive(Debug)]
pub struct PayloadOut<'a> {
    pub(super) out: &'a mut Out,
    pub(super) target: &'a Target,
    pub(super) shared: &'a Shared,
}

impl PayloadOut<'_> {
    /// Bytes that can still be written.
    pub fn remaining(&self) -> usize {
        self.out.bytes - self.out.written
    }

    /// Whether it goes through a mapping that was kept from an earlier call.
    pub fn is_mapping_reused(&self) -> bool {
        matches!(self.out.sink, Sink::Map { is_reused: true, .. })
    }

    /// Writes `bytes` bytes of `value`.
    ///
    /// # Errors
    /// OUT_OF_RANGE past the size that was asked for; what the kernel says of a pwrite(2).
    pub fn fill(&mut self, value: u8, bytes: usize) -> Result<(), Status> {
        self.ensure_room(bytes)?;
        let (at, store) = (self.out.written, self.out.store);
        match &mut self.out.sink {
            Sink::Inline(memory) => memory.memory_mut().fill(at..at + bytes, value, store),
            Sink::Map { mapping, .. } => {
                let start = offset(self.target) + at;
                mapping.fill(start..start + bytes, value, store);
            }
            Sink::Write => return self.fill_by_write(value, bytes),
        }
        self.out.written += bytes;
        Ok(())
    }

    /// Writes a copy of `source`.
    ///
    /// # Errors
    /// As [`PayloadOut::fill`].
    pub fn copy_from(&mut self, source: &[u8]) -> Result<(), Status> {
        self.ensure_room(source.len())?;
        let (at, store) = (self.out.written, self.out.store);
        match &mut self.out.sink {
            Sink::Inline(memory) => memory.memory_mut().copy_in(at, source, store),
            Sink::Map { mapping, .. } => mapping.copy_in(offset(self.target) + at, source, store),
            Sink::Write => write_region(self.target, at, source)?,
        }
        self.out.written += source.len();
        Ok(())
    }

    /// Writes `bytes` bytes of `file` from `file_offset` on: into a mapping or inline memory the
    /// kernel reads them directly.
    ///
    /// # Errors
    /// As [`PayloadOut::fill`]; DATA_LOSS if the file ends before, with what came until then
    /// written; what the kernel says of a pread(2).
    pub fn copy_from_file(
        &mut self,
        file: impl AsFd,
        file_offset: u64,
        bytes: usize,
    ) -> Result<(), Status> {
        self.ensure_room(bytes)?;
        let mut done = 0;
        while done < bytes {
            let from = file_offset + done as u64;
            match self.read_some(file.as_fd(), from, bytes - done) {
                Ok(0) => return Err(file_too_short(done, bytes)),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// One pread; counts what it brought as written.
    fn read_some(
        &mut self,
        file: std::os::fd::BorrowedFd<'_>,
        from: u64,
        bytes: usize,
    ) -> io::Result<usize> {
        let at = self.out.written;
        let read = match &mut self.out.sink {
            Sink::Inline(memory) => rustix::io::pread(file, &mut memory[at..at + bytes], from)?,
            Sink::Map { mapping, .. } => {
                let start = offset(self.target) + at;
                mapping.read_from(file, from, start..start + bytes)?
            }
            Sink::Write => {
                let mut scratch = self.shared.pool.take(bytes.min(CHUNK_BYTES))?;
                let read = rustix::io::pread(file, &mut scratch[..], from)?;
                write_region(self.target, at, &scratch[..read])?;
                read
            }
        };
        self.out.written += read;
        Ok(read)
    }

    /// Makes each chunk and gives it to the kernel while it is still in the cache.
    fn fill_by_write(&mut self, value: u8, bytes: usize) -> Result<(), Status> {
        let chunk_bytes = bytes.min(CHUNK_BYTES);
        let mut scratch = self.shared.pool.take(chunk_bytes)?;
        let mut left = bytes;
        while left > 0 {
            let part = left.min(chunk_bytes);
            scratch.memory_mut().fill(0..part, value, self.out.store);
            write_region(self.target, self.out.written, &scratch[..part])?;
            self.out.written += part;
            left -= part;
        }
        Ok(())
    }

    fn ensure_room(&self, bytes: usize) -> Result<(), Status> {
        if bytes <= self.remaining() {
            return Ok(());
        }
        let (asked, written) = (self.out.bytes, self.out.written);
        Err(Status::new(
            Code::OutOfRange,
            format!(
                "the handler asked for a payload of {asked} bytes and writes {bytes} at {written}"
            ),
        ))
    }
}

impl Write for PayloadOut<'_> {
    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        let bytes = source.len().min(self.remaining());
        self.copy_from(&source[..bytes]).map_err(io::Error::other)?;
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn offset(target: &Target) -> usize {
    if let Target::Region { offset, .. } = target { *offset } else { 0 }
}

fn write_region(target: &Target, at: usize, source: &[u8]) -> io::Result<()> {
    match target {
        Target::Region { region, offset, .. } => region.file.write_all_at(offset + at, source),
        _ => Ok(()),
    }
}

fn too_large(bytes: u64, bytes_max: u64) -> Status {
    let message = if bytes_max == 0 {
        format!("the answer has a payload of {bytes} bytes, but the call offers no room for one")
    } else {
        format!(
            "the payload has {bytes} bytes, the caller has room for {bytes_max}: offer a buffer \
             of at least {bytes}"
        )
    };
    Status { code: Code::OutOfRange, message, bytes_needed: Some(bytes) }
}

fn no_memory(bytes: usize, error: &io::Error) -> Status {
    Status::new(Code::ResourceExhausted, format!("no memory for {bytes} bytes: {error}"))
}

fn file_too_short(done: usize, bytes: usize) -> Status {
    Status::new(Code::DataLoss, format!("the file ended after {done} of {bytes} bytes"))
}

/// What the write method makes at a time: it stays in a core's cache between being made and being
/// copied by the kernel.
const CHUNK_BYTES: usize = 256 << 10;
