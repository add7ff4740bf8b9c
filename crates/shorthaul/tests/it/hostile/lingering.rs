//! Descriptors whose closing waits for the other side: sockets that linger, sent where nobody takes
//! them. Whoever closes them waits; nobody who serves others may.

use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::sockopt;
use shorthaul::{Client, ClientOptions, DirectClient, ServerOptions, peer_policy};

use super::raw::{self, Place, Raw};
use super::{Census, PATIENCE, Stage, eventually, isolated, pattern};

/// A socket whose last close waits for far longer than any test, and the end that it waits for.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (reader, _) = listener.accept().unwrap();
    ours.set_nonblocking(true).unwrap();
    let block = [0; 1 << 16];
    // Until neither side's buffers take more.
    for _ in 0..2 {
        loop {
            match ours.write(&block) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    ours.set_nonblocking(false).unwrap();
    sockopt::set_socket_linger(&ours, Some(LINGER)).unwrap();
    (ours, reader)
}

/// Sends what `send` sends into a connection that nobody serves yet, with the only copy of a socket
/// that lingers; then has it served. Returns the end that keeps it lingering.
fn adopted_with(stage: &mut Stage, send: impl FnOnce(&mut Raw, &TcpStream)) -> (Raw, TcpStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut raw = Raw::over(ours);
    let (socket, reader) = lingering();
    send(&mut raw, &socket);
    drop(socket);
    stage.server.adopt(theirs);
    (raw, reader)
}

/// Others are served, and what they give back is let go of, while sockets linger.
fn others_are_served(stage: &mut Stage) {
    let mut client = DirectClient::connect(&stage.path).unwrap();
    for seed in 0..3 {
        let mut request = 5000_u64.to_le_bytes().to_vec();
        request.push(seed);
        let call = client.call("fill").request(&request).into_fresh(5000);
        let reply = call.deadline(PATIENCE).send().unwrap();
        assert!(reply.to_vec() == pattern(5000, seed));
    }
    let call = client.call("echo").request(b"alive").deadline(PATIENCE);
    assert_eq!(call.send().unwrap().response(), b"alive");
    drop(client);
    stage.honest_calls();
    eventually("what others gave back goes", || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // The honest client's one buffer, on both sides.
        maps.lines().filter(|line| line.contains("memfd:")).count() <= stage.census.mappings
    });
    eventually("connections end", || stage.server.stats().connections <= 2);
}

fn one_reactor() -> ServerOptions {
    ServerOptions { reactors: 1, ..ServerOptions::default() }
}

/// The kernel closes what there is no room for, on the thread that receives.
#[test]
fn more_descriptors_than_are_received_hold_nobody_up() {
    isolated("hostile::lingering::more_descriptors_than_are_received_hold_nobody_up", || {
        let mut stage = Stage::with(one_reactor());
        let mut kept = Vec::new();
        for before in [0, 1, 4, 8, 14, 15] {
            let harmless = std::fs::File::open("/dev/null").unwrap();
            kept.push(adopted_with(&mut stage, |raw, socket| {
                raw.send(&raw::hello());
                let mut many = vec![harmless.as_fd(); before];
                many.push(socket.as_fd());
                raw.send_with(&raw::register(1, 4096), &many);
            }));
            others_are_served(&mut stage);
        }
        let (first, _) = &mut kept[0];
        first.expect(raw::HELLO);
        assert_eq!(first.registered().code, raw::INVALID_ARGUMENT);
        for (raw, _) in &mut kept[1..] {
            assert_eq!(raw.goodbye().code, raw::INVALID_ARGUMENT);
        }
        drop(kept);
        stage.ends_clean();
    });
}

