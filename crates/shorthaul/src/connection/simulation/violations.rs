//! What ends a connection: broken rules and broken promises about time.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::pair::{LIMITS, Pair, read, write};
use super::tokens::Kind;
use crate::connection::Violation;
use crate::connection::client::ClientEvent;
use crate::connection::server::{Answer, ServerEvent};
use crate::error::{Code, Status};
use crate::limits::{FRAME_STALL_TIMEOUT, HANDSHAKE_TIMEOUT, WRITE_STALL_TIMEOUT};
use crate::wire::{Call, Frame, Hello, LaneNumber, Place, Reply, VERSION};

const TICK: Duration = Duration::from_nanos(1);

fn push(pair: &mut Pair, upwards: bool, frame: Frame<'_>, descriptors: usize) {
    let ledger = pair.ledger.clone();
    let descriptors =
        (0..descriptors).map(|name| ledger.issue(Kind::Descriptor, name as u64)).collect();
    let wire = if upwards { &mut pair.up } else { &mut pair.down };
    wire.push(frame.encode(0).to_vec(), descriptors);
}

/// What the server makes of a frame that no honest client sends.
fn server_says(frame: Frame<'_>, descriptors: usize) -> Violation {
    let mut pair = Pair::open();
    push(&mut pair, true, frame, descriptors);
    let violation = pair.settle().unwrap_err();
    drop((pair.client, pair.server, pair.up));
    pair.ledger.assert_empty();
    violation
}

fn hello(version_min: u16, version_max: u16) -> Frame<'static> {
    Frame::Hello(Hello { version_min, version_max, features: u64::MAX, limits: LIMITS })
}

fn call(call: u64, place: Place) -> Frame<'static> {
    Frame::Call(Call { call, remaining_ns: 0, place, method: "m", request: b"" })
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
    push(&mut pair, true, call(1, Place::None), 0);
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
    pair.start(1, Place::None);
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
    pair.start(1, Place::None);
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
    pair.start(1, Place::None);
    pair.settle_for_server();
    push(&mut pair, true, call(1, Place::None), 0);
    assert!(matches!(pair.settle().unwrap_err(), Violation::Unexpected(_)));

    let mut pair = Pair::open();
    pair.start(1, Place::None);
    pair.settle_for_server();
    pair.answer(1);
    pair.settle_for_client();
    push(&mut pair, true, call(1, Place::None), 0);
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
    let one_shot = || call(1, Place::OneShot { bytes: 64 });
    let count = Violation::DescriptorCount { announced: 1 };
    assert_eq!(server_says(one_shot(), 0), count);
    assert_eq!(server_says(one_shot(), 2), count);
    let unclaimed = Violation::UnclaimedDescriptors;
    assert_eq!(server_says(call(1, Place::None), 1), unclaimed);
    assert_eq!(server_says(Frame::Cancel { call: 1 }, 3), unclaimed);
}

#[test]
fn a_descriptor_that_comes_after_the_first_byte() {
    let mut pair = Pair::open();
    let descriptor = pair.ledger.issue(Kind::Descriptor, 1);
    let bytes = call(1, Place::OneShot { bytes: 64 }).encode(0).to_vec();
    let (first, rest) = bytes.split_at(5);
    pair.up.push(first.to_vec(), SmallVec::new());
    pair.settle_server_only();
    pair.up.push(rest.to_vec(), SmallVec::from_iter([descriptor]));
    assert!(pair.settle().is_err());
}

#[test]
fn frames_that_only_the_other_side_sends() {
    let reply = Reply {
        call: 1,
        code: Code::Ok,
        lane: LaneNumber::None,
        payload_bytes: 0,
        response: b"",
        message: "",
    };
    let only_a_server = Violation::Unexpected("only a server sends it");
    assert_eq!(server_says(Frame::Reply(reply), 0), only_a_server);
    let notice = Frame::Notice { topic: 1, data: b"" };
    assert_eq!(server_says(notice, 0), only_a_server);
    let mut pair = Pair::open();
    push(&mut pair, false, Frame::Cancel { call: 1 }, 0);
    assert_eq!(pair.settle().unwrap_err(), Violation::Unexpected("only a client sends it"));
}

/// An answer that its call did not ask for ends the connection, and the caller is told by it: the
/// token comes out with the others.
#[test]
fn an_answer_that_was_not_asked_for() {
    let inline = Place::Inline { bytes_max: 100 };
    let one_shot = Place::OneShot { bytes: 100 };
    let cases = [
        (Place::None, LaneNumber::Inline, 1),
        (Place::None, LaneNumber::None, 1),
        (inline, LaneNumber::FillMap, 1),
        (inline, LaneNumber::Inline, 101),
        (one_shot, LaneNumber::Inline, 1),
        (one_shot, LaneNumber::FillWrite, 101),
    ];
    for (place, lane, bytes) in cases {
        let mut pair = Pair::open();
        pair.start(1, place);
        pair.settle_for_server();
        pair.answer_by(1, lane, bytes);
        let violation = pair.settle().unwrap_err();
        assert!(matches!(violation, Violation::Answer(_)), "{violation}");
        assert_eq!(pair.client.drain_tokens().count(), 1, "{place:?} by {lane:?}");
    }
    let mut pair = Pair::open();
    push(&mut pair, true, call(5, Place::None), 0);
    pair.settle_for_server();
    pair.answer(5);
    assert_eq!(pair.settle().unwrap_err(), Violation::Answer("no such call is open"));
}

#[test]
fn a_failure_may_carry_the_size_needed_and_nothing_else() {
    let mut pair = Pair::open();
    pair.start(1, Place::None);
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
