//! What a caller gets back.

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use shorthaul_platform::memory::{HugePages, Refusal, Refused, SealedMapping, Trust};
use shorthaul_platform::store::sum_slice;

use super::auto::{Auto, Direction, MethodKey, Plan};
use super::buffer::Buffer;
use crate::connection::client::Answered;
use crate::error::Error;
use crate::lane::{Lane, LaneCounters, Reason};
use crate::limits::Limits;
use crate::parts::Parts;
use crate::payload::{MemoryPool, MessageBytes, PooledMemory};
use crate::undertaker;

/// What all calls of one client have in common.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) pool: Arc<MemoryPool>,
    pub(super) auto: Arc<Auto>,
    pub(super) lanes: LaneCounters,
    /// The client's own limits.
    pub(super) limits: Limits,
    pub(super) huge_pages: HugePages,
    pub(super) trust: Option<Trust>,
    /// Who the server is.
    pub(super) server_uid: u32,
}

/// What a call gives back with its answer.
#[derive(Debug)]
pub(super) struct Held {
    /// The buffer for the answer.
    pub(super) answer: Option<Buffer>,
    /// Where in it the payload starts.
    pub(super) offset: usize,
    /// The buffer that the request's payload lies in.
    pub(super) upload: Option<Buffer>,
    pub(super) upload_lane: Lane,
    /// Bytes that are in the descriptor that the call hands over, if it does.
    pub(super) descriptor_bytes: Option<u64>,
    /// The method of a call whose answer goes to memory with huge pages of its own.
    pub(super) fresh: Option<MethodKey>,
    /// Of a call whose lanes were the client's choice.
    pub(super) guess: Option<Box<Guess>>,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            answer: None,
            offset: 0,
            upload: None,
            upload_lane: Lane::None,
            descriptor_bytes: None,
            fresh: None,
            guess: None,
        }
    }
}

/// The choice that was made for a call, to be learnt from.
#[derive(Debug)]
pub(super) struct Guess {
    pub(super) auto: Arc<Auto>,
    pub(super) method: MethodKey,
    pub(super) answer: Option<Plan>,
    pub(super) upload_reason: Option<Reason>,
    /// Whether the upload's buffer is the client's own.
    pub(super) keeps_upload: bool,
}

impl Held {
    /// The end of a call that has no answer, but whose memory is the client's.
    pub(super) fn into_error(mut self, error: Error) -> CallError {
        self.give_back();
        CallError::new(error, self.answer.take(), self.upload.take())
            .with_descriptor_bytes(self.descriptor_bytes)
    }

    /// Gives buffers that the client keeps back to it.
    fn give_back(&mut self) {
        let Some(guess) = &self.guess else { return };
        if guess.answer.is_some() {
            self.answer.take().into_iter().for_each(|buffer| guess.auto.give_back(buffer));
        }
        if guess.keeps_upload {
            self.upload.take().into_iter().for_each(|buffer| guess.auto.give_back(buffer));
        }
    }
}

/// A successful answer.
#[derive(Debug)]
pub struct Reply {
    response: MessageBytes,
    lane: Lane,
    parts: Parts,
    memory: Memory,
    held: Box<Held>,
    trust: Option<Trust>,
}

/// Where the payload is.
#[derive(Debug)]
enum Memory {
    /// In the caller's buffer, or nowhere.
    Buffer,
    Inline(PooledMemory),
    Sealed(SealedMapping, Range<usize>),
    /// A memory file that nobody has looked at yet.
    Unopened(Stranger, u64),
    /// There was one, but this process had no room for it: what of.
    Lost(&'static str),
    /// In the descriptor that the caller has handed over: not here.
    Descriptor,
}

/// A descriptor from a server, by its user, that nobody has looked at. Closing it can wait for
/// whoever made it.
#[derive(Debug)]
struct Stranger(Option<OwnedFd>, u32);

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|descriptor| undertaker::bury(self.1, descriptor));
    }
}

impl Reply {
    /// The response: the small part of the answer.
    pub fn response(&self) -> &[u8] {
        &self.response
    }

