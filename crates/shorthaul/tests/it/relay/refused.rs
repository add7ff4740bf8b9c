//! What the kernel, a filter of system calls or a limit refuses: another way is taken, and no byte
//! is lost or doubled; and what nobody can do is refused at once.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::pipe::fcntl_getpipe_size;
use rustix::process::Uid;
use rustix::thread::set_thread_uid;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};
use shorthaul::relay::{Fault, Method, Relay};

use super::ends::{From, Giving, Taking, To};
use super::{assert_same, pattern, relay};

const BYTES: usize = 300_001;
const CHUNK: usize = 65_536;
/// Bytes of the last chunk: what tells its calls from the others'.
const LAST: usize = BYTES % CHUNK;

/// Runs `work` in a thread in which calls of `number` that meet `conditions` fail with `errno`.
fn with_refused(
    number: libc::c_long,
    conditions: Vec<SeccompCondition>,
    errno: i32,
    work: impl FnOnce() + Send + 'static,
) {
    let rules = match conditions.is_empty() {
        true => vec![],
        false => vec![SeccompRule::new(conditions).unwrap()],
    };
    let filter = SeccompFilter::new(
        BTreeMap::from([(number, rules)]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    let thread = thread::spawn(move || {
        apply_filter(&program).unwrap();
        work();
    });
    thread.join().unwrap();
}

fn argument_is(index: u8, value: u64) -> SeccompCondition {
    SeccompCondition::new(index, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value).unwrap()
}

fn relays_whole(from: From, to: To, expected: Method) {
    let content = pattern(BYTES, 17);
    let (source, sink) = (Giving::new(from, &content), Taking::new(to));
    let relayed = Relay::new().chunk_bytes(CHUNK).run(&source, .., &sink).unwrap();
    assert_eq!((relayed.bytes, relayed.method), (BYTES as u64, expected), "{from:?} to {to:?}");
    let got = sink.finish().unwrap();
    assert_same(&got, &content, &format!("from {from:?} to {to:?}"));
}

const REFUSALS: [i32; 4] = [libc::EINVAL, libc::ENOSYS, libc::EPERM, libc::EOPNOTSUPP];

#[test]
fn auto_goes_on_where_splicing_is_refused_from_the_start() {
    for errno in REFUSALS {
        with_refused(libc::SYS_splice, vec![], errno, || {
            for from in From::ALL {
                for to in [To::Tcp, To::UnixNonblocking, To::Pipe, To::File] {
                    relays_whole(from, to, Method::ReadWrite);
                }
            }
        });
    }
}

/// Refused when the last chunk is to be taken, with all others in the sink.
#[test]
fn auto_goes_on_where_splicing_is_refused_under_way() {
    for errno in REFUSALS {
        let is_last = vec![argument_is(4, LAST as u64)];
        with_refused(libc::SYS_splice, is_last, errno, || {
            for from in [From::Tmpfs, From::File] {
                // A pipe takes what fits, so that its last chunk could be any.
                for to in [To::Tcp, To::Unix, To::File] {
                    relays_whole(from, to, Method::ReadWrite);
                }
            }
        });
    }
}

/// Refused when the sink is to take it: with bytes in the pipe between, which come from a stream
/// that has them no more. What is taken has the flag not to wait; what is given has no flag.
#[test]
fn auto_goes_on_with_what_is_in_the_pipe() {
    let is_given = vec![argument_is(5, 0)];
    with_refused(libc::SYS_splice, is_given, libc::EINVAL, || {
        for from in [From::Tcp, From::Unix, From::File] {
            for to in [To::Tcp, To::UnixNonblocking, To::File] {
                relays_whole(from, to, Method::ReadWrite);
            }
        }
        // A method that was asked for moves what it has taken, and says that it can't go on.
        let content = pattern(BYTES, 18);
        let (source, sink) = (Giving::new(From::Unix, &content), Taking::new(To::File));
        let error = relay(Method::Splice, CHUNK).run(&source, .., &sink).unwrap_err();
        assert!(matches!(error.fault, Fault::Unsupported { .. }), "{error}");
        assert_eq!(error.bytes_lost, 0);
        let got = sink.finish().unwrap();
        assert_eq!(got.len() as u64, error.relayed.bytes);
        assert_same(&got, &content[..got.len()], "what it had taken");
    });
}

#[test]
fn auto_goes_on_where_pipes_are_refused() {
    with_refused(libc::SYS_pipe2, vec![], libc::EMFILE, || {
        for to in [To::Null, To::File] {
            let (source, sink) = (Giving::new(From::Tmpfs, &pattern(BYTES, 1)), Taking::new(to));
            let relayed = Relay::new().run(&source, .., &sink).unwrap();
            assert_eq!(relayed.method, Method::ReadWrite);
        }
        let sink = Taking::new(To::Null);
        let source = Giving::new(From::Tmpfs, &pattern(BYTES, 1));
        let error = relay(Method::Splice, CHUNK).run(&source, .., &sink).unwrap_err();
        assert!(error.to_string().contains("no pipe"), "{error}");
    });
}

/// copy_file_range is tried where blocks could be shared; between file systems it is EXDEV.
#[test]
fn one_method_is_no_choice() {
    for errno in [libc::EXDEV, libc::ENOSYS] {
        with_refused(libc::SYS_copy_file_range, vec![], errno, || {
            let (source, sink) =
                (Giving::new(From::File, &pattern(BYTES, 1)), Taking::new(To::File));
            let error = relay(Method::CopyFileRange, CHUNK).run(&source, .., &sink).unwrap_err();
            assert!(matches!(error.fault, Fault::Unsupported { .. }), "{error}");
            assert_eq!(error.relayed.bytes, 0);
        });
    }
}

/// Pipes as small as the kernel gives them to a user who has too many.
#[test]
fn a_pipe_that_stays_small_moves_all_the_same() {
    with_refused(
        libc::SYS_fcntl,
        vec![argument_is(1, libc::F_SETPIPE_SZ as u64)],
        libc::EPERM,
        || {
            for from in From::ALL {
                for to in [To::Tcp, To::Unix, To::File] {
                    let content = pattern(BYTES, 19);
                    let (source, sink) = (Giving::new(from, &content), Taking::new(to));
                    relay(Method::Splice, 1 << 20).run(&source, .., &sink).unwrap();
                    assert_same(&sink.finish().unwrap(), &content, &format!("{from:?} to {to:?}"));
                }
            }
        },
    );
}

/// The same for real: a user whose pipes have used up what all of them may have.
#[test]
fn a_user_with_too_many_pipes_gets_smaller_ones() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("passed over: only root can become another user");
        return;
    }
    let worker = thread::spawn(|| {
        // This thread alone becomes somebody else, without privileges.
        set_thread_uid(Uid::from_raw(65_533)).unwrap();
        let pipes: Vec<_> = (0..1500).map_while(|_| rustix::pipe::pipe().ok()).collect();
        let content = pattern(BYTES, 23);
        for method in [Method::Splice, Method::Auto] {
            for (from, to) in [(From::Tmpfs, To::Tcp), (From::Unix, To::File)] {
                let (source, sink) = (Giving::new(from, &content), Taking::new(to));
                relay(method, 1 << 20).run(&source, .., &sink).unwrap();
                assert_same(&sink.finish().unwrap(), &content, &format!("{from:?} to {to:?}"));
            }
        }
        let room = pipes.last().map(|(_, writer)| fcntl_getpipe_size(writer).unwrap());
        if room.is_none_or(|room| room >= 65_536) {
            eprintln!("the pipes were not used up: {} made, the last of {room:?}", pipes.len());
        }
    });
    worker.join().unwrap();
}

