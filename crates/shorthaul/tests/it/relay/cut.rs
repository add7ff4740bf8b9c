//! Files that change under way.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::thread;

use shorthaul::relay::{Fault, Method, RelayError, Relayed};

use super::ends::{From, Giving, Taking, To, tcp_pair};
use super::{MOVING, assert_same, pattern, relay};

const BYTES: usize = 4 << 20;
const CHUNK: usize = 64 << 10;

/// Relays to a sink that stops after some chunks until `change` is done to the file.
fn relay_and_change(
    method: Method,
    file: &File,
    sink: Taking,
    mut change: impl FnMut(&File) + Send + 'static,
) -> (Result<Relayed, RelayError>, Option<Vec<u8>>) {
    let changed = file.try_clone().unwrap();
    let mut is_changed = false;
    let mut relay = relay(method, CHUNK).on_progress(move |progress| {
        if !is_changed && progress.bytes >= BYTES as u64 / 4 {
            change(&changed);
            is_changed = true;
        }
    });
    let outcome = relay.run(file, .., &sink);
    (outcome, sink.finish())
}

fn file_of(content: &[u8], in_memory: bool) -> File {
    let folder = if in_memory { "/dev/shm" } else { "/tmp" };
    let mut file = tempfile::tempfile_in(folder).unwrap();
    file.write_all(content).unwrap();
    file
}

/// Cut to a half, to what was sent already, or to nothing.
#[test]
fn a_file_that_is_cut_is_an_error_with_the_count() {
    let content = pattern(BYTES, 9);
    for method in MOVING {
        for to in [To::Tcp, To::UnixNonblocking, To::Pipe, To::Tmpfs, To::Null] {
            for left in [BYTES / 2, BYTES / 2 + 100, BYTES / 4, 0] {
                let file = file_of(&content, true);
                let (outcome, got) = relay_and_change(method, &file, Taking::new(to), move |f| {
                    f.set_len(left as u64).unwrap();
                });
                let what = format!("cut to {left} by {method} to {to:?}");
                if method == Method::CopyFileRange && to != To::Tmpfs {
                    continue;
                }
                let error = outcome.expect_err(&what);
                let Fault::SourceEnded { at, end } = error.fault else { panic!("{what}: {error}") };
                assert_eq!(end, BYTES as u64, "{what}");
                assert!(at <= error.relayed.bytes.max(left as u64), "{what}: {error}");
                let Some(got) = got else { continue };
                assert_eq!(got.len() as u64, error.relayed.bytes, "{what}: {error}");
                let good = left.max(BYTES / 4).min(got.len());
                // What a pipe or socket held of the file's own pages may have been cut off too.
                let is_copied = matches!(method, Method::ReadWrite | Method::Map);
                let good = if is_copied { good } else { good.min(left) };
                assert_same(&got[..good], &content[..good], &what);
            }
        }
    }
}

/// Nothing but the tail of a page can pass as data that was not.
#[test]
fn a_cut_file_is_not_padded() {
    let content = pattern(BYTES, 11);
    for method in MOVING {
        let file = file_of(&content, true);
        let left = BYTES / 2 + 100;
        let (outcome, got) = relay_and_change(method, &file, Taking::new(To::Tmpfs), move |f| {
            f.set_len(left as u64).unwrap();
        });
        let page = 65_536;
        let bytes = outcome.unwrap_err().relayed.bytes;
        assert!(bytes <= (left as u64).next_multiple_of(page), "{bytes} by {method}");
        assert_eq!(got.unwrap().len() as u64, bytes);
    }
}

#[test]
fn a_file_that_grows_is_sent_as_it_was() {
    let content = pattern(BYTES, 13);
    for method in MOVING {
        let file = file_of(&content, true);
        let sink = Taking::new(To::Tmpfs);
        let (outcome, got) = relay_and_change(method, &file, sink, |f| {
            f.write_all_at(&[0xee; 100_000], BYTES as u64).unwrap();
        });
        assert_eq!(outcome.unwrap().bytes, BYTES as u64, "{method}");
        assert_same(&got.unwrap(), &content, method.name());
    }
}

#[test]
fn a_file_whose_name_goes_to_another_goes_on_as_it_was() {
    let content = pattern(BYTES, 15);
    for method in MOVING {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let (path, other) = (folder.path().join("file"), folder.path().join("other"));
        fs::write(&path, &content).unwrap();
        fs::write(&other, vec![0xee; BYTES]).unwrap();
        let file = File::open(&path).unwrap();
        let sink = Taking::new(To::Tmpfs);
        let (outcome, got) = relay_and_change(method, &file, sink, move |_| {
            fs::rename(&other, &path).unwrap();
        });
        assert_eq!(outcome.unwrap().bytes, BYTES as u64, "{method}");
        assert_same(&got.unwrap(), &content, method.name());
    }
}