    /// The lane that the payload took.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// Why it took that lane.
    pub fn reason(&self) -> Reason {
        let Some(guess) = &self.held.guess else { return Reason::Asked };
        let policy = guess.auto.policy();
        let reason = |plan| policy.reason(plan, self.lane, self.len());
        guess.answer.as_ref().map_or(Reason::Asked, reason)
    }

    /// The lane that the request's payload took.
    pub fn upload_lane(&self) -> Lane {
        self.held.upload_lane
    }

    /// Why the request's payload took that lane.
    pub fn upload_reason(&self) -> Reason {
        let guess = self.held.guess.as_ref();
        guess.and_then(|guess| guess.upload_reason).unwrap_or(Reason::Asked)
    }

    /// Bytes of payload that are valid. Those of a payload on [`Lane::Descriptor`] are in the
    /// caller's descriptor, and can't be had from here.
    pub fn len(&self) -> usize {
        self.parts.bytes()
    }

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The parts of the payload.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The payload in place, if nobody else can write it: it came inline or sealed, or the client
    /// [trusts](crate::ClientOptions::trust) its server.
    pub fn as_slice(&self) -> Option<&[u8]> {
        let bytes = self.len();
        match (&self.memory, &self.held.answer, self.trust) {
            (Memory::Inline(memory), ..) => Some(&memory[..bytes]),
            (Memory::Sealed(mapping, range), ..) => Some(&mapping[range.clone()]),
            (Memory::Buffer, Some(buffer), Some(trust)) => {
                let start = self.held.offset;
                Some(buffer.trusted(start..start + bytes, trust))
            }
            (Memory::Buffer, None, _) if bytes == 0 => Some(&[]),
            _ => None,
        }
    }

    /// The payload without a copy, to be kept or passed on, if nobody else can write it: it came
    /// inline or sealed. Else the reply comes back.
    ///
    /// # Errors
    /// The reply itself.
    #[allow(clippy::result_large_err, reason = "it is moved on, not up")]
    pub fn into_bytes(mut self) -> Result<Bytes, Self> {
        let bytes = self.len();
        match std::mem::replace(&mut self.memory, Memory::Buffer) {
            Memory::Inline(memory) => Ok(Bytes::from_owner(memory).slice(..bytes)),
            Memory::Sealed(mapping, range) => Ok(Bytes::from_owner(Owner(mapping)).slice(range)),
            _ if bytes == 0 => Ok(Bytes::new()),
            memory => {
                self.memory = memory;
                Err(self)
            }
        }
    }

    /// Copies the payload, or as much of it as fits; returns how many bytes that was: none of a
    /// payload that is in a descriptor.
    pub fn copy_to(&self, target: &mut [u8]) -> usize {
        let bytes = self.bytes_here().min(target.len());
        self.copy_range(0, &mut target[..bytes]);
        bytes
    }

    /// Copies part `index` of the payload, or as much of it as fits; returns how many bytes that
    /// was. None if there are fewer parts.
    pub fn copy_part_to(&self, index: usize, target: &mut [u8]) -> Option<usize> {
        let part = self.parts.get(index)?;
        let bytes = part.len().min(self.bytes_here()).min(target.len());
        self.copy_range(part.start, &mut target[..bytes]);
        Some(bytes)
    }

