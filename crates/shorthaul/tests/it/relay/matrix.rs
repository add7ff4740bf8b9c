//! Every method between every two ends: all bytes, in order, once; or a refusal that moves none.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use shorthaul::relay::{Cancel, Fault, Method, Relay};

use super::ends::{From, Giving, Taking, To};
use super::{MOVING, assert_same, pattern, relay};

/// What can't be, by what the kernel does.
fn is_possible(method: Method, from: From, to: To) -> bool {
    match method {
        Method::Map => from.is_file(),
        Method::Splice => to != To::Appending,
        Method::SendFile => from.is_file() && to != To::Appending,
        // Between two file systems it can't.
        Method::CopyFileRange => {
            matches!((from, to), (From::File, To::File) | (From::Tmpfs, To::Tmpfs))
        }
        _ => true,
    }
}

/// One relay, by a fresh pair of ends.
fn check(mut relay: Relay, method: Method, from: From, to: To, bytes: usize) {
    let what = format!("{bytes} bytes by {method} from {from:?} to {to:?}");
    let content = pattern(bytes, bytes as u64);
    let (source, sink) = (Giving::new(from, &content), Taking::new(to));
    let outcome = relay.run(&source, .., &sink);
    let got = sink.finish();
    if !is_possible(method, from, to) && (bytes > 0 || !from.is_file()) {
        let error = outcome.unwrap_err();
        assert!(matches!(error.fault, Fault::Unsupported { .. }), "{what}: {error}");
        assert_eq!((error.relayed.bytes, error.bytes_lost), (0, 0), "{what}: {error}");
        assert_same(&got.unwrap_or_default(), &[], &what);
        return;
    }
    let relayed = outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(relayed.bytes, bytes as u64, "{what}");
    assert!(method == Method::Auto || relayed.method == method, "{what}: {relayed:?}");
    assert!(bytes == 0 || relayed.calls > 0, "{what}");
    if let Some(got) = got {
        assert_same(&got, &content, &what);
    }
}

fn every_pair(method: Method, make: impl Fn() -> Relay) {
    for from in From::ALL {
        for to in To::ALL {
            for bytes in SIZES {
                check(make(), method, from, to, bytes);
            }
        }
    }
}

#[test]
fn every_method_between_all_ends() {
    for method in MOVING {
        every_pair(method, || relay(method, 64 << 10));
    }
}

#[test]
fn auto_between_all_ends() {
    every_pair(Method::Auto, Relay::new);
}

/// With a deadline and a cancel no call may wait, whatever a descriptor's own mode.
#[test]
fn every_method_with_limits_on_its_waits() {
    for method in MOVING.into_iter().chain([Method::Auto]) {
        every_pair(method, || {
            let relay = relay(method, 100_000).deadline(Duration::from_secs(60));
            relay.cancel(&Cancel::new().unwrap())
        });
    }
}

/// The same relay again and again: its buffer and pipe too.
#[test]
fn ranges_and_chunks_of_any_size() {
    let content = pattern(300_000, 3);
    let ranges = [(0, 1), (1, 4095), (4095, 4097), (65_535, 131_073), (100, 300_000), (7, 7)];
    for method in MOVING {
        for chunk_bytes in [1000, 4096, 65_536, 1 << 20] {
            let mut relay = relay(method, chunk_bytes);
            for (start, end) in ranges {
                for (from, to) in [(From::File, To::File), (From::Tmpfs, To::Tmpfs)] {
                    let (source, sink) = (Giving::new(from, &content), Taking::new(to));
                    let relayed = relay.run(&source, start..end, &sink).unwrap();
                    assert_eq!(relayed.bytes, end - start);
                    let expected = &content[start as usize..end as usize];
                    let what = format!("{start}..{end} by {method} in chunks of {chunk_bytes}");
                    assert_same(&sink.finish().unwrap(), expected, &what);
                }
            }
        }
    }
}

