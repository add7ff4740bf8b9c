//! Bytes to frames.

use std::str;

use super::{
    Call, Fill, Frame, HEADER_BYTES, Header, Hello, Kind, LaneNumber, MAGIC, Reply, Room, Span,
    Upload,
};
use crate::error::Code;
use crate::limits::{
    BODY_BYTES_MAX, Limits, METHOD_BYTES_MAX, NOTICE_BYTES_MAX, PART_TABLE_BYTES_MAX,
    STATUS_BYTES_MAX,
};
use crate::parts::Parts;

/// Why bytes are no frame. The connection that brought them is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    #[error("a {0:?} frame announces {1} bytes of body, which is not possible")]
    BodySize(Kind, u32),
    #[error("a {0:?} frame announces {1} bytes of payload, over the limit of {2}")]
    PayloadSize(Kind, u64, u64),
    #[error("a {0:?} frame announces {1} descriptors, which is not possible")]
    DescriptorCount(Kind, u8),
    #[error("reserved bytes of a {0:?} frame are not zero")]
    Reserved(Kind),
    #[error("the lengths inside a {0:?} frame do not add up to its size")]
    Lengths(Kind),
    #[error("the peer does not speak this protocol: its hello starts with other bytes")]
    Magic,
    #[error("a hello with versions {0} to {1} makes no sense")]
    Versions(u16, u16),
    #[error("unknown kind {0} of what is to be filled")]
    UnknownFill(u8),
    #[error("unknown kind {0} of upload")]
    UnknownUpload(u8),
    #[error("the parts of a payload do not add up to it")]
    Parts,
    #[error("unknown lane {0}")]
    UnknownLane(u8),
    #[error("unknown status code {0}")]
    UnknownCode(u32),
    #[error("text in a {0:?} frame is not UTF-8")]
    Text(Kind),
}

impl Header {
    /// Parses a header, and checks all that can be checked before the body is there: nothing that
    /// it announces is over a limit.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES], limits: &Limits) -> Result<Self, WireError> {
        let mut fields = Fields { rest: bytes };
        let kind = fields.u8();
        let kind = Kind::from_number(kind).ok_or(WireError::UnknownKind(kind))?;
        let descriptors = fields.u8();
        let reserved = fields.u16();
        let header =
            Self { kind, descriptors, body_bytes: fields.u32(), payload_bytes: fields.u64() };
        if reserved != 0 {
            return Err(WireError::Reserved(kind));
        }
        header.check(limits)?;
        Ok(header)
    }

    fn check(&self, limits: &Limits) -> Result<(), WireError> {
        let kind = self.kind;
        if self.body_bytes < kind.body_bytes_min() || self.body_bytes > kind.body_bytes_max(limits)
        {
            return Err(WireError::BodySize(kind, self.body_bytes));
        }
        let payload_bytes_max = if kind.may_carry_payload() { limits.inline_bytes_max } else { 0 };
        if self.payload_bytes > payload_bytes_max {
            return Err(WireError::PayloadSize(kind, self.payload_bytes, payload_bytes_max));
        }
        match (kind, self.descriptors) {
            (Kind::Register | Kind::Rings, 1) | (Kind::Call, 0..=2) | (Kind::Reply, 0 | 1) => {
                Ok(())
            }
            (Kind::Register | Kind::Rings, count) => Err(WireError::DescriptorCount(kind, count)),
            (_, 0) => Ok(()),
            (_, count) => Err(WireError::DescriptorCount(kind, count)),
        }
    }
}

