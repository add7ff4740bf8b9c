//! The drill of a connection, step by step.

use std::time::Duration;

use super::pair::{
    ANSWER, ANSWER_FILE, FromClient, FromServer, LIMITS, NOTHING, Pair, Plan, UPLOAD_FILE,
    assert_payload, inline, one_shot, read, region, sealed, sealed_offset, write,
};
use super::tokens::Counted;
use crate::connection::Violation;
use crate::connection::client::{Answered, ClientEvent};
use crate::connection::server::{Answer, IncomingFill, IncomingUpload, ServerEvent};
use crate::error::{Code, Status};
use crate::limits::{CANCEL_ACK_TIMEOUT, OUTBOX_FRAMES_MAX, RETIRED_BYTES_MAX};
use crate::parts::Parts;
use crate::wire::{Frame, LaneNumber, Room, Span, Upload};

/// The one answer among these events.
fn answered(events: Vec<FromServer>) -> (u64, Answered<Counted>) {
    let [ClientEvent::Answered { token, answer }] = <[_; 1]>::try_from(events).unwrap() else {
        panic!("no answer")
    };
    (token.name, answer)
}

fn refused(events: Vec<FromServer>) -> (u64, Status) {
    let (call, answer) = answered(events);
    (call, answer.status.expect("a refusal"))
}

fn registered(events: Vec<FromServer>) -> (u64, Result<(), Status>) {
    let [ClientEvent::Registered { region, result }] = <[_; 1]>::try_from(events).unwrap() else {
        panic!("nothing about a region")
    };
    (region, result)
}

fn calls(events: &[FromClient]) -> Vec<u64> {
    let call = |event: &FromClient| match event {
        ServerEvent::Call(incoming) => incoming.call,
        other => panic!("{other:?}"),
    };
    events.iter().map(call).collect()
}

/// Registers a region and has it accepted.
fn with_region(pair: &mut Pair, region: u64, bytes: u64) {
    pair.register(region, bytes);
    for event in pair.settle_for_server() {
        let ServerEvent::Register { descriptor, .. } = event else { panic!("{event:?}") };
        pair.accept_region(region, descriptor, bytes);
    }
    registered(pair.settle_for_client()).1.unwrap();
}

#[test]
fn hellos_tell_the_limits() {
    let pair = Pair::open();
    assert_eq!(pair.client.link.peer_limits(), LIMITS);
    assert_eq!(pair.server.link.peer_limits(), LIMITS);
    assert_eq!(pair.client.deadline(), None);
    assert_eq!(pair.server.link.deadline(), None);
}

#[test]
fn an_answer_brings_its_payload() {
    let mut pair = Pair::open();
    pair.start(7, inline(5000));
    assert_eq!(calls(&pair.settle_for_server()), [7]);
    assert_eq!((pair.client.open_calls(), pair.server.open_calls()), (1, 1));
    pair.answer_by(7, LaneNumber::Inline, 4999);
    let (call, answer) = answered(pair.settle_for_client());
    assert_eq!((call, answer.parts.bytes()), (7, 4999));
    assert_payload(&answer.payload.unwrap(), ANSWER, 7);
    assert_eq!((pair.client.open_calls(), pair.server.open_calls()), (0, 0));
}

#[test]
fn over_the_limit_of_calls_one_call_fails_and_the_rest_goes_on() {
    let mut pair = Pair::open();
    let limit = u64::from(LIMITS.calls_max);
    (1..=limit + 1).for_each(|call| pair.start(call, NOTHING));
    let (to_client, to_server) = pair.settle().unwrap();
    assert_eq!(calls(&to_server), Vec::from_iter(1..=limit));
    let (call, status) = refused(to_client);
    assert_eq!((call, status.code), (limit + 1, Code::ResourceExhausted));
    assert!(status.message.contains("6 calls"), "{status}");
    pair.answer(1);
    assert_eq!(answered(pair.settle_for_client()).0, 1);
    pair.start(limit + 2, NOTHING);
    assert_eq!(calls(&pair.settle_for_server()), [limit + 2]);
}

#[test]
fn a_one_shot_call_that_is_refused_closes_its_descriptor() {
    let mut pair = Pair::open();
    let too_large = LIMITS.region_bytes_max + 1;
    pair.start(1, one_shot(too_large));
    let (to_client, to_server) = pair.settle().unwrap();
    let [ServerEvent::Discard(descriptor)] = &to_server[..] else { panic!("{to_server:?}") };
    assert_eq!(descriptor.name, 1);
    let (_, status) = refused(to_client);
    assert_eq!(status.code, Code::InvalidArgument);
    assert!(status.message.contains("1048577"), "{status}");
    drop(to_server);
    pair.ledger.assert_empty();
}

