//! Frames to bytes.

use super::decode::{
    CALL_BYTES, FILL_DESCRIPTOR, FILL_NONE, FILL_ONE_SHOT, FILL_REGION, REPLY_BYTES, UPLOAD_INLINE,
    UPLOAD_REGION, UPLOAD_SEALED,
};
use super::{Call, Fill, Frame, HEADER_BYTES, Header, Hello, Kind, MAGIC, Reply, Span, Upload};
use crate::error::Code;
use crate::limits::STATUS_BYTES_MAX;
use crate::parts::Parts;

impl Frame<'_> {
    /// Header and body of a frame that `payload_bytes` of inline payload follow.
    pub(crate) fn encode(&self, payload_bytes: u64) -> Vec<u8> {
        let mut head = Vec::new();
        self.encode_behind(&mut head, payload_bytes);
        head
    }

    /// Puts header and body of a frame that `payload_bytes` of inline payload follow behind what is
    /// in `out`. The sender has checked its fields against the peer's limits.
    pub(crate) fn encode_behind(&self, out: &mut Vec<u8>, payload_bytes: u64) {
        let start = out.len();
        match self {
            Self::Hello(hello) => put_hello(hello, out),
            Self::Call(call) => put_call(call, out),
            Self::Reply(reply) => put_reply(reply, out),
            Self::Cancel { call: number } | Self::Release { region: number } => {
                Fixed::<{ HEADER_BYTES + 8 }>::new().u64(*number).put(out, &[], &[]);
            }
            Self::Register { region, bytes } => {
                Fixed::<{ HEADER_BYTES + 16 }>::new().u64(*region).u64(*bytes).put(out, &[], &[]);
            }
            Self::Registered { region, code, message } => {
                let mut fixed = Fixed::<{ HEADER_BYTES + 16 }>::new();
                put_status(fixed.u64(*region), *code, message, out);
            }
            Self::Notice { topic, data } => {
                let mut fixed = Fixed::<{ HEADER_BYTES + 8 }>::new();
                fixed.u32(*topic).u32(data.len() as u32).put(out, data, &[]);
            }
            Self::Goodbye { code, message } | Self::RingsTaken { code, message } => {
                put_status(&mut Fixed::<{ HEADER_BYTES + 8 }>::new(), *code, message, out);
            }
            Self::Rings { bytes } => {
                Fixed::<{ HEADER_BYTES + 8 }>::new().u64(*bytes).put(out, &[], &[]);
            }
            Self::Bell => Fixed::<HEADER_BYTES>::new().put(out, &[], &[]),
        }
        let header = Header {
            kind: self.kind(),
            descriptors: self.descriptors(),
            body_bytes: (out.len() - start - HEADER_BYTES) as u32,
            payload_bytes,
        };
        out[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::Hello,
            Self::Call(_) => Kind::Call,
            Self::Reply(_) => Kind::Reply,
            Self::Cancel { .. } => Kind::Cancel,
            Self::Register { .. } => Kind::Register,
            Self::Registered { .. } => Kind::Registered,
            Self::Release { .. } => Kind::Release,
            Self::Notice { .. } => Kind::Notice,
            Self::Goodbye { .. } => Kind::Goodbye,
            Self::Rings { .. } => Kind::Rings,
            Self::RingsTaken { .. } => Kind::RingsTaken,
            Self::Bell => Kind::Bell,
        }
    }

    fn descriptors(&self) -> u8 {
        match self {
            Self::Register { .. } | Self::Rings { .. } => 1,
            Self::Call(call) => call.descriptors(),
            Self::Reply(reply) => reply.descriptors(),
            _ => 0,
        }
    }
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = self.descriptors;
        bytes[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes
    }
}

/// Cuts a status message to what a frame may carry, at a character.
pub(super) fn cut(message: &str) -> &str {
    &message[..message.floor_char_boundary(STATUS_BYTES_MAX)]
}

fn put_hello(hello: &Hello, out: &mut Vec<u8>) {
    let Hello { version_min, version_max, features, limits } = hello;
    Fixed::<{ HEADER_BYTES + 56 }>::new()
        .array(MAGIC)
        .u16(*version_min)
        .u16(*version_max)
        .u32(0)
        .u64(*features)
        .u32(limits.calls_max)
        .u32(limits.regions_max)
        .u32(limits.message_bytes_max)
        .u32(0)
        .u64(limits.inline_bytes_max)
        .u64(limits.region_bytes_max)
        .put(out, &[], &[]);
}