/// What the docs say of pages that travel by reference, as this kernel does it: rw and mmap give
/// the bytes of the moment, splice and sendfile those of the moment when they are read.
#[test]
fn overwritten_bytes_are_seen_late_where_pages_are_passed_on() {
    for method in [Method::ReadWrite, Method::Map, Method::Splice, Method::SendFile] {
        for to_pipe in [true, false] {
            let file = file_of(&[1; 8192], true);
            let (mut reader, sink) = if to_pipe {
                let (reader, writer) = std::io::pipe().unwrap();
                (File::from(std::os::fd::OwnedFd::from(reader)), writer.into())
            } else {
                let (a, b) = UnixStream::pair().unwrap();
                (File::from(std::os::fd::OwnedFd::from(a)), std::os::fd::OwnedFd::from(b))
            };
            relay(method, CHUNK).run(&file, .., &sink).unwrap();
            file.write_all_at(&[2; 8192], 0).unwrap();
            let mut got = [0; 8192];
            reader.read_exact(&mut got).unwrap();
            let is_copied = matches!(method, Method::ReadWrite | Method::Map);
            assert_eq!(got, [if is_copied { 1 } else { 2 }; 8192], "{method}, pipe: {to_pipe}");
        }
    }
}

/// The buffer and the pipe of a relay are its own again as soon as a run is over: what they are
/// used for next can't reach a reader that still sleeps.
#[test]
fn a_relay_that_goes_on_leaves_sent_bytes_alone() {
    let (first, second) = (pattern(40_000, 1), pattern(40_000, 2));
    for method in MOVING {
        if method == Method::CopyFileRange {
            continue;
        }
        for over_tcp in [true, false] {
            let (mut reader, sink) = pair(over_tcp);
            let mut relay = relay(method, CHUNK);
            relay.run(Giving::new(From::Tmpfs, &first), .., &sink).unwrap();
            relay.run(Giving::new(From::Tmpfs, &second), .., Taking::new(To::Tmpfs)).unwrap();
            let mut got = vec![0; first.len()];
            reader.read_exact(&mut got).unwrap();
            assert_same(&got, &first, &format!("{method}, tcp: {over_tcp}"));
        }
    }
}

fn pair(over_tcp: bool) -> (File, File) {
    let (a, b): (std::os::fd::OwnedFd, std::os::fd::OwnedFd) = match over_tcp {
        true => {
            let (a, b) = tcp_pair();
            (a.into(), b.into())
        }
        false => {
            let (a, b) = UnixStream::pair().unwrap();
            (a.into(), b.into())
        }
    };
    (a.into(), b.into())
}

/// A run that fails with bytes in its pipe leaves none of them to the next.
#[test]
fn a_pipe_that_holds_bytes_is_not_used_again() {
    let (first, second) = (pattern(300_000, 1), pattern(300_000, 2));
    for from in [From::Tmpfs, From::Tcp] {
        let mut relay = relay(Method::Splice, CHUNK);
        let (reader, sink) = UnixStream::pair().unwrap();
        drop(reader);
        let error = relay.run(Giving::new(from, &first), .., &sink).unwrap_err();
        assert!(matches!(error.fault, Fault::SinkClosed), "{error}");
        assert_eq!(error.bytes_lost > 0, from == From::Tcp, "{error}");
        let sink = Taking::new(To::Tmpfs);
        relay.run(Giving::new(from, &second), .., &sink).unwrap();
        assert_same(&sink.finish().unwrap(), &second, &format!("from {from:?}"));
    }
}

/// A file that is cut and filled again by a writer that never rests: an error, or bytes that were
/// in it at some time; no signal, no end that doesn't come.
#[test]
fn a_file_that_is_cut_again_and_again() {
    for method in MOVING {
        let file = file_of(&vec![7; 1 << 20], true);
        let stop = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    file.set_len(100).unwrap();
                    file.write_all_at(&vec![7; 1 << 20], 0).unwrap();
                }
            });
            for round in 0..100 {
                let to = if round % 2 == 0 { To::Tmpfs } else { To::Null };
                let sink = Taking::new(to);
                let outcome = relay(method, 4096).run(file.as_fd(), .., &sink);
                let bytes = match &outcome {
                    Ok(relayed) => relayed.bytes,
                    Err(RelayError { fault: Fault::SourceEnded { .. }, relayed, .. }) => {
                        relayed.bytes
                    }
                    Err(error) if method == Method::CopyFileRange && to == To::Null => {
                        assert!(matches!(error.fault, Fault::Unsupported { .. }), "{error}");
                        0
                    }
                    Err(error) => panic!("{method}: {error}"),
                };
                if let Some(got) = sink.finish() {
                    assert_eq!(got.len() as u64, bytes, "{method}");
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}

#[test]
fn a_file_can_be_relayed_onto_its_own_end() {
    let content = pattern(100_000, 21);
    for appends in [true, false] {
        let mut file = file_of(&content, false);
        if appends {
            rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND).unwrap();
        }
        file.seek(SeekFrom::End(0)).unwrap();
        let relayed = relay(Method::Auto, 4096).run(&file, .., &file).unwrap();
        assert_eq!(relayed.bytes, content.len() as u64);
        let mut all = vec![0; 200_000];
        file.read_exact_at(&mut all, 0).unwrap();
        assert_same(&all[..100_000], &content, "first half");
        assert_same(&all[100_000..], &content, "second half");
    }
}
