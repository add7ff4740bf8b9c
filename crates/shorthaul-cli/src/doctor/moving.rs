//! System calls that move bytes between descriptors: each tried on a few bytes of our own.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use shorthaul_platform::pipe::{Origin, Pipe};
use shorthaul_platform::uring;

use super::finding::{About, Finding, Group};
use super::memory::new_file;
use super::system::{self, refused, untried};

pub(super) fn findings() -> Vec<Finding> {
    vec![splice(), sendfile(), copy_file_range(), pipe_size(), io_uring()]
}

fn splice() -> Finding {
    let pipe = || io::Result::Ok((UnixStream::pair()?, Pipe::new()?));
    let ((mut ours, theirs), mut pipe) = match pipe() {
        Ok(made) => made,
        Err(error) => return SPLICE.unknown(untried(system::words(&error))),
    };
    let taken = ours.write_all(b"x").and_then(|()| pipe.take(Origin::Stream(theirs.as_fd()), 1));
    match taken {
        Ok(_) => SPLICE.ok("moved a byte from a socket into a pipe"),
        Err(error) => SPLICE.degraded(
            refused(error),
            "Relays read into memory and write it out again: two copies for none.",
            "let the filter of system calls allow splice(2)",
        ),
    }
}

fn sendfile() -> Finding {
    let sockets = UnixStream::pair();
    let (file, (sink, _reader)) = match (file_with_a_byte(), sockets) {
        (Ok(file), Ok(sockets)) => (file, sockets),
        (Err(error), _) | (_, Err(error)) => {
            return SENDFILE.unknown(untried(system::words(&error)));
        }
    };
    match rustix::fs::sendfile(&sink, &file, Some(&mut 0), 1) {
        Ok(_) => SENDFILE.ok("moved a byte from a file into a socket"),
        Err(error) => SENDFILE.degraded(
            refused(error),
            "Relays that are asked for this method fail; those that choose for themselves don't \
             take it.",
            "let the filter of system calls allow sendfile(2)",
        ),
    }
}

fn copy_file_range() -> Finding {
    let (source, sink) = match (file_with_a_byte(), new_file()) {
        (Ok(source), Ok(sink)) => (source, sink),
        (Err(error), _) => return COPY.unknown(untried(system::words(&error))),
        (_, Err(error)) => return COPY.unknown(untried(system::words(&error.into()))),
    };
    match rustix::fs::copy_file_range(&source, Some(&mut 0), &sink, Some(&mut 0), 1) {
        Ok(_) => COPY.ok("moved a byte from a file into another"),
        // The limit on files' sizes says so, of which there is a finding.
        Err(Errno::FBIG) => COPY.unknown(untried(system::words(&Errno::FBIG.into()))),
        Err(error) => COPY.degraded(
            refused(error),
            "Files on file systems that can share blocks (btrfs, XFS) are spliced instead.",
            "let the filter of system calls allow copy_file_range(2)",
        ),
    }
}

/// Under a file size limit of nothing it stays empty, and moving it is tried all the same.
fn file_with_a_byte() -> io::Result<OwnedFd> {
    let mut file = File::from(new_file()?);
    file.write_all(b"x").ok();
    Ok(file.into())
}

fn pipe_size() -> Finding {
    match Pipe::new() {
        Ok(mut pipe) => granted(pipe.make_room(PIPE_BYTES_WANTED)),
        Err(error) => PIPE.unknown(untried(system::words(&error))),
    }
}

pub(super) fn granted(bytes: usize) -> Finding {
    let switches = ["pipe-max-size", "pipe-user-pages-soft"];
    let switches = switches.map(|name| system::shown(&format!("/proc/sys/fs/{name}")));
    let found = format!("{} granted ({})", system::bytes(bytes as u64), switches.join(", "));
    if bytes >= shorthaul::relay::CHUNK_BYTES {
        return PIPE.ok(found);
    }
    PIPE.degraded(
        found,
        "Relays move their bytes by more and smaller system calls.",
        "`sysctl fs.pipe-user-pages-soft=0 fs.pipe-max-size=1048576` (as root), or close pipes of \
         this user's other programs",
    )
}

/// No lane uses it.
fn io_uring() -> Finding {
    let switch = system::shown("/proc/sys/kernel/io_uring_disabled");
    match uring::try_out() {
        Ok(()) => URING.ok(format!("made a ring ({switch})")),
        Err(error) => URING.ok(format!("{} ({switch})", refused(error))),
    }
}

const SPLICE: About = About {
    id: "splice",
    group: Group::MovingBytes,
    what: "splice: through a pipe, by pages",
    use_of_it: "What relays take first.",
};
const SENDFILE: About = About {
    id: "sendfile",
    group: Group::MovingBytes,
    what: "sendfile: from a file to a socket",
    use_of_it: "A method that relays can be asked for.",
};
const COPY: About = About {
    id: "copy-file-range",
    group: Group::MovingBytes,
    what: "copy_file_range: from file to file",
    use_of_it: "What relays between files take first, where file systems can share blocks.",
};
const PIPE: About = About {
    id: "pipe-size",
    group: Group::MovingBytes,
    what: "room in a pipe of 1 MiB asked for",
    use_of_it: "What one splice can move.",
};
const URING: About = About {
    id: "io-uring",
    group: Group::MovingBytes,
    what: "io_uring",
    use_of_it: "No lane uses it, so nothing is lost without it.",
};
const PIPE_BYTES_WANTED: usize = 1 << 20;
