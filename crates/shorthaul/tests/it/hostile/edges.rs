//! Frames that come in odd portions, and ends that come at odd moments.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::Duration;

use shorthaul::DirectClient;
use shorthaul_platform::usage::process_cpu_time;

use super::raw::{self, Place, Raw};
use super::{Stage, isolated, pattern, rounds};
use crate::child::Process;
use crate::service::request;

/// The slowest sender that keeps to the rules.
#[test]
fn a_byte_each_millisecond_is_as_good_as_any() {
    let mut stage = Stage::new();
    let memory = super::descriptor::sealed(4096);
    let mut raw = Raw::connect(&stage.path);
    let register = raw::register(1, 4096);
    let call = raw::call_with(2, Place::inline(100), b"echo", b"request", b"payload");
    let fill = raw::fill(3, Place::region(1, 64, 100), 100, 9);
    for (frame, file) in [
        (raw::hello(), None),
        (register, Some(memory.as_fd())),
        (call, None),
        (raw::of_id(raw::CANCEL, 2), None),
        (fill, None),
        (raw::of_id(raw::RELEASE, 1), None),
    ] {
        let mut files = file.into_iter().collect::<Vec<_>>();
        for byte in frame {
            raw.send_with(&[byte], &files);
            files.clear();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    raw.expect(raw::HELLO);
    assert_eq!(raw.registered().code, raw::OK);
    let mut replies = [raw.reply(), raw.reply()];
    replies.sort_by_key(|reply| reply.id);
    assert_eq!(replies[0].payload, b"payload");
    assert_eq!((replies[1].code, replies[1].payload_bytes), (raw::OK, 100));
    super::descriptor::check_bytes(&memory, 64, &pattern(100, 9));
    stage.honest_calls();
}

/// Frames that end exactly where a read of the server's does, or a byte before or behind, and then
/// nothing: each is answered without another byte.
#[test]
fn a_frame_that_ends_with_a_read_is_answered() {
    let mut stage = Stage::new();
    let mut raw = Raw::open(&stage.path);
    let head = raw::call(1, Place::NONE, b"echo", b"").len();
    for total in [STAGING, 2 * STAGING, 4 * STAGING] {
        for total in [total - 1, total, total + 1] {
            // One large frame, and a small one in front of it.
            for small in [0, 1, 40] {
                let first = raw::call(1, Place::NONE, b"echo", &vec![1; small]);
                let first = if small == 0 { Vec::new() } else { first };
                let rest = vec![2; total - first.len() - head];
                let second = raw::call(2, Place::NONE, b"echo", &rest);
                let both = [&first[..], &second].concat();
                assert_eq!(both.len(), total);
                raw.send(&both);
                let mut answers = vec![raw.reply()];
                if small > 0 {
                    answers.push(raw.reply());
                }
                answers.sort_by_key(|reply| reply.id);
                assert!(answers.pop().unwrap().response == rest, "{total}");
                assert!(answers.pop().is_none_or(|reply| reply.response == vec![1; small]));
                // And as bulk behind the body.
                let bulk = vec![3; total - head];
                raw.send(&raw::call_with(3, Place::inline(1 << 20), b"echo", b"", &bulk));
                assert!(raw.reply().payload == bulk, "{total}");
            }
        }
    }
    stage.honest_calls();
}

/// A client that has shut its side and waits is waited with, not for: the reactor sleeps.
#[test]
fn a_half_closed_client_that_waits_costs_no_time() {
    isolated("hostile::edges::a_half_closed_client_that_waits_costs_no_time", || {
        let mut stage = Stage::new();
        let mut raw = Raw::open(&stage.path);
        raw.send(&raw::call(2, Place::inline(64), b"gate", b""));
        raw.socket.shutdown(Shutdown::Write).unwrap();
        stage.arrived.recv().unwrap();
        let this = std::process::id();
        let before = process_cpu_time(this).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let used = process_cpu_time(this).unwrap() - before;
        // A loop that spins takes all of it, unless others do.
        assert!(used < Duration::from_millis(300), "{used:?}");
        stage.gate.send(()).unwrap();
        assert_eq!(raw.reply().response, b"opened");
        raw.end();
        drop(raw);
        stage.ends_clean();
    });
}

/// Clients that are gone when their answers are written, and a server whose process has the signals
/// of one that never heard of Rust: SIGPIPE would end it.
#[test]
fn clients_that_do_not_wait_for_their_answers_end_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut server = Process::start("relays", &path);
    assert_eq!(server.hear(), "serving");
    let bytes = 2 << 20;
    for round in 0..rounds(100, 5000) as u64 {
        let asked = request(bytes, 1);
        let mut raw = Raw::open_with(&path, raw::SEALED);
        let place = [Place::inline(bytes as u64), Place::sealed(bytes as u64)][round as usize % 2];
        (0..4).for_each(|id| raw.send(&raw::call(id, place, b"copy", &asked)));
        if round % 3 == 0 {
            std::thread::sleep(Duration::from_micros(round * 41 % 900));
        }
    }
    let mut client = DirectClient::connect(&path).unwrap();
    let asked = request(bytes, 3);
    let reply = client.call("copy").request(&asked).inline(bytes).send().unwrap();
    assert_eq!(reply.len(), bytes);
    server.kill();
}

/// What the library reads at a time.
const STAGING: usize = 16 << 10;
