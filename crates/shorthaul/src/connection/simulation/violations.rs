//! What ends a connection: broken rules and broken promises about time.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::pair::{LIMITS, NOTHING, Pair, given, inline, one_shot, read, sealed, write};
use super::tokens::Kind;
use crate::connection::Violation;
use crate::connection::client::ClientEvent;
use crate::connection::server::{Answer, ServerEvent};
use crate::error::{Code, Status};
use crate::limits::{FRAME_STALL_TIMEOUT, HANDSHAKE_TIMEOUT, WRITE_STALL_TIMEOUT};
use crate::parts::Parts;
use crate::wire::Kind as FrameKind;
use crate::wire::{Call, Frame, Hello, LaneNumber, Reply, Room, Upload, VERSION, WireError};

const TICK: Duration = Duration::from_nanos(1);

fn push(pair: &mut Pair, upwards: bool, frame: Frame<'_>, descriptors: usize) {
    push_bytes(pair, upwards, frame.encode(0).to_vec(), descriptors);
}

fn push_bytes(pair: &mut Pair, upwards: bool, bytes: Vec<u8>, descriptors: usize) {
    let ledger = pair.ledger.clone();
    let descriptors =
        (0..descriptors).map(|name| ledger.issue(Kind::Descriptor, name as u64)).collect();
    let wire = if upwards { &mut pair.up } else { &mut pair.down };
    wire.push(bytes, descriptors);
}

/// What the server makes of a frame that no honest client sends.
fn server_says(frame: Frame<'_>, descriptors: usize) -> Violation {
    server_says_of(frame.encode(0).to_vec(), descriptors)
}

/// All descriptors come out, to be closed where that may take its time.
fn server_says_of(bytes: Vec<u8>, descriptors: usize) -> Violation {
    let mut pair = Pair::open();
    push_bytes(&mut pair, true, bytes, descriptors);
    let violation = pair.settle().unwrap_err();
    assert_eq!(pair.ledger.count(Kind::Descriptor), descriptors, "{violation}");
    assert_eq!(pair.server.take_descriptors().len(), descriptors, "{violation}");
    drop((pair.client, pair.server, pair.up));
    pair.ledger.assert_empty();
    violation
}

/// What the client makes of an answer to its call 1, which offers `room`.
fn client_says(room: Room, reply: Vec<u8>, descriptors: usize) -> Violation {
    let mut pair = Pair::open();
    pair.start(1, room);
    drop(pair.settle_for_server());
    let before = pair.ledger.count(Kind::Descriptor);
    assert_eq!(before, 0, "the server has closed its own");
    push_bytes(&mut pair, false, reply, descriptors);
    let violation = pair.settle().unwrap_err();
    assert_eq!(pair.ledger.count(Kind::Descriptor), descriptors, "{violation}");
    assert_eq!(pair.client.take_descriptors().len(), descriptors, "{violation}");
    let tokens = pair.client.drain_tokens().count();
    assert_eq!(tokens, 1, "{violation}");
    drop((pair.client, pair.server, pair.up, pair.down));
    pair.ledger.assert_empty();
    violation
}

/// A successful answer to call 1.
fn reply(lane: LaneNumber, payload_bytes: u64) -> Reply<'static> {
    Reply {
        call: 1,
        code: Code::Ok,
        lane,
        payload_bytes,
        offset: 0,
        parts: Parts::one(payload_bytes as usize),
        response: b"",
        message: "",
    }
}

fn hello(version_min: u16, version_max: u16) -> Frame<'static> {
    Frame::Hello(Hello { version_min, version_max, features: u64::MAX, limits: LIMITS })
}

fn call(call: u64, room: Room) -> Frame<'static> {
    call_with(call, room, Upload::None)
}

fn call_with(call: u64, room: Room, upload: Upload) -> Frame<'static> {
    let parts = Parts::one(upload.bytes() as usize);
    let (method, request) = ("m", &b""[..]);
    Frame::Call(Call { call, remaining_ns: 0, room, upload, parts, method, request })
}

#[test]
fn no_version_in_common() {
    for upwards in [true, false] {
        let mut pair = Pair::new(&Arc::default(), 0);
        push(&mut pair, upwards, hello(VERSION + 1, VERSION + 5), 0);
        let violation = pair.settle().unwrap_err();
        assert_eq!(violation, Violation::Version(VERSION + 1, VERSION + 5));
        assert_eq!(violation.code(), Code::Unimplemented);
    }
}

