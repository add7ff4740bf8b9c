//! Signals that a program handles: the system calls that they interrupt are made again, or go on
//! from where they were.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use shorthaul::relay::{Method, Relay};
use shorthaul::{
    Call, Client, Descriptors, DirectClient, FillMethod, FillPolicy, InboundCall, Reply,
    SealedObject, Server, ServerOptions, Status, Transport,
};
use shorthaul_platform::socket::{self, Wait};

static INTERRUPTS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(_: libc::c_int) {
    INTERRUPTS.fetch_add(1, Ordering::Relaxed);
}

/// Interrupts every thread of this process but its own, again and again, while `run` runs.
fn while_interrupted(run: impl FnOnce()) {
    // SAFETY: all zeros is a valid sigaction; without SA_RESTART.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    // SAFETY: the handler does only what a handler may.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()) }, 0);
    let (is_over, before) = (AtomicBool::new(false), INTERRUPTS.load(Ordering::Relaxed));
    thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: no arguments.
            let own = unsafe { libc::gettid() };
            while !is_over.load(Ordering::Relaxed) {
                for entry in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
                    let thread: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
                    if thread != own {
                        interrupt(thread);
                    }
                }
                thread::sleep(Duration::from_micros(100));
            }
        });
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        is_over.store(true, Ordering::Relaxed);
        ran.unwrap();
    });
    let interrupts = INTERRUPTS.load(Ordering::Relaxed) - before;
    eprintln!("{interrupts} interrupts");
    assert!(interrupts > 100, "{interrupts}");
}

fn interrupt(thread: i32) {
    let process = std::process::id() as i32;
    // SAFETY: a signal that is handled, to a thread of ours; one that has ended is an error.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
}

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed).collect()
}

/// How often a thing is done, in the short form and in the long.
fn rounds(short: usize, long: usize) -> usize {
    if cfg!(feature = "long-tests") { long } else { short }
}

#[test]
fn a_socket_brings_every_byte_and_every_descriptor() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (messages, bytes) = (rounds(400, 10_000), 50_000);
    // Each side's end closes with it, however it ends.
    while_interrupted(move || {
        thread::scope(move |scope| {
            scope.spawn(move || {
                for message in 0..messages {
                    let sent = pattern(bytes, message as u8);
                    let (file, mut from) = (File::open("/dev/null").unwrap(), 0);
                    while from < bytes {
                        let descriptors = if from == 0 { vec![file.as_fd()] } else { vec![] };
                        let part = [IoSlice::new(&sent[from..])];
                        from += socket::send(ours.as_fd(), &part, &descriptors, Wait::Block)
                            .expect("an interrupt is no error");
                    }
                }
            });
            let theirs = theirs;
            let (mut at, mut arrived, mut retried) = (0, 0, 0);
            let mut buffer = vec![0; 7000];
            loop {
                match socket::receive(theirs.as_fd(), &mut buffer, Wait::Block) {
                    Ok(received) if received.bytes == 0 => break,
                    Ok(received) => {
                        let socket::Descriptors::Arrived(list) = received.descriptors else {
                            panic!("{received:?}")
                        };
                        arrived += list.len();
                        for &byte in &buffer[..received.bytes] {
                            let (message, index) = (at / bytes, at % bytes);
                            let part = (index as u8).wrapping_mul(31);
                            let expected = part.wrapping_add((index >> 8) as u8) ^ message as u8;
                            assert_eq!(byte, expected, "at {at}");
                            at += 1;
                        }
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                        retried += 1;
                    }
                }
            }
            eprintln!("{retried} receives were interrupted");
            assert_eq!((at, arrived), (messages * bytes, messages));
        });
    });
}

fn serve(call: &mut InboundCall) -> Result<(), Status> {
    let (bytes, seed) = (BYTES, call.request()[0]);
    match call.method() {
        "put" => {
            assert!(call.upload()?.into_slice()? == pattern(bytes, seed));
        }
        method => {
            let method = if method == "write" { FillMethod::Write } else { FillMethod::Map };
            let policy = FillPolicy { method, ..FillPolicy::default() };
            call.payload_with(bytes, policy)?.copy_from(&pattern(bytes, seed))?;
        }
    }
    call.reply(&[seed])
}

