//! What a caller gets back.

use std::fmt;

use super::buffer::Buffer;
use crate::connection::client::Answered;
use crate::error::Error;
use crate::payload::{MessageBytes, PooledMemory};
use crate::wire::LaneNumber;

/// How a payload travelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lane {
    /// There was none.
    None,
    /// Behind the reply on the socket.
    Inline,
    /// The server wrote it into the caller's buffer with pwrite(2).
    FillWrite,
    /// The server stored it into the caller's buffer through a mapping.
    FillMap,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Inline => "inline",
            Self::FillWrite => "fill(write)",
            Self::FillMap => "fill(map)",
        })
    }
}

impl From<LaneNumber> for Lane {
    fn from(number: LaneNumber) -> Self {
        match number {
            LaneNumber::None => Self::None,
            LaneNumber::Inline => Self::Inline,
            LaneNumber::FillWrite => Self::FillWrite,
            LaneNumber::FillMap => Self::FillMap,
        }
    }
}

/// A successful answer.
#[derive(Debug)]
pub struct Reply {
    response: MessageBytes,
    lane: Lane,
    bytes: usize,
    /// Where in the buffer the payload starts.
    offset: usize,
    inline: Option<PooledMemory>,
    buffer: Option<Buffer>,
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

    /// Bytes of payload that are valid.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The payload, if it came inline: that memory is nobody else's.
    pub fn inline_payload(&self) -> Option<&[u8]> {
        self.inline.as_deref()
    }

    /// Copies the payload, or as much of it as fits; returns how many bytes that was.
    pub fn copy_to(&self, target: &mut [u8]) -> usize {
        let bytes = self.bytes.min(target.len());
        let target = &mut target[..bytes];
        match (&self.inline, &self.buffer) {
            (Some(memory), _) => target.copy_from_slice(&memory[..bytes]),
            (None, Some(buffer)) => buffer.copy_to(self.offset, target),
            (None, None) => {}
        }
        bytes
    }

    /// A copy of the payload.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.bytes];
        self.copy_to(&mut copy);
        copy
    }

    /// Sums the first byte of every `stride` bytes of the payload; 1 reads them all.
    ///
    /// # Panics
    /// If `stride` is 0.
    pub fn sum(&self, stride: usize) -> u64 {
        match (&self.inline, &self.buffer) {
            (Some(memory), _) if stride == 1 => sum_all(&memory[..self.bytes]),
            (Some(memory), _) => {
                memory[..self.bytes].iter().step_by(stride).copied().map(u64::from).sum()
            }
            (None, Some(buffer)) => buffer.sum(self.offset..self.offset + self.bytes, stride),
            (None, None) => 0,
        }
    }

    /// The buffer that went into the call.
    pub fn into_buffer(self) -> Option<Buffer> {
        self.buffer
    }
}

/// Why a call has no successful answer, and the buffer that went into it if the server has let go
/// of it. Turns into a plain [`Error`] by `?`, dropping the buffer.
#[derive(Debug)]
pub struct CallError {
    inner: Box<(Error, Option<Buffer>)>,
}

impl CallError {
    pub(crate) fn new(error: Error, buffer: Option<Buffer>) -> Self {
        Self { inner: Box::new((error, buffer)) }
    }

    /// What went wrong.
    pub fn error(&self) -> &Error {
        &self.inner.0
    }

    /// The buffer, to be used again: none after a time-out, for the server may still be writing.
    pub fn into_buffer(self) -> Option<Buffer> {
        self.inner.1
    }
}

impl From<CallError> for Error {
    fn from(failed: CallError) -> Self {
        failed.inner.0
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.0.fmt(f)
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.0.source()
    }
}

/// What a call ends with.
pub(crate) type Outcome = Result<Reply, CallError>;

/// Puts an answer and the buffer of its call together.
pub(crate) fn outcome(answer: Answered, buffer: Option<Buffer>, offset: usize) -> Outcome {
    let Answered { status, lane, payload_bytes: bytes, response, payload: inline } = answer;
    match status {
        Some(status) => Err(CallError::new(status.into(), buffer)),
        None => Ok(Reply { response, lane: lane.into(), bytes, offset, inline, buffer }),
    }
}

/// Sums bytes in lanes that the compiler can vectorise: 16-bit sums of 256 bytes can't overflow.
fn sum_all(bytes: &[u8]) -> u64 {
    bytes
        .chunks(256)
        .map(|chunk| u64::from(chunk.iter().map(|&byte| u16::from(byte)).sum::<u16>()))
        .sum()
}
