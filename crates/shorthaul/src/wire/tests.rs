//! The golden frames of docs/PROTOCOL.md, both ways; and everything that is no frame.

mod round_trips;

use super::*;
use crate::limits::{
    BODY_BYTES_MAX, METHOD_BYTES_MAX, NOTICE_BYTES_MAX, PARTS_MAX, STATUS_BYTES_MAX,
};

const PROTOCOL: &str = include_str!("../../../../docs/PROTOCOL.md");

// The fixed sizes that the document states.
const _: () = assert!(HEADER_BYTES == 16);
const _: () = assert!(Kind::Hello.body_bytes_min() == 56);
const _: () = assert!(Kind::Call.body_bytes_min() == 96);
const _: () = assert!(Kind::Reply.body_bytes_min() == 40);
const _: () = assert!(Kind::Cancel.body_bytes_min() == 8);
const _: () = assert!(Kind::Register.body_bytes_min() == 16);
const _: () = assert!(Kind::Registered.body_bytes_min() == 16);
const _: () = assert!(Kind::Release.body_bytes_min() == 8);
const _: () = assert!(Kind::Notice.body_bytes_min() == 8);
const _: () = assert!(Kind::Goodbye.body_bytes_min() == 8);
const _: () = assert!(BODY_BYTES_MAX == 1_048_576 && crate::limits::MESSAGE_BYTES_CAP == 1_032_192);
const _: () = assert!(PARTS_MAX == 1024 && FEATURE_SEALED == 1 && FEATURE_DESCRIPTORS == 2);
const _: () = assert!(METHOD_BYTES_MAX == 255 && STATUS_BYTES_MAX == 1024);
const _: () = assert!(NOTICE_BYTES_MAX == 4096 && crate::limits::PAYLOAD_ALIGNMENT == 64);

/// A frame of the document: its name and its bytes.
struct Golden {
    name: &'static str,
    bytes: Vec<u8>,
}

/// Reads the blocks that start with "```golden NAME": hex, then "|" and what it is.
fn goldens() -> Vec<Golden> {
    let blocks = PROTOCOL.split("```golden ").skip(1);
    blocks
        .map(|block| {
            let (name, rest) = block.split_once('\n').unwrap();
            let (hex, _) = rest.split_once("```").unwrap();
            let bytes = hex
                .lines()
                .filter_map(|line| line.split('|').next())
                .flat_map(str::split_whitespace)
                .map(|digits| u8::from_str_radix(digits, 16).unwrap())
                .collect();
            Golden { name, bytes }
        })
        .collect()
}

fn client_limits() -> Limits {
    Limits {
        calls_max: 128,
        regions_max: 256,
        message_bytes_max: 65_536,
        inline_bytes_max: 134_217_728,
        region_bytes_max: 17_179_869_184,
    }
}

fn server_limits() -> Limits {
    Limits {
        calls_max: 8,
        regions_max: 4,
        message_bytes_max: 4096,
        inline_bytes_max: 1_048_576,
        region_bytes_max: 1_073_741_824,
    }
}

fn hello(features: u64, limits: Limits) -> Frame<'static> {
    Frame::Hello(Hello { version_min: 1, version_max: 1, features, limits })
}

/// A call that offers no room and brings nothing.
fn call(
    call: u64,
    remaining_ns: u64,
    method: &'static str,
    request: &'static [u8],
) -> Call<'static> {
    let (room, upload, parts) = (Room::default(), Upload::None, Parts::default());
    Call { call, remaining_ns, room, upload, parts, method, request }
}

fn in_parts(bytes: u64, lengths: &[u64]) -> Parts {
    Parts::of_lengths(bytes, lengths.iter().copied()).expect("they add up")
}

fn inline(inline_bytes: u64) -> Room {
    Room { inline_bytes, ..Room::default() }
}

fn filling(fill: Fill) -> Room {
    Room { fill, ..Room::default() }
}

fn span(region: u64, offset: u64, bytes: u64) -> Span {
    Span { region, offset, bytes }
}

