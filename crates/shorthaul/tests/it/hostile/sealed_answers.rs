//! Answers in sealed memory files: of servers that send something else, and to clients that keep
//! them all.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::fs::{OFlags, SealFlags};
use shorthaul::limits::UserLimits;
use shorthaul::{
    CallError, Client, ClientOptions, Code, DirectClient, Error, Lane, Reply, ServerOptions,
};

use super::descriptor::{Subject, memory_file, no_memory_files};
use super::raw::{self, Place, Raw};
use super::uploads::{not_sealed, sealed_file};
use super::{Census, HONEST_BYTES, PATIENCE, Stage, isolated, pattern, with_descriptors};

const BYTES: usize = 8192;

/// What the server answers to its "bad" calls.
struct Bad {
    file: OwnedFd,
    bytes: u64,
    offset: u64,
}

/// Plays a server that answers "bad" calls so, and all others as they should be, for as long as
/// `client` runs.
fn with_server(bad: &Bad, client: impl FnOnce(UnixStream)) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut server = Raw::over(ours);
            server.expect(raw::HELLO);
            server.send(&raw::hello_with(raw::SEALED));
            while let Some(frame) = server.next() {
                if frame.kind == raw::CALL {
                    answer(&mut server, &frame, bad);
                }
            }
        });
        client(theirs);
    });
}

fn answer(server: &mut Raw, call: &raw::Frame, bad: &Bad) {
    let id = raw::u64_at(&call.body, 0);
    let method_bytes = usize::from(raw::u16_at(&call.body, 18));
    let method = &call.body[96..96 + method_bytes];
    if method == b"late" {
        assert_eq!(raw::u64_at(&server.expect(raw::CANCEL).body, 0), id);
    }
    let good;
    let (file, bytes, offset) = if method == b"bad" {
        (&bad.file, bad.bytes, bad.offset)
    } else {
        good = sealed_file(&pattern(BYTES, 1));
        (&good, BYTES as u64, 0)
    };
    let body = raw::reply_body_at(id, raw::OK, raw::LANE_SEALED, bytes, offset);
    server.send_with(&raw::frame(raw::REPLY, 1, &body, b""), &[file.as_fd()]);
}

fn options() -> ClientOptions {
    let mut options = ClientOptions::default();
    options.limits.inline_bytes_max = 4096;
    options.limits.region_bytes_max = 1 << 20;
    options
}

/// A "bad" call, with others before and behind it on the same connection, by both kinds of client.
fn outcomes(bad: &Bad) -> [Result<Reply, CallError>; 2] {
    let (mut by_direct, mut by_threaded) = (None, None);
    with_server(bad, |stream| {
        let mut client = DirectClient::from_stream(stream, &options()).unwrap();
        check_good(client.call("good").sealed(BYTES).deadline(PATIENCE).send());
        by_direct = Some(client.call("bad").sealed(BYTES).deadline(PATIENCE).send());
        check_good(client.call("good").sealed(BYTES).deadline(PATIENCE).send());
        assert!(client.is_alive());
    });
    with_server(bad, |stream| {
        let client = Client::from_stream(stream, &options()).unwrap();
        check_good(client.call("good").sealed(BYTES).deadline(PATIENCE).send());
        by_threaded = Some(client.call("bad").sealed(BYTES).deadline(PATIENCE).send());
        check_good(client.call("good").sealed(BYTES).deadline(PATIENCE).send());
    });
    [by_direct.unwrap(), by_threaded.unwrap()]
}

fn check_good(outcome: Result<Reply, CallError>) {
    let reply = outcome.unwrap();
    assert_eq!(reply.lane(), Lane::Sealed);
    assert!(reply.as_slice().unwrap() == pattern(BYTES, 1));
    assert!(reply.into_bytes().unwrap() == pattern(BYTES, 1));
}

fn check_lost(bad: &Bad, name: &str, said: &str) {
    for outcome in outcomes(bad) {
        let failed = outcome.expect_err(name);
        let error = failed.error();
        assert!(matches!(error, Error::PayloadLost(_)), "{name}: {error}");
        assert!(error.to_string().contains(said), "{name}: {error}");
        assert!(!error.closes_connection() && !error.is_retryable(), "{name}: {error}");
        assert_eq!(error.code(), Code::DataLoss);
    }
}

