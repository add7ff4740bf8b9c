//! The payload of a request: one way to read it, whatever lane it took.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use shorthaul_platform::memory::{Refusal, Refused, SealedMapping, SharedMapping, Trust};

use super::outgoing::no_memory;
use super::region::{Holder, Region, Share, Whose};
use super::shared::Shared;
use crate::error::{Code, Status};
use crate::lane::Lane;
use crate::parts::Parts;
use crate::payload::PooledMemory;
use crate::undertaker;

/// The bulk that came with a call.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(super) source: Source,
    pub(super) parts: Parts,
}

/// Where it lies.
#[derive(Debug)]
pub(crate) enum Source {
    None,
    Inline(PooledMemory),
    Region(UploadRegion),
    /// A memory file that nobody has looked at yet.
    Unopened {
        descriptor: OwnedFd,
        offset: u64,
        share: Share,
    },
    Sealed(SealedUpload),
    /// Sealed, but with holes: what the kernel has read of it.
    Copied(Copy),
    Refused(Status),
}

/// A copy of what lies in the client's memory, at the charge of its user.
#[derive(Debug)]
pub(crate) struct Copy {
    memory: PooledMemory,
    _share: Share,
}

impl Copy {
    fn take(bytes: usize, account: &Holder, shared: &Shared) -> Result<Self, Status> {
        let share = shared.charge(account, Whose::Server, bytes as u64)?;
        let memory = shared.pool.take(bytes).map_err(|error| no_memory(bytes, &error))?;
        Ok(Self { memory, _share: share })
    }
}

impl AsRef<[u8]> for Copy {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

/// Bytes in the client's memory, which the client can still write.
#[derive(Debug)]
pub(crate) struct UploadRegion {
    pub(super) region: Arc<Region>,
    pub(super) offset: usize,
    /// The mapping kept from an earlier call, or the one made for this.
    pub(super) mapping: Option<Arc<SharedMapping>>,
    /// Whether the mapping was made for this call, and is to be kept.
    pub(super) is_for_keeping: bool,
    /// The bytes, once they were wanted as a slice.
    copy: Option<Copy>,
}

/// Bytes that nobody can write, at the charge of the user that sent them.
#[derive(Debug)]
pub(crate) struct SealedUpload {
    mapping: SealedMapping,
    range: Range<usize>,
    _share: Share,
}

impl AsRef<[u8]> for SealedUpload {
    fn as_ref(&self) -> &[u8] {
        &self.mapping[self.range.clone()]
    }
}

impl Source {
    pub(super) fn region(
        region: Arc<Region>,
        offset: u64,
        mapping: Option<Arc<SharedMapping>>,
    ) -> Self {
        let (is_for_keeping, copy) = (false, None);
        let offset = offset as usize;
        Self::Region(UploadRegion { region, offset, mapping, is_for_keeping, copy })
    }
}

impl Upload {
    pub(super) fn lane(&self) -> Lane {
        match self.source {
            Source::None | Source::Refused(_) => Lane::None,
            Source::Inline(_) => Lane::Inline,
            Source::Region(_) => Lane::CopyOut,
            Source::Unopened { .. } | Source::Sealed(_) | Source::Copied(_) => Lane::Sealed,
        }
    }

    /// Bytes of the connection's memory that it holds.
    pub(super) fn inline_bytes(&self) -> u64 {
        if let Source::Inline(memory) = &self.source { memory.len() as u64 } else { 0 }
    }

    /// Makes it readable: maps what is to be mapped, once.
    pub(super) fn open(&mut self, account: &Holder, shared: &Shared) -> Result<(), Status> {
        match &mut self.source {
            Source::Unopened { .. } => self.open_sealed(account, shared),
            Source::Region(region) => region.open(shared),
            Source::Refused(status) => Err(status.clone()),
            Source::None | Source::Inline(_) | Source::Sealed(_) | Source::Copied(_) => Ok(()),
        }
    }

    fn open_sealed(&mut self, account: &Holder, shared: &Shared) -> Result<(), Status> {
        let source = std::mem::replace(&mut self.source, Source::None);
        let Source::Unopened { descriptor, offset, share } = source else { return Ok(()) };
        let bytes_max = shared.config.limits.region_bytes_max;
        self.source = match SealedMapping::parse(descriptor, bytes_max) {
            Ok(mapping) => match within(offset, self.parts.bytes(), mapping.len()) {
                Ok(range) => Source::Sealed(SealedUpload { mapping, range, _share: share }),
                Err(status) => Source::Refused(status),
            },
            Err(refused) => self.read_or_refuse(refused, offset, account, shared),
        };
        if let Source::Refused(status) = &self.source { Err(status.clone()) } else { Ok(()) }
    }