/// What each golden CALL says, and its inline payload.
fn expected_call(name: &str) -> Option<(Call<'static>, &'static [u8])> {
    let one_shot = filling(Fill::OneShot { bytes: 8192 });
    let call = match name {
        "call-none" => call(2, 0, "ping", b""),
        "call-inline" => {
            let (room, upload) = (inline(1000), Upload::Inline { bytes: 3 });
            let call = call(3, 1_000_000_000, "read", b"key 1");
            return Some((Call { room, upload, parts: Parts::one(3), ..call }, b"abc"));
        }
        "call-region" => {
            let room = filling(Fill::Region(span(7, 4096, 65_536)));
            Call { room, ..call(4, 250_000_000, "read", b"key 2") }
        }
        "call-one-shot" => Call { room: one_shot, ..call(5, 0, "read", b"key 3") },
        "call-descriptor" => {
            let room = filling(Fill::Descriptor { bytes: 1 << 30 });
            Call { room, ..call(9, 2_000_000_000, "read", b"key 6") }
        }
        "call-auto" => {
            let room = Room {
                fill: Fill::Region(span(7, 0, 1 << 20)),
                inline_bytes: 4096,
                inline_first_bytes: 4096,
                sealed_bytes: 16 << 20,
            };
            Call { room, ..call(6, 0, "read", b"key 4") }
        }
        "call-upload-parts" => {
            let upload = Upload::Region(span(7, 8192, 200));
            let parts = in_parts(200, &[100, 64, 8]);
            Call { upload, parts, ..call(7, 0, "save", b"key 5") }
        }
        "call-two-files" => {
            let upload = Upload::Sealed { offset: 64, bytes: 3000 };
            Call { room: one_shot, upload, parts: Parts::one(3000), ..call(8, 0, "sort", b"") }
        }
        _ => return None,
    };
    Some((call, b""))
}

fn reply(
    call: u64,
    lane: LaneNumber,
    payload_bytes: u64,
    response: &'static [u8],
) -> Reply<'static> {
    let (code, message) = (Code::Ok, "");
    let parts = Parts::one(payload_bytes as usize);
    Reply { call, code, lane, payload_bytes, offset: 0, parts, response, message }
}

/// "first", zeros up to the next multiple of 64, "2nd".
const TWO_PARTS: [u8; 67] = {
    let mut bytes = [0; 67];
    bytes.split_at_mut(5).0.copy_from_slice(b"first");
    bytes.split_at_mut(64).1.copy_from_slice(b"2nd");
    bytes
};

/// What each golden REPLY says, and its inline payload.
fn expected_reply(name: &str) -> Option<(Reply<'static>, &'static [u8])> {
    let reply = match name {
        "reply-none" => reply(2, LaneNumber::None, 0, b"pong"),
        "reply-inline" => return Some((reply(3, LaneNumber::Inline, 5, b""), b"hello")),
        "reply-fill-map" => reply(4, LaneNumber::FillMap, 65_536, b""),
        "reply-fill-write" => reply(5, LaneNumber::FillWrite, 8000, b"v1"),
        "reply-too-small" => {
            let (code, message) = (Code::OutOfRange, "offer 70000 bytes");
            Reply { code, message, ..reply(4, LaneNumber::None, 70_000, b"") }
        }
        "reply-sealed" => Reply { offset: 4096, ..reply(6, LaneNumber::Sealed, 5 << 20, b"v2") },
        "reply-descriptor" => reply(9, LaneNumber::Descriptor, 300_000, b"v3"),
        "reply-descriptor-cut" => {
            let (code, message) = (Code::DeadlineExceeded, "too slow");
            Reply { code, message, ..reply(9, LaneNumber::Descriptor, 65_536, b"") }
        }
        "reply-parts" => {
            let parts = in_parts(67, &[5, 3]);
            return Some((Reply { parts, ..reply(3, LaneNumber::Inline, 67, b"") }, &TWO_PARTS));
        }
        _ => return None,
    };
    Some((reply, b""))
}

