//! Sources that have given bytes, and sinks that tell what they got.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use rustix::io::ioctl_fionbio;
use rustix::pipe::{PipeFlags, pipe_with};
use shorthaul_platform::signals::QuietSignals;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// On a disk.
    File,
    /// In /dev/shm.
    Tmpfs,
    Memfd,
    Pipe,
    Tcp,
    Unix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    Tcp,
    TcpNonblocking,
    Unix,
    UnixNonblocking,
    Pipe,
    PipeNonblocking,
    File,
    Tmpfs,
    Appending,
    Null,
}

impl From {
    pub(super) const ALL: [Self; 6] =
        [Self::File, Self::Tmpfs, Self::Memfd, Self::Pipe, Self::Tcp, Self::Unix];

    pub(super) fn is_file(self) -> bool {
        matches!(self, Self::File | Self::Tmpfs | Self::Memfd)
    }
}

impl To {
    pub(super) const ALL: [Self; 10] = [
        Self::Tcp,
        Self::TcpNonblocking,
        Self::Unix,
        Self::UnixNonblocking,
        Self::Pipe,
        Self::PipeNonblocking,
        Self::File,
        Self::Tmpfs,
        Self::Appending,
        Self::Null,
    ];
}

/// A source; streams are fed by a thread, and end after the bytes.
pub(super) struct Giving {
    fd: OwnedFd,
    feeder: Option<JoinHandle<()>>,
}

impl Giving {
    pub(super) fn new(from: From, bytes: &[u8]) -> Self {
        let (fd, writer): (OwnedFd, OwnedFd) = match from {
            From::File => return Self::file(tempfile::tempfile().unwrap(), bytes),
            From::Tmpfs => return Self::file(tempfile::tempfile_in("/dev/shm").unwrap(), bytes),
            From::Memfd => {
                let memfd = memfd_create("relay-test", MemfdFlags::CLOEXEC).unwrap();
                return Self::file(File::from(memfd), bytes);
            }
            From::Pipe => pipe_with(PipeFlags::CLOEXEC).unwrap(),
            From::Tcp => {
                let (a, b) = tcp_pair();
                (a.into(), b.into())
            }
            From::Unix => {
                let (a, b) = UnixStream::pair().unwrap();
                (a.into(), b.into())
            }
        };
        let bytes = bytes.to_vec();
        let feeder = thread::spawn(move || {
            // A reader that takes only a part ends it, and nothing else.
            let _quiet = QuietSignals::begin();
            File::from(writer).write_all(&bytes).ok();
        });
        Self { fd, feeder: Some(feeder) }
    }

    fn file(mut file: File, bytes: &[u8]) -> Self {
        file.write_all(bytes).unwrap();
        Self { fd: file.into(), feeder: None }
    }
}

impl AsFd for Giving {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Giving {
    fn drop(&mut self) {
        if let Some(feeder) = self.feeder.take() {
            // What nobody reads holds the feeder up.
            self.fd = File::open("/dev/null").unwrap().into();
            feeder.join().unwrap();
        }
    }
}

/// A sink.
pub(super) struct Taking {
    fd: OwnedFd,
    kept: Kept,
}

enum Kept {
    Nothing,
    /// Where it is written from, and what was there before.
    File {
        before: Vec<u8>,
    },
    Reader(JoinHandle<Vec<u8>>),
}

impl Taking {
    pub(super) fn new(to: To) -> Self {
        let (reader, fd): (OwnedFd, OwnedFd) = match to {
            To::Null => {
                let fd = OpenOptions::new().write(true).open("/dev/null").unwrap().into();
                return Self { fd, kept: Kept::Nothing };
            }
            To::File => return Self::file(tempfile::tempfile().unwrap(), false),
            To::Tmpfs => return Self::file(tempfile::tempfile_in("/dev/shm").unwrap(), false),
            To::Appending => return Self::file(tempfile::tempfile().unwrap(), true),
            To::Pipe | To::PipeNonblocking => pipe_with(PipeFlags::CLOEXEC).unwrap(),
            To::Tcp | To::TcpNonblocking => {
                let (a, b) = tcp_pair();
                (a.into(), b.into())
            }
            To::Unix | To::UnixNonblocking => {
                let (a, b) = UnixStream::pair().unwrap();
                (a.into(), b.into())
            }
        };
        if matches!(to, To::TcpNonblocking | To::UnixNonblocking | To::PipeNonblocking) {
            ioctl_fionbio(&fd, true).unwrap();
        }
        let reader = thread::spawn(move || {
            let mut got = Vec::new();
            // A source that is reset ends it: what came until then counts.
            File::from(reader).read_to_end(&mut got).ok();
            got
        });
        Self { fd, kept: Kept::Reader(reader) }
    }

    /// A file that has something in it already, and is written behind that.
    fn file(mut file: File, appends: bool) -> Self {
        let before = b"before".to_vec();
        file.write_all(&before).unwrap();
        if appends {
            rustix::fs::fcntl_setfl(&file, OFlags::APPEND).unwrap();
            file.seek(SeekFrom::Start(0)).unwrap();
        }
        Self { fd: file.into(), kept: Kept::File { before } }
    }

    /// What it has got; of /dev/null nobody knows.
    pub(super) fn finish(self) -> Option<Vec<u8>> {
        match self.kept {
            Kept::Nothing => None,
            Kept::Reader(reader) => {
                drop(self.fd);
                Some(reader.join().unwrap())
            }
            Kept::File { before } => {
                let mut file = File::from(self.fd);
                file.seek(SeekFrom::Start(0)).unwrap();
                let mut all = Vec::new();
                file.read_to_end(&mut all).unwrap();
                Some(all.strip_prefix(&before[..]).expect("nothing is overwritten").to_vec())
            }
        }
    }
}

impl AsFd for Taking {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Two ends of a connection over this machine's own address.
pub(super) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, client)
}