    /// A copy of the payload.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.bytes_here()];
        self.copy_to(&mut copy);
        copy
    }

    /// Sums the first byte of every `stride` bytes of the payload; 1 reads them all.
    ///
    /// # Panics
    /// If `stride` is 0.
    pub fn sum(&self, stride: usize) -> u64 {
        let start = self.held.offset;
        match (&self.memory, &self.held.answer) {
            (Memory::Buffer, Some(buffer)) => buffer.sum(start..start + self.len(), stride),
            _ => sum_slice(self.as_slice().unwrap_or(&[]), stride),
        }
    }

    /// The buffer that went into the call for its answer, or that the client has chosen for it if
    /// the payload is in it: then it is the caller's now.
    pub fn into_buffer(mut self) -> Option<Buffer> {
        self.take_answer_buffer()
    }

    /// Both buffers, as [`Reply::into_buffer`] and [`Reply::into_upload_buffer`] give them.
    pub fn into_buffers(mut self) -> (Option<Buffer>, Option<Buffer>) {
        (self.take_answer_buffer(), self.take_upload_buffer())
    }

    /// The buffer that went into the call with the request's payload. One that the client has
    /// chosen stays with the client.
    pub fn into_upload_buffer(mut self) -> Option<Buffer> {
        self.take_upload_buffer()
    }

    /// Bytes of payload that can be had from here.
    fn bytes_here(&self) -> usize {
        if let Memory::Descriptor = self.memory { 0 } else { self.len() }
    }

    fn take_answer_buffer(&mut self) -> Option<Buffer> {
        let is_in_it = matches!(self.lane, Lane::FillMap | Lane::FillWrite);
        let is_callers = self.held.guess.as_ref().is_none_or(|guess| guess.answer.is_none());
        if is_in_it || is_callers { self.held.answer.take() } else { None }
    }

    fn take_upload_buffer(&mut self) -> Option<Buffer> {
        let is_callers = self.held.guess.as_ref().is_none_or(|guess| !guess.keeps_upload);
        if is_callers { self.held.upload.take() } else { None }
    }

    fn copy_range(&self, at: usize, target: &mut [u8]) {
        match (&self.memory, &self.held.answer) {
            (Memory::Buffer, Some(buffer)) => buffer.copy_to(self.held.offset + at, target),
            _ => {
                let bytes = self.as_slice().unwrap_or(&[]);
                target.copy_from_slice(&bytes[at..at + target.len()]);
            }
        }
    }

    /// Looks at what came, where that may take its time: on the caller's thread.
    pub(super) fn open(mut self, common: &Common) -> Outcome {
        let opened = match std::mem::replace(&mut self.memory, Memory::Buffer) {
            Memory::Unopened(mut stranger, offset) => match stranger.0.take() {
                Some(descriptor) => open_sealed(descriptor, offset, self.len(), common),
                None => Ok(Memory::Lost(NO_DESCRIPTORS)),
            },
            memory => Ok(memory),
        };
        match opened {
            Ok(Memory::Lost(why)) => self.fail(Error::PayloadLost(why.into())),
            Ok(memory) => {
                self.memory = memory;
                Ok(self)
            }
            Err(error) => self.fail(error),
        }
    }

    fn fail(mut self, error: Error) -> Outcome {
        Err(std::mem::take(&mut self.held).into_error(error))
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.held.give_back();
    }
}

/// A sealed mapping that owns itself.
struct Owner(SealedMapping);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn open_sealed(
    descriptor: OwnedFd,
    offset: u64,
    bytes: usize,
    common: &Common,
) -> Result<Memory, Error> {
    match SealedMapping::parse(descriptor, common.limits.region_bytes_max) {
        Ok(mapping) => {
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            match start.checked_add(bytes).filter(|&end| end <= mapping.len()) {
                Some(end) => Ok(Memory::Sealed(mapping, start..end)),
                None => Err(Error::PayloadLost(format!(
                    "the sealed memory has {} bytes, not {bytes} at {offset}",
                    mapping.len()
                ))),
            }
        }
        Err(Refused { refusal: Refusal::Sparse { .. }, descriptor })
            if bytes as u64 <= common.limits.inline_bytes_max =>
        {
            read_sparse(&descriptor, offset, bytes, common)
        }
        Err(Refused { refusal, descriptor }) => {
            undertaker::bury(common.server_uid, descriptor);
            Err(Error::PayloadLost(format!("the sealed memory was refused: {refusal}")))
        }
    }
}

/// A sealed file with holes is read through the kernel, which allocates nothing for them.
fn read_sparse(
    file: &OwnedFd,
    offset: u64,
    bytes: usize,
    common: &Common,
) -> Result<Memory, Error> {
    let mut memory = common.pool.take(bytes).map_err(|error| {
        Error::PayloadLost(format!("no memory for a payload of {bytes} bytes: {error}"))
    })?;
    let mut read = 0;
    while read < bytes {
        match rustix::io::pread(file, &mut memory[read..], offset.saturating_add(read as u64)) {
            Ok(0) => {
                let message = format!("the sealed memory ends after {read} of {bytes} bytes");
                return Err(Error::PayloadLost(message));
            }
            Ok(count) => read += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                let message = format!("the sealed memory can't be read: {error}");
                return Err(Error::PayloadLost(message));
            }
        }
    }
    Ok(Memory::Inline(memory))
}