#[test]
fn newer_peers_that_still_speak_this_version_are_welcome() {
    let mut pair = Pair::new(&Arc::default(), 0);
    push(&mut pair, true, hello(VERSION, VERSION + 5), 0);
    pair.settle().unwrap();
    assert!(pair.server.link.is_open());
}

#[test]
fn the_hello_comes_first_and_once_and_in_time() {
    let mut pair = Pair::new(&Arc::default(), 0);
    push(&mut pair, true, call(1, NOTHING), 0);
    assert!(matches!(pair.settle().unwrap_err(), Violation::Unexpected(_)));
    assert_eq!(server_says(hello(VERSION, VERSION), 0), Violation::Unexpected("a second hello"));

    let mut pair = Pair::new(&Arc::default(), 0);
    pair.pass(HANDSHAKE_TIMEOUT - TICK);
    pair.server.link.check_time(pair.now).unwrap();
    assert_eq!(pair.server.link.deadline(), Some(pair.now + TICK));
    pair.pass(TICK);
    let late = Violation::HandshakeTimeout;
    assert_eq!(pair.server.link.check_time(pair.now), Err(late));
    assert_eq!(pair.client.handle_timeout(pair.now).unwrap_err(), late);
}

#[test]
fn a_frame_that_stops_half_way() {
    let mut pair = Pair::open();
    pair.start(1, NOTHING);
    write(&mut pair.client.link, &mut pair.up, 20, pair.now, false);
    pair.settle_server_only();
    pair.pass(FRAME_STALL_TIMEOUT - TICK);
    pair.server.link.check_time(pair.now).unwrap();
    // One byte more, and the time begins anew.
    write(&mut pair.client.link, &mut pair.up, 1, pair.now, false);
    pair.settle_server_only();
    pair.pass(FRAME_STALL_TIMEOUT - TICK);
    pair.server.link.check_time(pair.now).unwrap();
    pair.pass(TICK);
    let stalled = pair.server.link.check_time(pair.now).unwrap_err();
    assert_eq!(stalled, Violation::FrameStalled);
    assert_eq!(stalled.code(), Code::DeadlineExceeded);
}

#[test]
fn a_frame_that_nobody_reads_is_not_stalled() {
    let mut pair = Pair::open();
    pair.start(1, NOTHING);
    write(&mut pair.client.link, &mut pair.up, 20, pair.now, false);
    pair.settle_server_only();
    pair.server.link.pause_reading();
    pair.pass(FRAME_STALL_TIMEOUT * 2);
    pair.server.link.check_time(pair.now).unwrap();
    pair.server.link.resume_reading(pair.now);
    pair.server.link.check_time(pair.now).unwrap();
    pair.pass(FRAME_STALL_TIMEOUT);
    let stalled = pair.server.link.check_time(pair.now).unwrap_err();
    assert_eq!(stalled, Violation::FrameStalled);
}

#[test]
fn a_peer_that_takes_nothing() {
    let mut pair = Pair::open();
    pair.down.capacity_bytes = 10;
    assert!(pair.server.notify(1, b"more than ten bytes"));
    write(&mut pair.server.link, &mut pair.down, 99, pair.now, true);
    pair.pass(WRITE_STALL_TIMEOUT - TICK);
    write(&mut pair.server.link, &mut pair.down, 99, pair.now, true);
    pair.server.link.check_time(pair.now).unwrap();
    pair.pass(TICK);
    let stalled = pair.server.link.check_time(pair.now).unwrap_err();
    assert_eq!(stalled, Violation::WriteStalled);
}

#[test]
fn a_call_with_the_id_of_an_open_one() {
    let mut pair = Pair::open();
    pair.start(1, NOTHING);
    pair.settle_for_server();
    push(&mut pair, true, call(1, NOTHING), 0);
    assert!(matches!(pair.settle().unwrap_err(), Violation::Unexpected(_)));

    let mut pair = Pair::open();
    pair.start(1, NOTHING);
    pair.settle_for_server();
    pair.answer(1);
    pair.settle_for_client();
    push(&mut pair, true, call(1, NOTHING), 0);
    assert_eq!(pair.settle_for_server().len(), 1, "free after its answer");
}

#[test]
fn a_region_that_is_registered_twice() {
    let mut pair = Pair::open();
    let register = || Frame::Register { region: 0, bytes: 64 };
    push(&mut pair, true, register(), 1);
    for event in pair.settle_for_server() {
        let ServerEvent::Register { descriptor, .. } = event else { panic!("{event:?}") };
        pair.accept_region(0, descriptor, 64);
    }
    push(&mut pair, true, register(), 1);
    assert!(matches!(pair.settle().unwrap_err(), Violation::Unexpected(_)));
}

