//! Servers that lie: the client says what was wrong, at once, and is done with them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use shorthaul::{CallError, Client, ClientOptions, DirectClient, Error};

use super::raw::{self, Raw};

/// What a client's call got from a server that played `script` after the hellos.
fn outcomes(wanted: Wanted, script: fn(&mut Raw, u64)) -> [Error; 2] {
    let options = ClientOptions::default();
    let direct = with_server(script, |stream| {
        let mut client = DirectClient::from_stream(stream, &options).unwrap();
        let call = client.call("lie").deadline(PATIENCE);
        let outcome = match wanted {
            Wanted::Nothing => call.send(),
            Wanted::Inline => call.inline(100).send(),
            Wanted::Fresh => call.into_fresh(4096).send(),
            Wanted::Sealed => call.sealed(4096).send(),
        };
        let failed = outcome.expect_err("a lie");
        assert!(failed.error().closes_connection() && !client.is_alive(), "{failed}");
        failed
    });
    let shared = with_server(script, |stream| {
        let client = Client::from_stream(stream, &options).unwrap();
        let call = client.call("lie").deadline(PATIENCE);
        let outcome = match wanted {
            Wanted::Nothing => call.send(),
            Wanted::Inline => call.inline(100).send(),
            Wanted::Fresh => call.into_fresh(4096).send(),
            Wanted::Sealed => call.sealed(4096).send(),
        };
        outcome.expect_err("a lie")
    });
    [direct.into(), shared.into()]
}

/// The place that the call offers.
#[derive(Clone, Copy)]
enum Wanted {
    Nothing,
    Inline,
    Fresh,
    Sealed,
}

fn with_server(
    script: fn(&mut Raw, u64),
    client: impl FnOnce(UnixStream) -> CallError,
) -> CallError {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut server = Raw::over(ours);
            server.expect(raw::HELLO);
            server.send(&raw::hello());
            let call = server.expect(raw::CALL);
            script(&mut server, raw::u64_at(&call.body, 0));
            // Whatever it was, the client hangs up: that is the end, after a goodbye or without.
            while server.next().is_some() {}
        });
        client(theirs)
    })
}

fn check(wanted: Wanted, said: &str, script: fn(&mut Raw, u64)) {
    for error in outcomes(wanted, script) {
        let text = error.to_string();
        assert!(text.contains(said), "{text:?}, not {said:?}");
    }
}

fn reply(server: &mut Raw, id: u64, code: u32, lane: u8, payload_bytes: u64, inline: &[u8]) {
    let body = raw::reply_body(id, code, lane, payload_bytes);
    server.send(&raw::frame(raw::REPLY, 0, &body, inline));
}

#[test]
fn answers_to_what_was_not_asked() {
    check(Wanted::Inline, "no such call is open", |server, id| {
        reply(server, id + 1, raw::OK, raw::LANE_NONE, 0, b"");
    });
    check(Wanted::Nothing, "no such call is open", |server, id| {
        // The second answer to one call; the first is a reply to nobody that waits.
        reply(server, id.wrapping_neg(), raw::OK, raw::LANE_NONE, 0, b"");
    });
}

#[test]
fn lanes_that_were_not_offered() {
    let said = "a lane that the call did not offer";
    check(Wanted::Nothing, said, |server, id| {
        reply(server, id, raw::OK, raw::LANE_INLINE, 5, b"hello");
    });
    check(Wanted::Nothing, said, |server, id| {
        reply(server, id, raw::OK, raw::LANE_FILL_MAP, 0, b"");
    });
    check(Wanted::Inline, said, |server, id| {
        reply(server, id, raw::OK, raw::LANE_FILL_WRITE, 5, b"");
    });
    check(Wanted::Fresh, said, |server, id| {
        reply(server, id, raw::OK, raw::LANE_INLINE, 5, b"hello");
    });
    check(Wanted::Fresh, said, |server, id| {
        reply(server, id, raw::OK, raw::LANE_NONE, 5, b"");
    });
    for wanted in [Wanted::Nothing, Wanted::Inline, Wanted::Fresh] {
        check(wanted, said, |server, id| {
            reply(server, id, raw::OK, raw::LANE_DESCRIPTOR, 5, b"");
        });
    }
}

