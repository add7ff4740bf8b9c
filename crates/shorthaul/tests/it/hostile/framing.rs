//! Bytes that are no frames, or not there and then: each is named in a goodbye, and is the end of
//! that connection alone.

use std::os::fd::{AsFd, BorrowedFd};

use super::raw::{self, Place, Raw, Upload};
use super::{Stage, isolated, rounds};

/// What is sent behind the hellos, and what the server must say.
struct Violation {
    bytes: Vec<u8>,
    code: u32,
    said: &'static str,
}

fn violation(bytes: Vec<u8>, said: &'static str) -> Violation {
    let code = raw::INVALID_ARGUMENT;
    Violation { bytes, code, said }
}

/// A frame with the bytes at `at` replaced.
fn altered(mut frame: Vec<u8>, at: usize, with: &[u8]) -> Vec<u8> {
    frame[at..at + with.len()].copy_from_slice(with);
    frame
}

/// First frames that are none.
fn bad_hellos() -> Vec<Violation> {
    let mut no_version = violation(raw::hello_of(2, 3), "the peer speaks 2 to 3");
    no_version.code = raw::UNIMPLEMENTED;
    vec![
        no_version,
        violation(altered(raw::hello(), 16, b"GET / HT"), "does not speak this protocol"),
        violation(raw::hello_of(0, 1), "versions 0 to 1"),
        violation(raw::hello_of(2, 1), "versions 2 to 1"),
        violation(altered(raw::hello(), 28, &[1]), "reserved bytes of a Hello"),
        violation(altered(raw::hello(), 52, &[1]), "reserved bytes of a Hello"),
        violation(altered(raw::hello(), 4, &[55, 0]), "announces 55 bytes of body"),
        violation(altered(raw::hello(), 4, &[1, 16]), "announces 4097 bytes of body"),
        violation(raw::of_id(raw::CANCEL, 1), "the hello must come first"),
        violation(raw::call(1, Place::NONE, b"echo", b""), "the hello must come first"),
        violation(
            raw::frame(raw::GOODBYE, 0, &raw::goodbye_body(raw::OK, ""), b""),
            "the hello must come first",
        ),
        violation(b"GET / HTTP/1.1\r\n\r\n".to_vec(), "unknown frame kind 71"),
        violation(vec![0; 16], "unknown frame kind 0"),
        violation(vec![0xff; 16], "unknown frame kind 255"),
    ]
}

/// Frames behind the hellos that have no place there.
fn bad_frames() -> Vec<Violation> {
    let reply = raw::reply_body(1, raw::OK, raw::LANE_NONE, 0);
    let registered = [&[0; 8][..], &raw::goodbye_body(raw::OK, "")].concat();
    let notice = raw::goodbye_body(1, "data");
    let unknown_code = raw::goodbye_body(17, "");
    let only_server = "only a server sends it";
    let mut all = vec![
        violation(raw::hello(), "a second hello"),
        violation(raw::frame(raw::REPLY, 0, &reply, b""), only_server),
        violation(raw::frame(raw::REGISTERED, 0, &registered, b""), only_server),
        violation(raw::frame(raw::NOTICE, 0, &notice, b""), only_server),
        violation(raw::frame(raw::GOODBYE, 0, &unknown_code, b""), "unknown status code 17"),
    ];
    all.extend(bad_headers());
    all.extend(bad_calls());
    all
}

fn bad_headers() -> Vec<Violation> {
    let cancel = || raw::of_id(raw::CANCEL, 1);
    let cancel_of = |bytes| raw::header(raw::CANCEL, 0, bytes, 0);
    let call_of = |body_bytes, payload_bytes| raw::header(raw::CALL, 0, body_bytes, payload_bytes);
    let most = 96 + 8192 + 255 + 65_536;
    let no_descriptor = altered(raw::register(1, 64), 1, &[0]);
    let over = "of payload, over the limit";
    vec![
        violation(raw::header(13, 0, 8, 0), "unknown frame kind 13"),
        violation(altered(cancel(), 2, &[1]), "reserved bytes of a Cancel"),
        violation(altered(cancel(), 3, &[1]), "reserved bytes of a Cancel"),
        violation(cancel_of(7), "a Cancel frame announces 7 bytes of body"),
        violation(cancel_of(9), "a Cancel frame announces 9 bytes of body"),
        violation(call_of(95, 0), "a Call frame announces 95 bytes of body"),
        violation(call_of(most + 1, 0), "a Call frame announces 74080 bytes"),
        violation(call_of(u32::MAX, 0), "announces 4294967295 bytes of body"),
        violation(call_of(96, (128 << 20) + 1), over),
        violation(call_of(96, u64::MAX), over),
        violation(raw::header(raw::CANCEL, 0, 8, 1), "over the limit of 0"),
        violation(altered(cancel(), 1, &[1]), "announces 1 descriptors"),
        violation(no_descriptor, "announces 0 descriptors"),
    ]
}

