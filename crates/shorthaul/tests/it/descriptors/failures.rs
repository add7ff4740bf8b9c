//! Relays that end before their time: the caller learns exactly how much is in its descriptor, and
//! the worker is free again at once.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::net::sockopt::{self, Timeout};
use shorthaul::{
    Client, Code, Descriptors, DirectClient, InboundCall, Server, ServerOptions, Status,
};

use super::ends::{Sink, SinkKind};
use super::{SOURCES, again, expected, file_of, send_into, serve};
use crate::child::{Process, say};
use crate::service::{AnyClient, PATIENCE, Running, eventually, pattern, request, start};

/// More than any pipe or socket holds.
const BYTES: usize = 12 << 20;
const SHORT: Duration = Duration::from_millis(300);

/// A server with one worker for such calls: who keeps it keeps all the others of them waiting.
fn one_worker() -> ServerOptions {
    let descriptors = Descriptors::Any;
    ServerOptions { workers: 1, waiting_workers: 1, descriptors, ..ServerOptions::default() }
}

/// The worker does the next call, well before any patience is at its end.
fn worker_is_free(running: &Running) {
    let mut client = AnyClient::connect(&running.path, true).unwrap();
    let sink = Sink::new(SinkKind::Unix);
    let started = Instant::now();
    let asked = request(100_000, 9);
    send_into(&mut client, "relay file", &asked, &sink.descriptor, PATIENCE).unwrap();
    assert!(sink.finish() == pattern(100_000, 9));
    assert!(started.elapsed() < PATIENCE / 2);
}

/// All that is in a stream whose writers have gone.
fn rest_of(reader: &mut dyn Read) -> Vec<u8> {
    let mut found = Vec::new();
    // A socket whose peer was closed with bytes unread tells so after them.
    reader.read_to_end(&mut found).ok();
    found
}

#[test]
fn a_sink_that_nobody_reads() {
    let running = start(one_worker(), serve);
    let (mut calls, mut with_bytes) = (0, 0);
    for is_direct in [true, false] {
        let mut client = AnyClient::connect(&running.path, is_direct).unwrap();
        let methods = ["relay file", "relay memfd", "relay pipe", "copy"];
        let methods = if is_direct { &methods[..] } else { &methods[..1] };
        for kind in SinkKind::STREAMS {
            for method in methods {
                let (descriptor, mut reader) = kind.stream();
                let asked = request(BYTES, 5);
                let late = send_into(&mut client, method, &asked, &descriptor, SHORT).unwrap_err();
                assert_eq!(late.error().code(), Code::DeadlineExceeded, "{method}: {late}");
                let given = late.descriptor_bytes().expect("the server has said it") as usize;
                assert!(given < BYTES, "{method} into {kind:?}: {given}");
                (calls, with_bytes) = (calls + 1, with_bytes + usize::from(given > 0));
                assert_eq!(client.open_calls(), 0);
                drop(descriptor);
                let found = rest_of(&mut reader);
                assert_eq!(found.len(), given, "{method} into {kind:?}: {late}");
                assert!(found == pattern(BYTES, 5)[..given], "{method} into {kind:?}");
            }
            worker_is_free(&running);
        }
    }
    // On a busy machine some may not have begun in time.
    assert!(with_bytes > calls / 2, "{with_bytes} of {calls}");
}

#[test]
fn sinks_that_nobody_reads_hold_up_no_other_calls() {
    let running = start(one_worker(), serve);
    let client = Client::connect(&running.path).unwrap();
    let streams: Vec<_> = (0..4).map(|_| SinkKind::Pipe.stream()).collect();
    let asked = request(BYTES, 5);
    let call = |descriptor: &OwnedFd| {
        let call = client.call("relay file").request(&asked).deadline(PATIENCE);
        Client::start(call.into_descriptor(descriptor)).unwrap()
    };
    let pending: Vec<_> = streams.iter().map(|(descriptor, _)| call(descriptor)).collect();
    let mut other = DirectClient::connect(&running.path).unwrap();
    for round in 0..20 {
        let asked = request(100_000, round);
        let reply = other.call("copy").request(&asked).inline(100_000).send().unwrap();
        assert!(reply.to_vec() == pattern(100_000, round));
        // One of a connection that waits itself, too.
        let reply = client.call("copy").request(&asked).inline(100_000).send().unwrap();
        assert!(reply.to_vec() == pattern(100_000, round));
    }
    for ((descriptor, mut reader), pending) in streams.into_iter().zip(pending) {
        drop(descriptor);
        assert!(rest_of(&mut reader) == pattern(BYTES, 5));
        pending.wait().unwrap();
    }
}

