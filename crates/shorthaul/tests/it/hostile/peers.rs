//! Peers that behave oddly without breaking a frame: silent, half closed, forgetful, greedy, at
//! paths that no socket can have.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use shorthaul::{Client, DirectClient, Error, Server, ServerOptions, peer_policy};

use super::raw::{self, Place, Raw};
use super::{Stage, eventually, isolated, pattern};

/// They cost a place each and no more; each is told what it failed to do.
#[test]
fn silent_and_stalled_clients_are_let_go_of() {
    isolated("hostile::peers::silent_and_stalled_clients_are_let_go_of", || {
        let mut stage = Stage::new();
        let mut silent: Vec<Raw> = (0..50).map(|_| Raw::connect(&stage.path)).collect();
        let file = super::descriptor::sealed(4096);
        let mut stalled: Vec<Raw> = (0..16).map(|_| Raw::open(&stage.path)).collect();
        for (index, raw) in stalled.iter_mut().enumerate() {
            let frame = if index % 2 == 0 {
                raw::register(1, 4096)
            } else {
                raw::call(1, Place::one_shot(4096), b"echo", b"request")
            };
            raw.send_with(&frame[..frame.len() - 1], &[file.as_fd()]);
        }
        drop(file);
        stage.honest_calls();
        for raw in &mut silent {
            let goodbye = raw.goodbye();
            assert_eq!(goodbye.code, raw::DEADLINE_EXCEEDED);
            assert!(goodbye.message.contains("hello"), "{}", goodbye.message);
        }
        stage.honest_calls();
        for raw in &mut stalled {
            let goodbye = raw.goodbye();
            assert_eq!(goodbye.code, raw::DEADLINE_EXCEEDED);
            assert!(goodbye.message.contains("half-way"), "{}", goodbye.message);
        }
        drop((silent, stalled));
        stage.ends_clean();
    });
}

#[test]
fn a_half_closed_client_gets_its_reply_and_then_the_end() {
    isolated("hostile::peers::a_half_closed_client_gets_its_reply_and_then_the_end", || {
        let mut stage = Stage::new();
        let mut raw = Raw::open(&stage.path);
        raw.send(&raw::fill(1, Place::inline(3 << 20), 3 << 20, 1));
        raw.send(&raw::call(2, Place::inline(64), b"gate", b""));
        // The start of a frame that never comes is dropped without a word.
        raw.send(&raw::of_id(raw::CANCEL, 1)[..20]);
        raw.socket.shutdown(Shutdown::Write).unwrap();
        let reply = raw.reply();
        assert!(reply.id == 1 && reply.payload == pattern(3 << 20, 1));
        stage.arrived.recv().unwrap();
        stage.gate.send(()).unwrap();
        assert_eq!(raw.reply().response, b"opened");
        raw.end();
        // With nothing open the end comes at once.
        raw = Raw::open(&stage.path);
        raw.socket.shutdown(Shutdown::Write).unwrap();
        raw.end();
        raw = Raw::connect(&stage.path);
        raw.socket.shutdown(Shutdown::Write).unwrap();
        raw.end();
        drop(raw);
        stage.ends_clean();
    });
}

/// A client's last bytes and its end may be there before the server looks: one event for both.
#[test]
fn an_end_right_behind_the_last_frame_is_seen() {
    let options = ServerOptions { inline_handlers: true, ..ServerOptions::default() };
    let mut stage = Stage::with(options);
    let mut raw = Raw::open(&stage.path);
    let mut other = Raw::open(&stage.path);
    other.send(&raw::call(1, Place::inline(64), b"gate", b""));
    // From here on the server's one thread is inside the handler.
    stage.arrived.recv().unwrap();
    raw.send(&raw::fill(1, Place::inline(100), 100, 1));
    raw.socket.shutdown(Shutdown::Write).unwrap();
    stage.gate.send(()).unwrap();
    assert_eq!(other.reply().response, b"opened");
    assert_eq!(raw.reply().payload, pattern(100, 1));
    raw.end();
    stage.honest_calls();
}

#[test]
fn ids_in_use_cannot_be_used_again() {
    let mut stage = Stage::new();
    let mut raw = Raw::open(&stage.path);
    let file = super::descriptor::sealed(4096);
    raw.send_with(&raw::register(1, 4096), &[file.as_fd()]);
    raw.send_with(&raw::register(1, 4096), &[file.as_fd()]);
    let goodbye = raw.goodbye();
    assert!(goodbye.message.contains("registered twice"), "{}", goodbye.message);

    let mut raw = Raw::open(&stage.path);
    raw.send(&raw::call(1, Place::inline(64), b"gate", b""));
    stage.arrived.recv().unwrap();
    raw.send(&raw::call(1, Place::inline(64), b"echo", b""));
    let goodbye = raw.goodbye();
    assert!(goodbye.message.contains("id of one that is open"), "{}", goodbye.message);
    // The answer of the call that was open has nowhere to go, and hurts nobody.
    stage.gate.send(()).unwrap();
    stage.honest_calls();
}

#[test]
fn ids_are_free_again_after_their_end() {
    let mut stage = Stage::new();
    let mut raw = Raw::open(&stage.path);
    let file = super::descriptor::sealed(4096);
    for seed in 0..10 {
        raw.send_with(&raw::register(1, 4096), &[file.as_fd()]);
        raw.send(&raw::fill(1, Place::region(1, 0, 4096), 4096, seed));
        assert_eq!(raw.registered().code, raw::OK);
        assert_eq!(raw.reply().payload_bytes, 4096);
        raw.send(&raw::of_id(raw::RELEASE, 1));
    }
    // What is not there can be given up and taken back: it may have crossed an answer.
    raw.send(&raw::of_id(raw::RELEASE, 77));
    raw.send(&raw::of_id(raw::CANCEL, 77));
    raw.send(&raw::call(77, Place::NONE, b"echo", b"alive"));
    assert_eq!(raw.reply().response, b"alive");
    stage.honest_calls();
}