#[test]
fn over_the_limit_of_regions_one_is_refused_and_a_release_makes_room() {
    let mut pair = Pair::open();
    (1..=3).for_each(|region| with_region(&mut pair, region, 4096));
    pair.register(4, 4096);
    let (to_client, to_server) = pair.settle().unwrap();
    assert!(matches!(to_server[..], [ServerEvent::Discard(_)]));
    let (region, result) = registered(to_client);
    assert_eq!((region, result.unwrap_err().code), (4, Code::ResourceExhausted));
    pair.client.release(2);
    assert!(matches!(pair.settle_for_server()[..], [ServerEvent::Released(_)]));
    with_region(&mut pair, 5, 4096);
}

#[test]
fn a_region_over_the_size_limit_is_refused() {
    let mut pair = Pair::open();
    pair.register(1, LIMITS.region_bytes_max + 1);
    let (to_client, to_server) = pair.settle().unwrap();
    assert!(matches!(to_server[..], [ServerEvent::Discard(_)]));
    let status = registered(to_client).1.unwrap_err();
    assert_eq!(status.code, Code::InvalidArgument);
    with_region(&mut pair, 2, LIMITS.region_bytes_max);
}

#[test]
fn a_part_of_a_region_is_checked() {
    let mut pair = Pair::open();
    with_region(&mut pair, 1, 4096);
    let cases = [
        (9, 0, 1, Code::NotFound),
        (1, 1, 1, Code::InvalidArgument),
        (1, 64, 4033, Code::InvalidArgument),
        (1, u64::MAX - 63, 64, Code::InvalidArgument),
        (1, 0, u64::MAX, Code::InvalidArgument),
    ];
    for (call, (id, offset, bytes, code)) in (1..).zip(cases) {
        let room = region(id, offset, bytes);
        pair.start(call, room);
        assert_eq!(refused(pair.settle_for_client()).1.code, code, "{room:?}");
        let upload = Upload::Region(Span { region: id, offset, bytes });
        pair.start_with(call + 10, bringing(upload));
        assert_eq!(refused(pair.settle_for_client()).1.code, code, "{upload:?}");
    }
    pair.start(9, region(1, 64, 4032));
    assert_eq!(calls(&pair.settle_for_server()), [9]);
    let upload = Upload::Region(Span { region: 1, offset: 64, bytes: 4032 });
    pair.start_with(10, bringing(upload));
    assert_eq!(calls(&pair.settle_for_server()), [10]);
}

/// A call that offers no room.
fn bringing(upload: Upload) -> Plan {
    Plan { room: NOTHING, upload, parts: Parts::one(upload.bytes() as usize) }
}

#[test]
fn a_sealed_upload_is_checked_before_its_file_is_looked_at() {
    let limit = LIMITS.region_bytes_max;
    for (offset, bytes) in [
        (1, 1),
        (63, 0),
        (0, limit + 1),
        (limit, 1),
        (64, limit),
        (u64::MAX - 63, 64),
        (0, u64::MAX),
        (u64::MAX - 63, u64::MAX),
    ] {
        let mut pair = Pair::open();
        // Both files come out, though only one is at fault.
        let upload = Upload::Sealed { offset, bytes };
        pair.start_with(1, Plan { room: one_shot(64), ..bringing(upload) });
        let (to_client, to_server) = pair.settle().unwrap();
        let mut names: Vec<u64> = discarded(to_server);
        names.sort_unstable();
        assert_eq!(names, [1, UPLOAD_FILE + 1], "{upload:?}");
        assert_eq!(refused(to_client).1.code, Code::InvalidArgument, "{upload:?}");
        pair.ledger.assert_empty();
    }
    let mut pair = Pair::open();
    pair.start_with(1, bringing(Upload::Sealed { offset: 64, bytes: limit - 64 }));
    assert_eq!(calls(&pair.settle_for_server()), [1]);
}

fn discarded(events: Vec<FromClient>) -> Vec<u64> {
    let name = |event: FromClient| match event {
        ServerEvent::Discard(descriptor) => descriptor.name,
        other => panic!("{other:?}"),
    };
    events.into_iter().map(name).collect()
}

