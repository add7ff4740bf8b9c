//! Slow sinks and sources, deadlines and cancels: waiting, but not spinning, and not for ever.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;
use rustix::net::sockopt::{self, Timeout};
use shorthaul::relay::{Cancel, Fault, Method, Relay};

use super::ends::{From, Giving, tcp_pair};
use super::{MOVING, assert_same, pattern, relay};

/// A sink of some kind, and its other end, which nobody reads yet.
fn sinks() -> Vec<(&'static str, OwnedFd, OwnedFd)> {
    let mut sinks = Vec::new();
    for is_nonblocking in [false, true] {
        let (tcp, tcp_reader) = tcp_pair();
        let (unix, unix_reader) = UnixStream::pair().unwrap();
        let (pipe_reader, pipe) = rustix::pipe::pipe().unwrap();
        for (name, sink, reader) in [
            ("tcp", tcp.into(), tcp_reader.into()),
            ("unix", unix.into(), unix_reader.into()),
            ("pipe", pipe, pipe_reader),
        ] {
            ioctl_fionbio(&sink, is_nonblocking).unwrap();
            sinks.push((name, sink, reader));
        }
    }
    sinks
}

fn methods() -> impl Iterator<Item = Method> {
    MOVING.into_iter().filter(|&method| method != Method::CopyFileRange)
}

/// What comes at a reader's end: as many bytes as were relayed, and not one more.
fn drain(reader: OwnedFd, bytes: u64) -> Vec<u8> {
    ioctl_fionbio(&reader, false).unwrap();
    let mut reader = File::from(reader);
    let mut got = vec![0; bytes as usize];
    reader.read_exact(&mut got).unwrap();
    ioctl_fionbio(&reader, true).unwrap();
    assert_eq!(reader.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    got
}

/// A sink that nobody reads: the deadline ends it, and the count is what lies there.
#[test]
fn a_deadline_ends_the_wait_for_any_sink() {
    let content = pattern(64 << 20, 6);
    let source = Giving::new(From::Tmpfs, &content);
    for method in methods() {
        for (name, sink, reader) in sinks() {
            let began = Instant::now();
            let mut relay = relay(method, 1 << 20).deadline(Duration::from_millis(150));
            let error = relay.run(&source, .., &sink).unwrap_err();
            let what = format!("{method} to {name}: {error}");
            assert!(matches!(error.fault, Fault::DeadlineExceeded), "{what}");
            assert!(began.elapsed() >= Duration::from_millis(150), "{what}");
            assert_eq!(sockopt::socket_timeout(&sink, Timeout::Send).unwrap_or(None), None);
            let got = drain(reader, error.relayed.bytes);
            assert_same(&got, &content[..got.len()], &what);
        }
    }
}

#[test]
fn a_cancel_ends_the_wait_for_any_sink() {
    let source = Giving::new(From::Tmpfs, &vec![6; 64 << 20]);
    for method in methods() {
        for (name, sink, reader) in sinks() {
            let cancel = Cancel::new().unwrap();
            let mut relay = relay(method, 1 << 20).cancel(&cancel);
            let outcome = thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(30));
                    cancel.cancel();
                });
                relay.run(&source, .., &sink)
            });
            let error = outcome.unwrap_err();
            assert!(matches!(error.fault, Fault::Cancelled), "{method} to {name}: {error}");
            drain(reader, error.relayed.bytes);
            // It stays cancelled.
            assert_eq!(relay.run(&source, .., &sink).unwrap_err().relayed.bytes, 0);
        }
    }
}

#[test]
fn a_deadline_ends_the_wait_for_any_source() {
    let (unix, _unix_writer) = UnixStream::pair().unwrap();
    let (tcp, _tcp_writer) = tcp_pair();
    let (pipe, _pipe_writer) = rustix::pipe::pipe().unwrap();
    let sources = [OwnedFd::from(unix), OwnedFd::from(tcp), pipe];
    let null = File::options().write(true).open("/dev/null").unwrap();
    let (unix_sink, _reader) = UnixStream::pair().unwrap();
    for method in [Method::Auto, Method::ReadWrite, Method::Splice] {
        for source in &sources {
            for sink in [null.as_fd(), unix_sink.as_fd()] {
                let mut relay = relay(method, 4096).deadline(Duration::from_millis(30));
                let error = relay.run(source, .., sink).unwrap_err();
                assert!(matches!(error.fault, Fault::DeadlineExceeded), "{method}: {error}");
            }
        }
    }
}

/// Whoever waits for bytes that don't come must see that nobody wants them any more.
#[test]
fn a_sink_that_hangs_up_ends_the_wait_for_the_source() {
    for method in [Method::Auto, Method::ReadWrite] {
        for (name, sink, reader) in sinks() {
            if name == "tcp" {
                // It tells no more than the end of what comes from there.
                continue;
            }
            let (source, _writer) = UnixStream::pair().unwrap();
            let mut relay = relay(method, 4096).deadline(Duration::from_secs(60));
            let outcome = thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(30));
                    drop(reader);
                });
                relay.run(&source, .., &sink)
            });
            let error = outcome.unwrap_err();
            assert!(matches!(error.fault, Fault::SinkClosed), "{method} to {name}: {error}");
        }
    }
}

