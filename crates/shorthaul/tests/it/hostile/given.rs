//! Descriptors to be relayed into, from clients that keep to no rules: each hurts its own call.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use shorthaul::{Descriptors, ServerOptions};

use super::descriptor::sealed;
use super::raw::{self, Place, Raw, Upload};
use super::uploads::sealed_file;
use super::{Census, Stage, eventually, isolated, pattern, with_descriptors};

fn stage() -> Stage {
    Stage::with(ServerOptions { descriptors: Descriptors::Streams, ..ServerOptions::default() })
}

fn read(reader: &mut UnixStream, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    reader.read_exact(&mut found).unwrap();
    found
}

#[test]
fn the_server_says_whether_it_takes_them() {
    for (descriptors, features) in [
        (Descriptors::Refuse, raw::SEALED),
        (Descriptors::Streams, raw::SEALED | raw::DESCRIPTORS),
        (Descriptors::Any, raw::SEALED | raw::DESCRIPTORS),
    ] {
        let wait = shorthaul::Wait::Block;
        let stage = Stage::with(ServerOptions { descriptors, wait, ..ServerOptions::default() });
        let mut raw = Raw::connect(&stage.path);
        raw.send(&raw::hello());
        let hello = raw.expect(raw::HELLO);
        assert_eq!(raw::u64_at(&hello.body, 16), features);
    }
}

#[test]
fn one_that_comes_uninvited_fails_its_call() {
    isolated("hostile::given::one_that_comes_uninvited_fails_its_call", || {
        let mut stage = Stage::new();
        let mut raw = Raw::open(&stage.path);
        let (socket, mut reader) = UnixStream::pair().unwrap();
        for id in 1..50 {
            raw.send_with(&raw::fill(id, Place::given(5000), 5000, 1), &[socket.as_fd()]);
            let refused = raw.reply();
            assert_eq!(refused.code, raw::PERMISSION_DENIED, "{refused:?}");
            assert_eq!((refused.lane, refused.payload_bytes), (raw::LANE_NONE, 0));
        }
        // A call that has no payload needs no place for one.
        raw.send_with(&raw::call(90, Place::given(5000), b"echo", b"alive"), &[socket.as_fd()]);
        assert_eq!(raw.reply().response, b"alive");
        drop(socket);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "nothing was written");
        drop((raw, reader));
        stage.ends_clean();
    });
}

#[test]
fn what_is_relayed_is_told_in_numbers() {
    let mut stage = stage();
    let mut raw = Raw::open(&stage.path);
    let (socket, mut reader) = UnixStream::pair().unwrap();
    for (room, bytes) in [(5000, 5000), (u64::MAX, 5000), (5000, 0), (0, 0), (u64::MAX, 70_000)] {
        raw.send_with(&raw::fill(1, Place::given(room), bytes, 6), &[socket.as_fd()]);
        let reply = raw.reply();
        assert_eq!((reply.code, reply.lane), (raw::OK, raw::LANE_DESCRIPTOR), "{reply:?}");
        assert_eq!(reply.payload_bytes, bytes);
        assert_eq!(read(&mut reader, bytes as usize), pattern(bytes as usize, 6));
    }
    raw.send_with(&raw::fill(2, Place::given(4999), 5000, 6), &[socket.as_fd()]);
    let refused = raw.reply();
    assert_eq!((refused.code, refused.lane), (raw::OUT_OF_RANGE, raw::LANE_NONE));
    assert_eq!(refused.payload_bytes, 5000, "needed");
    // What is small enough goes inline all the same, if it may.
    let both = Place { inline_bytes: 100, inline_first_bytes: 100, ..Place::given(5000) };
    raw.send_with(&raw::fill(3, both, 100, 6), &[socket.as_fd()]);
    let reply = raw.reply();
    assert_eq!((reply.lane, reply.payload), (raw::LANE_INLINE, pattern(100, 6)));
    stage.honest_calls();
}

/// Beside a sealed upload; the one to be filled comes first.
#[test]
fn two_descriptors_of_one_call_are_told_apart() {
    let stage = stage();
    let mut raw = Raw::open(&stage.path);
    let (socket, mut reader) = UnixStream::pair().unwrap();
    let content = pattern(9000, 3);
    let file = sealed_file(&content);
    let call = raw::echo_parts(1, Place::given(9000), Upload::sealed(0, 9000), &[100, 8872]);
    raw.send_with(&call, &[socket.as_fd(), file.as_fd()]);
    let reply = raw.reply();
    assert_eq!((reply.lane, reply.parts), (raw::LANE_DESCRIPTOR, vec![100, 8872]));
    let found = read(&mut reader, 9000);
    assert!(found[..100] == content[..100] && found[128..] == content[128..]);
    assert!(found[100..128].iter().all(|&byte| byte == 0));
    raw.send_with(&call, &[file.as_fd(), socket.as_fd()]);
    assert_eq!(raw.reply().code, raw::INVALID_ARGUMENT);
}

