//! What must be true of any bytes that are taken for a frame.

use super::{Fill, Frame, HEADER_BYTES, Header, LaneNumber, Upload};
use crate::limits::{
    BODY_BYTES_MAX, Limits, METHOD_BYTES_MAX, NOTICE_BYTES_MAX, PARTS_MAX, STATUS_BYTES_MAX,
};

/// Takes them for a frame as they are; and for one whose header gives their true number, so that
/// more of them are looked at.
pub(crate) fn check(bytes: &[u8]) {
    let Some((header, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return };
    let mut true_header = *header;
    true_header[2..4].fill(0);
    true_header[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
    for header in [header, &true_header] {
        let generous = decoded(header, body, &Limits::default());
        if let Some(frame) = decoded(header, body, &SMALL) {
            assert_eq!(Some(frame), generous, "smaller limits change no meaning");
        }
    }
}

/// The frame that the bytes are, if they are one: it is within the limits, and as bytes again it is
/// the same.
fn decoded<'a>(
    header_bytes: &[u8; HEADER_BYTES],
    body: &'a [u8],
    limits: &Limits,
) -> Option<Frame<'a>> {
    let header = Header::decode(header_bytes, limits).ok()?;
    assert!(header.body_bytes <= BODY_BYTES_MAX, "{header:?}");
    assert!(header.payload_bytes <= limits.inline_bytes_max, "{header:?}");
    let body = body.get(..header.body_bytes as usize).unwrap_or(body);
    let frame = Frame::decode(&header, body).ok()?;
    assert_eq!(body.len(), header.body_bytes as usize, "a frame of half its body: {frame:?}");
    check_bounds(&header, &frame);
    let again = frame.encode(header.payload_bytes);
    let (again_header, again_body) = again.split_first_chunk().expect("a header is encoded");
    // There is one way to write a frame, but for what a later version appends to a hello.
    let read = if let Frame::Hello(_) = frame { &body[..again_body.len()] } else { body };
    assert_eq!(again_body, read, "{frame:?}");
    let again_header = Header::decode(again_header, limits).expect("it was in order before");
    assert_eq!(Header { body_bytes: again_body.len() as u32, ..header }, again_header);
    assert_eq!(Frame::decode(&again_header, again_body).as_ref(), Ok(&frame));
    Some(frame)
}

fn check_bounds(header: &Header, frame: &Frame<'_>) {
    match frame {
        Frame::Hello(hello) => assert!((1..=hello.version_max).contains(&hello.version_min)),
        Frame::Call(call) => {
            assert!(call.method.len() <= METHOD_BYTES_MAX);
            assert!(u64::from(call.room.inline_first_bytes) <= call.room.inline_bytes);
            assert!(call.parts.count() <= PARTS_MAX);
            assert_eq!(call.parts.bytes() as u64, call.upload.bytes());
            let payload_bytes = if let Upload::Inline { bytes } = call.upload { bytes } else { 0 };
            assert_eq!(header.payload_bytes, payload_bytes);
            let takes_one =
                matches!(call.room.fill, Fill::OneShot { .. } | Fill::Descriptor { .. });
            let brings_one = matches!(call.upload, Upload::Sealed { .. });
            assert_eq!(header.descriptors, u8::from(takes_one) + u8::from(brings_one));
        }
        Frame::Reply(reply) => {
            assert!(reply.message.len() <= STATUS_BYTES_MAX && reply.parts.count() <= PARTS_MAX);
            assert_eq!(reply.parts.bytes() as u64, reply.payload_bytes);
            let is_inline = reply.lane == LaneNumber::Inline;
            assert_eq!(header.payload_bytes, if is_inline { reply.payload_bytes } else { 0 });
            let is_sealed = reply.lane == LaneNumber::Sealed;
            assert_eq!(header.descriptors, u8::from(is_sealed));
            assert!(is_sealed || reply.offset == 0);
        }
        Frame::Registered { message, .. }
        | Frame::Goodbye { message, .. }
        | Frame::RingsTaken { message, .. } => {
            assert!(message.len() <= STATUS_BYTES_MAX);
        }
        Frame::Notice { data, .. } => assert!(data.len() <= NOTICE_BYTES_MAX),
        Frame::Register { .. } | Frame::Rings { .. } => assert_eq!(header.descriptors, 1),
        Frame::Cancel { .. } | Frame::Release { .. } | Frame::Bell => {}
    }
}

const SMALL: Limits = Limits {
    calls_max: 1,
    regions_max: 1,
    message_bytes_max: 40,
    inline_bytes_max: 100,
    region_bytes_max: 4096,
};

/// The inputs kept for a target of `fuzz/`.
#[cfg(test)]
pub(crate) fn kept(target: &str) -> Vec<Vec<u8>> {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");
    let files = std::fs::read_dir(std::path::Path::new(corpus).join(target)).unwrap();
    files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
}

#[cfg(test)]
#[test]
fn whatever_was_once_of_interest_holds() {
    let inputs = kept("frames");
    assert!(inputs.len() >= 27, "the frames of the document are among them");
    inputs.iter().for_each(|bytes| check(bytes));
}