    /// A sealed file with holes is read through the kernel, which allocates nothing for them.
    fn read_or_refuse(
        &self,
        refused: Refused,
        offset: u64,
        account: &Holder,
        shared: &Shared,
    ) -> Source {
        let Refused { refusal, descriptor } = refused;
        let bytes = self.parts.bytes();
        let is_small = bytes as u64 <= shared.config.limits.inline_bytes_max;
        if !(matches!(refusal, Refusal::Sparse { .. }) && is_small) {
            // What it is, nobody knows: closing it can wait for the client.
            undertaker::bury(account.uid(), descriptor);
            return Source::Refused(refusal.into());
        }
        let copy = Copy::take(bytes, account, shared)
            .and_then(|copy| read_sparse(&descriptor, offset, copy));
        match copy {
            Ok(copy) => Source::Copied(copy),
            Err(status) => Source::Refused(status),
        }
    }
}

fn read_sparse(file: &OwnedFd, offset: u64, mut copy: Copy) -> Result<Copy, Status> {
    let bytes = copy.memory.len();
    let mut read = 0;
    while read < bytes {
        match rustix::io::pread(file, &mut copy.memory[read..], offset + read as u64) {
            Ok(0) => return Err(too_short(offset, bytes, read)),
            Ok(count) => read += count,
            Err(rustix::io::Errno::INTR) => {}
            // Opened for writing only, for instance.
            Err(error) => return Err(Refusal::from(error).into()),
        }
    }
    Ok(copy)
}

fn within(offset: u64, bytes: usize, file_bytes: usize) -> Result<Range<usize>, Status> {
    usize::try_from(offset)
        .ok()
        .and_then(|start| Some(start..start.checked_add(bytes)?))
        .filter(|range| range.end <= file_bytes)
        .ok_or_else(|| too_short(offset, bytes, file_bytes.saturating_sub(offset as usize)))
}

fn too_short(offset: u64, bytes: usize, found: usize) -> Status {
    Status::new(
        Code::InvalidArgument,
        format!(
            "the memory file of the request is too small: {bytes} bytes were promised at {offset}, \
             {found} are there"
        ),
    )
}

impl UploadRegion {
    fn open(&mut self, shared: &Shared) -> Result<(), Status> {
        if self.mapping.is_some() || !shared.config.may_map_peers {
            return Ok(());
        }
        let file = &self.region.file;
        let mapping = file.map().map_err(|error| no_memory(file.len(), &error))?;
        shared.stats.mappings_made.add(1);
        self.mapping = Some(Arc::new(mapping));
        self.is_for_keeping = true;
        Ok(())
    }

    /// Copies bytes out: what the client writes meanwhile may or may not be among them.
    fn copy_to(&self, at: usize, target: &mut [u8]) -> io::Result<()> {
        let start = self.offset + at;
        match &self.mapping {
            Some(mapping) => {
                mapping.copy_out(start, target);
                Ok(())
            }
            None => self.region.file.read_exact_at(start, target),
        }
    }

    /// The bytes where they are, if they are mapped.
    fn in_place(&self, bytes: usize, trust: Trust) -> &[u8] {
        let range = self.offset..self.offset + bytes;
        self.mapping.as_ref().map_or(&[], |mapping| mapping.trusted(range, trust))
    }

    /// The copy that there is, or one that is made now.
    fn copied(&mut self, bytes: usize, account: &Holder, shared: &Shared) -> Result<Copy, Status> {
        if let Some(copy) = self.copy.take() {
            return Ok(copy);
        }
        let mut copy = Copy::take(bytes, account, shared)?;
        self.copy_to(0, &mut copy.memory)?;
        Ok(copy)
    }
}

/// Reads the payload of a request.
///
/// A payload that the client sent from a buffer of its own can still be written by it: of that,
/// only copies are ever looked at.
#[derive(Debug)]
pub struct PayloadIn<'a> {
    pub(super) upload: &'a mut Upload,
    /// Who is charged for copies.
    pub(super) account: &'a Holder,
    pub(super) shared: &'a Shared,
}