/// What is still in a socket goes with it, on the thread that closes the socket.
#[test]
fn descriptors_that_nobody_reads_hold_nobody_up() {
    isolated("hostile::lingering::descriptors_that_nobody_reads_hold_nobody_up", || {
        let mut stage = Stage::with(one_reactor());
        let mut kept = Vec::new();
        for _ in 0..3 {
            kept.push(adopted_with(&mut stage, |raw, socket| {
                raw.send(&raw::hello());
                // The end of the connection, and behind it what nobody looks at.
                raw.send(&raw::of_id(raw::CANCEL, 1)[..15]);
                raw.send(&[0; 4096 + 1]);
                raw.send(&[0xff; 32 << 10]);
                raw.send_with(&raw::register(1, 4096), &[socket.as_fd()]);
            }));
            others_are_served(&mut stage);
        }
        drop(kept);
        stage.ends_clean();
    });
}

#[test]
fn a_client_that_is_refused_holds_nobody_up() {
    isolated("hostile::lingering::a_client_that_is_refused_holds_nobody_up", || {
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&is_closed);
        let (gate, opened) = channel::<()>();
        let opened = Mutex::new(opened);
        let policy = peer_policy(move |_| {
            if !closed.load(Ordering::Relaxed) {
                return Ok(());
            }
            opened.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            Err("not you".into())
        });
        let mut stage = Stage::with(ServerOptions { policy: Some(policy), ..one_reactor() });
        let mut kept = Vec::new();
        for _ in 0..3 {
            is_closed.store(true, Ordering::Relaxed);
            let mut raw = Raw::connect(&stage.path);
            let (socket, reader) = lingering();
            raw.send_with(&raw::call(1, Place::one_shot(1), b"echo", b""), &[socket.as_fd()]);
            drop(socket);
            gate.send(()).unwrap();
            let goodbye = raw.next().expect("a goodbye");
            assert_eq!(goodbye.kind, raw::GOODBYE);
            is_closed.store(false, Ordering::Relaxed);
            others_are_served(&mut stage);
            kept.push((raw, reader));
        }
        drop(kept);
        stage.ends_clean();
    });
}

/// A server that sends what nobody reads, and a client that is done with it.
#[test]
fn a_client_that_leaves_is_not_held_up_by_its_server() {
    for is_direct in [true, false] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut server = Raw::over(ours);
        let (socket, reader) = lingering();
        server.send(&raw::hello());
        // The end of the connection, and behind it what nobody looks at.
        server.send(&raw::hello());
        server.send(&[0xff; 32 << 10]);
        server.send_with(b"x", &[socket.as_fd()]);
        drop(socket);
        let (left, has_left) = channel();
        std::thread::spawn(move || {
            let options = ClientOptions::default();
            if is_direct {
                let mut client = DirectClient::from_stream(theirs, &options).unwrap();
                client.call("echo").send().unwrap_err();
            } else {
                let client = Client::from_stream(theirs, &options).unwrap();
                client.call("echo").send().unwrap_err();
            }
            left.send(()).unwrap();
        });
        has_left.recv_timeout(PATIENCE).expect("it leaves");
        // The last copy of the socket is gone from the client's threads alone.
        while server.next().is_some() {}
        drop((server, reader));
    }
}

/// Longer than everything else takes together.
const LINGER: Duration = Duration::from_secs(600);

/// More of them than threads that could wait: all are closed while their other ends take nothing.
#[test]
fn sockets_that_linger_pile_up_nowhere() {
    isolated("hostile::lingering::sockets_that_linger_pile_up_nowhere", || {
        let mut stage = Stage::with(one_reactor());
        let mut raw = Raw::open(&stage.path);
        let mut readers = Vec::new();
        for id in 0..12 {
            let (socket, reader) = lingering();
            let call = raw::fill(id, Place::given(100), 100, 1);
            raw.send_with(&call[..20], &[socket.as_fd()]);
            // The last copy is the server's.
            drop(socket);
            raw.send(&call[20..]);
            assert_eq!(raw.reply().code, raw::PERMISSION_DENIED);
            readers.push(reader);
        }
        // Both ends of the connection are in this process.
        let allowed = stage.census.descriptors.len() + readers.len() + 2;
        eventually("all are closed", || Census::take().descriptors.len() <= allowed);
        drop((raw, readers));
        stage.ends_clean();
    });
}