/// A server without descriptors keeps none of what comes to calls that it must refuse.
#[test]
fn one_that_gets_lost() {
    isolated("hostile::given::one_that_gets_lost", || {
        let mut stage = stage();
        let mut raw = Raw::open(&stage.path);
        let (socket, mut reader) = UnixStream::pair().unwrap();
        raw.send(&raw::call(1, Place::NONE, b"echo", b"alive"));
        raw.reply();
        let before = Census::take();
        let call = raw::fill(1, Place::given(5000), 5000, 1);
        raw.send_with(&call, &[socket.as_fd()]);
        assert_eq!(raw.reply().code, raw::OK);
        read(&mut reader, 5000);
        before.returns();
        for _ in 0..50 {
            with_descriptors(0, || {
                raw.send_with(&call, &[socket.as_fd()]);
                let refused = raw.reply();
                assert_eq!((refused.code, refused.lane), (raw::RESOURCE_EXHAUSTED, 0));
                assert!(refused.message.contains("no descriptor arrived"), "{refused:?}");
            });
            before.returns();
        }
        raw.send_with(&call, &[socket.as_fd()]);
        assert_eq!(raw.reply().code, raw::OK);
        drop((raw, socket, reader));
        stage.ends_clean();
    });
}

/// Those that wait are bounded over all connections of a user, and closed with their connection.
#[test]
fn those_that_wait_are_counted_and_let_go_of() {
    isolated("hostile::given::those_that_wait_are_counted_and_let_go_of", || {
        let mut options = ServerOptions { descriptors: Descriptors::Streams, ..Default::default() };
        options.waiting_workers = 1;
        options.user_limits.regions_max = 5;
        let mut stage = Stage::with(options);
        let mut raw = Raw::open(&stage.path);
        let (reader, gate) = UnixStream::pair().unwrap();
        let sockets: Vec<_> = (0..4).map(|_| UnixStream::pair().unwrap()).collect();
        let before = open_sockets();
        let enter = raw::call(1, Place::given(64), b"gate", b"");
        raw.send_with(&enter, &[gate.as_fd()]);
        stage.arrived.recv().unwrap();
        // The honest client has registered one buffer, and one is at the gate.
        for (id, (_, writer)) in (2..).zip(&sockets) {
            raw.send_with(&raw::fill(id, Place::given(100), 100, 1), &[writer.as_fd()]);
        }
        // The one too many has nothing to wait for.
        let refused = raw.reply();
        assert_eq!((refused.id, refused.code), (5, raw::RESOURCE_EXHAUSTED));
        stage.gate.send(()).unwrap();
        let answers: Vec<_> = (0..4).map(|_| raw.reply()).map(|it| (it.id, it.code)).collect();
        assert_eq!(answers, [(1, raw::OK), (2, raw::OK), (3, raw::OK), (4, raw::OK)]);
        // What was handed over counts until it is closed, which may be after the answer.
        eventually("all are closed", || open_sockets() == before);
        // Once more, with nobody there to be answered.
        raw.send_with(&enter, &[gate.as_fd()]);
        stage.arrived.recv().unwrap();
        for (id, (_, writer)) in (2..).zip(&sockets[..3]) {
            raw.send_with(&raw::fill(id, Place::given(100), 100, 1), &[writer.as_fd()]);
        }
        all_have_come(&stage, 9);
        drop((raw, sockets, gate, reader));
        stage.gate.send(()).unwrap();
        stage.ends_clean();
    });
}

/// Sockets that this process has open.
fn open_sockets() -> usize {
    let descriptors = Census::take().descriptors;
    descriptors.iter().filter(|name| name.starts_with("socket:")).count()
}

/// Waits until the server has taken in so many calls beside the two that a stage begins with.
fn all_have_come(stage: &Stage, calls: u64) {
    eventually("all calls have come", || stage.server.stats().calls == calls + 2);
}

/// A call without a deadline, whose sink nobody reads: it keeps a worker for half a minute.
#[cfg(feature = "long-tests")]
#[test]
fn a_sink_that_takes_nothing_is_given_up() {
    let stage = stage();
    let mut raw = Raw::open(&stage.path);
    let (socket, mut reader) = UnixStream::pair().unwrap();
    raw.socket.set_read_timeout(Some(super::PATIENCE * 2)).unwrap();
    raw.send_with(&raw::fill(1, Place::given(8 << 20), 8 << 20, 1), &[socket.as_fd()]);
    let reply = raw.reply();
    assert_eq!((reply.code, reply.lane), (raw::DEADLINE_EXCEEDED, raw::LANE_DESCRIPTOR));
    assert!(reply.message.contains("took nothing for 30 s"), "{reply:?}");
    drop(socket);
    let mut found = Vec::new();
    reader.read_to_end(&mut found).unwrap();
    assert_eq!(found.len() as u64, reply.payload_bytes);
}

/// What takes descriptors takes no others for them, and no memory file is spoilt by it.
#[test]
fn a_memory_file_is_no_stream() {
    let stage = stage();
    let mut raw = Raw::open(&stage.path);
    let file = sealed(8192);
    raw.send_with(&raw::fill(1, Place::given(100), 100, 1), &[file.as_fd()]);
    let refused = raw.reply();
    assert_eq!(refused.code, raw::PERMISSION_DENIED, "{refused:?}");
    let (socket, _reader) = UnixStream::pair().unwrap();
    raw.send_with(&raw::fill(2, Place::one_shot(100), 100, 1), &[socket.as_fd()]);
    assert_eq!(raw.reply().code, raw::INVALID_ARGUMENT);
    raw.send_with(&raw::fill(3, Place::one_shot(100), 100, 1), &[file.as_fd()]);
    assert_eq!(raw.reply().code, raw::OK);
}
