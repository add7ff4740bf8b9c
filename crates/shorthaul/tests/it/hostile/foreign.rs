//! Descriptors that are not the library's: nobody closes one twice, for its number is given to
//! another file at once.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::fs::SealFlags;
use shorthaul::{Client, Descriptors, DirectClient, SealedObject, ServerOptions};

use super::descriptor::{memory_file, sealed};
use super::raw::{self, Place, Raw, Upload};
use super::uploads::sealed_file;
use super::{HONEST_BYTES, Stage, eventually, isolated, pattern, rounds};

/// A file of the program's own, and what it must be as long as it is open.
struct Own {
    file: File,
    identity: (u64, u64),
    bytes: [u8; 16],
}

impl Own {
    fn open(number: u64) -> Self {
        let mut file = tempfile::tempfile().unwrap();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..].copy_from_slice(&number.wrapping_mul(0x9E37_79B9).to_le_bytes());
        let identity = identity(&file);
        file.write_all(&bytes).unwrap();
        Self { file, identity, bytes }
    }

    fn check(&mut self) {
        assert_eq!(identity(&self.file), self.identity, "the number leads to another file");
        let mut found = Vec::new();
        self.file.seek(SeekFrom::Start(0)).unwrap();
        self.file.read_to_end(&mut found).unwrap();
        assert_eq!(found, self.bytes);
    }
}

/// Fails with EBADF for one that somebody else has closed.
fn identity(file: &File) -> (u64, u64) {
    let told = rustix::fs::fstat(file).expect("it is open");
    (told.st_dev, told.st_ino)
}

/// Opens and closes files all the time that `run` takes, and looks whether each stays what it is.
fn beside_own_files(run: impl FnOnce()) {
    let (is_over, opened) = (AtomicBool::new(false), AtomicU64::new(0));
    let open_and_close = || {
        let mut held = std::collections::VecDeque::new();
        while !is_over.load(Ordering::Relaxed) {
            held.push_back(Own::open(opened.fetch_add(1, Ordering::Relaxed)));
            held.iter_mut().for_each(Own::check);
            if held.len() == 8 {
                held.pop_front();
            }
        }
    };
    thread::scope(|scope| {
        let openers = [scope.spawn(open_and_close), scope.spawn(open_and_close)];
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        is_over.store(true, Ordering::Relaxed);
        openers.into_iter().for_each(|opener| opener.join().unwrap());
        ran.unwrap();
    });
    eprintln!("files beside: {opened:?}");
    assert!(opened.into_inner() > 100);
}

/// Descriptors that are taken, refused, sent in vain, and lost with their connection.
fn hostile_calls(path: &Path, seed: u8) {
    let mut raw = Raw::open_with(path, raw::SEALED);
    let file = sealed(4096);
    raw.send_with(&raw::register(1, 4096), &[file.as_fd()]);
    assert_eq!(raw.registered().code, raw::OK);
    let upload = sealed_file(&pattern(4096, seed));
    let (reader, writer) = std::io::pipe().unwrap();
    let other = memory_file(4096, SealFlags::empty());
    let fresh = raw::fill(2, Place::one_shot(4096), 4096, seed);
    for (frame, descriptor, code) in [
        (&fresh, file.as_fd(), raw::OK),
        (&fresh, reader.as_fd(), raw::INVALID_ARGUMENT),
        (&fresh, other.as_fd(), raw::INVALID_ARGUMENT),
        (&raw::echo(3, Place::inline(4096), Upload::sealed(0, 4096)), upload.as_fd(), raw::OK),
        (&raw::fill(4, Place::given(64), 64, seed), writer.as_fd(), raw::OK),
        (&raw::fill(5, Place::given(64), 64, seed), file.as_fd(), raw::PERMISSION_DENIED),
    ] {
        raw.send_with(frame, &[descriptor]);
        let reply = raw.reply();
        assert_eq!(reply.code, code, "{reply:?}");
    }
    // Ends in the middle of everything: calls that nobody waits for, half a frame, a violation.
    raw.send_with(&fresh, &[file.as_fd()]);
    match seed % 4 {
        0 => raw.send(&raw::of_id(raw::RELEASE, 1)),
        1 => raw.send_with(&fresh[..20], &[file.as_fd()]),
        2 => raw.send_with(&fresh, &[file.as_fd(), writer.as_fd(), other.as_fd()]),
        _ => raw.send_with(&raw::of_id(raw::CANCEL, 2), &[UnixStream::pair().unwrap().0.as_fd()]),
    }
}

fn honest_calls(path: &Path, seed: u8) {
    let mut direct = DirectClient::connect(path).unwrap();
    let threaded = Client::connect(path).unwrap();
    let mut request = (HONEST_BYTES as u64).to_le_bytes().to_vec();
    request.push(seed);
    let expected = pattern(HONEST_BYTES, seed);
    let fresh = direct.call("fill").request(&request).into_fresh(HONEST_BYTES).send().unwrap();
    assert!(fresh.to_vec() == expected);
    let answer = threaded.call("fill").request(&request).sealed(HONEST_BYTES).send().unwrap();
    assert!(answer.to_vec() == expected);
    let object = SealedObject::copy_of(&expected).unwrap();
    let call = threaded.call("echo").payload_sealed(&object, 0..HONEST_BYTES);
    assert!(call.inline(HONEST_BYTES).send().unwrap().to_vec() == expected);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let call = direct.call("fill").request(&request).into_descriptor(&writer);
    call.send().unwrap();
    drop(writer);
    let mut relayed = Vec::new();
    reader.read_to_end(&mut relayed).unwrap();
    assert!(relayed == expected);
    let buffer = direct.buffer(HONEST_BYTES).unwrap();
    drop((threaded, direct));
    drop((buffer, fresh, answer));
}

#[test]
fn no_file_of_the_programs_own_is_ever_closed() {
    isolated("hostile::foreign::no_file_of_the_programs_own_is_ever_closed", || {
        let descriptors = Descriptors::Streams;
        let mut stage = Stage::with(ServerOptions { descriptors, ..ServerOptions::default() });
        beside_own_files(|| {
            for round in 0..rounds(300, 10_000) {
                hostile_calls(&stage.path, round as u8);
                if round % 4 == 0 {
                    honest_calls(&stage.path, round as u8);
                }
            }
        });
        // Servers keep a few pipes for later relays, so descriptors are not counted here.
        stage.honest_calls();
        eventually("connections end", || stage.server.stats().connections == 1);
    });
}