/// What each golden frame says, and its inline payload.
fn expected(name: &str) -> (Frame<'static>, &'static [u8]) {
    if let Some((call, payload)) = expected_call(name) {
        return (Frame::Call(call), payload);
    }
    if let Some((reply, payload)) = expected_reply(name) {
        return (Frame::Reply(reply), payload);
    }
    let frame = match name {
        "hello-client" => hello(FEATURE_SEALED, client_limits()),
        "hello-server" => hello(0, server_limits()),
        "hello-server-descriptors" => hello(FEATURE_SEALED | FEATURE_DESCRIPTORS, client_limits()),
        "cancel" => Frame::Cancel { call: 4 },
        "register" => Frame::Register { region: 7, bytes: 1_048_576 },
        "registered" => Frame::Registered { region: 7, code: Code::Ok, message: "" },
        "registered-refused" => Frame::Registered {
            region: 8,
            code: Code::InvalidArgument,
            message: "the seals are missing",
        },
        "release" => Frame::Release { region: 7 },
        "notice" => Frame::Notice { topic: 1, data: b"evict!" },
        "goodbye" => Frame::Goodbye { code: Code::Unavailable, message: "done — bye" },
        "rings" => Frame::Rings { bytes: 66_560 },
        "rings-taken" => Frame::RingsTaken { code: Code::Ok, message: "" },
        "rings-refused" => Frame::RingsTaken { code: Code::InvalidArgument, message: "no seals" },
        "bell" => Frame::Bell,
        other => panic!("the document has a golden frame {other} that no test knows"),
    };
    (frame, b"")
}

/// Parses a whole frame; the payload is left unread.
fn decode<'a>(bytes: &'a [u8], limits: &Limits) -> Result<(Header, Frame<'a>), WireError> {
    let header = Header::decode(bytes.first_chunk().expect("a header"), limits)?;
    let end = HEADER_BYTES + header.body_bytes as usize;
    let body = bytes.get(HEADER_BYTES..end).unwrap_or(&bytes[HEADER_BYTES..]);
    Frame::decode(&header, body).map(|frame| (header, frame))
}

fn header(kind: u8, descriptors: u8, body_bytes: u32, payload_bytes: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..2].copy_from_slice(&[kind, descriptors]);
    bytes[4..8].copy_from_slice(&body_bytes.to_le_bytes());
    bytes[8..].copy_from_slice(&payload_bytes.to_le_bytes());
    bytes
}

/// A golden frame with the bytes at `at` (of the whole frame) replaced.
fn altered(name: &str, at: usize, with: &[u8]) -> Vec<u8> {
    let golden = goldens().into_iter().find(|golden| golden.name == name);
    let mut bytes = golden.expect("in the document").bytes;
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

fn error_of(bytes: &[u8]) -> WireError {
    decode(bytes, &Limits::default()).expect_err("no frame")
}

#[test]
fn golden_frames_are_what_the_document_says() {
    let goldens = goldens();
    assert_eq!(goldens.len(), 31);
    for Golden { name, bytes } in &goldens {
        let (frame, payload) = expected(name);
        let (header, decoded) = decode(bytes, &Limits::default()).unwrap();
        assert_eq!(decoded, frame, "{name} decodes");
        assert_eq!(header.payload_bytes, payload.len() as u64, "{name}");
        let mut encoded = frame.encode(payload.len() as u64).to_vec();
        encoded.extend_from_slice(payload);
        assert_eq!(&encoded, bytes, "{name} encodes");
    }
}

#[test]
fn there_is_a_golden_frame_of_every_kind() {
    let kinds: std::collections::BTreeSet<u8> = goldens().iter().map(|g| g.bytes[0]).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), (1..=12).collect::<Vec<_>>());
}

