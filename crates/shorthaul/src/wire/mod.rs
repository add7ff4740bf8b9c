//! Frames to bytes and back. Pure: no I/O, no clock, no panic on any input.
//!
//! A frame is a 16-byte header, a body, and for some kinds an inline payload. docs/PROTOCOL.md is
//! the authority; the golden frames there are checked by this module's tests. All integers are
//! little-endian. Whatever is not used must be zero, so that it can get a meaning later.

#[cfg(any(all(test, not(shorthaul_models)), fuzzing))]
pub(crate) mod any_bytes;
mod decode;
mod encode;
#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests;

use crate::error::Code;
use crate::limits::Limits;
use crate::parts::Parts;

pub(crate) use decode::WireError;

/// Bytes of a frame's header.
pub(crate) const HEADER_BYTES: usize = 16;
/// The first bytes of a hello's body.
pub(crate) const MAGIC: [u8; 8] = *b"shorthl\0";
/// The protocol version that this library speaks.
pub(crate) const VERSION: u16 = 1;
/// The ability to take sealed memory files.
pub(crate) const FEATURE_SEALED: u64 = 1;
/// The ability to relay payloads into descriptors that come with calls.
pub(crate) const FEATURE_DESCRIPTORS: u64 = 2;

/// The ability to take frames out of a ring in memory of the client's.
pub(crate) const FEATURE_RINGS: u64 = 4;

/// What a frame is, by its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Hello = 1,
    Call = 2,
    Reply = 3,
    Cancel = 4,
    Register = 5,
    Registered = 6,
    Release = 7,
    Notice = 8,
    Goodbye = 9,
    Rings = 10,
    RingsTaken = 11,
    Bell = 12,
}

/// The start of every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// Descriptors that came with the frame's first byte.
    pub(crate) descriptors: u8,
    pub(crate) body_bytes: u32,
    /// Inline payload behind the body.
    pub(crate) payload_bytes: u64,
}

/// A frame's body, parsed; borrowed from where it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    Hello(Hello),
    Call(Call<'a>),
    Reply(Reply<'a>),
    Cancel {
        call: u64,
    },
    Register {
        region: u64,
        bytes: u64,
    },
    Registered {
        region: u64,
        code: Code,
        message: &'a str,
    },
    Release {
        region: u64,
    },
    Notice {
        topic: u32,
        data: &'a [u8],
    },
    Goodbye {
        code: Code,
        message: &'a str,
    },
    /// The memory file for the rings of the connection.
    Rings {
        bytes: u64,
    },
    RingsTaken {
        code: Code,
        message: &'a str,
    },
    /// Wakes who fell asleep while something was put into its ring.
    Bell,
}

/// The first frame of either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Versions spoken, lowest and highest; a server answers with the one it chose, twice.
    pub(crate) version_min: u16,
    pub(crate) version_max: u16,
    /// Abilities beyond the version, one bit each; unknown bits are ignored.
    pub(crate) features: u64,
    pub(crate) limits: Limits,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call<'a> {
    pub(crate) call: u64,
    /// Time left, in nanoseconds: clocks differ between time namespaces. 0: no deadline.
    pub(crate) remaining_ns: u64,
    pub(crate) room: Room,
    pub(crate) upload: Upload,
    pub(crate) parts: Parts,
    pub(crate) method: &'a str,
    pub(crate) request: &'a [u8],
}

/// Where the payload of the answer may go. The server takes the first of these that has room for
/// it: inline if it has at most `inline_first_bytes`; `fill`, or inline if that is none; a sealed
/// memory file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) fill: Fill,
    /// Most bytes behind the reply.
    pub(crate) inline_bytes: u64,
    /// Payloads of so many bytes go behind the reply even if there is other room.
    pub(crate) inline_first_bytes: u32,
    /// Most bytes in a sealed memory file of the server's.
    pub(crate) sealed_bytes: u64,
}

/// What of the client's the server may fill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fill {
    #[default]
    None,
    /// In a registered region of its own.
    Region(Span),
    /// In the memory file that comes with this call, which is as long as said.
    OneShot { bytes: u64 },
    /// The pipe, socket or file that comes with this call, which takes at most so many bytes.
    Descriptor { bytes: u64 },
}

/// A part of a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) region: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Bulk that goes with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Upload {
    #[default]
    None,
    /// Behind the call.
    Inline { bytes: u64 },
    /// In a registered region, to be copied out before the reply.
    Region(Span),
    /// In the sealed memory file that comes with this call.
    Sealed { offset: u64, bytes: u64 },
}

/// An answer: the last word on its call. The server touches none of the call's memory after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply<'a> {
    pub(crate) call: u64,
    pub(crate) code: Code,
    pub(crate) lane: LaneNumber,
    /// Payload bytes that are valid; of a failure on the lane *descriptor*, those that are in it
    /// all the same; of another with OUT_OF_RANGE, the bytes that a buffer needs.
    pub(crate) payload_bytes: u64,
    /// Where in a sealed memory file the payload starts.
    pub(crate) offset: u64,
    pub(crate) parts: Parts,
    pub(crate) response: &'a [u8],
    pub(crate) message: &'a str,
}

/// The lane that a reply's payload took, by its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LaneNumber {
    None = 0,
    Inline = 1,
    FillWrite = 2,
    FillMap = 3,
    Sealed = 4,
    Descriptor = 5,
}

impl Room {
    /// The largest payload that there is room for.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.inline_bytes_max().max(self.fill.bytes()).max(self.sealed_bytes)
    }

    /// The largest payload that may go inline.
    pub(crate) fn inline_bytes_max(&self) -> u64 {
        match self.fill {
            Fill::None => self.inline_bytes,
            _ => self.inline_bytes.min(u64::from(self.inline_first_bytes)),
        }
    }
}

impl Fill {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Region(Span { bytes, .. })
            | Self::OneShot { bytes }
            | Self::Descriptor { bytes } => *bytes,
        }
    }

    /// Bytes of the client's memory among them.
    pub(crate) fn memory_bytes(&self) -> u64 {
        if let Self::Descriptor { .. } = self { 0 } else { self.bytes() }
    }

    /// Whether it is memory.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self, Self::Region(_) | Self::OneShot { .. })
    }

    /// Whether a descriptor of its own comes with it.
    fn has_descriptor(&self) -> bool {
        matches!(self, Self::OneShot { .. } | Self::Descriptor { .. })
    }
}

impl Upload {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Inline { bytes }
            | Self::Region(Span { bytes, .. })
            | Self::Sealed { bytes, .. } => *bytes,
        }
    }
}

impl Call<'_> {
    /// Descriptors that come with it: the one to be filled, then the sealed memory file.
    pub(crate) fn descriptors(&self) -> u8 {
        u8::from(self.room.fill.has_descriptor())
            + u8::from(matches!(self.upload, Upload::Sealed { .. }))
    }
}

impl Reply<'_> {
    /// Descriptors that come with it: the sealed memory file.
    pub(crate) fn descriptors(&self) -> u8 {
        u8::from(self.lane == LaneNumber::Sealed)
    }
}