#[test]
fn a_sink_that_is_read_too_slowly() {
    let running = start(one_worker(), serve);
    let mut client = AnyClient::connect(&running.path, false).unwrap();
    let (descriptor, mut reader) = SinkKind::Pipe.stream();
    let reading = thread::spawn(move || {
        let (mut piece, mut read) = ([0; 1000], 0);
        loop {
            match reader.read(&mut piece).unwrap() {
                0 => return read,
                bytes => read += bytes,
            }
            thread::sleep(Duration::from_millis(2));
        }
    });
    let asked = request(BYTES, 1);
    let late = send_into(&mut client, "relay file", &asked, &descriptor, SHORT).unwrap_err();
    assert_eq!(late.error().code(), Code::DeadlineExceeded);
    drop(descriptor);
    assert_eq!(Some(reading.join().unwrap() as u64), late.descriptor_bytes());
    worker_is_free(&running);
}

#[test]
fn a_call_taken_back_under_way() {
    let running = start(one_worker(), serve);
    let client = Client::connect(&running.path).unwrap();
    for kind in SinkKind::STREAMS {
        let (descriptor, mut reader) = kind.stream();
        let asked = request(BYTES, 1);
        let call = client.call("relay file").request(&asked);
        let pending = Client::start(call.into_descriptor(&descriptor)).unwrap();
        // It is under way.
        reader.read_exact(&mut [0]).unwrap();
        pending.cancel();
        eventually("the server lets go", PATIENCE, || client.open_calls() == 0);
        drop(descriptor);
        assert!(rest_of(&mut reader).len() < BYTES);
        worker_is_free(&running);
    }
}

#[test]
fn a_server_that_stops_waits_for_no_reader() {
    let (descriptor, mut reader) = SinkKind::Unix.stream();
    let asked = request(BYTES, 1);
    let running = start(one_worker(), serve);
    let client = Client::connect(&running.path).unwrap();
    let call = client.call("relay file").request(&asked);
    let pending = Client::start(call.into_descriptor(&descriptor)).unwrap();
    reader.read_exact(&mut [0]).unwrap();
    assert!(running.server.stop(SHORT), "its worker waits for the reader");
    let failed = pending.wait().unwrap_err();
    assert_eq!((failed.error().code(), failed.descriptor_bytes()), (Code::Unavailable, None));
}

#[test]
fn a_connection_that_is_lost_under_way() {
    let (sender, told) = channel();
    let sender = Mutex::new(sender);
    let running = start(one_worker(), move |call: &mut InboundCall| {
        let outcome = serve(call);
        if let Err(status) = &outcome {
            sender.lock().unwrap().send(status.code).unwrap();
        }
        outcome
    });
    for kind in SinkKind::STREAMS {
        let (descriptor, mut reader) = kind.stream();
        let path = running.path.clone();
        let sent = again(&descriptor);
        let client = Client::connect(path).unwrap();
        let asked = request(BYTES, 1);
        let call = client.call("relay file").request(&asked);
        let pending = Client::start(call.into_descriptor(&sent)).unwrap();
        reader.read_exact(&mut [0]).unwrap();
        // Not taken back: the connection goes with the call open.
        std::mem::forget(pending);
        drop(client);
        assert_eq!(told.recv_timeout(PATIENCE), Ok(Code::Cancelled), "{kind:?}");
        drop((descriptor, sent));
        assert!(rest_of(&mut reader).len() < BYTES);
        worker_is_free(&running);
    }
}

