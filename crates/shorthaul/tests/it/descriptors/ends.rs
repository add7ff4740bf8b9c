//! Descriptors of every kind that can be relayed into, and who reads their other ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What a payload is relayed into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SinkKind {
    Tcp,
    TcpNonblocking,
    Unix,
    Pipe,
    PipeNonblocking,
    Fifo,
    File,
    FileAppending,
    MemoryFile,
}

/// One of them, and what comes out of it.
pub(super) struct Sink {
    pub(super) descriptor: OwnedFd,
    outcome: Outcome,
}

enum Outcome {
    Read(JoinHandle<Vec<u8>>),
    /// A file, and what was in it before.
    File(File, Vec<u8>),
}

impl SinkKind {
    pub(super) const STREAMS: [Self; 6] = [
        Self::Tcp,
        Self::TcpNonblocking,
        Self::Unix,
        Self::Pipe,
        Self::PipeNonblocking,
        Self::Fifo,
    ];
    pub(super) const FILES: [Self; 3] = [Self::File, Self::FileAppending, Self::MemoryFile];

    /// Both ends of a stream.
    pub(super) fn stream(self) -> (OwnedFd, Box<dyn Read + Send>) {
        match self {
            Self::Tcp | Self::TcpNonblocking => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                socket.set_nonblocking(self == Self::TcpNonblocking).unwrap();
                (socket.into(), Box::new(listener.accept().unwrap().0))
            }
            Self::Unix => {
                let (socket, reader) = UnixStream::pair().unwrap();
                (socket.into(), Box::new(reader))
            }
            Self::Pipe | Self::PipeNonblocking => {
                let (reader, writer) = io::pipe().unwrap();
                rustix::io::ioctl_fionbio(&writer, self == Self::PipeNonblocking).unwrap();
                (writer.into(), Box::new(reader))
            }
            Self::Fifo => {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("fifo");
                let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
                rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
                // Each end waits for the other to be opened.
                let opened = path.clone();
                let reader = thread::spawn(move || File::open(opened).unwrap());
                let writer = OpenOptions::new().write(true).open(&path).unwrap();
                (writer.into(), Box::new(reader.join().unwrap()))
            }
            Self::File | Self::FileAppending | Self::MemoryFile => unreachable!("no streams"),
        }
    }
}

impl Sink {
    /// One whose reader takes its time.
    pub(super) fn new(kind: SinkKind) -> Self {
        if SinkKind::STREAMS.contains(&kind) {
            let (descriptor, reader) = kind.stream();
            return Self { descriptor, outcome: Outcome::Read(read_slowly(reader)) };
        }
        let before = b"what was there before".to_vec();
        let mut file = match kind {
            SinkKind::MemoryFile => super::memory_file(b""),
            _ => tempfile::tempfile().unwrap(),
        };
        file.write_all(&before).unwrap();
        let mut sink = file.try_clone().unwrap();
        if kind == SinkKind::FileAppending {
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            sink = OpenOptions::new().append(true).open(path).unwrap();
        }
        Self { descriptor: sink.into(), outcome: Outcome::File(file, before) }
    }

    /// What was relayed, when everybody has let go of the descriptor.
    pub(super) fn finish(self) -> Vec<u8> {
        drop(self.descriptor);
        match self.outcome {
            Outcome::Read(reading) => reading.join().unwrap(),
            Outcome::File(mut file, before) => {
                let mut found = Vec::new();
                file.seek(SeekFrom::Start(0)).unwrap();
                file.read_to_end(&mut found).unwrap();
                assert_eq!(found[..before.len()], before);
                found.split_off(before.len())
            }
        }
    }
}

fn read_slowly(mut reader: Box<dyn Read + Send>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let (mut found, mut piece) = (Vec::new(), vec![0; 100_000]);
        loop {
            match reader.read(&mut piece).unwrap() {
                0 => return found,
                bytes => found.extend_from_slice(&piece[..bytes]),
            }
            thread::sleep(Duration::from_micros(200));
        }
    })
}