impl<'a> Frame<'a> {
    /// Parses the body that a checked header announced.
    pub(crate) fn decode(header: &Header, body: &'a [u8]) -> Result<Self, WireError> {
        let kind = header.kind;
        if body.len() != header.body_bytes as usize || body.len() < kind.body_bytes_min() as usize {
            return Err(WireError::Lengths(kind));
        }
        let mut fields = Fields { rest: body };
        let frame = match kind {
            Kind::Hello => return decode_hello(fields),
            Kind::Call => Frame::Call(decode_call(&mut fields, header)?),
            Kind::Reply => Frame::Reply(decode_reply(&mut fields, header)?),
            Kind::Cancel => Frame::Cancel { call: fields.u64() },
            Kind::Register => Frame::Register { region: fields.u64(), bytes: fields.u64() },
            Kind::Registered => decode_registered(&mut fields)?,
            Kind::Release => Frame::Release { region: fields.u64() },
            Kind::Notice => {
                let (topic, bytes) = (fields.u32(), fields.u32());
                Frame::Notice { topic, data: fields.bytes(bytes, kind)? }
            }
            Kind::Goodbye => {
                let code = code(fields.u32())?;
                let bytes = fields.u32();
                Frame::Goodbye { code, message: fields.text(bytes, kind)? }
            }
            Kind::Rings => Frame::Rings { bytes: fields.u64() },
            Kind::RingsTaken => {
                let code = code(fields.u32())?;
                let bytes = fields.u32();
                Frame::RingsTaken { code, message: fields.text(bytes, kind)? }
            }
            Kind::Bell => Frame::Bell,
        };
        if fields.rest.is_empty() { Ok(frame) } else { Err(WireError::Lengths(kind)) }
    }
}

fn decode_hello(mut fields: Fields<'_>) -> Result<Frame<'static>, WireError> {
    if fields.array() != MAGIC {
        return Err(WireError::Magic);
    }
    let (version_min, version_max) = (fields.u16(), fields.u16());
    if version_min == 0 || version_min > version_max {
        return Err(WireError::Versions(version_min, version_max));
    }
    let reserved = fields.u32();
    let features = fields.u64();
    let limits = Limits {
        calls_max: fields.u32(),
        regions_max: fields.u32(),
        message_bytes_max: fields.u32(),
        inline_bytes_max: {
            let reserved = fields.u32();
            if reserved != 0 {
                return Err(WireError::Reserved(Kind::Hello));
            }
            fields.u64()
        },
        region_bytes_max: fields.u64(),
    };
    if reserved != 0 {
        return Err(WireError::Reserved(Kind::Hello));
    }
    // What a later version appends to a hello is passed over.
    Ok(Frame::Hello(Hello { version_min, version_max, features, limits }))
}

fn decode_call<'a>(fields: &mut Fields<'a>, header: &Header) -> Result<Call<'a>, WireError> {
    let kind = Kind::Call;
    let fixed: [u8; CALL_BYTES] = fields.array();
    let mut fixed = Fields { rest: &fixed };
    let (call, remaining_ns) = (fixed.u64(), fixed.u64());
    let (fill, upload) = (fixed.u8(), fixed.u8());
    let (method_bytes, request_bytes) = (fixed.u16(), fixed.u32());
    let fill = decode_fill(fill, &fixed.span())?;
    let (inline_bytes, sealed_bytes) = (fixed.u64(), fixed.u64());
    let upload = decode_upload(upload, &fixed.span(), header.payload_bytes)?;
    let inline_first_bytes = fixed.u32();
    let (parts, reserved) = (fixed.u16(), fixed.u16());
    if reserved != 0 {
        return Err(WireError::Reserved(kind));
    }
    let is_first_in_room = u64::from(inline_first_bytes) <= inline_bytes;
    if !is_first_in_room || usize::from(method_bytes) > METHOD_BYTES_MAX {
        return Err(WireError::Lengths(kind));
    }
    let parts = fields.parts(parts, upload.bytes(), kind)?;
    let method = fields.text(u32::from(method_bytes), kind)?;
    let request = fields.bytes(request_bytes, kind)?;
    let room = Room { fill, inline_bytes, inline_first_bytes, sealed_bytes };
    let call = Call { call, remaining_ns, room, upload, parts, method, request };
    if header.descriptors == call.descriptors() {
        Ok(call)
    } else {
        Err(WireError::DescriptorCount(kind, header.descriptors))
    }
}

