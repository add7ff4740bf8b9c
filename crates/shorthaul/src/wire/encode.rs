//! Frames to bytes.

use smallvec::SmallVec;

use super::decode::{PLACE_INLINE, PLACE_NONE, PLACE_ONE_SHOT, PLACE_REGION};
use super::{Call, Frame, HEADER_BYTES, Header, Hello, Kind, MAGIC, Place, Reply};
use crate::error::Code;
use crate::limits::STATUS_BYTES_MAX;

/// A frame's header and body; frames of ordinary size need no allocation.
pub(crate) type Head = SmallVec<[u8; 192]>;

impl Frame<'_> {
    /// Encodes header and body of a frame that `payload_bytes` of inline payload follow. The sender
    /// has checked its fields against the peer's limits.
    pub(crate) fn encode(&self, payload_bytes: u64) -> Head {
        let mut head = Head::new();
        head.extend_from_slice(&[0; HEADER_BYTES]);
        match self {
            Self::Hello(hello) => put_hello(&mut head, hello),
            Self::Call(call) => put_call(&mut head, call),
            Self::Reply(reply) => put_reply(&mut head, reply),
            Self::Cancel { call } => put(&mut head, call.to_le_bytes()),
            Self::Register { region, bytes } => {
                put(&mut head, region.to_le_bytes());
                put(&mut head, bytes.to_le_bytes());
            }
            Self::Registered { region, code, message } => {
                put(&mut head, region.to_le_bytes());
                put_status(&mut head, *code, message);
            }
            Self::Release { region } => put(&mut head, region.to_le_bytes()),
            Self::Notice { topic, data } => {
                put(&mut head, topic.to_le_bytes());
                put(&mut head, (data.len() as u32).to_le_bytes());
                head.extend_from_slice(data);
            }
            Self::Goodbye { code, message } => put_status(&mut head, *code, message),
        }
        let header = Header {
            kind: self.kind(),
            descriptors: self.descriptors(),
            body_bytes: (head.len() - HEADER_BYTES) as u32,
            payload_bytes,
        };
        head[..HEADER_BYTES].copy_from_slice(&header.encode());
        head
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
        }
    }

    fn descriptors(&self) -> u8 {
        match self {
            Self::Register { .. } => 1,
            Self::Call(call) => u8::from(matches!(call.place, Place::OneShot { .. })),
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

fn put<const N: usize>(head: &mut Head, field: [u8; N]) {
    head.extend_from_slice(&field);
}

fn put_hello(head: &mut Head, hello: &Hello) {
    put(head, MAGIC);
    put(head, hello.version_min.to_le_bytes());
    put(head, hello.version_max.to_le_bytes());
    put(head, [0; 4]);
    put(head, hello.features.to_le_bytes());
    put(head, hello.limits.calls_max.to_le_bytes());
    put(head, hello.limits.regions_max.to_le_bytes());
    put(head, hello.limits.message_bytes_max.to_le_bytes());
    put(head, [0; 4]);
    put(head, hello.limits.inline_bytes_max.to_le_bytes());
    put(head, hello.limits.region_bytes_max.to_le_bytes());
}

fn put_call(head: &mut Head, call: &Call<'_>) {
    let (place, region, offset, bytes) = match call.place {
        Place::None => (PLACE_NONE, 0, 0, 0),
        Place::Inline { bytes_max } => (PLACE_INLINE, 0, 0, bytes_max),
        Place::Region { region, offset, bytes } => (PLACE_REGION, region, offset, bytes),
        Place::OneShot { bytes } => (PLACE_ONE_SHOT, 0, 0, bytes),
    };
    put(head, call.call.to_le_bytes());
    put(head, call.remaining_ns.to_le_bytes());
    put(head, [place, 0]);
    put(head, (call.method.len() as u16).to_le_bytes());
    put(head, (call.request.len() as u32).to_le_bytes());
    put(head, region.to_le_bytes());
    put(head, offset.to_le_bytes());
    put(head, bytes.to_le_bytes());
    head.extend_from_slice(call.method.as_bytes());
    head.extend_from_slice(call.request);
}

fn put_reply(head: &mut Head, reply: &Reply<'_>) {
    let message = cut(reply.message);
    put(head, reply.call.to_le_bytes());
    put(head, (reply.code as u32).to_le_bytes());
    put(head, [reply.lane as u8, 0, 0, 0]);
    put(head, reply.payload_bytes.to_le_bytes());
    put(head, (reply.response.len() as u32).to_le_bytes());
    put(head, (message.len() as u32).to_le_bytes());
    head.extend_from_slice(reply.response);
    head.extend_from_slice(message.as_bytes());
}

fn put_status(head: &mut Head, code: Code, message: &str) {
    let message = cut(message);
    put(head, (code as u32).to_le_bytes());
    put(head, (message.len() as u32).to_le_bytes());
    head.extend_from_slice(message.as_bytes());
}