/// The table of kinds in the document, against the code.
#[test]
fn body_sizes_are_what_the_document_says() {
    let limits = server_limits();
    let mut kinds = 0;
    for row in PROTOCOL.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, kind, name, _, fixed, beyond, payload, _, _] = cells[..] else {
            continue;
        };
        let Ok(kind) = kind.parse::<u8>() else {
            continue;
        };
        let fixed: u32 = fixed.parse().unwrap();
        let beyond: u32 =
            beyond.split(" + ").map(|part| part.parse().unwrap_or(limits.message_bytes_max)).sum();
        kinds += 1;
        let descriptors = u8::from(name == "REGISTER" || name == "RINGS");
        let takes = |body_bytes, payload_bytes| {
            let bytes = header(kind, descriptors, body_bytes, payload_bytes);
            Header::decode(&bytes, &limits).is_ok()
        };
        assert!(fixed == 0 || !takes(fixed - 1, 0), "{name}: least");
        assert!(takes(fixed, 0), "{name}: least");
        assert!(takes(fixed + beyond, 0), "{name}: most");
        assert!(!takes(fixed + beyond + 1, 0), "{name}: over");
        let inline_bytes_max = limits.inline_bytes_max;
        assert_eq!(takes(fixed, 1), payload == "yes", "{name}");
        assert_eq!(takes(fixed, inline_bytes_max), payload == "yes", "{name}");
        assert!(!takes(fixed, inline_bytes_max + 1), "{name}: payload over");
        assert!(!takes(u32::MAX, 0) && !takes(fixed, u64::MAX), "{name}: huge");
    }
    assert_eq!(kinds, 12);
}

#[test]
fn no_limit_lets_a_body_over_a_mebibyte_in() {
    let limits =
        Limits { message_bytes_max: u32::MAX, inline_bytes_max: u64::MAX, ..Limits::default() };
    for kind in [2, 3] {
        assert!(Header::decode(&header(kind, 0, BODY_BYTES_MAX, u64::MAX), &limits).is_ok());
        let over = Header::decode(&header(kind, 0, BODY_BYTES_MAX + 1, 0), &limits);
        assert!(matches!(over, Err(WireError::BodySize(..))), "{over:?}");
    }
}

#[test]
fn headers_of_zeros_and_of_ones_are_refused() {
    let limits = Limits::default();
    for (byte, kind) in [(0, 0), (0xff, 0xff)] {
        let refused = Header::decode(&[byte; HEADER_BYTES], &limits).unwrap_err();
        assert_eq!(refused, WireError::UnknownKind(kind));
    }
    for kind in (0..=0).chain(13..=255) {
        let refused = Header::decode(&header(kind, 0, 8, 0), &limits).unwrap_err();
        assert_eq!(refused, WireError::UnknownKind(kind));
    }
}

#[test]
fn descriptors_are_taken_by_register_rings_call_and_reply_alone() {
    let limits = Limits::default();
    for kind in 1..=12 {
        let fixed = Kind::from_golden(kind).body_bytes_min();
        for count in 0..=255 {
            let taken = Header::decode(&header(kind, count, fixed, 0), &limits).is_ok();
            let wanted = match kind {
                2 => count <= 2,
                3 => count <= 1,
                5 | 10 => count == 1,
                _ => count == 0,
            };
            assert_eq!(taken, wanted, "kind {kind} with {count} descriptors");
        }
    }
}

/// Cut anywhere, a frame is an error; also if its header has been made to fit.
#[test]
fn every_truncation_is_an_error_or_a_frame() {
    let limits = Limits::default();
    for Golden { name, bytes } in goldens() {
        let (header, _) = decode(&bytes, &limits).unwrap();
        let body = &bytes[HEADER_BYTES..HEADER_BYTES + header.body_bytes as usize];
        for cut in 0..body.len() {
            let short = Frame::decode(&header, &body[..cut]);
            assert!(matches!(short, Err(WireError::Lengths(_))), "{name} cut at {cut}: {short:?}");
            let fitting = Header { body_bytes: cut as u32, ..header };
            let is_frame = Frame::decode(&fitting, &body[..cut]).is_ok();
            assert!(!is_frame, "{name} cut at {cut} and announced so");
        }
    }
}

/// What decodes at all, encodes to the same bytes: there are no two ways to say one thing.
#[test]
fn every_corrupted_byte_is_an_error_or_another_frame() {
    let limits = Limits::default();
    for Golden { name, bytes } in goldens() {
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut corrupt = bytes.clone();
                corrupt[at] = value;
                if let Ok((header, frame)) = decode(&corrupt, &limits) {
                    let again = frame.encode(header.payload_bytes);
                    assert_eq!(again[..], corrupt[..again.len()], "{name}: {value} at {at}");
                }
            }
        }
    }
}