#[test]
fn more_bytes_than_were_offered() {
    let said = "more payload than the call offered room for";
    check(Wanted::Inline, said, |server, id| {
        reply(server, id, raw::OK, raw::LANE_INLINE, 101, &[7; 101]);
    });
    check(Wanted::Fresh, said, |server, id| {
        reply(server, id, raw::OK, raw::LANE_FILL_MAP, 4097, b"");
    });
    check(Wanted::Fresh, said, |server, id| {
        reply(server, id, raw::OK, raw::LANE_FILL_WRITE, u64::MAX, b"");
    });
}

#[test]
fn failures_with_a_payload() {
    check(Wanted::Inline, "a failure with a payload", |server, id| {
        reply(server, id, raw::NOT_FOUND, raw::LANE_INLINE, 5, b"hello");
    });
    check(Wanted::Fresh, "a failure with a payload", |server, id| {
        reply(server, id, raw::NOT_FOUND, raw::LANE_FILL_MAP, 5, b"");
    });
}

/// An answer by the sealed lane, with so many descriptors.
fn reply_sealed(server: &mut Raw, id: u64, payload_bytes: u64, offset: u64, count: usize) {
    let file = super::uploads::sealed_file(&[7; 8192]);
    let body = raw::reply_body_at(id, raw::OK, raw::LANE_SEALED, payload_bytes, offset);
    let files = vec![std::os::fd::AsFd::as_fd(&file); count];
    server.send_with(&raw::frame(raw::REPLY, 1, &body, b""), &files);
}

#[test]
fn sealed_answers_that_were_not_asked_for() {
    let said = "a lane that the call did not offer";
    for wanted in [Wanted::Nothing, Wanted::Inline, Wanted::Fresh] {
        check(wanted, said, |server, id| reply_sealed(server, id, 5, 0, 1));
        check(wanted, said, |server, id| reply_sealed(server, id, 0, 0, 1));
    }
    check(Wanted::Sealed, said, |server, id| {
        reply(server, id, raw::OK, raw::LANE_INLINE, 5, b"hello");
    });
    check(Wanted::Sealed, said, |server, id| {
        reply(server, id, raw::OK, raw::LANE_FILL_MAP, 0, b"");
    });
    check(Wanted::Sealed, "no such call is open", |server, id| {
        reply_sealed(server, id + 1, 5, 0, 1);
    });
}

#[test]
fn sealed_answers_that_break_the_rules() {
    check(Wanted::Sealed, "more payload than the call offered", |server, id| {
        reply_sealed(server, id, 4097, 0, 1);
    });
    for unaligned in [
        |server: &mut Raw, id| reply_sealed(server, id, 5, 1, 1),
        |server: &mut Raw, id| reply_sealed(server, id, 5, 63, 1),
        |server: &mut Raw, id| reply_sealed(server, id, 5, u64::MAX, 1),
    ] {
        check(Wanted::Sealed, "does not start at a multiple of 64", unaligned);
    }
    for miscounted in [
        |server: &mut Raw, id| reply_sealed(server, id, 5, 0, 0),
        |server: &mut Raw, id| reply_sealed(server, id, 5, 0, 2),
        |server: &mut Raw, id| reply_sealed(server, id, 5, 0, 3),
    ] {
        check(Wanted::Sealed, "not the 1 descriptors", miscounted);
    }
    check(Wanted::Sealed, "announces 0 descriptors", |server, id| {
        reply(server, id, raw::OK, raw::LANE_SEALED, 5, b"");
    });
    check(Wanted::Sealed, "announces 1 descriptors", |server, id| {
        let file = super::uploads::sealed_file(&[7; 64]);
        let body = raw::reply_body(id, raw::OK, raw::LANE_NONE, 0);
        let frame = raw::frame(raw::REPLY, 1, &body, b"");
        server.send_with(&frame, &[std::os::fd::AsFd::as_fd(&file)]);
    });
    check(Wanted::Sealed, "a failure with a payload", |server, id| {
        let file = super::uploads::sealed_file(&[7; 64]);
        let body = raw::reply_body(id, raw::NOT_FOUND, raw::LANE_SEALED, 5);
        let frame = raw::frame(raw::REPLY, 1, &body, b"");
        server.send_with(&frame, &[std::os::fd::AsFd::as_fd(&file)]);
    });
    check(Wanted::Inline, "the parts of a payload do not add up", |server, id| {
        let mut body = raw::reply_body(id, raw::OK, raw::LANE_INLINE, 100);
        body[14] = 2;
        body.extend([40_u64, 37].iter().flat_map(|length| length.to_le_bytes()));
        server.send(&raw::frame(raw::REPLY, 0, &body, &[7; 100]));
    });
}

