//! Who may talk to whom.

use std::thread;
use std::time::{Duration, Instant};

use shorthaul::{
    Client, ClientOptions, DirectClient, Error, InboundCall, Result, Server, ServerOptions,
    peer_policy,
};

use super::service::{AnyClient, PATIENCE, serve, start};

fn assert_refused<T: std::fmt::Debug>(outcome: Result<T>, reason: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::PeerRefused(_)), "{error}");
    assert!(error.to_string().contains(reason), "{error}");
    assert!(!error.is_retryable());
}

#[test]
fn a_server_may_refuse_a_client_and_says_why() {
    let options = ServerOptions {
        policy: Some(peer_policy(|peer| {
            assert_eq!(peer.pid, Some(std::process::id()));
            Err("not on a Sunday".into())
        })),
        ..ServerOptions::default()
    };
    let running = start(options, serve);
    for _ in 0..50 {
        assert_refused(DirectClient::connect(&running.path), "not on a Sunday");
        assert_refused(Client::connect(&running.path), "not on a Sunday");
    }
    let stats = running.server.stats();
    assert_eq!((stats.connections_refused, stats.connections), (100, 0));
}

#[test]
fn a_client_may_refuse_a_server() {
    let running = start(ServerOptions::default(), serve);
    let options = ClientOptions {
        policy: Some(peer_policy(|server| {
            assert_eq!(server.pid, Some(std::process::id()));
            Err("never heard of it".into())
        })),
        ..ClientOptions::default()
    };
    let path = &running.path;
    let reason = "never heard of it";
    assert_refused(DirectClient::connect_with(path, &options), reason);
    assert_refused(Client::connect_with(path, &options), reason);
    assert_eq!(running.server.stats().calls, 0);
}

#[test]
fn each_side_knows_the_other() {
    let running = start(ServerOptions::default(), serve);
    let own_uid = rustix::process::geteuid().as_raw();
    for is_direct in [true, false] {
        let server = match AnyClient::connect(&running.path, is_direct).unwrap() {
            AnyClient::Direct(client) => client.server(),
            AnyClient::Threaded(client) => client.server(),
        };
        assert_eq!((server.pid, server.uid), (Some(std::process::id()), own_uid));
    }
}

#[test]
fn a_server_that_stops_says_so_behind_the_last_answer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let (arrive, arrived) = std::sync::mpsc::channel();
    let answer = move |call: &mut InboundCall| {
        arrive.send(()).unwrap();
        thread::sleep(Duration::from_millis(300));
        call.payload(100_000)?.fill(7, 100_000)?;
        call.reply(b"here")
    };
    let server = Server::bind(&path).unwrap().start(answer).unwrap();
    let client = Client::connect(&path).unwrap();
    let pending = Client::start(client.call("").inline(100_000)).unwrap();
    arrived.recv().unwrap();
    let began = Instant::now();
    assert!(server.stop(PATIENCE));
    assert!(began.elapsed() < PATIENCE / 2, "it waited for nothing");
    assert_eq!(pending.wait().unwrap().response(), b"here");
    let failed = client.call("").send().unwrap_err();
    assert!(failed.error().to_string().contains("shutting down"), "{}", failed.error());
}

#[test]
fn a_server_that_stops_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let answer = |call: &mut InboundCall| call.reply(b"here");
    let server = Server::bind(&path).unwrap().start(answer).unwrap();
    let client = Client::connect(&path).unwrap();
    let mut direct = DirectClient::connect(&path).unwrap();
    assert_eq!(client.call("").send().unwrap().response(), b"here");
    assert_eq!(direct.call("").send().unwrap().response(), b"here");
    assert!(server.stop(Duration::from_secs(5)));
    for failed in [client.call("").send().unwrap_err(), direct.call("").send().unwrap_err()] {
        let error = failed.error();
        assert!(matches!(error, Error::ConnectionLost(_)), "{error}");
        assert!(error.to_string().contains("shutting down"), "{error}");
    }
}
