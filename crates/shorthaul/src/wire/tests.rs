//! The golden frames of docs/PROTOCOL.md, both ways; and everything that is no frame.

use proptest::prelude::*;

use super::*;
use crate::limits::{BODY_BYTES_MAX, METHOD_BYTES_MAX, NOTICE_BYTES_MAX, STATUS_BYTES_MAX};

const PROTOCOL: &str = include_str!("../../../../docs/PROTOCOL.md");

// The fixed sizes that the document states.
const _: () = assert!(HEADER_BYTES == 16);
const _: () = assert!(Kind::Hello.body_bytes_min() == 56);
const _: () = assert!(Kind::Call.body_bytes_min() == 48);
const _: () = assert!(Kind::Reply.body_bytes_min() == 32);
const _: () = assert!(Kind::Cancel.body_bytes_min() == 8);
const _: () = assert!(Kind::Register.body_bytes_min() == 16);
const _: () = assert!(Kind::Registered.body_bytes_min() == 16);
const _: () = assert!(Kind::Release.body_bytes_min() == 8);
const _: () = assert!(Kind::Notice.body_bytes_min() == 8);
const _: () = assert!(Kind::Goodbye.body_bytes_min() == 8);
const _: () = assert!(BODY_BYTES_MAX == 1_048_576 && crate::limits::MESSAGE_BYTES_CAP == 1_044_480);
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

fn hello(limits: Limits) -> Frame<'static> {
    Frame::Hello(Hello { version_min: 1, version_max: 1, features: 0, limits })
}

fn call(
    call: u64,
    remaining_ns: u64,
    place: Place,
    method: &'static str,
    request: &'static [u8],
) -> Frame<'static> {
    Frame::Call(Call { call, remaining_ns, place, method, request })
}

fn reply(
    call: u64,
    lane: LaneNumber,
    payload_bytes: u64,
    response: &'static [u8],
) -> Frame<'static> {
    Frame::Reply(Reply { call, code: Code::Ok, lane, payload_bytes, response, message: "" })
}

/// What each golden frame says, and its inline payload.
fn expected(name: &str) -> (Frame<'static>, &'static [u8]) {
    let region = Place::Region { region: 7, offset: 4096, bytes: 65_536 };
    let inline = Place::Inline { bytes_max: 1000 };
    let one_shot = Place::OneShot { bytes: 8192 };
    let frame = match name {
        "hello-client" => hello(client_limits()),
        "hello-server" => hello(server_limits()),
        "call-none" => call(2, 0, Place::None, "ping", b""),
        "call-inline" => return (call(3, 1_000_000_000, inline, "read", b"key 1"), b"abc"),
        "call-region" => call(4, 250_000_000, region, "read", b"key 2"),
        "call-one-shot" => call(5, 0, one_shot, "read", b"key 3"),
        "reply-none" => reply(2, LaneNumber::None, 0, b"pong"),
        "reply-inline" => return (reply(3, LaneNumber::Inline, 5, b""), b"hello"),
        "reply-fill-map" => reply(4, LaneNumber::FillMap, 65_536, b""),
        "reply-fill-write" => reply(5, LaneNumber::FillWrite, 8000, b"v1"),
        "reply-too-small" => Frame::Reply(Reply {
            call: 4,
            code: Code::OutOfRange,
            lane: LaneNumber::None,
            payload_bytes: 70_000,
            response: b"",
            message: "offer 70000 bytes",
        }),
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
    assert_eq!(goldens.len(), 18);
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
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), (1..=9).collect::<Vec<_>>());
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
        let descriptors = u8::from(name == "REGISTER");
        let takes = |body_bytes, payload_bytes| {
            let bytes = header(kind, descriptors, body_bytes, payload_bytes);
            Header::decode(&bytes, &limits).is_ok()
        };
        assert!(!takes(fixed - 1, 0) && takes(fixed, 0), "{name}: least");
        assert!(takes(fixed + beyond, 0), "{name}: most");
        assert!(!takes(fixed + beyond + 1, 0), "{name}: over");
        let inline_bytes_max = limits.inline_bytes_max;
        assert_eq!(takes(fixed, 1), payload == "yes", "{name}");
        assert_eq!(takes(fixed, inline_bytes_max), payload == "yes", "{name}");
        assert!(!takes(fixed, inline_bytes_max + 1), "{name}: payload over");
        assert!(!takes(u32::MAX, 0) && !takes(fixed, u64::MAX), "{name}: huge");
    }
    assert_eq!(kinds, 9);
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
    for kind in (0..=0).chain(10..=255) {
        let refused = Header::decode(&header(kind, 0, 8, 0), &limits).unwrap_err();
        assert_eq!(refused, WireError::UnknownKind(kind));
    }
}