#[test]
fn half_an_answer() {
    let said = "connection lost, outcome unknown";
    check(Wanted::Inline, said, |server, _| {
        server.socket.shutdown(std::net::Shutdown::Write).unwrap();
    });
    check(Wanted::Inline, said, |server, id| {
        let body = raw::reply_body(id, raw::OK, raw::LANE_INLINE, 100);
        let whole = raw::frame(raw::REPLY, 0, &body, &[7; 100]);
        server.send(&whole[..whole.len() - 1]);
        server.socket.shutdown(std::net::Shutdown::Write).unwrap();
    });
    check(Wanted::Fresh, said, |server, id| {
        let body = raw::reply_body(id, raw::OK, raw::LANE_FILL_MAP, 100);
        server.send(&raw::frame(raw::REPLY, 0, &body, b"")[..20]);
        server.socket.shutdown(std::net::Shutdown::Write).unwrap();
    });
}

#[test]
fn announcements_over_the_limits() {
    check(Wanted::Inline, "bytes of payload, over the limit", |server, _| {
        server.send(&raw::header(raw::REPLY, 0, 40, u64::MAX));
    });
    check(Wanted::Inline, "bytes of body, which is not possible", |server, _| {
        server.send(&raw::header(raw::REPLY, 0, u32::MAX, 0));
    });
    check(Wanted::Inline, "bytes of body, which is not possible", |server, _| {
        server.send(&raw::header(raw::NOTICE, 0, 8 + 4097, 0));
    });
    check(Wanted::Inline, "announces 2 descriptors", |server, _| {
        server.send(&raw::header(raw::REPLY, 2, 40, 0));
    });
    check(Wanted::Inline, "not the 1 descriptors", |server, _| {
        server.send(&raw::header(raw::REPLY, 1, 40, 0));
    });
    check(Wanted::Inline, "announces 39 bytes of body", |server, _| {
        server.send(&raw::header(raw::REPLY, 0, 39, 0));
    });
}

#[test]
fn frames_that_only_a_client_sends() {
    check(Wanted::Nothing, "only a client sends it", |server, id| {
        server.send(&raw::of_id(raw::CANCEL, id));
    });
    check(Wanted::Nothing, "a second hello", |server, _| server.send(&raw::hello()));
    check(Wanted::Nothing, "unknown frame kind 200", |server, _| {
        server.send(&raw::header(200, 0, 0, 0));
    });
}

#[test]
fn descriptors_that_no_client_takes() {
    check(Wanted::Nothing, "descriptors came that no frame claims", |server, id| {
        let file = tempfile::tempfile().unwrap();
        let body = raw::reply_body(id, raw::OK, raw::LANE_NONE, 0);
        let frame = raw::frame(raw::REPLY, 0, &body, b"");
        let descriptor = std::os::fd::AsFd::as_fd(&file);
        // In mid-frame, so that the answer isn't whole before it is seen.
        server.send_with(&frame[..20], &[descriptor]);
    });
}

#[test]
fn a_goodbye_is_passed_on() {
    check(Wanted::Inline, "UNAVAILABLE: down for today", |server, _| {
        let body = raw::goodbye_body(14, "down for today");
        server.send(&raw::frame(raw::GOODBYE, 0, &body, b""));
    });
}

/// A server that has left before the call says why in what is still to be read.
#[test]
fn a_goodbye_before_the_call_is_passed_on() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(&raw::hello()).unwrap();
    let mut client = DirectClient::from_stream(theirs, &ClientOptions::default()).unwrap();
    let body = raw::goodbye_body(14, "down for today");
    ours.write_all(&raw::frame(raw::GOODBYE, 0, &body, b"")).unwrap();
    drop(ours);
    let failed = client.call("late").send().unwrap_err();
    assert!(failed.to_string().contains("down for today"), "{failed}");
    assert!(matches!(failed.error(), Error::ConnectionLost(_)));
    let again = client.call("later").send().unwrap_err();
    assert!(again.to_string().contains("down for today"), "{again}");
}