fn decode_fill(number: u8, span: &Span) -> Result<Fill, WireError> {
    let Span { region, offset, bytes } = *span;
    let fill = match number {
        FILL_NONE if bytes == 0 => Fill::None,
        FILL_REGION => return Ok(Fill::Region(*span)),
        FILL_ONE_SHOT => Fill::OneShot { bytes },
        FILL_DESCRIPTOR => Fill::Descriptor { bytes },
        FILL_NONE => return Err(WireError::Reserved(Kind::Call)),
        other => return Err(WireError::UnknownFill(other)),
    };
    if region == 0 && offset == 0 { Ok(fill) } else { Err(WireError::Reserved(Kind::Call)) }
}

fn decode_upload(number: u8, span: &Span, inline_bytes: u64) -> Result<Upload, WireError> {
    let Span { region, offset, bytes } = *span;
    if number != UPLOAD_INLINE && inline_bytes != 0 {
        return Err(WireError::Lengths(Kind::Call));
    }
    let (upload, is_unused_zero) = match number {
        UPLOAD_INLINE if inline_bytes == 0 => (Upload::None, region | offset | bytes == 0),
        UPLOAD_INLINE => (Upload::Inline { bytes: inline_bytes }, region | offset | bytes == 0),
        UPLOAD_REGION => (Upload::Region(*span), true),
        UPLOAD_SEALED => (Upload::Sealed { offset, bytes }, region == 0),
        other => return Err(WireError::UnknownUpload(other)),
    };
    if is_unused_zero { Ok(upload) } else { Err(WireError::Reserved(Kind::Call)) }
}

fn decode_reply<'a>(fields: &mut Fields<'a>, header: &Header) -> Result<Reply<'a>, WireError> {
    let kind = Kind::Reply;
    let fixed: [u8; REPLY_BYTES] = fields.array();
    let mut fixed = Fields { rest: &fixed };
    let call = fixed.u64();
    let code = code(fixed.u32())?;
    let lane = fixed.u8();
    if fixed.u8() != 0 {
        return Err(WireError::Reserved(kind));
    }
    let lane = LaneNumber::from_number(lane).ok_or(WireError::UnknownLane(lane))?;
    let parts = fixed.u16();
    let payload_bytes = fixed.u64();
    let (response_bytes, message_bytes) = (fixed.u32(), fixed.u32());
    let offset = fixed.u64();
    if lane != LaneNumber::Sealed && offset != 0 {
        return Err(WireError::Reserved(kind));
    }
    if message_bytes as usize > STATUS_BYTES_MAX || (lane == LaneNumber::None && parts != 0) {
        return Err(WireError::Lengths(kind));
    }
    let parts = fields.parts(parts, payload_bytes, kind)?;
    let response = fields.bytes(response_bytes, kind)?;
    let message = fields.text(message_bytes, kind)?;
    let inline_bytes = if lane == LaneNumber::Inline { payload_bytes } else { 0 };
    if header.payload_bytes != inline_bytes {
        return Err(WireError::Lengths(kind));
    }
    let reply = Reply { call, code, lane, payload_bytes, offset, parts, response, message };
    if header.descriptors == reply.descriptors() {
        Ok(reply)
    } else {
        Err(WireError::DescriptorCount(kind, header.descriptors))
    }
}

fn decode_registered<'a>(fields: &mut Fields<'a>) -> Result<Frame<'a>, WireError> {
    let region = fields.u64();
    let code = code(fields.u32())?;
    let bytes = fields.u32();
    let message = fields.text(bytes, Kind::Registered)?;
    Ok(Frame::Registered { region, code, message })
}

fn code(number: u32) -> Result<Code, WireError> {
    Code::from_number(number).ok_or(WireError::UnknownCode(number))
}

