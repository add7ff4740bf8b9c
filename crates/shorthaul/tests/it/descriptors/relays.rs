//! Relays that succeed, byte for byte: every source into every sink, and into memory.

use std::os::fd::AsFd;

use shorthaul::{Client, Code, Descriptors, DirectClient, Error, Lane, ServerOptions};

use super::ends::{Sink, SinkKind};
use super::{SOURCES, expected, send_at_most, send_into, serve, start_with};
use crate::service::{AnyClient, PATIENCE, request, start};

const SIZES: [usize; 11] =
    [0, 1, 4095, 4096, 4097, 65_535, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 2 << 20];

/// One call by each client; what came is what was sent.
fn check(clients: &mut [AnyClient; 2], method: &str, kind: SinkKind, bytes: usize) {
    for (index, client) in clients.iter_mut().enumerate() {
        let seed = (bytes % 251) as u8 + index as u8;
        let sink = Sink::new(kind);
        let asked = request(bytes, seed);
        let reply = send_into(client, method, &asked, &sink.descriptor, PATIENCE);
        let reply = reply.unwrap_or_else(|error| panic!("{method} into {kind:?}: {error}"));
        let expected = expected(method, bytes, seed);
        assert_eq!((reply.lane(), reply.len()), (Lane::Descriptor, expected.len()), "{method}");
        assert_eq!(reply.response(), [seed]);
        let is_here = reply.as_slice().is_some() || !reply.to_vec().is_empty();
        assert!(!is_here, "it is in the descriptor");
        assert_eq!((reply.sum(1), reply.copy_to(&mut [0; 9])), (0, 0));
        assert!(sink.finish() == expected, "{bytes} bytes: {method} into {kind:?}");
    }
}

#[test]
fn every_source_into_every_sink() {
    let running = start_with(Descriptors::Any);
    let mut clients =
        [true, false].map(|direct| AnyClient::connect(&running.path, direct).unwrap());
    for kind in SinkKind::STREAMS.into_iter().chain(SinkKind::FILES) {
        for source in SOURCES {
            let sizes = if ["proc", "sys"].contains(&source) { &SIZES[..1] } else { &SIZES[..] };
            for &bytes in sizes {
                // What tells no size can only be written to a named pipe, which can wait.
                if (source, kind) != ("proc", SinkKind::Fifo) {
                    check(&mut clients, &format!("relay {source}"), kind, bytes);
                }
            }
        }
    }
    let stats = running.server.stats().lanes.answers(Lane::Descriptor);
    let counted = clients.iter().map(|client| match client {
        AnyClient::Direct(client) => client.lanes().answers(Lane::Descriptor),
        AnyClient::Threaded(client) => client.lanes().answers(Lane::Descriptor),
    });
    let (calls, bytes) =
        counted.fold((0, 0), |(calls, bytes), one| (calls + one.calls, bytes + one.bytes));
    assert!(calls > 500 && bytes > 100 << 20);
    assert_eq!((stats.calls, stats.bytes), (calls, bytes));
    assert!(running.server.stop(PATIENCE));
}

#[test]
fn payloads_that_are_written_go_there_too() {
    let running = start_with(Descriptors::Any);
    let mut clients =
        [true, false].map(|direct| AnyClient::connect(&running.path, direct).unwrap());
    for kind in SinkKind::STREAMS.into_iter().chain(SinkKind::FILES) {
        for method in ["copy", "fill", "file", "slice", "object"] {
            for bytes in [0, 1, 4097, 65_536, (1 << 20) + 1] {
                check(&mut clients, method, kind, bytes);
            }
        }
    }
}

#[test]
fn a_named_pipe_is_never_written_in_a_way_that_waits() {
    let running = start_with(Descriptors::Streams);
    let mut client = AnyClient::connect(&running.path, true).unwrap();
    let sink = Sink::new(SinkKind::Fifo);
    let asked = request(1, 1);
    match send_into(&mut client, "relay proc", &asked, &sink.descriptor, PATIENCE) {
        Ok(reply) => assert_eq!(reply.len(), super::bytes_of(super::PROC).len()),
        Err(failed) => assert_eq!(failed.descriptor_bytes(), Some(0), "{failed}"),
    }
    drop(sink.finish());
}

#[test]
fn every_source_into_memory() {
    let running = start(ServerOptions::default(), serve);
    let mut direct = DirectClient::connect(&running.path).unwrap();
    let client = Client::connect(&running.path).unwrap();
    for source in SOURCES {
        let method = format!("relay {source}");
        let sizes = if ["proc", "sys"].contains(&source) { &SIZES[1..2] } else { &SIZES[..] };
        for &bytes in sizes {
            let (seed, asked) = (bytes as u8, request(bytes, bytes as u8));
            let expected = expected(&method, bytes, seed);
            let room = expected.len();
            let buffer = direct.buffer(room).unwrap();
            let replies = [
                direct.call(&method).request(&asked).into(buffer).send(),
                direct.call(&method).request(&asked).into_fresh(room).send(),
                direct.call(&method).request(&asked).inline(room).send(),
                direct.call(&method).request(&asked).sealed(room + 1).send(),
                client.call(&method).request(&asked).auto(room).send(),
            ];
            for reply in replies {
                let reply = reply.unwrap_or_else(|error| panic!("{method}, {bytes}: {error}"));
                assert!(reply.to_vec() == expected, "{bytes} bytes: {method} by {}", reply.lane());
            }
            if room > 0 {
                let short = direct.call(&method).request(&asked).inline(room - 1).send();
                assert_eq!(short.unwrap_err().error().code(), Code::OutOfRange, "{method}");
            }
        }
    }
}

