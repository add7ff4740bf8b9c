//! Many at once, and things given up more often than they were had.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use shorthaul::ServerOptions;
use shorthaul::limits::UserLimits;

use super::descriptor::{sealed, subject};
use super::raw::{self, Place, Raw};
use super::{Stage, eventually, isolated, pattern, rounds};
use crate::service::PATIENCE;

/// A thousand frames that never end, each with a descriptor, over 64 connections at a time.
#[test]
fn half_frames_with_descriptors_leave_nothing() {
    isolated("hostile::crowds::half_frames_with_descriptors_leave_nothing", || {
        let mut options = ServerOptions::default();
        options.user_limits = UserLimits { connections_max: 65, ..options.user_limits };
        let mut stage = Stage::with(options);
        let file = sealed(4096);
        for round in 0..rounds(16, 160) {
            let mut crowd: Vec<Raw> = (0..64).map(|_| open_at_last(&stage.path)).collect();
            for (index, raw) in crowd.iter_mut().enumerate() {
                let frame = if index % 2 == 0 {
                    raw::register(1, 4096)
                } else {
                    raw::call_with(1, Place::one_shot(4096), b"echo", b"request", &[1; 5000])
                };
                // Cut in its header, its body, its payload.
                let cut = [1, 15, 16, 20, frame.len() - 1][(round + index) % 5];
                raw.send_with(&frame[..cut], &[file.as_fd()]);
            }
            // One more than the user may have.
            let goodbye = Raw::connect(&stage.path).goodbye();
            assert_eq!(goodbye.code, raw::RESOURCE_EXHAUSTED, "{goodbye:?}");
            stage.honest_calls();
            if round % 2 == 0 {
                crowd.iter().for_each(|raw| raw.socket.shutdown(Shutdown::Write).unwrap());
                crowd.iter_mut().for_each(Raw::end);
            }
            drop(crowd);
            eventually("all are gone", || stage.server.stats().connections == 1);
        }
        drop(file);
        stage.ends_clean();
    });
}

/// A client that has exchanged hellos, at the latest when the sockets of earlier ones are closed,
/// which count until then.
fn open_at_last(path: &Path) -> Raw {
    let by = Instant::now() + PATIENCE;
    loop {
        let mut raw = Raw::connect(path);
        raw.send(&raw::hello());
        let frame = raw.next().unwrap();
        if frame.kind == raw::HELLO {
            return raw;
        }
        assert!(frame.kind == raw::GOODBYE && Instant::now() < by, "{frame:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Of many calls under way, those with bad descriptors fail.
#[test]
fn one_bad_descriptor_among_many_calls_fails_alone() {
    isolated("hostile::crowds::one_bad_descriptor_among_many_calls_fails_alone", || {
        let mut stage = Stage::with(ServerOptions { workers: 4, ..ServerOptions::default() });
        let (good, bad) = (sealed(4096), tempfile::tempfile().unwrap());
        let bad = subject("regular file", bad, "the ").descriptor;
        let mut raw = Raw::open(&stage.path);
        for round in 0..rounds(100, 1000) {
            for id in 0..100 {
                let is_bad = (id + round as u64).is_multiple_of(9);
                let file = if is_bad { &bad } else { &good };
                let call = raw::fill(id, Place::one_shot(4096), 4096, 5);
                raw.send_with(&call, &[file.as_fd()]);
            }
            for _ in 0..100 {
                let reply = raw.reply();
                let is_bad = (reply.id + round as u64).is_multiple_of(9);
                let code = if is_bad { raw::INVALID_ARGUMENT } else { raw::OK };
                assert_eq!(reply.code, code, "{reply:?}");
            }
            super::descriptor::check_bytes(&good, 0, &pattern(4096, 5));
        }
        drop((raw, good, bad));
        stage.ends_clean();
    });
}

/// A region is its connection's: others can't name it, fill it or give it up, and to give it up
/// twice, or as often as one likes, takes nothing from anybody.
#[test]
fn what_is_given_up_twice_or_by_others_is_no_loss() {
    isolated("hostile::crowds::what_is_given_up_twice_or_by_others_is_no_loss", || {
        let mut stage = Stage::new();
        let (mut owner, file) = super::descriptor::registered(&stage);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let path = &stage.path;
                scope.spawn(move || {
                    let mut other = Raw::open(path);
                    for id in 0..rounds(2000, 20_000) as u64 {
                        other.send(&raw::of_id(raw::RELEASE, 1));
                        other.send(&raw::of_id(raw::CANCEL, id));
                        if id % 100 == 0 {
                            other.send(&raw::fill(1, Place::region(1, 0, 64), 64, 66));
                            assert_eq!(other.reply().code, raw::NOT_FOUND);
                        }
                    }
                    other.send(&raw::call(1, Place::NONE, b"echo", b"alive"));
                    assert_eq!(other.reply().response, b"alive");
                });
            }
            for seed in 0..200 {
                owner.send(&raw::fill(1, Place::region(1, 0, 5000), 5000, seed));
                assert_eq!(owner.reply().payload_bytes, 5000);
                super::descriptor::check_bytes(&file, 0, &pattern(5000, seed));
            }
        });
        // Its owner, twice; and while a call is under way.
        owner.send(&raw::call(1, Place::region(1, 0, 64), b"gate", b""));
        stage.arrived.recv().unwrap();
        (0..1000).for_each(|_| owner.send(&raw::of_id(raw::RELEASE, 1)));
        owner.send(&raw::fill(2, Place::region(1, 0, 64), 64, 1));
        assert_eq!(owner.reply().code, raw::NOT_FOUND);
        stage.gate.send(()).unwrap();
        assert_eq!(owner.reply().payload_bytes, 64);
        for _ in 0..3 {
            owner.send_with(&raw::register(1, 4096), &[file.as_fd()]);
            assert_eq!(owner.registered().code, raw::OK, "the user's account has come out even");
            (0..2).for_each(|_| owner.send(&raw::of_id(raw::RELEASE, 1)));
        }
        drop((owner, file));
        stage.ends_clean();
    });
}