impl Kind {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::Call,
            3 => Self::Reply,
            4 => Self::Cancel,
            5 => Self::Register,
            6 => Self::Registered,
            7 => Self::Release,
            8 => Self::Notice,
            9 => Self::Goodbye,
            10 => Self::Rings,
            11 => Self::RingsTaken,
            12 => Self::Bell,
            _ => return None,
        })
    }

    /// Bytes of the fixed part of its body.
    pub(super) const fn body_bytes_min(self) -> u32 {
        match self {
            Self::Hello => 56,
            Self::Call => CALL_BYTES as u32,
            Self::Reply => REPLY_BYTES as u32,
            Self::Register | Self::Registered => 16,
            Self::Cancel | Self::Release | Self::Notice | Self::Goodbye => 8,
            Self::Rings | Self::RingsTaken => 8,
            Self::Bell => 0,
        }
    }

    fn body_bytes_max(self, limits: &Limits) -> u32 {
        let beyond = match self {
            Self::Hello => 4096 - self.body_bytes_min(),
            Self::Call => limits
                .message_bytes_max
                .saturating_add((METHOD_BYTES_MAX + PART_TABLE_BYTES_MAX) as u32),
            Self::Reply => limits
                .message_bytes_max
                .saturating_add((STATUS_BYTES_MAX + PART_TABLE_BYTES_MAX) as u32),
            Self::Registered | Self::Goodbye | Self::RingsTaken => STATUS_BYTES_MAX as u32,
            Self::Notice => NOTICE_BYTES_MAX as u32,
            Self::Cancel | Self::Register | Self::Release | Self::Rings | Self::Bell => 0,
        };
        beyond.saturating_add(self.body_bytes_min()).min(BODY_BYTES_MAX)
    }

    fn may_carry_payload(self) -> bool {
        matches!(self, Self::Call | Self::Reply)
    }
}

impl LaneNumber {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Inline,
            2 => Self::FillWrite,
            3 => Self::FillMap,
            4 => Self::Sealed,
            5 => Self::Descriptor,
            _ => return None,
        })
    }
}

/// Bytes of the fixed part of a CALL's body, and of a REPLY's.
pub(super) const CALL_BYTES: usize = 96;
pub(super) const REPLY_BYTES: usize = 40;
pub(super) const FILL_NONE: u8 = 0;
pub(super) const FILL_REGION: u8 = 1;
pub(super) const FILL_ONE_SHOT: u8 = 2;
pub(super) const FILL_DESCRIPTOR: u8 = 3;
/// Also of a call without an upload.
pub(super) const UPLOAD_INLINE: u8 = 0;
pub(super) const UPLOAD_REGION: u8 = 1;
pub(super) const UPLOAD_SEALED: u8 = 2;

/// Reads fields off the front. The fixed part of a body is checked to be there before it is read;
/// should that check ever be wrong, a missing field reads as 0 and the lengths don't add up.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The next bytes. Of so many that they hold the whole fixed part of a frame, the places of its
    /// fields are known to the compiler.
    #[inline(always)]
    fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.rest.split_first_chunk::<N>() {
            Some((field, rest)) => {
                self.rest = rest;
                *field
            }
            None => [0; N],
        }
    }

    #[inline(always)]
    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    #[inline(always)]
    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    #[inline(always)]
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    #[inline(always)]
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    #[inline(always)]
    fn span(&mut self) -> Span {
        Span { region: self.u64(), offset: self.u64(), bytes: self.u64() }
    }

    /// The table of `count` lengths of parts, of a payload of `bytes` bytes.
    fn parts(&mut self, count: u16, bytes: u64, kind: Kind) -> Result<Parts, WireError> {
        let table = self.bytes(u32::from(count) * 8, kind)?;
        let (lengths, _) = table.as_chunks::<8>();
        let lengths = lengths.iter().map(|length| u64::from_le_bytes(*length));
        Parts::of_lengths(bytes, lengths).ok_or(WireError::Parts)
    }

    fn bytes(&mut self, count: u32, kind: Kind) -> Result<&'a [u8], WireError> {
        let (field, rest) =
            self.rest.split_at_checked(count as usize).ok_or(WireError::Lengths(kind))?;
        self.rest = rest;
        Ok(field)
    }

    fn text(&mut self, count: u32, kind: Kind) -> Result<&'a str, WireError> {
        str::from_utf8(self.bytes(count, kind)?).map_err(|_| WireError::Text(kind))
    }
}