#[test]
fn no_more_than_was_offered() {
    let running = start_with(Descriptors::Any);
    let mut client = AnyClient::connect(&running.path, true).unwrap();
    for kind in [SinkKind::Unix, SinkKind::Pipe, SinkKind::File] {
        for method in ["relay file", "relay pipe", "copy"] {
            for bytes in [1_usize, 5000, 200_000] {
                let asked = request(bytes, 3);
                let sink = Sink::new(kind);
                let call = (method, &asked[..]);
                let fits =
                    send_at_most(&mut client, call, &sink.descriptor, bytes as u64, PATIENCE);
                assert_eq!(fits.unwrap().len(), bytes, "{method}");
                assert_eq!(sink.finish().len(), bytes);
                let (sink, room) = (Sink::new(kind), bytes as u64 - 1);
                let over = send_at_most(&mut client, call, &sink.descriptor, room, PATIENCE);
                let over = over.unwrap_err();
                assert_eq!(over.error().code(), Code::OutOfRange, "{method}: {over}");
                // Where the size was not known before, what fits is there.
                let given = if method == "relay pipe" { room } else { 0 };
                assert_eq!(over.descriptor_bytes(), Some(given), "{method}: {over}");
                assert_eq!(sink.finish(), expected(method, bytes, 3)[..given as usize]);
                let needed = match over.error() {
                    Error::Status(status) => status.bytes_needed,
                    other => panic!("{other}"),
                };
                let is_known = given == 0 && method != "relay pipe";
                assert_eq!(needed, is_known.then_some(bytes as u64));
            }
        }
    }
}

/// What such a file tells as its size is no reason to give up before it is read.
#[test]
fn files_that_tell_more_than_they_have_are_relayed_whole() {
    let running = start_with(Descriptors::Streams);
    let mut client = AnyClient::connect(&running.path, true).unwrap();
    let (asked, content) = (request(1, 1), super::bytes_of(super::SYS));
    for room in [content.len() as u64, 1 << 20, u64::MAX] {
        let sink = Sink::new(SinkKind::Pipe);
        let call = ("relay sys", &asked[..]);
        let reply = send_at_most(&mut client, call, &sink.descriptor, room, PATIENCE).unwrap();
        assert_eq!(reply.len(), content.len(), "room for {room}");
        assert_eq!(sink.finish(), content);
    }
}

#[test]
fn a_payload_that_was_relayed_stays() {
    let running = start_with(Descriptors::Streams);
    let mut client = AnyClient::connect(&running.path, true).unwrap();
    let (sink, asked) = (Sink::new(SinkKind::Pipe), request(5000, 1));
    let failed = send_into(&mut client, "twice", &asked, &sink.descriptor, PATIENCE).unwrap_err();
    assert_eq!(failed.error().code(), Code::FailedPrecondition);
    assert_eq!(failed.descriptor_bytes(), Some(5000));
    assert_eq!(sink.finish().len(), 5000);
    let AnyClient::Direct(mut client) = client else { unreachable!() };
    let failed = client.call("twice").request(&asked).inline(5000).send().unwrap_err();
    assert_eq!(failed.error().code(), Code::FailedPrecondition);
    assert_eq!(failed.descriptor_bytes(), None);
}

/// Codes that say so are for calls of which nothing is left behind.
#[test]
fn a_failure_after_a_relay_can_not_be_tried_again() {
    let running = start_with(Descriptors::Streams);
    let mut client = AnyClient::connect(&running.path, true).unwrap();
    for (bytes, code, is_retryable) in
        [(5000, Code::DataLoss, false), (0, Code::ResourceExhausted, true)]
    {
        let (sink, asked) = (Sink::new(SinkKind::Pipe), request(bytes, 1));
        let failed = send_into(&mut client, "fail", &asked, &sink.descriptor, PATIENCE);
        let failed = failed.unwrap_err();
        assert_eq!(failed.error().code(), code);
        assert_eq!(failed.error().is_retryable(), is_retryable);
        assert_eq!(failed.descriptor_bytes(), Some(bytes as u64));
        assert_eq!(sink.finish().len(), bytes);
    }
}

/// The caller's own descriptor stays as it was: open, and in its own mode.
#[test]
fn modes_are_left_alone() {
    let running = start_with(Descriptors::Streams);
    let mut client = AnyClient::connect(&running.path, false).unwrap();
    for kind in SinkKind::STREAMS {
        let sink = Sink::new(kind);
        let flags = || rustix::fs::fcntl_getfl(sink.descriptor.as_fd()).unwrap();
        let before = flags();
        for seed in 0..3 {
            let asked = request(300_000, seed);
            send_into(&mut client, "relay file", &asked, &sink.descriptor, PATIENCE).unwrap();
            assert_eq!(flags(), before);
        }
        assert_eq!(sink.finish().len(), 900_000);
    }
}