/// A small socket buffer and a reader that takes 4 KiB each 5 ms, as bad as it gets. A relay that
/// spins makes thousands of calls for each of those.
#[test]
fn slow_readers_get_every_byte_and_are_not_asked_all_the_time() {
    let content = pattern(400_000, 8);
    thread::scope(|scope| {
        for method in methods() {
            for (name, sink, reader) in sinks() {
                let content = &content;
                if name != "pipe" {
                    sockopt::set_socket_send_buffer_size(&sink, 1).unwrap();
                }
                scope.spawn(move || {
                    let reader = scope.spawn(move || read_slowly(reader));
                    let source = Giving::new(From::Tmpfs, content);
                    let relayed = relay(method, 1 << 20).run(&source, .., &sink).unwrap();
                    assert!(relayed.calls < 2000, "{method} to {name}: {relayed:?}");
                    drop(sink);
                    let got = reader.join().unwrap();
                    assert_same(&got, content, &format!("{method} to {name}"));
                });
            }
        }
    });
}

fn read_slowly(reader: OwnedFd) -> Vec<u8> {
    let mut got = Vec::new();
    let mut reader = File::from(reader);
    let mut part = [0; 4096];
    loop {
        match reader.read(&mut part).unwrap() {
            0 => return got,
            read => got.extend_from_slice(&part[..read]),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// System calls tell whether somebody spins: a wait is one.
#[test]
fn a_wait_is_a_few_calls() {
    for (name, sink, reader) in sinks() {
        let source = Giving::new(From::Tmpfs, &vec![6; 64 << 20]);
        for method in methods() {
            let mut relay = relay(method, 1 << 20).deadline(Duration::from_millis(200));
            let error = relay.run(&source, .., &sink).unwrap_err();
            assert!(error.relayed.calls < 200, "{method} to {name}: {:?}", error.relayed);
        }
        drop(reader);
    }
}

#[test]
fn progress_is_told_in_order_and_up_to_the_end() {
    let source = Giving::new(From::File, &pattern(1_000_000, 6));
    for method in MOVING {
        let seen = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&seen);
        let mut relay = relay(method, 65_536).on_progress(move |progress| {
            assert_eq!(progress.bytes_in_all, Some(1_000_000));
            assert!(progress.bytes > told.swap(progress.bytes, Ordering::Relaxed));
        });
        relay.run(&source, .., tempfile::tempfile().unwrap()).unwrap();
        assert_eq!(seen.load(Ordering::Relaxed), 1_000_000, "{method}");
    }
}

/// Two that read one pipe: one has taken the bytes that the other was told of.
#[test]
fn two_relays_from_one_pipe_lose_nothing() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let barrier = Barrier::new(2);
    let relayed: u64 = thread::scope(|scope| {
        let takers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    let sink = tempfile::tempfile().unwrap();
                    Relay::new().run(&reader, .., &sink).unwrap().bytes
                })
            })
            .collect();
        File::from(writer).write_all(&pattern(1_000_000, 2)).unwrap();
        takers.into_iter().map(|taker| taker.join().unwrap()).sum()
    });
    assert_eq!(relayed, 1_000_000);
}

/// The first one to end gives the socket its own mode back, and not under the other's feet.
#[test]
fn a_relay_that_ends_leaves_another_one_its_deadline() {
    for method in [Method::Splice, Method::SendFile] {
        let (sink, mut reader) = UnixStream::pair().unwrap();
        let second_sink = sink.try_clone().unwrap();
        let file = temporary_zeros(4 << 20);
        let second_file = file.try_clone().unwrap();
        let (ended, end) = std::sync::mpsc::channel();
        let mut first = Relay::new().method(method).deadline(Duration::from_millis(300));
        let mut second = Relay::new().method(method).deadline(Duration::from_millis(700));
        let running = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            ended.send(second.run(&second_file, .., &second_sink)).unwrap();
        });
        let relayed = first.run(&file, .., &sink).unwrap_err().relayed.bytes;
        // Room for a part of what the second one gives next.
        reader.read_exact(&mut vec![0; relayed as usize]).unwrap();
        let error = end.recv_timeout(Duration::from_secs(10)).expect("it has an end").unwrap_err();
        assert!(matches!(error.fault, Fault::DeadlineExceeded), "{error}");
        running.join().unwrap();
        let left = sockopt::socket_timeout(&sink, Timeout::Send);
        assert_eq!(left, Ok(None));
    }
}

fn temporary_zeros(bytes: u64) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    file
}