/// Whatever a call is refused for, what came with it is given out to be closed.
#[test]
fn a_refused_call_keeps_neither_of_its_files() {
    let plan = || {
        let upload = Upload::Sealed { offset: 0, bytes: 64 };
        Plan { room: one_shot(64), ..bringing(upload) }
    };
    let mut pair = Pair::open();
    (1..=u64::from(LIMITS.calls_max)).for_each(|call| pair.start(call, NOTHING));
    pair.settle_for_server();
    pair.start_with(9, plan());
    let (to_client, to_server) = pair.settle().unwrap();
    assert_eq!(discarded(to_server).len(), 2);
    assert_eq!(refused(to_client).1.code, Code::ResourceExhausted);

    let mut pair = Pair::open();
    let room = Room { sealed_bytes: 9, ..region(77, 0, 64) };
    pair.start_with(9, Plan { room, ..plan() });
    let (to_client, to_server) = pair.settle().unwrap();
    assert_eq!(discarded(to_server), [UPLOAD_FILE + 9]);
    assert_eq!(refused(to_client).1.code, Code::NotFound);
    pair.ledger.assert_empty();
}

#[test]
fn two_files_of_a_call_are_not_mixed_up() {
    let mut pair = Pair::open();
    let upload = Upload::Sealed { offset: 64, bytes: 100 };
    pair.start_with(5, Plan { room: one_shot(4096), ..bringing(upload) });
    let [ServerEvent::Call(incoming)] = &pair.settle_for_server()[..] else { panic!() };
    let IncomingFill::OneShot { descriptor, bytes: 4096 } = &incoming.fill else { panic!() };
    assert_eq!(descriptor.name, 5);
    let IncomingUpload::Sealed { descriptor, offset: 64, bytes: 100 } = &incoming.upload else {
        panic!()
    };
    assert_eq!(descriptor.name, UPLOAD_FILE + 5);
}

#[test]
fn a_sealed_answer_brings_its_file_and_its_parts() {
    let mut pair = Pair::open();
    pair.start(7, sealed(5000));
    pair.settle_for_server();
    let parts = Parts::of_lengths(4033, [4000, 1].into_iter()).unwrap();
    pair.answer_with(7, LaneNumber::Sealed, parts.clone());
    let (_, answer) = answered(pair.settle_for_client());
    assert_eq!((answer.lane, answer.parts), (LaneNumber::Sealed, parts));
    let (descriptor, offset) = answer.sealed.unwrap();
    assert_eq!((descriptor.name, offset), (ANSWER_FILE + 7, sealed_offset(7)));
}

#[test]
fn a_sealed_answer_to_a_call_that_was_cancelled_is_discarded() {
    let mut pair = Pair::open();
    pair.start(1, sealed(5000));
    pair.settle_for_server();
    pair.client.cancel(1, pair.now);
    pair.answer_by(1, LaneNumber::Sealed, 5000);
    let (events, _) = pair.settle().unwrap();
    let [ClientEvent::LetGo { .. }, ClientEvent::Discard(descriptor)] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(descriptor.name, ANSWER_FILE + 1);
    drop(events);
    pair.ledger.assert_empty();

    // One that was retired long ago too.
    pair.start(2, sealed(5000));
    pair.settle_for_server();
    pair.client.cancel(2, pair.now);
    pair.settle_for_server();
    pair.pass(CANCEL_ACK_TIMEOUT);
    let event = pair.client.handle_timeout(pair.now).unwrap();
    assert!(matches!(event, Some(ClientEvent::Retired { .. })));
    pair.answer_by(2, LaneNumber::Sealed, 5000);
    let events = pair.settle_for_client();
    assert!(matches!(events[..], [ClientEvent::Discard(_)]), "{events:?}");
    drop((events, event));
    pair.ledger.assert_empty();
}

/// The client is out of descriptors: its call has no payload, and everything else goes on.
#[test]
fn a_sealed_answer_whose_file_is_lost_is_told_of() {
    let mut pair = Pair::open();
    (1..=2).for_each(|call| pair.start(call, sealed(5000)));
    pair.settle_for_server();
    (1..=2).for_each(|call| pair.answer_by(call, LaneNumber::Sealed, 5000));
    write(&mut pair.server.link, &mut pair.down, usize::MAX, pair.now, true);
    for (is_lossy, call) in [(true, 1), (false, 2)] {
        let link = &mut pair.client.link;
        assert!(read(link, &mut pair.down, usize::MAX, is_lossy, pair.now).unwrap());
        let event = pair.client.next_event().unwrap().unwrap();
        let (found, answer) = answered(vec![event]);
        assert_eq!((found, answer.lane), (call, LaneNumber::Sealed));
        assert_eq!((answer.parts.bytes(), answer.sealed.is_none()), (5000, is_lossy));
    }
    pair.ledger.assert_empty();
}