#[test]
fn a_reader_that_goes_away() {
    let running = start(one_worker(), serve);
    let mut client = AnyClient::connect(&running.path, true).unwrap();
    for kind in SinkKind::STREAMS {
        for source in SOURCES {
            let (descriptor, reader) = kind.stream();
            drop(reader);
            let (method, asked) = (format!("relay {source}"), request(BYTES, 1));
            let failed = send_into(&mut client, &method, &asked, &descriptor, PATIENCE);
            let code = match &failed {
                // TCP takes a little before it learns that nobody is there, and named pipes can't
                // take what tells no size.
                Ok(_) | Err(_) if ["proc", "sys"].contains(&source) => continue,
                Ok(reply) => panic!("{method} into {kind:?}: {reply:?}"),
                Err(failed) => failed.error().code(),
            };
            assert!([Code::Aborted, Code::InvalidArgument].contains(&code), "{failed:?}");
            assert!(failed.unwrap_err().descriptor_bytes().is_some());
        }
    }
    worker_is_free(&running);
}

/// What a child does that is there to be killed by a signal, and isn't: relays into what nobody
/// reads, with the signals of a program that never heard of Rust.
pub(crate) fn relay_to_nobody(path: &Path) {
    // SAFETY: no handler is installed, so that none can misbehave.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let options = ServerOptions { descriptors: Descriptors::Streams, ..ServerOptions::default() };
    let _server = Server::bind_with(path, options).unwrap().start(serve).unwrap();
    say("serving");
    thread::sleep(PATIENCE * 6);
}

#[test]
fn no_signal_ends_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut server = Process::start("relays", &path);
    assert_eq!(server.hear(), "serving");
    let mut client = DirectClient::connect(&path).unwrap();
    for kind in SinkKind::STREAMS {
        // Not out of a pipe: its writer, which is the handler's own, would get the signal.
        for method in ["relay file", "relay memfd", "copy"] {
            let (descriptor, reader) = kind.stream();
            drop(reader);
            let asked = request(BYTES, 1);
            let call = client.call(method).request(&asked).into_descriptor(&descriptor);
            let code = call.send().unwrap_err().error().code();
            // A TCP socket may have learnt already that it is connected no more.
            assert!([Code::Aborted, Code::InvalidArgument].contains(&code), "{kind:?}: {code}");
        }
    }
    let sink = Sink::new(SinkKind::Unix);
    let asked = request(BYTES, 1);
    let call = client.call("relay file").request(&asked).into_descriptor(&sink.descriptor);
    assert_eq!(call.send().unwrap().len(), BYTES);
    assert!(sink.finish() == expected("relay file", BYTES, 1));
    server.kill();
}

/// Changes the modes of a descriptor that is relayed into, all the time.
struct Flipper {
    is_over: Arc<AtomicBool>,
    flipping: Option<thread::JoinHandle<()>>,
}

impl Flipper {
    fn start(descriptor: OwnedFd) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let flipping = thread::spawn(move || {
            let socket = descriptor.as_fd();
            while !seen.load(Ordering::Relaxed) {
                for flags in [OFlags::NONBLOCK, OFlags::empty()] {
                    rustix::fs::fcntl_setfl(&descriptor, flags).unwrap();
                    // Of no consequence to what is no socket.
                    sockopt::set_socket_timeout(socket, Timeout::Send, None).ok();
                    sockopt::set_socket_send_buffer_size(socket, 1).ok();
                    thread::sleep(Duration::from_micros(50));
                }
            }
        });
        Self { is_over, flipping: Some(flipping) }
    }
}

impl Drop for Flipper {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.flipping.take().unwrap().join().unwrap();
    }
}

#[test]
fn modes_that_change_under_way_hold_nobody_up() {
    let running = start(one_worker(), serve);
    let mut client = AnyClient::connect(&running.path, true).unwrap();
    for kind in SinkKind::STREAMS {
        for method in ["relay file", "relay pipe", "copy"] {
            let (descriptor, mut reader) = kind.stream();
            let flipper = Flipper::start(again(&descriptor));
            let asked = request(BYTES, 1);
            let late = send_into(&mut client, method, &asked, &descriptor, SHORT).unwrap_err();
            assert_eq!(late.error().code(), Code::DeadlineExceeded, "{method} into {kind:?}");
            drop((flipper, descriptor));
            let given = late.descriptor_bytes().expect("the server has said it");
            assert_eq!(rest_of(&mut reader).len() as u64, given, "{method} into {kind:?}");
        }
        worker_is_free(&running);
    }
}