fn put_call(call: &Call<'_>, out: &mut Vec<u8>) {
    let none = Span { region: 0, offset: 0, bytes: 0 };
    let (fill, fill_span) = match call.room.fill {
        Fill::None => (FILL_NONE, none),
        Fill::Region(span) => (FILL_REGION, span),
        Fill::OneShot { bytes } => (FILL_ONE_SHOT, Span { bytes, ..none }),
        Fill::Descriptor { bytes } => (FILL_DESCRIPTOR, Span { bytes, ..none }),
    };
    let (upload, upload_span) = match call.upload {
        Upload::None | Upload::Inline { .. } => (UPLOAD_INLINE, none),
        Upload::Region(span) => (UPLOAD_REGION, span),
        Upload::Sealed { offset, bytes } => (UPLOAD_SEALED, Span { region: 0, offset, bytes }),
    };
    Fixed::<{ HEADER_BYTES + CALL_BYTES }>::new()
        .u64(call.call)
        .u64(call.remaining_ns)
        .array([fill, upload])
        .u16(call.method.len() as u16)
        .u32(call.request.len() as u32)
        .span(fill_span)
        .u64(call.room.inline_bytes)
        .u64(call.room.sealed_bytes)
        .span(upload_span)
        .u32(call.room.inline_first_bytes)
        .u16(call.parts.lengths().len() as u16)
        .u16(0)
        .put_with_parts(out, &call.parts, call.method.as_bytes(), call.request);
}

fn put_reply(reply: &Reply<'_>, out: &mut Vec<u8>) {
    let message = cut(reply.message);
    Fixed::<{ HEADER_BYTES + REPLY_BYTES }>::new()
        .u64(reply.call)
        .u32(reply.code as u32)
        .array([reply.lane as u8, 0])
        .u16(reply.parts.lengths().len() as u16)
        .u64(reply.payload_bytes)
        .u32(reply.response.len() as u32)
        .u32(message.len() as u32)
        .u64(reply.offset)
        .put_with_parts(out, &reply.parts, reply.response, message.as_bytes());
}

fn put_status<const N: usize>(fixed: &mut Fixed<N>, code: Code, message: &str, out: &mut Vec<u8>) {
    let message = cut(message);
    fixed.u32(code as u32).u32(message.len() as u32).put(out, message.as_bytes(), &[]);
}

/// The part of a frame whose size is fixed: room for the header, then fields put one behind the
/// other. Its places are known to the compiler, which makes plain stores of them.
struct Fixed<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Fixed<N> {
    #[inline(always)]
    fn new() -> Self {
        Self { bytes: [0; N], at: HEADER_BYTES }
    }

    #[inline(always)]
    fn array<const M: usize>(&mut self, field: [u8; M]) -> &mut Self {
        self.bytes[self.at..self.at + M].copy_from_slice(&field);
        self.at += M;
        self
    }

    #[inline(always)]
    fn u16(&mut self, field: u16) -> &mut Self {
        self.array(field.to_le_bytes())
    }

    #[inline(always)]
    fn u32(&mut self, field: u32) -> &mut Self {
        self.array(field.to_le_bytes())
    }

    #[inline(always)]
    fn u64(&mut self, field: u64) -> &mut Self {
        self.array(field.to_le_bytes())
    }

    #[inline(always)]
    fn span(&mut self, span: Span) -> &mut Self {
        self.u64(span.region).u64(span.offset).u64(span.bytes)
    }

    /// Puts the whole head, with a table of parts, which is mostly empty, and what comes behind it.
    #[inline]
    fn put_with_parts(&self, out: &mut Vec<u8>, parts: &Parts, first: &[u8], second: &[u8]) {
        if parts.lengths().len() == 0 {
            return self.put(out, first, second);
        }
        let table: Vec<u8> = parts.lengths().flat_map(u64::to_le_bytes).collect();
        self.put(out, &table, first);
        out.extend_from_slice(second);
    }

    /// Puts the whole head, with what comes behind the fixed part.
    #[inline]
    fn put(&self, out: &mut Vec<u8>, first: &[u8], second: &[u8]) {
        debug_assert_eq!(self.at, N, "every field is put");
        out.reserve(N + first.len() + second.len());
        out.extend_from_slice(&self.bytes);
        out.extend_from_slice(first);
        out.extend_from_slice(second);
    }
}