#[test]
fn a_part_of_a_stream_is_what_comes_next() {
    let content = pattern(200_000, 5);
    for from in [From::Pipe, From::Unix, From::Tcp] {
        let source = Giving::new(from, &content);
        let mut relay = Relay::new();
        for (part, to) in [(0..150_000, To::File), (150_000..200_000, To::Unix)] {
            let sink = Taking::new(to);
            let bytes = part.len() as u64;
            assert_eq!(relay.run(&source, ..bytes, &sink).unwrap().bytes, bytes);
            assert_same(&sink.finish().unwrap(), &content[part], &format!("from {from:?}"));
        }
    }
}

/// Files that tell no size, or a wrong one.
#[test]
fn files_of_proc_and_sys_are_read_to_their_end() {
    for path in ["/proc/filesystems", "/proc/self/limits", "/sys/devices/system/cpu/possible"] {
        let expected = fs::read(path).unwrap();
        assert!(!expected.is_empty());
        for to in To::ALL {
            for method in MOVING.into_iter().chain([Method::Auto]) {
                let (source, sink) = (File::open(path).unwrap(), Taking::new(to));
                match relay(method, 4096).run(&source, .., &sink) {
                    Ok(relayed) => {
                        assert_eq!(relayed.bytes, expected.len() as u64, "{path} by {method}");
                        let got = sink.finish().unwrap_or_else(|| expected.clone());
                        assert_same(&got, &expected, &format!("{path} by {method} to {to:?}"));
                    }
                    Err(error) => {
                        let is_choice = matches!(method, Method::Auto | Method::ReadWrite);
                        assert!(!is_choice, "{path} to {to:?}: {error}");
                        assert!(matches!(error.fault, Fault::Unsupported { .. }), "{error}");
                        assert_same(&sink.finish().unwrap_or_default(), &[], path);
                    }
                }
            }
        }
    }
}

/// The source's own position is nobody's business.
#[test]
fn a_files_position_stays() {
    use std::io::{Seek, SeekFrom};
    for method in MOVING {
        let mut source = tempfile::tempfile_in("/dev/shm").unwrap();
        std::io::Write::write_all(&mut source, &pattern(10_000, 1)).unwrap();
        source.seek(SeekFrom::Start(77)).unwrap();
        let sink = Taking::new(To::Tmpfs);
        relay(method, 4096).run(&source, 5.., &sink).unwrap();
        assert_eq!(source.stream_position().unwrap(), 77, "{method}");
    }
}

/// Where one can be read: only root reads disks.
#[test]
fn block_devices_have_a_size() {
    let Some(disk) = a_disk() else { return };
    for method in [Method::ReadWrite, Method::Map, Method::Splice, Method::SendFile] {
        let before = start_of(&disk).unwrap();
        let sink = Taking::new(To::Unix);
        relay(method, 65_536).run(&disk, 1000..1000 + before.len() as u64, &sink).unwrap();
        let got = sink.finish().unwrap();
        assert_eq!(got.len(), before.len(), "a disk by {method}");
        // It may be in use.
        if start_of(&disk).unwrap() == before {
            assert_same(&got, &before, &format!("a disk by {method}"));
        }
    }
    let error = Relay::new().run(&disk, ..1 << 62, Taking::new(To::Null)).unwrap_err();
    assert!(matches!(error.fault, Fault::SourceEnded { at: 1.., .. }), "{error}");
}

fn a_disk() -> Option<File> {
    let disks = fs::read_dir("/sys/class/block").ok()?.flatten();
    let mut disks =
        disks.filter_map(|disk| File::open(format!("/dev/{}", disk.file_name().display())).ok());
    disks.find(|disk| start_of(disk).is_ok())
}

fn start_of(disk: &File) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 300_000];
    disk.read_exact_at(&mut bytes, 1000)?;
    Ok(bytes)
}

const SIZES: [usize; 6] = [0, 1, 4095, 65_536, 65_537, 1_000_003];