#[test]
fn hellos_that_are_none() {
    for (bytes, said) in [
        (raw::hello_of(2, 2), "no version in common"),
        (raw::header(raw::HELLO, 0, 8, 0), "a Hello frame announces 8 bytes"),
        (raw::of_id(raw::CANCEL, 1), "the hello must come first"),
        (b"HTTP/1.1 400 Bad".to_vec(), "unknown frame kind 72"),
    ] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(&bytes).unwrap();
        let options = ClientOptions::default();
        let refused = DirectClient::from_stream(theirs, &options).unwrap_err();
        assert!(matches!(refused, Error::PeerMisbehaved(_)), "{refused}");
        assert!(refused.to_string().contains(said), "{refused}, not {said}");
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(ours);
    let lost = DirectClient::from_stream(theirs, &ClientOptions::default()).unwrap_err();
    assert!(matches!(lost, Error::ConnectionLost(_)), "{lost}");
}

/// Longer than anything takes: a call that ends by it has hung.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_buffer_that_is_never_registered_is_waited_for_within_the_calls_own_time() {
    // Answers the first call, and registers nothing.
    let script = |server: &mut Raw, call: u64| {
        let body = raw::reply_body(call, 0, 1, 10_000);
        server.send(&raw::frame(raw::REPLY, 0, &body, &[7; 10_000]));
    };
    // Far longer than the call has, and than this test may take.
    let options = ClientOptions { deadline: Duration::from_secs(3600), ..ClientOptions::default() };
    let direct = with_server(script, |stream| {
        let mut client = DirectClient::from_stream(stream, &options).unwrap();
        assert_eq!(client.call("a").auto(1 << 20).send().unwrap().len(), 10_000);
        client.call("a").auto(1 << 20).deadline(SHORT).send().unwrap_err()
    });
    let shared = with_server(script, |stream| {
        let client = Client::from_stream(stream, &options).unwrap();
        assert_eq!(client.call("a").auto(1 << 20).send().unwrap().len(), 10_000);
        client.call("a").auto(1 << 20).deadline(SHORT).send().unwrap_err()
    });
    for failed in [direct, shared] {
        assert!(matches!(failed.error(), Error::DeadlineExceeded), "{failed}");
    }
}

const SHORT: Duration = Duration::from_millis(200);

/// Reads the head of a call with a payload, and leaves the payload in the socket.
fn read_call_head(socket: &mut UnixStream) -> u64 {
    let mut header = [0; 16];
    socket.read_exact(&mut header).unwrap();
    let mut body = vec![0; raw::u32_at(&header, 4) as usize];
    socket.read_exact(&mut body).unwrap();
    assert_eq!((header[0], raw::u64_at(&header, 8)), (raw::CALL, MUCH as u64));
    raw::u64_at(&body, 0)
}

/// More than a socket holds.
const MUCH: usize = 4 << 20;

#[test]
fn an_upload_that_outlives_its_call_arrives_whole() {
    for answers_early in [true, false] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (ended, has_ended) = std::sync::mpsc::channel();
        let server = std::thread::spawn(move || {
            let mut hello = [0; 72];
            ours.read_exact(&mut hello).unwrap();
            ours.write_all(&raw::hello()).unwrap();
            let call = read_call_head(&mut ours);
            let reply = raw::frame(raw::REPLY, 0, &raw::reply_body(call, 0, 0, 0), &[]);
            if answers_early {
                ours.write_all(&reply).unwrap();
            }
            has_ended.recv().unwrap();
            let mut payload = vec![0; MUCH];
            ours.read_exact(&mut payload).unwrap();
            // What follows is a frame again: the next call, behind the cancel if there was one.
            let mut server = Raw::over(ours);
            if !answers_early {
                let cancel = server.next().unwrap();
                assert_eq!(raw::u64_at(&cancel.body, 0), call);
                server.send(&reply);
            }
            let next = server.expect(raw::CALL);
            let next = raw::u64_at(&next.body, 0);
            server.send(&raw::frame(raw::REPLY, 0, &raw::reply_body(next, 0, 0, 0), &[]));
            payload
        });
        let mut client = DirectClient::from_stream(theirs, &ClientOptions::default()).unwrap();
        let mut payload: Vec<u8> = (0..MUCH).map(|at| (at >> 12) as u8).collect();
        let expected = payload.clone();
        let deadline = if answers_early { PATIENCE } else { SHORT };
        // The server doesn't read before the call has ended, by its word or by time.
        let sent = client.call("put").payload_inline(&payload).deadline(deadline).send();
        assert_eq!(sent.is_ok(), answers_early);
        // The caller's memory is the caller's again.
        payload.fill(0xff);
        ended.send(()).unwrap();
        client.call("next").deadline(PATIENCE).send().unwrap();
        assert!(server.join().unwrap() == expected, "answers early: {answers_early}");
    }
}
