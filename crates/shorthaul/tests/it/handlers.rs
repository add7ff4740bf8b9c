//! Whatever a handler does, its caller gets one answer.

use std::thread;
use std::time::Duration;

use shorthaul::limits::{NOTICE_BYTES_MAX, NOTICES_MAX};
use shorthaul::{Client, Code, DirectClient, Error, InboundCall, ServerOptions, Status};

use super::service::{AnyClient, PATIENCE, Running, eventually, start};

fn handle(call: &mut InboundCall) -> Result<(), Status> {
    match call.method() {
        "panic" => panic!("a handler that panics, as the test wants it"),
        "error" => Err(Status::new(Code::NotFound, "no such thing")),
        "file" => {
            std::fs::File::open("/nonexistent")?;
            Ok(())
        }
        "drop" => {
            drop(call.defer());
            Ok(())
        }
        "forget" => Ok(()),
        "twice" => {
            call.reply(b"first")?;
            call.reply(b"second")
        }
        "panic after" => {
            call.reply(b"answered before")?;
            panic!("a handler that panics after its answer, as the test wants it")
        }
        "defer" => {
            let mut deferred = call.defer();
            thread::spawn(move || {
                let mut out = deferred.payload(5).unwrap();
                out.copy_from(b"later").unwrap();
                deferred.reply(b"deferred").unwrap();
            });
            Ok(())
        }
        "large" => call.reply(&vec![0; 1 << 20]),
        _ => call.reply(b"pong"),
    }
}

fn refusal(failed: &shorthaul::CallError) -> &Status {
    let Error::Status(status) = failed.error() else { panic!("{failed}") };
    status
}

fn run_all(inline_handlers: bool) {
    let options = ServerOptions { inline_handlers, ..ServerOptions::default() };
    let running = start(options, handle);
    let mut client = DirectClient::connect(&running.path).unwrap();
    let failures = [
        ("panic", Code::Internal, "panicked"),
        ("error", Code::NotFound, "no such thing"),
        ("file", Code::NotFound, "No such file"),
        ("drop", Code::Internal, "dropped"),
        ("forget", Code::Internal, "dropped"),
        ("large", Code::OutOfRange, "1048576"),
    ];
    for (method, code, text) in failures {
        let failed = client.call(method).deadline(PATIENCE).send().unwrap_err();
        let status = refusal(&failed);
        assert_eq!(status.code, code, "{method}: {status}");
        assert!(status.message.contains(text), "{method}: {status}");
    }
    for (method, response) in [("twice", "first"), ("panic after", "answered before")] {
        let reply = client.call(method).deadline(PATIENCE).send().unwrap();
        assert_eq!(reply.response(), response.as_bytes());
    }
    let buffer = client.buffer(64).unwrap();
    let deferred = client.call("defer").into(buffer).deadline(PATIENCE).send();
    let deferred = deferred.unwrap();
    assert_eq!((deferred.response(), &deferred.to_vec()[..]), (&b"deferred"[..], &b"later"[..]));
    assert_eq!(client.call("ping").send().unwrap().response(), b"pong");
    assert_eq!(client.open_calls(), 0);
    assert!(running.server.stop(PATIENCE));
}

#[test]
fn on_workers() {
    run_all(false);
}

#[test]
fn on_the_reactor() {
    run_all(true);
}

#[test]
fn a_failure_gives_the_buffer_back() {
    let running = start(ServerOptions::default(), handle);
    let mut client = AnyClient::connect(&running.path, false).unwrap();
    let buffer = client.buffer(4096);
    let AnyClient::Threaded(client) = client else { unreachable!() };
    let failed = client.call("error").into(buffer).send().unwrap_err();
    let buffer = failed.into_buffer().expect("the server has let go");
    let reply = client.call("defer").into(buffer).send().unwrap();
    assert_eq!(reply.to_vec(), b"later");
}

/// Answers, and sends as many notices as the request has bytes.
fn start_noisy() -> Running {
    start(ServerOptions::default(), |call: &mut InboundCall| {
        let peer = call.peer().clone();
        for topic in 0..call.request().len() as u32 {
            assert!(peer.notify(topic, b"news"));
        }
        assert!(!peer.notify(0, &[0; NOTICE_BYTES_MAX + 1]), "too long");
        call.reply(b"")
    })
}

#[test]
fn notices_reach_a_direct_client() {
    let running = start_noisy();
    let mut client = DirectClient::connect(&running.path).unwrap();
    assert_eq!(client.notice(), None);
    client.call("").request(&[0; 3]).send().unwrap();
    for topic in 0..3 {
        eventually("a notice comes", PATIENCE, || {
            client.poll(Duration::ZERO).unwrap();
            let Some(notice) = client.notice() else {
                return false;
            };
            assert_eq!((notice.topic, &notice.data[..]), (topic, &b"news"[..]));
            assert_eq!(notice.lost_before, 0);
            true
        });
    }
}

#[test]
fn notices_reach_a_client() {
    let running = start_noisy();
    let client = Client::connect(&running.path).unwrap();
    assert_eq!(client.notice(Duration::ZERO), None);
    client.call("").request(&[0; 3]).send().unwrap();
    for topic in 0..3 {
        let notice = client.notice(PATIENCE).unwrap();
        assert_eq!((notice.topic, &notice.data[..]), (topic, &b"news"[..]));
    }
}

/// A burst larger than what may wait on either side neither blocks calls nor ends the connection.
#[test]
fn a_flood_of_notices_loses_the_oldest_and_nothing_else() {
    let running = start_noisy();
    let client = Client::connect(&running.path).unwrap();
    for _ in 0..20 {
        let flood = [0; 5000];
        let call = client.call("").request(&flood).deadline(PATIENCE);
        call.send().unwrap();
    }
    let mut seen = 0;
    while client.notice(Duration::from_millis(20)).is_some() {
        seen += 1;
    }
    assert!(seen > 0 && seen <= NOTICES_MAX + 20 * 5000);
    client.call("").send().unwrap();
}