impl<'a> PayloadIn<'a> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.upload.parts.bytes()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its parts.
    pub fn parts(&self) -> &Parts {
        &self.upload.parts
    }

    /// The lane that it took.
    pub fn lane(&self) -> Lane {
        self.upload.lane()
    }

    /// Copies the bytes from `at` on into `target`.
    ///
    /// # Errors
    /// OUT_OF_RANGE past the end; what the kernel says of a pread(2).
    pub fn copy_to(&self, at: usize, target: &mut [u8]) -> Result<(), Status> {
        let range = self.range(at, target.len())?;
        match self.held() {
            Some(bytes) => target.copy_from_slice(&bytes[range]),
            None => {
                if let Source::Region(region) = &self.upload.source {
                    region.copy_to(at, target)?;
                }
            }
        }
        Ok(())
    }

    /// Writes all of it to `file` at `file_offset`. The kernel does the copying, straight out of
    /// wherever it lies.
    ///
    /// # Errors
    /// What the kernel says of a pwrite(2); DATA_LOSS if it takes no more.
    pub fn write_to_file(&self, file: impl AsFd, file_offset: u64) -> Result<(), Status> {
        let (file, bytes) = (file.as_fd(), self.len());
        let mut done = 0;
        while done < bytes {
            let to = file_offset + done as u64;
            let written = match (self.held(), &self.upload.source) {
                (Some(held), _) => rustix::io::pwrite(file, &held[done..], to).map_err(Into::into),
                (None, Source::Region(region)) => region.write_some(file, to, done..bytes, self),
                (None, _) => Ok(0),
            };
            match written {
                Ok(0) => return Err(Status::new(Code::DataLoss, "the file takes no more bytes")),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// All of it. From a client's buffer it is copied out first, unless
    /// [`ServerOptions::trust`](crate::ServerOptions::trust) says that need not be.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there is no memory for a copy; what the kernel says of a pread(2).
    pub fn into_slice(self) -> Result<&'a [u8], Status> {
        let Self { upload, account, shared } = self;
        let bytes = upload.parts.bytes();
        match &mut upload.source {
            Source::Inline(memory) => Ok(memory),
            Source::Sealed(sealed) => Ok((*sealed).as_ref()),
            Source::Copied(copy) => Ok((*copy).as_ref()),
            Source::Region(region) => {
                match shared.config.trust.filter(|_| region.mapping.is_some()) {
                    Some(trust) => Ok(region.in_place(bytes, trust)),
                    None => {
                        let copy = region.copied(bytes, account, shared)?;
                        Ok((*region.copy.insert(copy)).as_ref())
                    }
                }
            }
            Source::None | Source::Unopened { .. } | Source::Refused(_) => Ok(&[]),
        }
    }

    /// All of it, to be kept beyond the call. From a client's buffer it is copied out; else no byte
    /// moves. The payload is gone from the call then.
    ///
    /// # Errors
    /// As [`PayloadIn::into_slice`].
    pub fn into_bytes(self) -> Result<Bytes, Status> {
        let bytes = self.len();
        let source = std::mem::replace(&mut self.upload.source, Source::None);
        self.upload.parts = Parts::default();
        Ok(match source {
            Source::Inline(memory) => Bytes::from_owner(memory),
            Source::Sealed(sealed) => Bytes::from_owner(sealed),
            Source::Copied(copy) => Bytes::from_owner(copy),
            Source::Region(mut region) => {
                let copy = region.copied(bytes, self.account, self.shared);
                // Kept for its mapping.
                self.upload.source = Source::Region(region);
                Bytes::from_owner(copy?)
            }
            Source::None | Source::Unopened { .. } | Source::Refused(_) => Bytes::new(),
        })
    }

    /// The bytes, if they can be had as they are.
    fn held(&self) -> Option<&[u8]> {
        match &self.upload.source {
            Source::Inline(memory) => Some(memory),
            Source::Sealed(sealed) => Some(sealed.as_ref()),
            Source::Copied(copy) => Some(copy.as_ref()),
            Source::Region(region) => region.copy.as_ref().map(AsRef::as_ref),
            Source::None | Source::Unopened { .. } | Source::Refused(_) => Some(&[]),
        }
    }

    fn range(&self, at: usize, bytes: usize) -> Result<Range<usize>, Status> {
        let end = at.checked_add(bytes).filter(|&end| end <= self.len());
        end.map(|end| at..end).ok_or_else(|| {
            let message =
                format!("{bytes} bytes at {at} of a payload of {} were asked for", self.len());
            Status::new(Code::OutOfRange, message)
        })
    }
}

impl UploadRegion {
    /// One pwrite of bytes of the region to a file.
    fn write_some(
        &self,
        file: std::os::fd::BorrowedFd<'_>,
        file_offset: u64,
        range: Range<usize>,
        payload: &PayloadIn<'_>,
    ) -> io::Result<usize> {
        match &self.mapping {
            Some(mapping) => {
                let range = self.offset + range.start..self.offset + range.end;
                mapping.write_to(file, file_offset, range)
            }
            None => {
                let mut scratch = payload.shared.pool.take(range.len().min(CHUNK_BYTES))?;
                self.copy_to(range.start, &mut scratch)?;
                Ok(rustix::io::pwrite(file, &scratch, file_offset)?)
            }
        }
    }
}

/// What is moved at a time where nothing may be mapped.
const CHUNK_BYTES: usize = 256 << 10;
