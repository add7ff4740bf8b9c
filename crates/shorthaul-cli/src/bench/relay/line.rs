//! What lies between a client and its receiver: made anew for each run, so that it begins empty
//! and its end is the end of the stream.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};

use super::sink::Sink;

/// A way to a sink.
#[derive(Debug)]
pub(super) enum Line {
    Null(File),
    /// A file that has no name, so that nothing is left of it, whatever happens. The same for all
    /// runs: its pages are there from the second on.
    File(File),
    Tcp(TcpListener),
    Unix,
    Pipe,
}

/// The two ends of a line.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) sink: OwnedFd,
    /// None where nobody receives.
    pub(super) receiver: Option<OwnedFd>,
}

impl Line {
    /// `port` is for TCP; `source` is the file whose folder takes a file that is written.
    pub(super) fn new(sink: Sink, port: u16, source: &Path) -> Result<Self> {
        Ok(match sink {
            Sink::Null => {
                Self::Null(File::options().write(true).open("/dev/null").context("/dev/null")?)
            }
            Sink::File => {
                let folder = source.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = folder.unwrap_or(Path::new("."));
                let file = tempfile::tempfile_in(folder);
                Self::File(file.with_context(|| {
                    format!("can't make a file to write to in {}", folder.display())
                })?)
            }
            Sink::Tcp => Self::Tcp(listen(port)?),
            Sink::Unix => Self::Unix,
            Sink::Pipe => Self::Pipe,
        })
    }

    /// Makes its ends, for chunks of so many bytes.
    pub(super) fn ends(&self, chunk_bytes: usize) -> io::Result<Ends> {
        let (sink, receiver) = match self {
            Self::Null(file) | Self::File(file) => (file.try_clone()?.into(), None),
            Self::Tcp(listener) => {
                let (sink, receiver) = connect(listener)?;
                (sink.into(), Some(receiver.into()))
            }
            Self::Unix => {
                let (sink, receiver) = UnixStream::pair()?;
                (sink.into(), Some(receiver.into()))
            }
            Self::Pipe => {
                let (receiver, sink) = io::pipe()?;
                if chunk_bytes > fcntl_getpipe_size(&sink)? {
                    // Refused above what a user may have; then a chunk goes in parts.
                    fcntl_setpipe_size(&sink, chunk_bytes).ok();
                }
                (sink.into(), Some(receiver.into()))
            }
        };
        Ok(Ends { sink, receiver })
    }
}

fn listen(port: u16) -> Result<TcpListener> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            bail!("port {port} of 127.0.0.1 is taken; the receivers need one each: give another -p")
        }
        Err(error) => Err(error).with_context(|| format!("can't listen on 127.0.0.1:{port}")),
    }
}

fn connect(listener: &TcpListener) -> io::Result<(TcpStream, TcpStream)> {
    let sink = TcpStream::connect(listener.local_addr()?)?;
    let ours = sink.local_addr()?;
    for _ in 0..STRANGERS_MAX {
        let (receiver, from) = listener.accept()?;
        // Somebody else may have knocked before.
        if from == ours {
            return Ok((sink, receiver));
        }
    }
    Err(io::Error::other("other programs keep connecting to the port of a receiver"))
}

const STRANGERS_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn what_goes_in_comes_out_and_ends() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("file0");
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        for sink in [Sink::Null, Sink::Tcp, Sink::Unix, Sink::Pipe, Sink::File] {
            let line = Line::new(sink, free, &source).unwrap();
            for _ in 0..2 {
                let Ends { sink: end, receiver } = line.ends(1).unwrap();
                File::from(end).write_all(b"bytes").unwrap();
                assert_eq!(receiver.is_some(), sink.has_receiver());
                let mut text = String::new();
                if let Some(receiver) = receiver {
                    File::from(receiver).read_to_string(&mut text).unwrap();
                    assert_eq!(text, "bytes");
                }
            }
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_taken_port_is_said() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let said = Line::new(Sink::Tcp, port, Path::new("file0")).unwrap_err().to_string();
        assert!(said.contains(&port.to_string()) && said.contains("-p"), "{said}");
    }
}