/// A pipe that can't be written without waiting is written a page at a time, when it has room.
#[test]
fn a_kernel_that_can_not_help_waiting_is_worked_around() {
    with_refused(libc::SYS_pwritev2, vec![], libc::EOPNOTSUPP, || {
        let content = pattern(BYTES, 20);
        let (source, sink) = (Giving::new(From::Tmpfs, &content), Taking::new(To::Pipe));
        let relay = relay(Method::ReadWrite, CHUNK);
        let mut relay = relay.deadline(std::time::Duration::from_secs(60));
        relay.run(&source, .., &sink).unwrap();
        assert_same(&sink.finish().unwrap(), &content, "carefully");
    });
}

#[test]
fn what_is_no_source_is_refused() {
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let (datagrams, _other) = UnixDatagram::pair().unwrap();
    let path_only = rustix::fs::open("/proc/self/exe", OFlags::PATH, Mode::empty()).unwrap();
    let event = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let sources: [(&str, OwnedFd); 5] = [
        ("not open for reading", writer),
        ("no stream", datagrams.into()),
        ("not open for reading", path_only),
        ("directory", File::open("/").unwrap().into()),
        ("no file, device, pipe or socket", event),
    ];
    for (why, source) in sources {
        for method in Method::ALL {
            let sink = Taking::new(To::Unix);
            let error = relay(method, CHUNK).run(&source, .., &sink).unwrap_err();
            assert!(matches!(error.fault, Fault::Misuse(_)), "{error}");
            assert!(error.to_string().contains(why), "{error}");
            assert_same(&sink.finish().unwrap(), &[], why);
        }
    }
}