#[test]
fn descriptors_that_do_not_match_their_frame() {
    let upload = Upload::Sealed { offset: 0, bytes: 64 };
    for (frame, announced) in [
        (call(1, one_shot(64)), 1),
        (call_with(1, NOTHING, upload), 1),
        (call_with(1, one_shot(64), upload), 2),
        (Frame::Register { region: 1, bytes: 64 }, 1),
    ] {
        for count in (0..=4).filter(|&count| count != usize::from(announced)) {
            let refused = server_says(frame.clone(), count);
            assert_eq!(refused, Violation::DescriptorCount { announced }, "{frame:?}: {count}");
        }
    }
    let unclaimed = Violation::UnclaimedDescriptors;
    assert_eq!(server_says(call(1, NOTHING), 1), unclaimed);
    assert_eq!(server_says(Frame::Cancel { call: 1 }, 3), unclaimed);
}

/// Announced and sent, but of no use to the frame.
#[test]
fn descriptors_that_their_frame_has_no_use_for() {
    let upload = Upload::Sealed { offset: 0, bytes: 64 };
    for (frame, count) in [
        (call(1, NOTHING), 1),
        (call(1, one_shot(64)), 2),
        (call(1, given(64)), 2),
        (call_with(1, NOTHING, upload), 2),
    ] {
        let mut bytes = frame.encode(0).to_vec();
        bytes[1] = count;
        let refused = server_says_of(bytes, usize::from(count));
        let wrong = Violation::Wire(WireError::DescriptorCount(FrameKind::Call, count));
        assert_eq!(refused, wrong);
    }
    for (room, lane) in [(inline(100), LaneNumber::None), (sealed(100), LaneNumber::None)] {
        let mut bytes = Frame::Reply(reply(lane, 0)).encode(0).to_vec();
        bytes[1] = 1;
        let refused = client_says(room, bytes, 1);
        let wrong = Violation::Wire(WireError::DescriptorCount(FrameKind::Reply, 1));
        assert_eq!(refused, wrong);
    }
}

#[test]
fn a_sealed_answer_brings_one_descriptor() {
    let answer = || Frame::Reply(reply(LaneNumber::Sealed, 10)).encode(0).to_vec();
    for count in [0, 2, 3, 4] {
        let refused = client_says(sealed(100), answer(), count);
        assert_eq!(refused, Violation::DescriptorCount { announced: 1 }, "{count}");
    }
    let mut silent = answer();
    silent[1] = 0;
    for count in 0..=4 {
        let refused = client_says(sealed(100), silent.clone(), count);
        let wrong = Violation::Wire(WireError::DescriptorCount(FrameKind::Reply, 0));
        assert_eq!(refused, wrong, "{count}");
    }
}

#[test]
fn a_sealed_answer_starts_at_a_multiple_of_64() {
    for offset in [1, 32, 63, 65, u64::MAX] {
        let answer = Reply { offset, ..reply(LaneNumber::Sealed, 10) };
        let refused = client_says(sealed(100), Frame::Reply(answer).encode(0).to_vec(), 1);
        assert!(matches!(refused, Violation::Answer(said) if said.contains("multiple of 64")));
    }
}

#[test]
fn a_descriptor_that_comes_after_the_first_byte() {
    let mut pair = Pair::open();
    let descriptor = pair.ledger.issue(Kind::Descriptor, 1);
    let bytes = call(1, one_shot(64)).encode(0).to_vec();
    let (first, rest) = bytes.split_at(5);
    pair.up.push(first.to_vec(), SmallVec::new());
    pair.settle_server_only();
    pair.up.push(rest.to_vec(), SmallVec::from_iter([descriptor]));
    assert!(pair.settle().is_err());
}

#[test]
fn frames_that_only_the_other_side_sends() {
    let (reply, sealed_reply) = (reply(LaneNumber::None, 0), reply(LaneNumber::Sealed, 10));
    let only_a_server = Violation::Unexpected("only a server sends it");
    assert_eq!(server_says(Frame::Reply(reply), 0), only_a_server);
    let notice = Frame::Notice { topic: 1, data: b"" };
    assert_eq!(server_says(notice, 0), only_a_server);
    let only_a_client = Violation::Unexpected("only a client sends it");
    let mut pair = Pair::open();
    push(&mut pair, false, Frame::Cancel { call: 1 }, 0);
    assert_eq!(pair.settle().unwrap_err(), only_a_client);
    // What came with them is closed where that may take its time.
    assert_eq!(server_says(Frame::Reply(sealed_reply.clone()), 1), only_a_server);
    let mut pair = Pair::open();
    push(&mut pair, false, Frame::Register { region: 1, bytes: 64 }, 1);
    assert_eq!(pair.settle().unwrap_err(), only_a_client);
    assert_eq!(pair.client.take_descriptors().len(), 1);
    let mut pair = Pair::new(&Arc::default(), 0);
    push(&mut pair, false, Frame::Reply(sealed_reply), 1);
    let early = Violation::Unexpected("the hello must come first");
    assert_eq!(pair.settle().unwrap_err(), early);
    assert_eq!(pair.client.take_descriptors().len(), 1);
}

