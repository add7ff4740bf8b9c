//! Readers that go away: an error, whatever the process does with SIGPIPE.

use std::path::Path;

use shorthaul::relay::{Fault, Method};

use super::ends::{From, Giving, tcp_pair};
use super::{pattern, relay};
use crate::child::{Process, say};

/// A process in which SIGPIPE and SIGXFSZ end the process, as C programs start.
#[test]
fn a_reader_that_goes_away_ends_no_process() {
    let mut child = Process::start("relaying", Path::new("/"));
    assert_eq!(child.hear(), "lives");
    assert!(child.wait().success());
}

/// What the child does: relays to readers that have gone away, and past the largest size of files.
pub(in super::super) fn relay_to_nobody() {
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        // SAFETY: the default action is no handler of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let methods = [Method::ReadWrite, Method::Map, Method::Splice, Method::SendFile, Method::Auto];
    for method in methods {
        for from in
            From::ALL.into_iter().filter(|&from| from == From::Tmpfs || takes_streams(method))
        {
            to_closed_ends(method, from);
        }
        past_the_largest_size(method);
    }
    // The signals were kept from the relays, not from the process.
    // SAFETY: the default action is what it was.
    let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    assert_eq!(before, libc::SIG_DFL);
    say("lives");
}

fn takes_streams(method: Method) -> bool {
    matches!(method, Method::ReadWrite | Method::Splice | Method::Auto)
}

fn to_closed_ends(method: Method, from: From) {
    let (tcp, tcp_reader) = tcp_pair();
    let (unix, unix_reader) = std::os::unix::net::UnixStream::pair().unwrap();
    let (pipe_reader, pipe) = rustix::pipe::pipe().unwrap();
    drop((tcp_reader, unix_reader, pipe_reader));
    for (name, sink) in [("tcp", tcp.into()), ("unix", unix.into()), ("pipe", pipe)] {
        let sink: std::os::fd::OwnedFd = sink;
        // A TCP socket takes some before the other side's reset is there.
        let source = Giving::new(from, &pattern(8 << 20, 1));
        let error = relay(method, 65_536).run(&source, .., &sink).unwrap_err();
        let what = format!("{method} from {from:?} to {name}: {error}");
        assert!(matches!(error.fault, Fault::SinkClosed), "{what}");
        assert!(error.relayed.bytes == 0 || name == "tcp", "{what}");
    }
}

/// RLIMIT_FSIZE is an error too, with the count of what is in the file.
fn past_the_largest_size(method: Method) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Fsize);
    let source = Giving::new(From::Tmpfs, &pattern(300_000, 1));
    setrlimit(Resource::Fsize, Rlimit { current: Some(100_000), ..before }).unwrap();
    let sink = tempfile::tempfile().unwrap();
    let error = relay(method, 65_536).run(&source, .., &sink).unwrap_err();
    assert_eq!(error.relayed.bytes, 100_000, "{method}: {error}");
    assert_eq!(sink.metadata().unwrap().len(), 100_000);
    setrlimit(Resource::Fsize, before).unwrap();
}