#[test]
fn what_is_not_sealed_memory_is_that_calls_failure() {
    isolated("hostile::sealed_answers::what_is_not_sealed_memory_is_that_calls_failure", || {
        let folder = tempfile::tempdir().unwrap();
        // Threads and the like are made once.
        let file = sealed_file(&pattern(BYTES, 1));
        outcomes(&Bad { file, bytes: BYTES as u64, offset: 0 }).into_iter().for_each(check_good);
        let before = Census::take();
        for Subject { name, descriptor: file, bytes, said } in not_sealed() {
            // Some of what a server says of a request is said in other words of an answer.
            let differs = said.contains("too small") || name == "sparse, write only";
            let said = if differs { "the sealed memory" } else { said };
            check_lost(&Bad { file, bytes, offset: 0 }, name, said);
        }
        for Subject { name, descriptor: file, bytes, .. } in no_memory_files(folder.path()) {
            check_lost(&Bad { file, bytes, offset: 0 }, name, "refused");
        }
        before.returns();
    });
}

#[test]
fn sizes_and_offsets_outside_the_file_are_that_calls_failure() {
    isolated(
        "hostile::sealed_answers::sizes_and_offsets_outside_the_file_are_that_calls_failure",
        || {
            let before = Census::take();
            let spans = [
                (0, 8192),
                (64, 4033),
                (4096, 1),
                (1 << 40, 64),
                (u64::MAX - 63, 64),
                (1 << 63, 1),
            ];
            for (offset, bytes) in spans {
                for file in [sealed_file(&pattern(4096, 1)), memory_file(4096, SEALED)] {
                    let name = format!("{bytes} at {offset}");
                    check_lost(&Bad { file, bytes, offset }, &name, "sealed memory");
                }
            }
            let file = sealed_file(&vec![1; (1 << 20) + 1]);
            check_lost(&Bad { file, bytes: 100, offset: 0 }, "over the limit", "too large");
            before.returns();
        },
    );
}

#[test]
fn sparse_answers_are_read_up_to_a_limit() {
    isolated("hostile::sealed_answers::sparse_answers_are_read_up_to_a_limit", || {
        let before = Census::take();
        for (bytes, offset) in [(4096, 0), (4096, 1 << 19), (0, 0)] {
            let file = memory_file(1 << 20, SEALED);
            for outcome in outcomes(&Bad { file, bytes, offset }) {
                let reply = outcome.unwrap();
                assert_eq!(reply.lane(), Lane::Sealed);
                assert_eq!(reply.to_vec(), vec![0; bytes as usize]);
            }
        }
        let file = memory_file(1 << 20, SEALED);
        check_lost(&Bad { file, bytes: 4097, offset: 0 }, "over the limit", "sparse");
        before.returns();
    });
}

/// Nobody waits any more for the answer that comes: its file is closed all the same.
#[test]
fn an_answer_that_comes_too_late_leaves_no_file() {
    isolated("hostile::sealed_answers::an_answer_that_comes_too_late_leaves_no_file", || {
        let file = sealed_file(&pattern(BYTES, 1));
        let bad = Bad { file, bytes: BYTES as u64, offset: 0 };
        let before = Census::take();
        let soon = Duration::from_millis(20);
        with_server(&bad, |stream| {
            let mut client = DirectClient::from_stream(stream, &options()).unwrap();
            let late = client.call("late").sealed(BYTES).deadline(soon).send().unwrap_err();
            assert!(matches!(late.error(), Error::DeadlineExceeded), "{late}");
            check_good(client.call("good").sealed(BYTES).deadline(PATIENCE).send());
            assert_eq!(client.open_calls(), 0);
        });
        with_server(&bad, |stream| {
            let client = Client::from_stream(stream, &options()).unwrap();
            let late = client.call("late").sealed(BYTES).deadline(soon).send().unwrap_err();
            assert!(matches!(late.error(), Error::DeadlineExceeded), "{late}");
            check_good(client.call("good").sealed(BYTES).deadline(PATIENCE).send());
            assert_eq!(client.open_calls(), 0);
        });
        before.returns();
    });
}