/// Why a call has no successful answer, and the buffers that went into it if the server has let go
/// of them. Turns into a plain [`Error`] by `?`, dropping the buffers.
#[derive(Debug)]
pub struct CallError {
    inner: Box<Inner>,
}

#[derive(Debug)]
struct Inner {
    error: Error,
    answer: Option<Buffer>,
    upload: Option<Buffer>,
    descriptor_bytes: Option<u64>,
}

impl CallError {
    pub(super) fn new(error: Error, answer: Option<Buffer>, upload: Option<Buffer>) -> Self {
        let descriptor_bytes = None;
        Self { inner: Box::new(Inner { error, answer, upload, descriptor_bytes }) }
    }

    pub(super) fn with_descriptor_bytes(mut self, bytes: Option<u64>) -> Self {
        self.inner.descriptor_bytes = bytes;
        self
    }

    /// One whose buffers are not the caller's any more, or that had none.
    pub(super) fn without_buffers(error: Error) -> Self {
        Self::new(error, None, None)
    }

    /// What went wrong.
    pub fn error(&self) -> &Error {
        &self.inner.error
    }

    /// How many bytes of the payload are in the descriptor that went into the call. None if that is
    /// not known (the connection was lost, or the server did not say in time), or if there was
    /// none.
    pub fn descriptor_bytes(&self) -> Option<u64> {
        self.inner.descriptor_bytes
    }

    /// The buffer for the answer, to be used again: none after a time-out, for the server may still
    /// be writing.
    pub fn into_buffer(self) -> Option<Buffer> {
        self.inner.answer
    }

    /// The buffers for the answer and with the request's payload, to be used again.
    pub fn into_buffers(self) -> (Option<Buffer>, Option<Buffer>) {
        (self.inner.answer, self.inner.upload)
    }
}

impl From<CallError> for Error {
    fn from(failed: CallError) -> Self {
        failed.inner.error
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.error.fmt(f)
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.error.source()
    }
}

/// What a call ends with.
pub(crate) type Outcome = Result<Reply, CallError>;

/// Puts an answer and what its call held together. Quick: whatever takes time is left to
/// [`Reply::open`].
pub(super) fn outcome(answer: Answered<OwnedFd>, mut held: Box<Held>, common: &Common) -> Outcome {
    let Answered { status, lane, parts, given_bytes, response, payload, sealed } = answer;
    held.descriptor_bytes = held.descriptor_bytes.map(|_| given_bytes);
    if let Some(guess) = &held.guess
        && guess.answer.is_some()
    {
        let needed = status.as_ref().map(|status| status.bytes_needed.unwrap_or(0));
        let bytes = needed.map_or(parts.bytes(), |bytes| usize::try_from(bytes).unwrap_or(0));
        // A failure says nothing about the size of success, but for the size that was needed.
        if status.is_none() || bytes > 0 {
            guess.auto.learn(Direction::Answer, guess.method, bytes);
        }
    }
    if let Some(status) = status {
        return Err(held.into_error(status.into()));
    }
    if let Some(method) = held.fresh {
        common.auto.learn(Direction::Fresh, method, parts.bytes());
    }
    let lane = Lane::from(lane);
    common.lanes.count_answer(lane, parts.bytes() as u64);
    let memory = match (lane, payload, sealed) {
        (Lane::Sealed, _, Some((descriptor, offset))) => {
            Memory::Unopened(Stranger(Some(descriptor), common.server_uid), offset)
        }
        (Lane::Sealed, _, None) => Memory::Lost(NO_DESCRIPTORS),
        (Lane::Inline, None, _) if parts.bytes() > 0 => Memory::Lost(NO_MEMORY),
        (Lane::Descriptor, ..) => Memory::Descriptor,
        (_, Some(memory), _) => Memory::Inline(memory),
        (..) => Memory::Buffer,
    };
    Ok(Reply { response, lane, parts, memory, held, trust: common.trust })
}

const NO_DESCRIPTORS: &str = "no descriptor arrived: this process is out of descriptors; close \
                              some, or raise its RLIMIT_NOFILE";
const NO_MEMORY: &str = "there is no memory for it; take it into a buffer, or in parts";