#[test]
fn modes_that_change_under_way_spoil_nothing() {
    let running = start(one_worker(), serve);
    let mut client = AnyClient::connect(&running.path, false).unwrap();
    for kind in SinkKind::STREAMS {
        let sink = Sink::new(kind);
        let flipper = Flipper::start(again(&sink.descriptor));
        let asked = request(1 << 20, 7);
        let reply = send_into(&mut client, "relay file", &asked, &sink.descriptor, PATIENCE * 3);
        assert_eq!(reply.unwrap().len(), 1 << 20);
        drop(flipper);
        assert!(sink.finish() == pattern(1 << 20, 7), "{kind:?}");
    }
}

/// Answers out of a file that it is told to cut when some of it is under way.
fn serve_file_that_is_cut(cut: &Mutex<std::sync::mpsc::Receiver<u64>>, call: &mut InboundCall) {
    let file = file_of(&pattern(BYTES, 2));
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let other = OpenOptions::new().write(true).open(path).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| other.set_len(cut.lock().unwrap().recv_timeout(PATIENCE).unwrap()).unwrap());
        let relayed = call.relay(&file, 10..);
        let status = relayed.expect_err("it was cut");
        call.fail(status).unwrap();
    });
}

#[test]
fn a_file_cut_under_way() {
    let (cut, receiver) = channel();
    let receiver = Mutex::new(receiver);
    let running = start(one_worker(), move |call: &mut InboundCall| -> Result<(), Status> {
        serve_file_that_is_cut(&receiver, call);
        Ok(())
    });
    for kind in SinkKind::STREAMS {
        let (descriptor, mut reader) = kind.stream();
        let path = running.path.clone();
        let calling = thread::spawn(move || {
            let mut client = DirectClient::connect(path).unwrap();
            let call = client.call("").into_descriptor(&descriptor).deadline(PATIENCE);
            call.send().unwrap_err()
        });
        let mut found = vec![0; 1];
        reader.read_exact(&mut found).unwrap();
        cut.send(BYTES as u64 / 2).unwrap();
        thread::sleep(Duration::from_millis(20));
        found.extend(rest_of(&mut reader));
        let failed = calling.join().unwrap();
        assert_eq!(failed.error().code(), Code::DataLoss, "{failed}");
        assert_eq!(failed.descriptor_bytes(), Some(found.len() as u64), "{failed}");
        let told = format!("bytes relayed: {}", found.len());
        assert!(failed.to_string().contains(&told), "{failed}");
        assert!(found == pattern(BYTES, 2)[10..][..found.len()]);
    }
}

#[test]
fn a_file_that_is_shorter_than_the_range() {
    let running = start(one_worker(), |call: &mut InboundCall| -> Result<(), Status> {
        call.relay(file_of(&[7; 5000]), 100..6000)?;
        call.reply(b"")
    });
    let mut client = DirectClient::connect(&running.path).unwrap();
    let (socket, _reader) = UnixStream::pair().unwrap();
    let given = client.call("").into_descriptor(&socket).send().unwrap_err();
    let inline = client.call("").inline(10_000).send().unwrap_err();
    assert_eq!(given.descriptor_bytes(), Some(0));
    for failed in [given, inline] {
        assert_eq!(failed.error().code(), Code::DataLoss);
        assert!(failed.to_string().contains("byte 5000"), "{failed}");
    }
}

#[test]
fn a_source_that_never_ends_is_not_waited_for_beyond_the_deadline() {
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"some").unwrap();
    let running = start(one_worker(), move |call: &mut InboundCall| -> Result<(), Status> {
        call.relay(&reader, ..)?;
        call.reply(b"")
    });
    let mut client = DirectClient::connect(&running.path).unwrap();
    let (socket, mut far) = UnixStream::pair().unwrap();
    let late = client.call("").into_descriptor(&socket).deadline(SHORT).send().unwrap_err();
    assert_eq!(late.error().code(), Code::DeadlineExceeded);
    assert_eq!(late.descriptor_bytes(), Some(4));
    let mut found = [0; 4];
    far.read_exact(&mut found).unwrap();
    assert_eq!(&found, b"some");
    let late = client.call("").inline(100).deadline(SHORT).send().unwrap_err();
    assert_eq!(late.error().code(), Code::DeadlineExceeded, "{late}");
    eventually("the server lets go", PATIENCE, || {
        client.poll(Duration::ZERO).unwrap();
        client.open_calls() == 0
    });
    drop(writer);
    client.call("").inline(100).deadline(PATIENCE).send().unwrap();
}