#[test]
fn reserved_bytes_must_be_zero() {
    let places = [
        ("hello-client", 16 + 12, 4),
        ("hello-client", 16 + 36, 4),
        ("call-region", 16 + 94, 2),
        ("call-auto", 16 + 94, 2),
        ("call-upload-parts", 16 + 94, 2),
        ("reply-none", 16 + 13, 1),
        ("reply-sealed", 16 + 13, 1),
    ];
    let in_headers = goldens().into_iter().map(|golden| (golden.name, 2, 2));
    for (name, at, count) in in_headers.chain(places) {
        for byte in at..at + count {
            let refused = error_of(&altered(name, byte, &[1]));
            assert!(matches!(refused, WireError::Reserved(_)), "{name} at {byte}: {refused}");
        }
    }
}

/// Spans that nobody uses, of what is filled and of what is uploaded.
#[test]
fn fields_without_a_meaning_must_be_zero() {
    for (name, offsets) in [
        ("call-none", &[24, 32, 40, 64, 72, 80][..]),
        ("call-inline", &[24, 32, 40, 64, 72, 80]),
        ("call-region", &[64, 72, 80]),
        ("call-auto", &[64, 72, 80]),
        ("call-one-shot", &[24, 32, 64, 72, 80]),
        ("call-descriptor", &[24, 32, 64, 72, 80]),
        ("call-upload-parts", &[24, 32, 40]),
        ("call-two-files", &[24, 32, 64]),
    ] {
        for offset in offsets {
            for value in [1_u64, 1 << 63] {
                let refused = error_of(&altered(name, HEADER_BYTES + offset, &value.to_le_bytes()));
                assert_eq!(refused, WireError::Reserved(Kind::Call), "{name} at {offset}");
            }
        }
    }
    // Only in a sealed memory file does a payload start somewhere.
    for name in [
        "reply-none",
        "reply-inline",
        "reply-fill-map",
        "reply-fill-write",
        "reply-descriptor",
        "reply-parts",
    ] {
        let refused = error_of(&altered(name, HEADER_BYTES + 32, &64_u64.to_le_bytes()));
        assert_eq!(refused, WireError::Reserved(Kind::Reply), "{name}");
    }
}

#[test]
fn what_goes_inline_first_is_part_of_what_may_go_inline() {
    let at = HEADER_BYTES + 88;
    for (name, inline_bytes) in [("call-inline", 1000_u32), ("call-auto", 4096), ("call-none", 0)] {
        let frame = altered(name, at, &inline_bytes.to_le_bytes());
        let (_, frame) = decode(&frame, &Limits::default()).unwrap();
        let Frame::Call(call) = frame else { panic!("{frame:?}") };
        assert_eq!(call.room.inline_first_bytes, inline_bytes);
        for over in [inline_bytes + 1, u32::MAX] {
            let refused = error_of(&altered(name, at, &over.to_le_bytes()));
            assert_eq!(refused, WireError::Lengths(Kind::Call), "{name}");
        }
    }
}

#[test]
fn lengths_that_do_not_add_up_are_refused() {
    // Where in the body a length stands, and the kind it belongs to.
    for (name, at, bytes) in [
        ("call-region", 18, 2),
        ("call-region", 20, 4),
        ("call-auto", 18, 2),
        ("call-auto", 20, 4),
        ("call-upload-parts", 18, 2),
        ("call-upload-parts", 20, 4),
        ("reply-parts", 24, 4),
        ("reply-parts", 28, 4),
        ("reply-sealed", 24, 4),
        ("reply-too-small", 24, 4),
        ("reply-too-small", 28, 4),
        ("registered-refused", 12, 4),
        ("notice", 4, 4),
        ("goodbye", 4, 4),
    ] {
        let at = HEADER_BYTES + at;
        let whole = altered(name, 0, &[]);
        for value in [whole[at].wrapping_sub(1), whole[at] + 1] {
            let refused = error_of(&altered(name, at, &[value]));
            assert!(matches!(refused, WireError::Lengths(_)), "{name} at {at}: {refused}");
        }
        let refused = error_of(&altered(name, at, &[0xff; 4][..bytes]));
        assert!(matches!(refused, WireError::Lengths(_)), "{name} at {at}: {refused}");
    }
    // A reply's inline payload is as long as its header and its body say.
    let refused = error_of(&altered("reply-inline", 8, &[4]));
    assert_eq!(refused, WireError::Lengths(Kind::Reply));
    for name in ["reply-none", "reply-fill-map", "reply-fill-write", "reply-sealed"] {
        let refused = error_of(&altered(name, 8, &[1]));
        assert_eq!(refused, WireError::Lengths(Kind::Reply), "{name}");
    }
    // Bulk that lies elsewhere is not inline as well.
    for name in ["call-upload-parts", "call-two-files"] {
        let refused = error_of(&altered(name, 8, &[1]));
        assert_eq!(refused, WireError::Lengths(Kind::Call), "{name}");
    }
}

