//! Messages between the processes of a bench: a line of JSON each, with descriptors.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shorthaul_platform::socket::{self, Descriptors, Wait};

/// One end of a socket between two processes that take turns, but for one that is told of the end
/// of a run while it is still told of its beginning.
#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
    /// What came behind the last message.
    rest: RefCell<Vec<u8>>,
}

impl Channel {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        socket::prepare(stream.as_fd())?;
        Ok(Self { stream, rest: RefCell::default() })
    }

    /// For poll(2).
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn send(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let mut text = serde_json::to_vec(message)?;
        text.push(b'\n');
        let mut sent = 0;
        while sent < text.len() {
            // They have gone with the first byte.
            let descriptors = if sent == 0 { descriptors } else { &[] };
            let rest = [IoSlice::new(&text[sent..])];
            sent += socket::send(self.stream.as_fd(), &rest, descriptors, Wait::Block)?;
        }
        Ok(())
    }

    /// The next message and what came along; none when the other side has gone.
    pub(super) fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>> {
        let (mut text, mut found) = (self.rest.take(), Vec::new());
        let mut buffer = [0; 4096];
        // Ends with a line, or when the other side has gone: then the kernel says so.
        let end = loop {
            if let Some(end) = text.iter().position(|&byte| byte == b'\n') {
                break end + 1;
            }
            let received = match socket::receive(self.stream.as_fd(), &mut buffer, Wait::Block) {
                // A signal came.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                received => received?,
            };
            if received.bytes == 0 {
                ensure!(text.is_empty(), "the other process has gone in the middle of a message");
                return Ok(None);
            }
            text.extend_from_slice(&buffer[..received.bytes]);
            match received.descriptors {
                Descriptors::Arrived(descriptors) => found.extend(descriptors),
                _ => bail!("descriptors were lost on the way: are there too many open files?"),
            }
        };
        self.rest.replace(text.split_off(end));
        let message = serde_json::from_slice(&text).context("a message is not understood")?;
        Ok(Some((message, found)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn messages_arrive_with_their_descriptors() {
        let (one, other) = UnixStream::pair().unwrap();
        let (one, other) = (Channel::new(one).unwrap(), Channel::new(other).unwrap());
        let long = "long ".repeat(2000);
        let (reader, writer) = io::pipe().unwrap();
        one.send(&long, &[writer.as_fd()]).unwrap();
        drop(writer);
        let (got, descriptors) = other.receive::<String>().unwrap().unwrap();
        assert_eq!((got, descriptors.len()), (long, 1));
        drop(descriptors);
        // The last writer has gone.
        assert_eq!((&reader).read(&mut [0]).unwrap(), 0);
        one.send(&1, &[]).unwrap();
        one.send(&2, &[]).unwrap();
        for number in [1, 2] {
            assert_eq!(other.receive::<u32>().unwrap().unwrap().0, number);
        }
        drop(one);
        assert!(other.receive::<String>().unwrap().is_none());
    }
}
