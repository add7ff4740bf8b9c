//! More than one call moves, more than 32 bits count, and files that are mostly holes.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use shorthaul::relay::{Fault, Method};

use super::ends::{Taking, To};
use super::{MOVING, pattern, relay};

/// A sparse file with some bytes at the start, in the middle and at the end.
fn sparse(bytes: u64) -> (File, Vec<(u64, Vec<u8>)>) {
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    let parts = [0, bytes / 2 - 1234, bytes - 4096].map(|at| (at, pattern(4096, at)));
    for (at, part) in &parts {
        file.write_all_at(part, *at).unwrap();
    }
    (file, parts.to_vec())
}

/// Reads all, and compares each byte with what the sparse file has there.
fn check_stream(mut stream: impl Read, bytes: u64, parts: &[(u64, Vec<u8>)]) {
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let read = stream.read(&mut buffer).unwrap();
        if read == 0 {
            break;
        }
        check_part(&buffer[..read], at, parts);
        at += read as u64;
    }
    assert_eq!(at, bytes);
}

fn check_part(got: &[u8], at: u64, parts: &[(u64, Vec<u8>)]) {
    let end = at + got.len() as u64;
    let is_plain =
        parts.iter().all(|(start, part)| end <= *start || at >= start + part.len() as u64);
    if is_plain {
        assert!(got.iter().all(|&byte| byte == 0), "holes read as zeros");
        return;
    }
    let mut expected = vec![0; got.len()];
    for (start, part) in parts {
        for (index, &byte) in part.iter().enumerate() {
            let place = start + index as u64;
            if (at..end).contains(&place) {
                expected[(place - at) as usize] = byte;
            }
        }
    }
    assert!(got == expected, "other bytes in {at}..{end}");
}

fn relay_sparse(method: Method, bytes: u64, chunk_bytes: usize) {
    let (file, parts) = sparse(bytes);
    let (reader, sink) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| check_stream(reader, bytes, &parts));
        let relayed = relay(method, chunk_bytes).run(&file, .., &sink).unwrap();
        assert_eq!(relayed.bytes, bytes);
        drop(sink);
    });
}

/// One call moves 0x7ffff000 bytes at most.
#[test]
fn more_than_two_gibibytes() {
    for method in [Method::Auto, Method::SendFile, Method::Map] {
        relay_sparse(method, (2 << 30) + 4096, 64 << 20);
    }
}

/// The rest of the methods, and more than 4 GiB: long.
#[test]
#[cfg_attr(not(feature = "long-tests"), ignore = "minutes; see CONTRIBUTING.md")]
fn five_gibibytes_by_every_method() {
    for method in MOVING.into_iter().filter(|&method| method != Method::CopyFileRange) {
        relay_sparse(method, (2 << 30) + 4096, 1 << 20);
        relay_sparse(method, 5 << 30, 1 << 20);
    }
}

/// From file to file nothing has to come by: the copy is compared where it isn't empty, and by its
/// size.
#[test]
#[cfg_attr(not(feature = "long-tests"), ignore = "minutes; see CONTRIBUTING.md")]
fn five_gibibytes_from_file_to_file() {
    let bytes = 5 << 30;
    let (file, parts) = sparse(bytes);
    for method in [Method::CopyFileRange, Method::Auto] {
        let copy = tempfile::tempfile().unwrap();
        assert_eq!(relay(method, 64 << 20).run(&file, .., &copy).unwrap().bytes, bytes);
        check_stream(&copy, 0, &parts);
        assert_eq!(copy.metadata().unwrap().len(), bytes);
        for (at, part) in &parts {
            let mut got = vec![0; part.len()];
            copy.read_exact_at(&mut got, *at).unwrap();
            assert!(got == *part, "other bytes at {at} by {method}");
        }
    }
}

/// The end of a file of a tebibyte is had without the rest of it, and all of it not at all: by
/// the deadline, in bounded memory, and with the count of what went.
#[test]
fn a_tebibyte_of_holes() {
    let bytes = 1 << 40;
    let (file, parts) = sparse(bytes);
    for method in [Method::Auto, Method::ReadWrite, Method::SendFile, Method::Map] {
        let (mut reader, sink) = UnixStream::pair().unwrap();
        let mut relay = relay(method, 1 << 20).deadline(Duration::from_millis(300));
        relay.run(&file, bytes - 8192.., &sink).unwrap();
        let mut end = vec![0; 8192];
        reader.read_exact(&mut end).unwrap();
        check_part(&end, bytes - 8192, &parts);
        let error = relay.run(&file, .., Taking::new(To::Null)).err();
        // To /dev/null a mapping goes in no time.
        let is_done = error.is_none() && method == Method::Map;
        let is_late = error.is_some_and(|e| {
            matches!(e.fault, Fault::DeadlineExceeded) && (1..bytes).contains(&e.relayed.bytes)
        });
        assert!(is_done || is_late, "{method}");
    }
    assert!(resident_bytes() < 1 << 30, "{} bytes are resident", resident_bytes());
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}