/// An answer that its call did not ask for ends the connection, and the caller is told by it: the
/// token comes out with the others.
#[test]
fn an_answer_that_was_not_asked_for() {
    let many = Room { sealed_bytes: 100, ..one_shot(100) };
    let not_first = Room { inline_bytes: 100, ..one_shot(100) };
    let first = Room { inline_first_bytes: 10, ..not_first };
    let cases = [
        (NOTHING, LaneNumber::Inline, 1),
        (NOTHING, LaneNumber::Inline, 0),
        (NOTHING, LaneNumber::None, 1),
        (NOTHING, LaneNumber::FillMap, 0),
        (NOTHING, LaneNumber::Sealed, 0),
        (inline(100), LaneNumber::FillMap, 1),
        (inline(100), LaneNumber::Inline, 101),
        (inline(100), LaneNumber::Sealed, 1),
        (one_shot(100), LaneNumber::Inline, 1),
        (one_shot(100), LaneNumber::FillWrite, 101),
        (one_shot(100), LaneNumber::Sealed, 1),
        (one_shot(100), LaneNumber::Descriptor, 1),
        (NOTHING, LaneNumber::Descriptor, 0),
        (inline(100), LaneNumber::Descriptor, 1),
        (given(100), LaneNumber::Descriptor, 101),
        (given(100), LaneNumber::FillMap, 1),
        (given(100), LaneNumber::FillWrite, 0),
        (given(100), LaneNumber::Inline, 1),
        (sealed(100), LaneNumber::Sealed, 101),
        (sealed(100), LaneNumber::Inline, 1),
        (sealed(100), LaneNumber::FillWrite, 0),
        (sealed(100), LaneNumber::None, 1),
        (many, LaneNumber::Sealed, 101),
        (many, LaneNumber::Inline, 0),
        (not_first, LaneNumber::Inline, 1),
        (first, LaneNumber::Inline, 11),
    ];
    for (room, lane, bytes) in cases {
        let mut pair = Pair::open();
        pair.start(1, room);
        drop(pair.settle_for_server());
        pair.answer_by(1, lane, bytes);
        let violation = pair.settle().unwrap_err();
        assert!(matches!(violation, Violation::Answer(_)), "{violation}");
        let sealed = usize::from(lane == LaneNumber::Sealed);
        assert_eq!(pair.ledger.count(Kind::Descriptor), sealed, "{room:?} by {lane:?}");
        assert_eq!(pair.client.take_descriptors().len(), sealed, "{room:?} by {lane:?}");
        assert_eq!(pair.client.drain_tokens().count(), 1, "{room:?} by {lane:?}");
    }
    let mut pair = Pair::open();
    push(&mut pair, true, call(5, NOTHING), 0);
    pair.settle_for_server();
    pair.answer(5);
    assert_eq!(pair.settle().unwrap_err(), Violation::Answer("no such call is open"));
    let mut pair = Pair::open();
    push(&mut pair, false, Frame::Reply(reply(LaneNumber::Sealed, 10)), 1);
    assert_eq!(pair.settle().unwrap_err(), Violation::Answer("no such call is open"));
    assert_eq!(pair.client.take_descriptors().len(), 1);
    pair.ledger.assert_empty();
}

#[test]
fn answers_that_take_all_that_was_offered() {
    let many = Room { sealed_bytes: 100, ..one_shot(100) };
    let first = Room { inline_bytes: 100, inline_first_bytes: 10, ..one_shot(100) };
    for (room, lane, bytes) in [
        (inline(100), LaneNumber::Inline, 100),
        (many, LaneNumber::Sealed, 100),
        (many, LaneNumber::FillMap, 100),
        (given(100), LaneNumber::Descriptor, 100),
        (given(100), LaneNumber::Descriptor, 0),
        (first, LaneNumber::Inline, 10),
        (sealed(100), LaneNumber::None, 0),
    ] {
        let mut pair = Pair::open();
        pair.start(1, room);
        drop(pair.settle_for_server());
        pair.answer_by(1, lane, bytes);
        let events = pair.settle_for_client();
        assert!(matches!(events[..], [ClientEvent::Answered { .. }]), "{events:?}");
    }
}