/// Of two descriptors one arrived: the call has none, and the one that did is not kept.
#[test]
fn one_of_two_descriptors_is_none() {
    let mut pair = Pair::open();
    let upload = Upload::Sealed { offset: 0, bytes: 64 };
    pair.start_with(1, Plan { room: one_shot(64), ..bringing(upload) });
    write(&mut pair.client.link, &mut pair.up, usize::MAX, pair.now, true);
    assert!(read(&mut pair.server.link, &mut pair.up, usize::MAX, true, pair.now).unwrap());
    let (to_client, to_server) = pair.settle().unwrap();
    assert_eq!(discarded(to_server), [1]);
    assert_eq!(refused(to_client).1.code, Code::ResourceExhausted);
    pair.ledger.assert_empty();
}

#[test]
fn a_descriptor_that_did_not_arrive_fails_its_call_alone() {
    let mut pair = Pair::open();
    (1..=2).for_each(|call| pair.start(call, one_shot(64)));
    pair.register(3, 64);
    write(&mut pair.client.link, &mut pair.up, usize::MAX, pair.now, true);
    // The first and the last message lose theirs.
    for is_lossy in [true, false, true] {
        let link = &mut pair.server.link;
        assert!(read(link, &mut pair.up, usize::MAX, is_lossy, pair.now).unwrap());
        while let Some(event) = pair.server.next_event(pair.now).unwrap() {
            let ServerEvent::Call(incoming) = event else { panic!("{event:?}") };
            let IncomingFill::OneShot { descriptor, .. } = incoming.fill else {
                panic!("{incoming:?}")
            };
            assert_eq!((incoming.call, descriptor.name), (2, 2), "nothing shifts");
        }
    }
    let mut events = pair.settle_for_client();
    let status = registered(events.split_off(1)).1.unwrap_err();
    assert_eq!(status.code, Code::ResourceExhausted);
    let (call, status) = refused(events);
    assert_eq!((call, status.code), (1, Code::ResourceExhausted));
    assert!(status.message.contains("no descriptor arrived"), "{status}");
}

#[test]
fn a_cancelled_call_comes_out_when_the_server_has_answered() {
    let mut pair = Pair::open();
    pair.start(1, NOTHING);
    pair.settle_for_server();
    assert!(pair.client.cancel(1, pair.now));
    assert!(matches!(pair.settle_for_server()[..], [ServerEvent::Cancel { call: 1 }]));
    assert_eq!(pair.client.open_calls(), 1);
    let status = Status::new(Code::Cancelled, "taken back");
    pair.server.answer(1, Answer::failure(status));
    let events = pair.settle_for_client();
    assert!(matches!(&events[..], [ClientEvent::LetGo { token }] if token.name == 1));
    assert_eq!(pair.client.open_calls(), 0);
    assert_eq!(pair.client.deadline(), None, "nothing is waited for any more");
}

#[test]
fn a_cancel_that_crosses_the_answer_has_nothing_to_do() {
    let mut pair = Pair::open();
    pair.start(1, NOTHING);
    pair.settle_for_server();
    pair.answer(1);
    assert!(pair.client.cancel(1, pair.now));
    let events = pair.settle_for_client();
    assert!(matches!(events[..], [ClientEvent::LetGo { .. }]));
    assert!(!pair.client.cancel(1, pair.now), "it is over");
    assert!(pair.settle_for_client().is_empty());
}

#[test]
fn a_second_cancel_does_nothing() {
    let mut pair = Pair::open();
    pair.start(1, NOTHING);
    assert!(pair.client.cancel(1, pair.now));
    assert!(!pair.client.cancel(1, pair.now));
    pair.settle_for_server();
    pair.answer(1);
    assert!(matches!(pair.settle_for_client()[..], [ClientEvent::LetGo { .. }]));
}

#[test]
fn a_cancel_sent_again_and_again_is_told_once() {
    let mut pair = Pair::open();
    pair.start(1, NOTHING);
    pair.settle_for_server();
    for _ in 0..10 {
        pair.client.link.push(Frame::Cancel { call: 1 });
    }
    assert!(matches!(pair.settle_for_server()[..], [ServerEvent::Cancel { call: 1 }]));
}