/// A client without descriptors learns that there was an answer, and goes on.
#[test]
fn an_answer_whose_file_can_not_be_received_is_lost() {
    isolated("hostile::sealed_answers::an_answer_whose_file_can_not_be_received_is_lost", || {
        let file = sealed_file(&pattern(BYTES, 1));
        let bad = Bad { file, bytes: BYTES as u64, offset: 0 };
        let check = |outcome: Result<Reply, CallError>| {
            let failed = outcome.unwrap_err();
            assert!(matches!(failed.error(), Error::PayloadLost(_)), "{failed}");
            assert!(failed.to_string().contains("out of descriptors"), "{failed}");
        };
        with_server(&bad, |stream| {
            let mut client = DirectClient::from_stream(stream, &options()).unwrap();
            check_good(client.call("good").sealed(BYTES).deadline(PATIENCE).send());
            for _ in 0..10 {
                // The server has closed what it sent before, once it answers this.
                check_good(client.call("bad").sealed(BYTES).deadline(PATIENCE).send());
                with_descriptors(0, || check(client.call("bad").sealed(BYTES).send()));
                check_good(client.call("good").sealed(BYTES).deadline(PATIENCE).send());
            }
        });
        with_server(&bad, |stream| {
            let client = Client::from_stream(stream, &options()).unwrap();
            check_good(client.call("good").sealed(BYTES).deadline(PATIENCE).send());
            for _ in 0..10 {
                // The server has closed what it sent before, once it answers this.
                check_good(client.call("bad").sealed(BYTES).deadline(PATIENCE).send());
                with_descriptors(0, || check(client.call("bad").sealed(BYTES).send()));
                check_good(client.call("good").sealed(BYTES).deadline(PATIENCE).send());
            }
        });
    });
}

#[test]
fn a_sealed_answer_is_what_the_document_says() {
    let mut stage = Stage::new();
    let mut raw = Raw::open_with(&stage.path, raw::SEALED);
    raw.send(&raw::fill(1, Place::sealed(20_000), 10_000, 7));
    let made = raw.reply();
    raw.send(&raw::call(2, Place::sealed(20_000), b"object", &[3]));
    let object = raw.reply();
    for (reply, expected) in
        [(&made, pattern(10_000, 7)), (&object, pattern(HONEST_BYTES, 1)[192..].to_vec())]
    {
        assert_eq!((reply.code, reply.lane), (raw::OK, raw::LANE_SEALED), "{reply:?}");
        assert_eq!(reply.payload_bytes, expected.len() as u64);
        assert!(reply.offset.is_multiple_of(64));
        let file = reply.file.as_ref().unwrap();
        assert!(rustix::fs::fcntl_get_seals(file).unwrap().contains(SEALED));
        assert!(rustix::io::pwrite(file, b"x", reply.offset).is_err());
        super::descriptor::check_bytes(file, reply.offset, &expected);
    }
    let flags = rustix::fs::fcntl_getfl(made.file.as_ref().unwrap()).unwrap();
    assert_eq!(flags & OFlags::RWMODE, OFlags::RDONLY);
    // What a server has sent, it takes as an upload too.
    let upload = raw::Upload::sealed(64, 1000);
    raw.send_with(
        &raw::echo(3, Place::inline(1000), upload),
        &[made.file.as_ref().unwrap().as_fd()],
    );
    assert!(raw.reply().payload == pattern(10_000, 7)[64..1064]);
    stage.honest_calls();
}

/// The first place that has room, in the order that the document names.
#[test]
fn the_first_place_with_room_is_taken() {
    for inline_handlers in [false, true] {
        check_places(Stage::with(ServerOptions { inline_handlers, ..ServerOptions::default() }));
    }
}