#[test]
fn descriptors_are_taken_by_register_and_call_alone() {
    let limits = Limits::default();
    for kind in 1..=9 {
        let fixed = Kind::from_golden(kind).body_bytes_min();
        for count in 0..=255 {
            let taken = Header::decode(&header(kind, count, fixed, 0), &limits).is_ok();
            let wanted = match kind {
                2 => count <= 1,
                5 => count == 1,
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
        ("call-region", 16 + 17, 1),
        ("reply-none", 16 + 13, 3),
    ];
    let in_headers = goldens().into_iter().map(|golden| (golden.name, 2, 2));
    for (name, at, count) in in_headers.chain(places) {
        for byte in at..at + count {
            let refused = error_of(&altered(name, byte, &[1]));
            assert!(matches!(refused, WireError::Reserved(_)), "{name} at {byte}: {refused}");
        }
    }
}

#[test]
fn fields_without_a_meaning_must_be_zero() {
    let one = 1_u64.to_le_bytes();
    for (name, offsets) in
        [("call-none", &[24, 32, 40][..]), ("call-inline", &[24, 32]), ("call-one-shot", &[24, 32])]
    {
        for offset in offsets {
            let refused = error_of(&altered(name, HEADER_BYTES + offset, &one));
            assert_eq!(refused, WireError::Reserved(Kind::Call), "{name} at {offset}");
        }
    }
}

#[test]
fn lengths_that_do_not_add_up_are_refused() {
    // Where in the body a length stands, and the kind it belongs to.
    for (name, at, bytes) in [
        ("call-region", 18, 2),
        ("call-region", 20, 4),
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
    let refused = error_of(&altered("reply-fill-map", 8, &[1]));
    assert_eq!(refused, WireError::Lengths(Kind::Reply));
}

#[test]
fn texts_are_bounded_one_by_one() {
    let bytes = [b'a'; 2048];
    let long = str::from_utf8(&bytes).unwrap();
    for (method_bytes, fits) in [(METHOD_BYTES_MAX, true), (METHOD_BYTES_MAX + 1, false)] {
        let frame = call(1, 0, Place::None, "", b"");
        let Frame::Call(call) = frame else { panic!() };
        let method = &long[..method_bytes];
        let encoded = Frame::Call(Call { method, ..call }).encode(0);
        assert_eq!(decode(&encoded, &Limits::default()).is_ok(), fits);
    }
    let mut reply = Vec::from(header(3, 0, 32 + 1025, 0));
    reply.extend_from_slice(&[0; 32]);
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
        ("call-none", 48, Kind::Call),
        ("reply-too-small", 32, Kind::Reply),
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
    assert_eq!(at("call-region", 16, &[4]), WireError::Reserved(Kind::Call));
    assert_eq!(at("call-inline", 16, &[4]), WireError::UnknownPlace(4));
    assert_eq!(at("reply-none", 12, &[4]), WireError::UnknownLane(4));
    assert_eq!(at("reply-none", 8, &[17]), WireError::UnknownCode(17));
    assert_eq!(at("registered", 8, &[0xff; 4]), WireError::UnknownCode(u32::MAX));
    assert_eq!(at("goodbye", 0, &[0, 1]), WireError::UnknownCode(256));
}

#[test]
fn a_descriptor_goes_with_a_one_shot_place_and_no_other() {
    let refused = error_of(&altered("call-one-shot", 1, &[0]));
    assert_eq!(refused, WireError::DescriptorCount(Kind::Call, 0));
    for name in ["call-none", "call-inline", "call-region"] {
        let refused = error_of(&altered(name, 1, &[1]));
        assert_eq!(refused, WireError::DescriptorCount(Kind::Call, 1), "{name}");
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

fn codes() -> impl Strategy<Value = Code> {
    (0_u32..17).prop_map(|number| Code::from_number(number).expect("a code"))
}

fn lanes() -> impl Strategy<Value = LaneNumber> {
    prop_oneof![
        Just(LaneNumber::None),
        Just(LaneNumber::Inline),
        Just(LaneNumber::FillWrite),
        Just(LaneNumber::FillMap),
    ]
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![
        Just(Place::None),
        any::<u64>().prop_map(|bytes_max| Place::Inline { bytes_max }),
        any::<(u64, u64, u64)>().prop_map(|(region, offset, bytes)| Place::Region {
            region,
            offset,
            bytes
        }),
        any::<u64>().prop_map(|bytes| Place::OneShot { bytes }),
    ]
}

fn check_round_trip(frame: Frame<'_>, payload_bytes: u64) {
    let encoded = frame.encode(payload_bytes);
    let (header, decoded) = decode(&encoded, &Limits::default()).expect("it was encoded here");
    assert_eq!(decoded, frame);
    assert_eq!(header.payload_bytes, payload_bytes);
    assert_eq!(encoded.len(), HEADER_BYTES + header.body_bytes as usize);
}

proptest! {
    #[test]
    fn hellos_round_trip(
        versions in (1_u16.., any::<u16>()),
        features: u64,
        counts: (u32, u32, u32),
        sizes: (u64, u64),
    ) {
        let limits = Limits {
            calls_max: counts.0,
            regions_max: counts.1,
            message_bytes_max: counts.2,
            inline_bytes_max: sizes.0,
            region_bytes_max: sizes.1,
        };
        let (version_min, version_max) = (versions.0, versions.0.max(versions.1));
        check_round_trip(Frame::Hello(Hello { version_min, version_max, features, limits }), 0);
    }

    #[test]
    fn calls_round_trip(
        call: u64,
        remaining_ns: u64,
        place in places(),
        method in "\\PC{0,60}",
        request in prop::collection::vec(any::<u8>(), 0..300),
        payload_bytes in 0_u64..=128 << 20,
    ) {
        let (method, request) = (method.as_str(), &request[..]);
        let call = Call { call, remaining_ns, place, method, request };
        check_round_trip(Frame::Call(call), payload_bytes);
    }

    #[test]
    fn replies_round_trip(
        call: u64,
        code in codes(),
        lane in lanes(),
        payload_bytes in 0_u64..=128 << 20,
        response in prop::collection::vec(any::<u8>(), 0..300),
        message in "\\PC{0,200}",
    ) {
        let (response, message) = (&response[..], message.as_str());
        let inline_bytes = if lane == LaneNumber::Inline { payload_bytes } else { 0 };
        let reply = Reply { call, code, lane, payload_bytes, response, message };
        check_round_trip(Frame::Reply(reply), inline_bytes);
    }

    #[test]
    fn small_frames_round_trip(
        id: u64,
        bytes: u64,
        topic: u32,
        code in codes(),
        message in "\\PC{0,200}",
        data in prop::collection::vec(any::<u8>(), 0..=4096),
    ) {
        let message = message.as_str();
        check_round_trip(Frame::Cancel { call: id }, 0);
        check_round_trip(Frame::Register { region: id, bytes }, 0);
        check_round_trip(Frame::Registered { region: id, code, message }, 0);
        check_round_trip(Frame::Release { region: id }, 0);
        check_round_trip(Frame::Notice { topic, data: &data }, 0);
        check_round_trip(Frame::Goodbye { code, message }, 0);
    }

    /// Bytes at random, with a kind that exists more often than chance would have it.
    #[test]
    fn no_bytes_panic(kind in 0_u8..12, mut bytes in prop::collection::vec(any::<u8>(), 16..200)) {
        bytes[0] = kind;
        let body_bytes = (bytes.len() - HEADER_BYTES) as u32;
        decode(&bytes, &Limits::default()).ok();
        // Once more with a header that is in order, so that the body is looked at.
        let mut whole = header(kind, 0, body_bytes, 0).to_vec();
        whole.extend_from_slice(&bytes[HEADER_BYTES..]);
        decode(&whole, &Limits::default()).ok();
        whole[1] = 1;
        decode(&whole, &Limits::default()).ok();
    }
}