/// A golden frame whose table of parts says these lengths, whatever the number of them says.
fn with_parts(name: &str, count: u16, lengths: &[u64]) -> Vec<u8> {
    let golden = goldens().into_iter().find(|golden| golden.name == name);
    let mut bytes = golden.expect("in the document").bytes;
    let (fixed, count_at) = if bytes[0] == Kind::Call as u8 { (96, 92) } else { (40, 14) };
    let count_at = HEADER_BYTES + count_at;
    let had = usize::from(u16::from_le_bytes([bytes[count_at], bytes[count_at + 1]]));
    let table: Vec<u8> = lengths.iter().flat_map(|length| length.to_le_bytes()).collect();
    let start = HEADER_BYTES + fixed;
    bytes[count_at..count_at + 2].copy_from_slice(&count.to_le_bytes());
    let body_bytes = u32::from_le_bytes(*bytes[4..].first_chunk().unwrap());
    let body_bytes = body_bytes as usize - had * 8 + table.len();
    bytes.splice(start..start + had * 8, table);
    bytes[4..8].copy_from_slice(&(body_bytes as u32).to_le_bytes());
    bytes
}

/// The payloads of these frames have so many bytes.
const WITH_PARTS: [(&str, u64); 4] = [
    ("call-upload-parts", 200),
    ("call-two-files", 3000),
    ("reply-parts", 67),
    ("reply-sealed", 5 << 20),
];

#[test]
fn parts_that_do_not_make_up_the_payload_are_refused() {
    let parse = |name, count, lengths: &[u64]| {
        let bytes = with_parts(name, count, lengths);
        decode(&bytes, &Limits::default()).map(|(_, frame)| match frame {
            Frame::Call(call) => call.parts,
            Frame::Reply(reply) => reply.parts,
            other => panic!("{other:?}"),
        })
    };
    for (name, bytes) in WITH_PARTS {
        let two = parse(name, 2, &[1, bytes - 64]).unwrap();
        assert_eq!(two, in_parts(bytes, &[1, bytes - 64]), "{name}");
        assert_eq!(parse(name, 2, &[bytes - bytes % 64, bytes % 64]).unwrap().count(), 2);
        assert_eq!(parse(name, 0, &[]).unwrap(), Parts::one(bytes as usize), "{name}");
        for lengths in [
            &[bytes][..],
            &[1, bytes - 65],
            &[1, bytes - 63],
            &[1, bytes - 1],
            &[0, 0],
            &[u64::MAX, 1],
            &[u64::MAX - 62, bytes],
            &[1, u64::MAX],
            &[bytes - 1, u64::MAX - 62],
        ] {
            let refused = parse(name, lengths.len() as u16, lengths).unwrap_err();
            assert_eq!(refused, WireError::Parts, "{name}: {lengths:?}");
        }
        // A length fewer or more than the number says; the rest is taken for what comes next.
        for count in [1, 3, 1000, u16::MAX] {
            let refused = parse(name, count, &[1, bytes - 64]).unwrap_err();
            let expected = [WireError::Parts, lengths_of(name)];
            assert!(expected.contains(&refused), "{name}: {count}: {refused}");
        }
    }
}