/// One call by each lane, every byte of it looked at.
macro_rules! calls_by_every_lane {
    ($client:ident, $seed:expr) => {{
        let (seed, expected) = ([$seed], pattern(BYTES, $seed));
        let object = SealedObject::copy_of(&expected).unwrap();
        let is_right = |reply: Reply| assert!(reply.to_vec() == expected, "{}", reply.lane());
        is_right(asking($client.call("map"), &seed).inline(BYTES).send().unwrap());
        is_right(asking($client.call("map"), &seed).into_fresh(BYTES).send().unwrap());
        is_right(asking($client.call("map"), &seed).sealed(BYTES).send().unwrap());
        for method in ["map", "write"] {
            let buffer = $client.buffer(BYTES).unwrap();
            is_right(asking($client.call(method), &seed).into(buffer).send().unwrap());
        }
        asking($client.call("put"), &seed).payload_inline(&expected).send().unwrap();
        asking($client.call("put"), &seed).payload_sealed(&object, 0..BYTES).send().unwrap();
        let mut buffer = $client.buffer(BYTES).unwrap();
        buffer.copy_from(0, &expected);
        let put = asking($client.call("put"), &seed);
        put.payload_from(buffer, 0..BYTES).send().unwrap();
        for (sink, reading) in sinks() {
            asking($client.call("map"), &seed).into_descriptor(&sink).send().unwrap();
            drop(sink);
            assert!(reading.join().unwrap() == expected);
        }
    }};
}

fn asking<'a, T: Transport>(call: Call<'a, T>, request: &'a [u8]) -> Call<'a, T> {
    call.request(request).deadline(PATIENCE)
}

/// A pipe and a socket, each with who reads it to its end.
fn sinks() -> [(OwnedFd, thread::JoinHandle<Vec<u8>>); 2] {
    let (pipe_reader, pipe) = io::pipe().unwrap();
    let (socket_reader, socket) = UnixStream::pair().unwrap();
    [(pipe.into(), read_all(pipe_reader)), (socket.into(), read_all(socket_reader))]
}

fn read_all(mut source: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut found = Vec::new();
        source.read_to_end(&mut found).unwrap();
        found
    })
}

#[test]
fn calls_on_every_lane_bring_the_right_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let options = ServerOptions { descriptors: Descriptors::Any, ..ServerOptions::default() };
    let server = Server::bind_with(&path, options).unwrap().start(serve).unwrap();
    while_interrupted(|| {
        for round in 0..rounds(30, 1000) {
            // New ones: connecting is interrupted too.
            let mut direct = DirectClient::connect(&path).unwrap();
            calls_by_every_lane!(direct, round as u8);
            let threaded = Client::connect(&path).unwrap();
            calls_by_every_lane!(threaded, round as u8);
        }
    });
    assert!(server.stop(PATIENCE));
}

#[test]
fn relays_by_every_method_bring_the_right_bytes() {
    let expected = pattern(3 << 20, 5);
    let mut source = tempfile::tempfile().unwrap();
    source.write_all(&expected).unwrap();
    let methods = [Method::ReadWrite, Method::Map, Method::Splice, Method::SendFile, Method::Auto];
    while_interrupted(|| {
        for _ in 0..rounds(5, 200) {
            for method in methods {
                // With a deadline it waits in calls of its own.
                let relay = || Relay::new().method(method).chunk_bytes(65_536);
                for mut relay in [relay(), relay().deadline(PATIENCE)] {
                    for (sink, reading) in sinks() {
                        let relayed = relay.run(&source, .., &sink).unwrap();
                        assert_eq!(relayed.bytes, expected.len() as u64, "{method}");
                        drop(sink);
                        assert!(reading.join().unwrap() == expected, "{method}");
                    }
                }
            }
        }
    });
}

const BYTES: usize = 300_000;
const PATIENCE: Duration = Duration::from_secs(60);