fn check_places(mut stage: Stage) {
    let file = super::descriptor::sealed(1 << 20);
    let mut raw = Raw::open_with(&stage.path, raw::SEALED);
    raw.send_with(&raw::register(1, 1 << 20), &[file.as_fd()]);
    assert_eq!(raw.registered().code, raw::OK);
    let all = Place {
        inline_bytes: 500,
        inline_first_bytes: 100,
        sealed_bytes: 4000,
        ..Place::region(1, 0, 1000)
    };
    let no_fill = Place { fill: 0, region: 0, bytes: 0, ..all };
    let (map, inline, sealed) = (raw::LANE_FILL_MAP, raw::LANE_INLINE, raw::LANE_SEALED);
    for (place, bytes, lane) in [
        (all, 0, inline),
        (all, 100, inline),
        (all, 101, map),
        (all, 1000, map),
        (all, 1001, sealed),
        (all, 4000, sealed),
        (no_fill, 101, inline),
        (no_fill, 500, inline),
        (no_fill, 501, sealed),
        (Place { inline_first_bytes: 0, ..all }, 1, map),
        (Place { sealed_bytes: 10, ..all }, 11, inline),
        (Place::sealed(10), 0, sealed),
    ] {
        raw.send(&raw::fill(1, place, bytes, 3));
        let reply = raw.reply();
        assert_eq!((reply.code, reply.lane), (raw::OK, lane), "{bytes} bytes to {place:?}");
        assert_eq!(reply.payload_bytes, bytes);
    }
    for place in [all, no_fill, Place::sealed(4000)] {
        raw.send(&raw::fill(1, place, 4001, 3));
        let reply = raw.reply();
        assert_eq!((reply.code, reply.payload_bytes), (raw::OUT_OF_RANGE, 4001), "{place:?}");
    }
    // An object that is sealed already goes as it is, unless it is small.
    for (place, lane) in [
        (Place { sealed_bytes: 20_000, bytes: 20_000, ..all }, sealed),
        (Place { inline_bytes: 20_000, inline_first_bytes: 20_000, ..all }, inline),
        (Place { sealed_bytes: 10, bytes: 20_000, ..all }, map),
    ] {
        raw.send(&raw::call(1, place, b"object", &[0]));
        let reply = raw.reply();
        assert_eq!((reply.code, reply.lane), (raw::OK, lane), "{place:?}");
    }
    stage.honest_calls();
}

#[test]
fn who_takes_no_sealed_memory_gets_none() {
    let mut stage = Stage::new();
    let mut raw = Raw::open(&stage.path);
    raw.send(&raw::fill(1, Place::sealed(20_000), 10, 1));
    let reply = raw.reply();
    assert_eq!((reply.code, reply.payload_bytes), (raw::OUT_OF_RANGE, 10));
    let place = Place { sealed_bytes: 20_000, ..Place::inline(20_000) };
    raw.send(&raw::call(2, place, b"object", &[0]));
    assert_eq!(raw.reply().lane, raw::LANE_INLINE);

    // Nor does anybody get more than he takes, nor all of an object for a part of it.
    let mut raw = Raw::connect(&stage.path);
    let mut hello = raw::hello_with(raw::SEALED | 1 << 63);
    hello[16 + 48..].copy_from_slice(&10_000_u64.to_le_bytes());
    raw.send(&hello);
    raw.expect(raw::HELLO);
    for (bytes, code) in [(10_000, raw::OK), (10_001, raw::OUT_OF_RANGE)] {
        raw.send(&raw::fill(1, Place::sealed(20_000), bytes, 1));
        assert_eq!(raw.reply().code, code, "{bytes}");
    }
    raw.send(&raw::call(2, Place::sealed(20_000), b"object", &[255]));
    let reply = raw.reply();
    assert_eq!((reply.code, reply.lane), (raw::OK, raw::LANE_SEALED));
    let file = reply.file.unwrap();
    assert!(rustix::fs::fstat(&file).unwrap().st_size <= 10_000);
    let expected = &pattern(HONEST_BYTES, 1)[255 * 64..];
    super::descriptor::check_bytes(&file, reply.offset, expected);
    raw.send(&raw::call(2, Place::sealed(20_000), b"object", &[0]));
    assert_eq!(raw.reply().code, raw::OUT_OF_RANGE);
    stage.honest_calls();
}