fn lengths_of(name: &str) -> WireError {
    WireError::Lengths(if name.starts_with("call") { Kind::Call } else { Kind::Reply })
}

#[test]
fn there_are_1024_parts_at_most() {
    for (name, bytes) in WITH_PARTS {
        for (count, is_taken) in [(1023, true), (1024, true), (1025, false), (8191, false)] {
            let mut lengths = vec![0; count];
            *lengths.last_mut().unwrap() = bytes;
            let frame = with_parts(name, count as u16, &lengths);
            match decode(&frame, &Limits::default()) {
                Ok(_) => assert!(is_taken, "{name}: {count}"),
                Err(error) => {
                    assert!(!is_taken, "{name}: {count}: {error}");
                    assert_eq!(error, WireError::Parts);
                }
            }
        }
    }
}

/// Where there is no payload there are no lengths to tell, but for parts of no bytes in a request.
#[test]
fn a_payload_of_no_bytes_has_no_parts_that_have_some() {
    for name in ["reply-none", "reply-too-small"] {
        for lengths in [&[0, 0][..], &[1, 0], &[69_952, 48]] {
            let refused = error_of(&with_parts(name, 2, lengths));
            assert_eq!(refused, WireError::Lengths(Kind::Reply), "{name}");
        }
    }
    assert!(decode(&with_parts("call-none", 2, &[0, 0]), &Limits::default()).is_ok());
    assert_eq!(error_of(&with_parts("call-none", 2, &[0, 1])), WireError::Parts);
}

#[test]
fn texts_are_bounded_one_by_one() {
    let bytes = [b'a'; 2048];
    let long = str::from_utf8(&bytes).unwrap();
    for (method_bytes, fits) in [(METHOD_BYTES_MAX, true), (METHOD_BYTES_MAX + 1, false)] {
        let method = &long[..method_bytes];
        let encoded = Frame::Call(Call { method, ..call(1, 0, "", b"") }).encode(0);
        assert_eq!(decode(&encoded, &Limits::default()).is_ok(), fits);
    }
    let mut reply = Vec::from(header(3, 0, 40 + 1025, 0));
    reply.extend_from_slice(&[0; 40]);
    reply[HEADER_BYTES + 28..][..4].copy_from_slice(&1025_u32.to_le_bytes());
    reply.extend_from_slice(&bytes[..1025]);
    assert_eq!(error_of(&reply), WireError::Lengths(Kind::Reply));
}

#[test]
fn a_message_too_long_is_cut_at_a_character() {
    let message = "ä".repeat(STATUS_BYTES_MAX);
    let encoded = Frame::Goodbye { code: Code::Ok, message: &format!("a{message}") }.encode(0);
    let (header, frame) = decode(&encoded, &Limits::default()).unwrap();
    let Frame::Goodbye { message, .. } = frame else { panic!("{frame:?}") };
    assert_eq!(message.len(), STATUS_BYTES_MAX - 1);
    assert_eq!(header.body_bytes as usize, 8 + message.len());
}

#[test]
fn text_must_be_utf_8() {
    for (name, at, kind) in [
        ("call-none", 96, Kind::Call),
        ("call-upload-parts", 96 + 24, Kind::Call),
        ("reply-too-small", 40, Kind::Reply),
        ("registered-refused", 16, Kind::Registered),
        ("goodbye", 8, Kind::Goodbye),
    ] {
        for bad in [&[0xff][..], &[0xc3, b'('], &[0xed, 0xa0, 0x80]] {
            let refused = error_of(&altered(name, HEADER_BYTES + at, bad));
            assert_eq!(refused, WireError::Text(kind), "{name}");
        }
    }
}