#[test]
fn what_is_no_sink_is_refused() {
    let source = Giving::new(From::Memfd, &pattern(10, 1));
    let (datagrams, _other) = UnixDatagram::pair().unwrap();
    let path_only = rustix::fs::open("/proc/self/exe", OFlags::PATH, Mode::empty()).unwrap();
    let read_only: OwnedFd = File::open("/dev/null").unwrap().into();
    let sinks = [
        ("not open for writing", read_only),
        ("no stream", datagrams.into()),
        ("not open for writing", path_only),
    ];
    for (why, sink) in sinks {
        let error = Relay::new().run(&source, .., &sink).unwrap_err();
        assert!(matches!(error.fault, Fault::Misuse(_)), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

/// What is written to a pipe would come out of it, for ever. A socket has two directions: what
/// comes from its other end can be sent back there.
#[test]
fn a_pipe_is_not_relayed_into_itself() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&writer, b"round and round").unwrap();
    let (socket, mut other) = UnixStream::pair().unwrap();
    for method in [Method::Auto, Method::ReadWrite, Method::Splice] {
        let error = relay(method, CHUNK).run(&reader, .., &writer).unwrap_err();
        assert!(matches!(error.fault, Fault::Misuse(_)), "{error}");
        other.write_all(b"there and back").unwrap();
        relay(method, CHUNK).run(&socket, ..14, &socket).unwrap();
        let mut back = [0; 14];
        other.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"there and back", "{method}");
    }
}

#[test]
fn a_full_device_is_told_in_its_own_words() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for method in [Method::Auto, Method::ReadWrite, Method::Map] {
        let source = Giving::new(From::Tmpfs, &pattern(BYTES, 1));
        let error = relay(method, CHUNK).run(&source, .., full()).unwrap_err();
        assert!(error.to_string().contains("can't write to the sink: No space left"), "{error}");
        assert_eq!(error.relayed.bytes, 0);
    }
}

#[test]
fn ranges_that_are_not_there_are_refused_before_anything_is_moved() {
    let file = Giving::new(From::File, &pattern(100, 1));
    let (stream, _writer) = UnixStream::pair().unwrap();
    let sink = Taking::new(To::File);
    for range in [0..101, 101..101, 50..u64::MAX / 2] {
        let error = Relay::new().run(&file, range, &sink).unwrap_err();
        assert!(matches!(error.fault, Fault::SourceEnded { at: 100, .. }), "{error}");
    }
    #[allow(clippy::reversed_empty_ranges, reason = "what is tried")]
    for (source, range) in
        [(file.as_fd(), 10..5), (file.as_fd(), 0..u64::MAX), (stream.as_fd(), 1..2)]
    {
        let error = Relay::new().run(source, range, &sink).unwrap_err();
        assert!(matches!(error.fault, Fault::Misuse(_)), "{error}");
    }
    assert_eq!(Relay::new().run(&file, 100.., &sink).unwrap().bytes, 0);
    assert_same(&sink.finish().unwrap(), &[], "nothing was to be moved");
}