fn bad_calls() -> Vec<Violation> {
    let call = || raw::call(1, Place::NONE, b"echo", b"request");
    let named = |method: &[u8]| raw::call(1, Place::NONE, method, b"");
    let lengths = "do not add up";
    let reserved = "reserved bytes of a Call";
    let region = || raw::echo(1, Place::NONE, Upload::region(1, 0, 100));
    let parted =
        |lengths: &[u64]| raw::echo_parts(1, Place::NONE, Upload::region(1, 0, 100), lengths);
    let place = Place { inline_bytes: 10, inline_first_bytes: 11, ..Place::NONE };
    let no_parts = "the parts of a payload do not add up";
    let mut all = vec![
        violation(altered(region(), 16 + 17, &[3]), "unknown kind 3 of upload"),
        violation(altered(region(), 16 + 17, &[0]), reserved),
        violation([&altered(region(), 8, &[1])[..], b"x"].concat(), lengths),
        violation(raw::call(1, place, b"echo", b""), lengths),
        violation(parted(&[100]), no_parts),
        violation(parted(&[30, 30]), no_parts),
        violation(parted(&[30, 37]), no_parts),
        violation(parted(&[100; 1025]), no_parts),
        violation(altered(parted(&[64, 36]), 16 + 92, &[3]), lengths),
        violation(raw::echo(1, Place::one_shot(8), Upload::sealed(0, 8)), "the 2 descriptors"),
    ];
    all.extend(
        (24..48).chain(64..88).map(|at| violation(altered(call(), 16 + at, &[1]), reserved)),
    );
    all.extend([
        violation(altered(call(), 16 + 94, &[1]), reserved),
        violation(altered(call(), 16 + 95, &[1]), reserved),
        violation(altered(call(), 16 + 18, &[5]), lengths),
        violation(altered(call(), 16 + 20, &[6]), lengths),
        violation(altered(call(), 16 + 20, &[0xff; 4]), lengths),
        violation(named(&[b'm'; 256]), lengths),
        violation(named(b"\xff\xfe"), "not UTF-8"),
        violation(altered(call(), 16 + 16, &[4]), "unknown kind 4 of what is to be filled"),
        violation(altered(call(), 16 + 16, &[3]), "announces 0 descriptors"),
        violation(altered(call(), 16 + 16, &[2]), "announces 0 descriptors"),
        violation(altered(call(), 16 + 17, &[2]), "announces 0 descriptors"),
        violation(altered(call(), 1, &[3]), "announces 3 descriptors"),
    ]);
    all
}