#[test]
fn unknown_numbers_are_refused() {
    let at = |name, at, with: &[u8]| error_of(&altered(name, HEADER_BYTES + at, with));
    assert_eq!(at("hello-client", 0, b"S"), WireError::Magic);
    assert_eq!(at("hello-client", 8, &[0]), WireError::Versions(0, 1));
    assert_eq!(at("hello-client", 8, &[2]), WireError::Versions(2, 1));
    for number in [4, 5, 0xff] {
        for name in ["call-none", "call-inline", "call-region", "call-one-shot", "call-two-files"] {
            assert_eq!(at(name, 16, &[number]), WireError::UnknownFill(number), "{name}");
        }
    }
    for number in [3, 4, 0xff] {
        for name in ["call-none", "call-region", "call-upload-parts", "call-two-files"] {
            assert_eq!(at(name, 17, &[number]), WireError::UnknownUpload(number), "{name}");
        }
        let inline = WireError::Lengths(Kind::Call);
        assert_eq!(at("call-inline", 17, &[number]), inline, "inline bytes with an upload");
    }
    // Known, but of what has other fields.
    assert_eq!(at("call-region", 16, &[0]), WireError::Reserved(Kind::Call));
    assert_eq!(at("call-region", 16, &[2]), WireError::Reserved(Kind::Call));
    assert_eq!(at("call-region", 16, &[3]), WireError::Reserved(Kind::Call));
    assert_eq!(at("call-descriptor", 16, &[0]), WireError::Reserved(Kind::Call));
    assert_eq!(at("call-upload-parts", 17, &[0]), WireError::Reserved(Kind::Call));
    assert_eq!(at("call-upload-parts", 17, &[2]), WireError::Reserved(Kind::Call));
    for number in [6, 7, 0xff] {
        assert_eq!(at("reply-none", 12, &[number]), WireError::UnknownLane(number));
    }
    assert_eq!(at("reply-none", 8, &[17]), WireError::UnknownCode(17));
    assert_eq!(at("registered", 8, &[0xff; 4]), WireError::UnknownCode(u32::MAX));
    assert_eq!(at("goodbye", 0, &[0, 1]), WireError::UnknownCode(256));
}

#[test]
fn descriptors_go_with_memory_files_and_nothing_else() {
    for Golden { name, bytes } in goldens() {
        let (most, due) = match name {
            "call-two-files" => (2, 2),
            "call-one-shot" | "call-descriptor" => (2, 1),
            name if name.starts_with("call") => (2, 0),
            "reply-sealed" => (1, 1),
            name if name.starts_with("reply") => (1, 0),
            _ => continue,
        };
        let kind = if most == 2 { Kind::Call } else { Kind::Reply };
        assert_eq!(bytes[1], due, "{name}");
        for count in (0..=255).filter(|&count| count != due) {
            let refused = error_of(&altered(name, 1, &[count]));
            assert_eq!(refused, WireError::DescriptorCount(kind, count), "{name}");
        }
    }
    // A sealed upload alone.
    let upload = Upload::Sealed { offset: 0, bytes: 5 };
    let alone = Call { upload, parts: Parts::one(5), ..call(1, 0, "m", b"") };
    let mut frame = Frame::Call(alone).encode(0);
    assert_eq!(frame[1], 1);
    for count in [0, 2] {
        frame[1] = count;
        assert_eq!(error_of(&frame), WireError::DescriptorCount(Kind::Call, count));
    }
}

/// A later version may speak more: ranges of versions, unknown features, a longer hello.
#[test]
fn a_hello_of_later_versions_is_understood() {
    let mut bytes = altered("hello-client", HEADER_BYTES + 10, &[9]);
    bytes[HEADER_BYTES + 16..][..8].copy_from_slice(&[0xff; 8]);
    bytes[4] += 3;
    bytes.extend_from_slice(b"new");
    let (_, frame) = decode(&bytes, &Limits::default()).unwrap();
    let Frame::Hello(hello) = frame else { panic!("{frame:?}") };
    assert_eq!((hello.version_min, hello.version_max), (1, 9));
    assert_eq!(hello.features, u64::MAX);
    assert_eq!(hello.limits, client_limits());
}

impl Kind {
    fn from_golden(number: u8) -> Self {
        let bytes = goldens().into_iter().find(|golden| golden.bytes[0] == number);
        let bytes = bytes.expect("a golden frame of every kind").bytes;
        let decoded = decode(&bytes, &Limits::default());
        decoded.expect("golden").0.kind
    }
}