#[test]
fn a_failure_brings_no_descriptor() {
    let failure = Reply { code: Code::NotFound, ..reply(LaneNumber::Sealed, 10) };
    let refused = client_says(sealed(100), Frame::Reply(failure).encode(0).to_vec(), 1);
    assert_eq!(refused, Violation::Answer("a failure with a payload"));
}

/// How many bytes of a relay that failed are in the descriptor: some, and no more than may be.
#[test]
fn a_failure_after_a_relay_says_how_much_is_there() {
    let failed = |lane, bytes| Reply { code: Code::Aborted, ..reply(lane, bytes) };
    let said =
        |room, reply: Reply<'static>| client_says(room, Frame::Reply(reply).encode(0).to_vec(), 0);
    for (room, bytes) in [(given(100), 0), (given(100), 101), (given(0), 1)] {
        let refused = said(room, failed(LaneNumber::Descriptor, bytes));
        assert!(matches!(refused, Violation::Answer(_)), "{bytes} bytes: {refused}");
    }
    let in_parts = Parts::of_lengths(65, [1, 1].into_iter()).unwrap();
    let parts = Reply { parts: in_parts, ..failed(LaneNumber::Descriptor, 65) };
    assert!(matches!(said(given(100), parts), Violation::Answer(_)));
    for room in [NOTHING, one_shot(100), inline(100)] {
        let refused = said(room, failed(LaneNumber::Descriptor, 10));
        assert_eq!(refused, Violation::Answer("a failure with a payload"));
    }
    let mut pair = Pair::open();
    pair.start(1, given(100));
    let to_server = pair.settle_for_server();
    let status = Status::new(Code::Aborted, "the reader has gone");
    let answer = Answer::failure(status.clone()).after_relay(100);
    assert_eq!(answer.moved_bytes(), 100, "it is charged for");
    pair.server.answer(1, answer);
    let events = pair.settle_for_client();
    let [ClientEvent::Answered { answer, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((answer.status.as_ref(), answer.given_bytes), (Some(&status), 100));
    assert_eq!((answer.lane, answer.parts.bytes()), (LaneNumber::None, 0));
    drop(to_server);
}

/// What a call with two memory files leads to that is refused as a whole.
#[test]
fn both_descriptors_of_a_call_that_ends_the_connection_come_out() {
    let upload = Upload::Sealed { offset: 0, bytes: 64 };
    let mut pair = Pair::open();
    pair.start(0, NOTHING);
    pair.settle_for_server();
    push(&mut pair, true, call_with(0, one_shot(64), upload), 2);
    assert!(matches!(pair.settle().unwrap_err(), Violation::Unexpected(_)));
    assert_eq!(pair.server.take_descriptors().len(), 2);

    let mut pair = Pair::new(&Arc::default(), 0);
    push(&mut pair, true, call_with(1, one_shot(64), upload), 2);
    assert!(matches!(pair.settle().unwrap_err(), Violation::Unexpected(_)));
    assert_eq!(pair.server.take_descriptors().len(), 2);
    pair.ledger.assert_empty();
}

#[test]
fn a_failure_may_carry_the_size_needed_and_nothing_else() {
    let mut pair = Pair::open();
    pair.start(1, NOTHING);
    pair.settle_for_server();
    let mut status = Status::new(Code::OutOfRange, "too small");
    status.bytes_needed = Some(12);
    pair.server.answer(1, Answer::failure(status.clone()));
    let events = pair.settle_for_client();
    let [ClientEvent::Answered { answer, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(answer.status.as_ref(), Some(&status));
}

#[test]
fn the_last_word_is_heard() {
    let mut pair = Pair::open();
    let violation = Violation::FrameStalled;
    pair.server.link.say_goodbye(violation.code(), &violation.to_string());
    let events = pair.settle_for_client();
    let [ClientEvent::Goodbye { code, message }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*code, message), (violation.code(), &violation.to_string()));
}

impl Pair {
    /// Lets the server read what there is.
    fn settle_server_only(&mut self) {
        while read(&mut self.server.link, &mut self.up, usize::MAX, false, self.now).unwrap() {
            assert!(self.server.next_event(self.now).unwrap().is_none());
        }
    }
}