#[test]
fn a_failure_is_a_failure_whatever_a_handler_makes_of_it() {
    let odd = |code| Status { code, message: "odd".into(), bytes_needed: Some(9) };
    for (code, seen, needed) in [
        (Code::Ok, Code::Internal, None),
        (Code::NotFound, Code::NotFound, None),
        (Code::OutOfRange, Code::OutOfRange, Some(9)),
    ] {
        let mut pair = Pair::open();
        pair.start(1, NOTHING);
        pair.settle_for_server();
        pair.server.answer(1, Answer::failure(odd(code)));
        let events = pair.settle_for_client();
        let [ClientEvent::Answered { answer, .. }] = &events[..] else { panic!("{events:?}") };
        let status = answer.status.as_ref().unwrap();
        assert_eq!((status.code, status.bytes_needed), (seen, needed));
    }
}

#[test]
fn a_cancel_without_an_answer_retires_the_call() {
    let mut pair = Pair::open();
    pair.start(1, one_shot(4096));
    let running = pair.settle_for_server();
    pair.client.cancel(1, pair.now);
    pair.settle_for_server();
    assert_eq!(pair.client.deadline(), Some(pair.now + CANCEL_ACK_TIMEOUT));
    pair.pass(CANCEL_ACK_TIMEOUT - Duration::from_nanos(1));
    assert!(pair.client.handle_timeout(pair.now).unwrap().is_none());
    pair.pass(Duration::from_nanos(1));
    let event = pair.client.handle_timeout(pair.now).unwrap();
    assert!(matches!(event, Some(ClientEvent::Retired { token }) if token.name == 1));
    assert!(pair.client.handle_timeout(pair.now).unwrap().is_none());
    assert_eq!(pair.client.open_calls(), 1, "the server is still at it");
    assert!(!pair.client.cancel(1, pair.now));
    drop(running);
    pair.answer_by(1, LaneNumber::FillMap, 4096);
    assert!(pair.settle_for_client().is_empty(), "the answer says nothing");
    assert_eq!(pair.client.open_calls(), 0);
    assert_eq!(pair.client.drain_tokens().count(), 0);
}

#[test]
fn retired_memory_is_bounded_but_inline_answers_retire_none() {
    let mut pair = Pair::open();
    let half = region(1, 0, RETIRED_BYTES_MAX / 2);
    let inline = Room { sealed_bytes: u64::MAX, ..inline(u64::MAX) };
    for (call, room) in (1..).zip([inline, half, inline, half, half]) {
        pair.start(call, room);
        pair.client.cancel(call, pair.now);
    }
    pair.pass(CANCEL_ACK_TIMEOUT);
    for call in 1..=4 {
        let event = pair.client.handle_timeout(pair.now).unwrap();
        assert!(matches!(event, Some(ClientEvent::Retired { token }) if token.name == call));
    }
    let end = pair.client.handle_timeout(pair.now).unwrap_err();
    assert_eq!(end, Violation::RetiredBytes);
    let rest: Vec<_> = pair.client.drain_tokens().map(|token| token.name).collect();
    assert_eq!(rest, [5]);
}

/// The server may be reading an upload from a region; a sealed file nobody has to keep.
#[test]
fn retired_uploads_count_if_they_lie_in_a_region() {
    let third = RETIRED_BYTES_MAX / 3 + 1;
    let sealed = Plan {
        room: sealed(u64::MAX),
        ..bringing(Upload::Sealed { offset: 0, bytes: RETIRED_BYTES_MAX })
    };
    let lent = Upload::Region(Span { region: 1, offset: 0, bytes: third });
    let lent = || Plan { room: region(1, 0, third), ..bringing(lent) };
    let mut pair = Pair::open();
    for (call, plan) in (1..).zip([sealed, lent(), lent()]) {
        pair.start_with(call, plan);
        pair.client.cancel(call, pair.now);
    }
    pair.pass(CANCEL_ACK_TIMEOUT);
    for call in 1..=2 {
        let event = pair.client.handle_timeout(pair.now).unwrap();
        assert!(matches!(event, Some(ClientEvent::Retired { token }) if token.name == call));
    }
    let end = pair.client.handle_timeout(pair.now).unwrap_err();
    assert_eq!(end, Violation::RetiredBytes);
}

#[test]
fn a_client_that_does_not_read_gets_no_further_notice() {
    let mut pair = Pair::open();
    for topic in 0..OUTBOX_FRAMES_MAX as u32 {
        assert!(pair.server.notify(topic, b"news"));
    }
    assert!(!pair.server.notify(0, b"one too many"));
    let events = pair.settle_for_client();
    assert_eq!(events.len(), OUTBOX_FRAMES_MAX);
    assert!(pair.server.notify(1, b"it reads again"));
}

#[test]
fn nobody_is_notified_before_the_hellos() {
    let mut pair = Pair::new(&std::sync::Arc::default(), 1 << 20);
    assert!(!pair.server.notify(1, b"too early"));
}