fn provoke(raw: &mut Raw, violation: &Violation, descriptors: &[BorrowedFd<'_>]) -> raw::Answer {
    raw.send_with(&violation.bytes, descriptors);
    raw.goodbye()
}

fn check(goodbye: &raw::Answer, violation: &Violation) {
    let message = &goodbye.message;
    assert!(message.contains(violation.said), "{message:?}, not {:?}", violation.said);
    assert_eq!(goodbye.code, violation.code, "{message}");
}

#[test]
fn every_violation_is_named_in_a_goodbye() {
    isolated("hostile::framing::every_violation_is_named_in_a_goodbye", || {
        let mut stage = Stage::new();
        for violation in bad_hellos() {
            let mut raw = Raw::connect(&stage.path);
            check(&provoke(&mut raw, &violation, &[]), &violation);
            drop(raw);
            stage.ends_clean();
        }
        for violation in bad_frames() {
            let mut raw = Raw::open(&stage.path);
            check(&provoke(&mut raw, &violation, &[]), &violation);
            drop(raw);
            stage.ends_clean();
        }
    });
}

/// What comes with bytes that are refused is closed, whatever the reason.
#[test]
fn a_descriptor_on_a_violation_is_closed() {
    isolated("hostile::framing::a_descriptor_on_a_violation_is_closed", || {
        let mut stage = Stage::new();
        let file = tempfile::tempfile_in(stage.folder.path()).unwrap();
        for _ in 0..rounds(20, 10_000) {
            for violation in bad_hellos() {
                let mut raw = Raw::connect(&stage.path);
                provoke(&mut raw, &violation, &[file.as_fd()]);
            }
            for violation in bad_frames() {
                let mut raw = Raw::open(&stage.path);
                provoke(&mut raw, &violation, &[file.as_fd()]);
            }
        }
        drop(file);
        stage.ends_clean();
    });
}

#[test]
fn frames_may_come_a_byte_at_a_time_or_all_at_once() {
    let mut stage = Stage::new();
    let memory = super::descriptor::sealed(4096);
    let mut raw = Raw::connect(&stage.path);
    let call = raw::call_with(1, Place::inline(100), b"echo", b"request", b"payload");
    let mut register = raw::register(1, 4096);
    raw.send(&raw::hello()[..1]);
    raw.send(&raw::hello()[1..]);
    raw.expect(raw::HELLO);
    for byte in call {
        raw.send(&[byte]);
    }
    let reply = raw.reply();
    assert_eq!((&reply.response[..], &reply.payload[..]), (&b"request"[..], &b"payload"[..]));
    raw.send_with(&register[..1], &[memory.as_fd()]);
    for byte in register.drain(1..) {
        raw.send(&[byte]);
    }
    assert_eq!(raw.registered().code, raw::OK);

    let many: Vec<u8> = (0..100_u64)
        .flat_map(|id| raw::call(id, Place::NONE, b"echo", &id.to_le_bytes()))
        .collect();
    raw.send(&many);
    let mut answered: Vec<u64> = (0..100)
        .map(|_| raw.reply())
        .inspect(|reply| assert_eq!(reply.response, reply.id.to_le_bytes()))
        .map(|reply| reply.id)
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..100).collect::<Vec<_>>());
    drop(raw);
    stage.honest_calls();
}

/// Announcements cost nothing: neither those that are refused, nor those that never come true.
#[test]
fn announcing_gigabytes_costs_no_memory() {
    isolated("hostile::framing::announcing_gigabytes_costs_no_memory", || {
        let mut stage = Stage::new();
        let mut before = resident_bytes();
        for round in 0..20 {
            let mut pending = Vec::new();
            for (body_bytes, payload_bytes) in
                [(u32::MAX, 0), (96, 4 << 30), (96, u64::from(u32::MAX)), (96, u64::MAX)]
            {
                let mut raw = Raw::open(&stage.path);
                raw.send(&raw::header(raw::CALL, 0, body_bytes, payload_bytes));
                raw.goodbye();
            }
            // As much as is allowed, and then nothing.
            let mut raw = Raw::open(&stage.path);
            let call = raw::call_with(1, Place::NONE, b"echo", b"", b"");
            raw.send(&altered(call, 8, &(128_u64 << 20).to_le_bytes()));
            pending.push(raw);
            stage.honest_calls();
            if round == 0 {
                // What everybody's first use costs is behind.
                before = resident_bytes();
            }
        }
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 1 << 20, "{grown} bytes more than before");
        stage.ends_clean();
    });
}

pub(super) fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn a_request_over_the_limit_is_that_calls_failure() {
    let mut stage = Stage::new();
    let mut raw = Raw::open(&stage.path);
    let largest = vec![1; 65_536];
    raw.send(&raw::call(1, Place::NONE, b"echo", &largest));
    assert_eq!(raw.reply().response, largest);
    raw.send(&raw::call(2, Place::NONE, b"echo", &[1; 65_537]));
    let reply = raw.reply();
    assert_eq!((reply.id, reply.code), (2, raw::RESOURCE_EXHAUSTED));
    assert!(reply.message.contains("65537"), "{}", reply.message);
    raw.send(&raw::call(2, Place::NONE, b"echo", b"again"));
    assert_eq!(raw.reply().response, b"again");
    stage.honest_calls();
}