#[test]
fn a_cancelled_call_is_answered_once() {
    let options = ServerOptions { workers: 1, ..ServerOptions::default() };
    let mut stage = Stage::with(options);
    let mut raw = Raw::open(&stage.path);
    raw.send(&raw::call(1, Place::inline(64), b"gate", b""));
    stage.arrived.recv().unwrap();
    raw.send(&raw::call(2, Place::NONE, b"echo", b""));
    raw.send(&raw::of_id(raw::CANCEL, 2));
    raw.send(&raw::of_id(raw::CANCEL, 1));
    let waiting = raw.reply();
    assert_eq!((waiting.id, waiting.code), (2, raw::CANCELLED));
    stage.gate.send(()).unwrap();
    // It ran, and its handler didn't care.
    let running = raw.reply();
    assert_eq!((running.id, running.code), (1, raw::OK));
    raw.send(&raw::call(1, Place::NONE, b"echo", b"again"));
    assert_eq!(raw.reply().response, b"again");
    stage.honest_calls();
}

#[test]
fn calls_and_regions_over_the_limits_fail_alone() {
    let mut options = ServerOptions::default();
    options.limits.calls_max = 2;
    options.limits.regions_max = 1;
    options.workers = 4;
    let mut stage = Stage::with(options);
    let mut raw = Raw::open(&stage.path);
    for id in [1, 2] {
        raw.send(&raw::call(id, Place::inline(64), b"gate", b""));
    }
    raw.send(&raw::call(3, Place::NONE, b"echo", b""));
    let refused = raw.reply();
    assert_eq!((refused.id, refused.code), (3, raw::RESOURCE_EXHAUSTED));
    let file = super::descriptor::sealed(4096);
    for region in [1, 2] {
        raw.send_with(&raw::register(region, 4096), &[file.as_fd()]);
    }
    let codes = [raw.registered().code, raw.registered().code];
    assert_eq!(codes, [raw::OK, raw::RESOURCE_EXHAUSTED]);
    for _ in 0..2 {
        stage.arrived.recv().unwrap();
        stage.gate.send(()).unwrap();
        assert_eq!(raw.reply().code, raw::OK);
    }
    stage.honest_calls();
}

/// A client that is not wanted is told so; what it sent meanwhile is closed unread.
#[test]
fn a_refused_client_leaves_nothing_behind() {
    isolated("hostile::peers::a_refused_client_leaves_nothing_behind", || {
        let mut stage = Stage::new();
        let path = stage.folder.path().join("closed");
        let policy = peer_policy(|_| Err("nobody is welcome".into()));
        let options = ServerOptions { policy: Some(policy), ..ServerOptions::default() };
        let closed = Server::bind_with(&path, options).unwrap();
        let closed = closed.start(|_: &mut _| Ok(())).unwrap();
        stage.census = super::Census::take();
        let file = super::descriptor::sealed(4096);
        let refused = super::rounds(200, 10_000);
        for _ in 0..refused {
            let mut raw = Raw::connect(&path);
            raw.send_with(&raw::register(1, 4096), &[file.as_fd()]);
            let goodbye = raw.goodbye();
            assert_eq!(goodbye.code, raw::PERMISSION_DENIED);
            assert_eq!(goodbye.message, "nobody is welcome");
        }
        let error = DirectClient::connect(&path).unwrap_err();
        assert!(matches!(error, Error::PeerRefused(_)), "{error}");
        drop(file);
        assert_eq!(closed.stats().connections_refused, refused as u64 + 1);
        stage.ends_clean();
    });
}

/// A path of `bytes` bytes inside `folder`.
fn path_of(folder: &Path, bytes: usize) -> PathBuf {
    let name = bytes - folder.as_os_str().len() - 1;
    folder.join("s".repeat(name))
}

#[test]
fn paths_that_no_socket_can_have_are_refused_whole() {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let longest = path_of(folder.path(), 107);
    let server = Server::bind(&longest).unwrap().start(|_: &mut _| Ok(())).unwrap();
    DirectClient::connect(&longest).unwrap();
    let entries = || std::fs::read_dir(folder.path()).unwrap().count();
    let before = entries();
    for bytes in [108, 109, 200] {
        let path = path_of(folder.path(), bytes);
        let refusals = [
            Server::bind(&path).unwrap_err(),
            DirectClient::connect(&path).unwrap_err(),
            Client::connect(&path).unwrap_err(),
        ];
        for refused in refusals {
            let text = refused.to_string();
            assert!(matches!(refused, Error::Misuse(_)), "{text}");
            assert!(text.contains("107") && text.contains(&bytes.to_string()), "{text}");
        }
    }
    let with_nul = folder.path().join("a\0b");
    for refused in
        [Server::bind(&with_nul).unwrap_err(), DirectClient::connect(&with_nul).unwrap_err()]
    {
        assert!(refused.to_string().contains("NUL"), "{refused}");
    }
    assert_eq!(entries(), before, "nothing was made under a shorter name");
    drop(server);
    eventually("the socket file and its lock go", || entries() == 0);
}