/// Parts of no bytes, where there is no place for any.
#[test]
fn an_answer_without_a_payload_has_no_parts() {
    let mut stage = Stage::new();
    let mut raw = Raw::open(&stage.path);
    raw.send(&raw::call(1, Place::NONE, b"no bytes in two parts", b""));
    let reply = raw.reply();
    assert_eq!((reply.code, reply.lane, reply.parts.len()), (raw::OK, raw::LANE_NONE, 0));
    raw.send(&raw::call(1, Place::inline(1), b"no bytes in two parts", b""));
    let reply = raw.reply();
    assert_eq!(
        (reply.code, reply.lane, &reply.parts[..]),
        (raw::OK, raw::LANE_INLINE, &[0, 0][..])
    );
    let reply = stage.honest.call("no bytes in two parts").send().unwrap();
    assert_eq!((reply.lane(), reply.parts().count()), (Lane::None, 1));
    stage.honest_calls();
}

/// Their user's account bounds what a client can pile up of the server's memory.
#[test]
fn a_client_that_keeps_every_answer_gets_no_more() {
    isolated("hostile::sealed_answers::a_client_that_keeps_every_answer_gets_no_more", || {
        for (lent_max, lent_bytes_max) in [(5, 1 << 30), (4096, 5 * 10_000)] {
            let mut options = ServerOptions::default();
            options.user_limits = UserLimits { lent_max, lent_bytes_max, ..options.user_limits };
            let mut stage = Stage::with(options);
            let mut raw = Raw::open_with(&stage.path, raw::SEALED);
            let mut ask = || {
                raw.send(&raw::fill(1, Place::sealed(10_000), 10_000, 7));
                raw.reply()
            };
            let mut kept: Vec<raw::Answer> = (0..5).map(|_| ask()).collect();
            assert!(kept.iter().all(|reply| reply.code == raw::OK), "{kept:?}");
            for _ in 0..10 {
                let refused = ask();
                assert_eq!(refused.code, raw::RESOURCE_EXHAUSTED, "{}", refused.message);
                stage.honest_calls();
            }
            // What is given back is free at once, and no more than that.
            kept.pop();
            kept.push(ask());
            assert_eq!(kept.last().unwrap().code, raw::OK);
            assert_eq!(ask().code, raw::RESOURCE_EXHAUSTED);
            kept.clear();
            for _ in 0..20 {
                assert_eq!(ask().code, raw::OK);
            }
            // They outlive their connection, and count until they are gone.
            kept.extend((0..5).map(|_| ask()));
            drop(raw);
            let mut raw = Raw::open_with(&stage.path, raw::SEALED);
            raw.send(&raw::fill(1, Place::sealed(10_000), 10_000, 7));
            assert_eq!(raw.reply().code, raw::RESOURCE_EXHAUSTED);
            kept.clear();
            raw.send(&raw::fill(1, Place::sealed(10_000), 10_000, 7));
            assert_eq!(raw.reply().code, raw::OK);
            drop(raw);
            stage.ends_clean();
        }
    });
}

/// A mapping holds as a descriptor does, whatever became of the reply.
#[test]
fn mappings_of_answers_count_too() {
    isolated("hostile::sealed_answers::mappings_of_answers_count_too", || {
        let mut options = ServerOptions::default();
        options.user_limits = UserLimits { lent_max: 2, ..options.user_limits };
        let mut stage = Stage::with(options);
        let mut client = DirectClient::connect(&stage.path).unwrap();
        let mut request = 10_000_u64.to_le_bytes().to_vec();
        request.push(7);
        let mut ask = || client.call("fill").request(&request).sealed(10_000).send();
        let (first, second) = (ask().unwrap(), ask().unwrap().into_bytes().unwrap());
        let refused = ask().unwrap_err();
        assert_eq!(refused.error().code(), Code::ResourceExhausted, "{refused}");
        let part = second.slice(1..2);
        drop(second);
        assert_eq!(ask().unwrap_err().error().code(), Code::ResourceExhausted);
        drop(part);
        assert!(ask().unwrap().as_slice().unwrap() == pattern(10_000, 7));
        assert!(first.as_slice().unwrap() == pattern(10_000, 7));
        drop((first, client));
        stage.ends_clean();
    });
}

const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);
