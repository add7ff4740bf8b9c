//! Frames at random: what is encoded is what is decoded, and no bytes are too odd to be looked at.

use proptest::prelude::*;

use super::*;

fn codes() -> impl Strategy<Value = Code> {
    (0_u32..17).prop_map(|number| Code::from_number(number).expect("a code"))
}

fn lanes() -> impl Strategy<Value = LaneNumber> {
    prop_oneof![
        Just(LaneNumber::None),
        Just(LaneNumber::Inline),
        Just(LaneNumber::FillWrite),
        Just(LaneNumber::FillMap),
        Just(LaneNumber::Sealed),
        Just(LaneNumber::Descriptor),
    ]
}

fn spans() -> impl Strategy<Value = Span> {
    any::<(u64, u64, u64)>().prop_map(|(region, offset, bytes)| Span { region, offset, bytes })
}

fn rooms() -> impl Strategy<Value = Room> {
    let fills = prop_oneof![
        Just(Fill::None),
        spans().prop_map(Fill::Region),
        any::<u64>().prop_map(|bytes| Fill::OneShot { bytes }),
        any::<u64>().prop_map(|bytes| Fill::Descriptor { bytes }),
    ];
    (fills, any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
        |(fill, inline_first_bytes, inline_bytes, sealed_bytes)| {
            let inline_bytes = inline_bytes.max(u64::from(inline_first_bytes));
            Room { fill, inline_bytes, inline_first_bytes, sealed_bytes }
        },
    )
}

/// Parts of one number of bytes or another; one part more often than chance would have it.
fn all_parts() -> impl Strategy<Value = Parts> {
    let several = prop::collection::vec(0_usize..100_000, 2..40).prop_map(|lengths| {
        let bytes = crate::parts::parts_bytes(&lengths).unwrap();
        let lengths: Vec<u64> = lengths.iter().map(|&length| length as u64).collect();
        in_parts(bytes as u64, &lengths)
    });
    prop_oneof![(0_usize..=64 << 20).prop_map(Parts::one), several]
}

/// A way for bulk of so many bytes, by a number at random.
fn upload_of(way: u8, bytes: u64, at: Span) -> Upload {
    match way % 3 {
        0 if bytes == 0 => Upload::None,
        0 => Upload::Inline { bytes },
        1 => Upload::Region(Span { bytes, ..at }),
        _ => Upload::Sealed { offset: at.offset, bytes },
    }
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
        room in rooms(),
        (way, at) in (any::<u8>(), spans()),
        parts in all_parts(),
        method in "\\PC{0,60}",
        request in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let (method, request) = (method.as_str(), &request[..]);
        let upload = upload_of(way, parts.bytes() as u64, at);
        let inline_bytes = if let Upload::Inline { bytes } = upload { bytes } else { 0 };
        let call = Call { call, remaining_ns, room, upload, parts, method, request };
        check_round_trip(Frame::Call(call), inline_bytes);
    }

    #[test]
    fn replies_round_trip(
        call: u64,
        code in codes(),
        lane in lanes(),
        offset: u64,
        parts in all_parts(),
        needed: u64,
        response in prop::collection::vec(any::<u8>(), 0..300),
        message in "\\PC{0,200}",
    ) {
        let (response, message) = (&response[..], message.as_str());
        let parts = match lane {
            LaneNumber::None => Parts::one(needed as usize),
            _ => parts,
        };
        let payload_bytes = parts.bytes() as u64;
        let inline_bytes = if lane == LaneNumber::Inline { payload_bytes } else { 0 };
        let offset = if lane == LaneNumber::Sealed { offset } else { 0 };
        let reply = Reply { call, code, lane, payload_bytes, offset, parts, response, message };
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
        for descriptors in 1..=2 {
            whole[1] = descriptors;
            decode(&whole, &Limits::default()).ok();
        }
    }

    /// Fields of a CALL at random, few of which are unknown or unused, and its table at random.
    #[test]
    fn no_call_panics(
        (fill, upload, parts) in (0_u8..4, 0_u8..3, 0_u16..6),
        mut fixed in prop::collection::vec(any::<u8>(), 96..=96),
        table in prop::collection::vec(any::<u64>(), 0..6),
    ) {
        fixed[16..18].copy_from_slice(&[fill, upload]);
        fixed[18..24].fill(0);
        fixed[92..94].copy_from_slice(&parts.to_le_bytes());
        fixed[94..].fill(0);
        for descriptors in 0..=2 {
            let body_bytes = (96 + table.len() * 8) as u32;
            let mut whole = header(2, descriptors, body_bytes, 0).to_vec();
            whole.extend_from_slice(&fixed);
            whole.extend(table.iter().flat_map(|length| length.to_le_bytes()));
            decode(&whole, &Limits::default()).ok();
        }
    }
}
