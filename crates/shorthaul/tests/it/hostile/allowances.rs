//! What the connections of one user may have together: a call over it fails, and nothing else.

use std::io::Write;
use std::thread;
use std::time::Duration;

use shorthaul::ServerOptions;

use super::raw::{self, Place, Raw};
use super::{Stage, eventually, isolated};

/// Room for what the honest client moves, and for little more.
const INLINE_BYTES_MAX: usize = 1 << 20;
const LARGE: usize = 700 << 10;

fn stage() -> Stage {
    let mut options = ServerOptions::default();
    options.user_limits.inline_bytes_max = INLINE_BYTES_MAX as u64;
    Stage::with(options)
}

#[test]
fn an_upload_over_the_inline_allowance_fails_alone() {
    isolated("hostile::allowances::an_upload_over_the_inline_allowance_fails_alone", || {
        let mut stage = stage();
        let mut raw = Raw::open(&stage.path);
        // Over it by one byte, and so large that it is passed over in many portions.
        for bytes in [INLINE_BYTES_MAX + 1, 20 * INLINE_BYTES_MAX] {
            let late = raw::call_with(1, Place::NONE, b"echo", b"", &vec![1; bytes]);
            let next = raw::call(2, Place::NONE, b"echo", b"next");
            raw.send(&[late, next].concat());
            let refused = raw.reply();
            assert_eq!((refused.id, refused.code), (1, raw::RESOURCE_EXHAUSTED));
            assert!(refused.message.contains(&bytes.to_string()), "{}", refused.message);
            let next = raw.reply();
            assert_eq!((next.id, next.code, &next.response[..]), (2, raw::OK, &b"next"[..]));
        }
        // All of it may be had, again and again.
        for id in 0..4 {
            let whole = vec![1; INLINE_BYTES_MAX];
            raw.send(&raw::call_with(id, Place::NONE, b"unknown", b"", &whole));
            assert_eq!(raw.reply().code, raw::UNIMPLEMENTED);
        }
        drop(raw);
        stage.ends_clean();
    });
}

#[test]
fn an_answer_over_the_inline_allowance_fails_alone() {
    let mut stage = stage();
    let mut raw = Raw::open(&stage.path);
    let bytes = INLINE_BYTES_MAX as u64 + 1;
    raw.send(&raw::fill(1, Place::inline(bytes), bytes, 1));
    assert_eq!(raw.reply().code, raw::RESOURCE_EXHAUSTED);
    for id in 0..4 {
        let bytes = INLINE_BYTES_MAX as u64;
        raw.send(&raw::fill(id, Place::inline(bytes), bytes, 1));
        let filled = raw.reply();
        assert_eq!((filled.code, filled.payload.len()), (raw::OK, INLINE_BYTES_MAX));
    }
    stage.honest_calls();
}

#[test]
fn connections_of_one_user_share_its_inline_allowance() {
    let mut stage = stage();
    let (mut first, mut second) = (Raw::open(&stage.path), Raw::open(&stage.path));
    let large = vec![1; LARGE];
    first.send(&raw::call_with(1, Place::inline(64), b"gate", b"", &large));
    stage.arrived.recv().unwrap();
    second.send(&raw::call_with(1, Place::NONE, b"unknown", b"", &large));
    assert_eq!(second.reply().code, raw::RESOURCE_EXHAUSTED);
    stage.honest_calls();
    stage.gate.send(()).unwrap();
    assert_eq!(first.reply().response, b"opened");
    // What a call has held is given back behind its answer.
    eventually("there is room again", || {
        second.send(&raw::call_with(2, Place::NONE, b"unknown", b"", &large));
        second.reply().code == raw::UNIMPLEMENTED
    });
}

#[test]
fn connections_of_one_user_share_its_calls() {
    let mut options = ServerOptions { workers: 4, ..ServerOptions::default() };
    options.user_limits.calls_max = 3;
    let mut stage = Stage::with(options);
    let (mut first, mut second) = (Raw::open(&stage.path), Raw::open(&stage.path));
    for id in 0..3 {
        first.send(&raw::call(id, Place::inline(64), b"gate", b""));
        stage.arrived.recv().unwrap();
    }
    second.send(&raw::call(1, Place::NONE, b"echo", b"one"));
    let refused = second.reply();
    assert_eq!((refused.id, refused.code), (1, raw::RESOURCE_EXHAUSTED));
    assert!(refused.message.contains("3 calls"), "{}", refused.message);
    (0..3).for_each(|_| stage.gate.send(()).unwrap());
    (0..3).for_each(|_| assert_eq!(first.reply().code, raw::OK));
    second.send(&raw::call(1, Place::NONE, b"echo", b"one"));
    assert_eq!(second.reply().response, b"one");
    stage.honest_calls();
}

/// Responses wait to be written as payloads do: who doesn't read them is read no more calls from.
#[test]
fn responses_that_nobody_reads_are_bounded() {
    const CALLS: u64 = 1000;
    let mut stage = Stage::new();
    let mut raw = Raw::open(&stage.path);
    let mut writing = raw.socket.try_clone().unwrap();
    let sending = thread::spawn(move || {
        for id in 0..CALLS {
            writing.write_all(&raw::call(id, Place::NONE, b"echo", &[id as u8; 65_536])).unwrap();
        }
    });
    let (mut taken, mut before) = (0, u64::MAX);
    eventually("the server takes no more", || {
        thread::sleep(Duration::from_millis(300));
        before = std::mem::replace(&mut taken, stage.server.stats().calls);
        taken == before
    });
    // Four mebibytes of responses, the calls that may be open, and what one read brings.
    assert!((64..300).contains(&taken), "{taken} calls were taken");
    stage.honest_calls();
    for _ in 0..CALLS {
        let reply = raw.reply();
        assert!(reply.response.iter().all(|&byte| byte == reply.id as u8));
    }
    sending.join().unwrap();
}
