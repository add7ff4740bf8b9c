//! A receiver: a process that takes what a client relays, counts it, and compares it if it is told
//! to.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail};
use rustix::net::{RecvFlags, recv};
use shorthaul::relay::{Method, Relay};
use shorthaul_platform::memory::PrivateMemory;

use super::message::{Answer, ProcessArgs, Request, Taken, begin, cpu_time, now_ns};
use super::sink::Receive;

/// Does what it is told until the bench has gone.
pub(crate) fn run(args: &ProcessArgs) -> Result<()> {
    let channel = begin(args)?;
    let mut receiver = Receiver::new()?;
    while let Some((request, descriptors)) = channel.receive()? {
        let Request::Take(receive) = request else { bail!("this is a receiver") };
        channel.send(&Answer::Ready, &[])?;
        let answer = match receiver.take(receive, descriptors) {
            Ok(taken) => Answer::Taken(taken),
            Err(error) => Answer::Failed(format!("{error:#}")),
        };
        channel.send(&answer, &[])?;
    }
    Ok(())
}

/// What is used again by later turns.
struct Receiver {
    buffer: PrivateMemory,
    /// Never touched where bytes are dropped: it only says how many at a time.
    room: PrivateMemory,
    relay: Relay,
    null: File,
}

impl Receiver {
    fn new() -> Result<Self> {
        let buffer = PrivateMemory::new(BUFFER_BYTES)?;
        buffer.populate();
        Ok(Self {
            buffer,
            room: PrivateMemory::new(DROP_BYTES)?,
            relay: Relay::new().method(Method::Splice),
            null: File::options().write(true).open("/dev/null").context("/dev/null")?,
        })
    }

    /// Takes all there is up to the end of the stream.
    fn take(&mut self, receive: Receive, descriptors: Vec<OwnedFd>) -> Result<Taken> {
        let mut descriptors = descriptors.into_iter();
        let end = descriptors.next().context("nothing to receive from came")?;
        let expected = descriptors.next().map(Expected::of).transpose()?;
        let cpu_before = cpu_time();
        let mut differs_at = None;
        let bytes = match (receive, expected) {
            (Receive::Trunc, _) => drain(|| drop_some(end.as_fd(), &mut self.room)),
            (Receive::Read, None) => drain(|| read(end.as_fd(), &mut self.buffer)),
            (Receive::Read, Some(mut expected)) => drain(|| {
                let bytes = read(end.as_fd(), &mut self.buffer)?;
                differs_at = differs_at.or(expected.compare(&self.buffer[..bytes])?);
                Ok(bytes)
            }),
            (Receive::Splice, _) => match self.relay.run(&end, .., &self.null) {
                Ok(relayed) => Ok(relayed.bytes),
                Err(error) => Err(error).context("can't splice what comes to /dev/null"),
            },
        }?;
        let (end_ns, cpu) = (now_ns(), cpu_time().saturating_sub(cpu_before));
        Ok(Taken { end_ns, bytes, cpu, differs_at })
    }
}

/// Takes again and again, until nothing comes any more; how many bytes that were.
fn drain(mut take: impl FnMut() -> io::Result<usize>) -> Result<u64> {
    let mut bytes = 0;
    // Ends with the stream, at the latest when the client has gone.
    loop {
        match take() {
            Ok(0) => return Ok(bytes),
            Ok(taken) => bytes += taken as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("can't receive"),
        }
    }
}

fn read(end: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::read(end, buffer)?)
}

/// With MSG_TRUNC a TCP socket drops bytes as if they had been copied, and leaves the buffer alone.
fn drop_some(end: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<usize> {
    let (_, dropped) = recv(end, room, RecvFlags::TRUNC)?;
    Ok(dropped)
}

/// What is to arrive: a file, over and over.
pub(super) struct Expected {
    file: File,
    bytes: u64,
    position: u64,
    block: Vec<u8>,
}

impl Expected {
    fn of(file: OwnedFd) -> Result<Self> {
        let file = File::from(file);
        let bytes = file.metadata().context("can't look at the file to compare with")?.len();
        Ok(Self { file, bytes, position: 0, block: Vec::new() })
    }

    /// Compares the bytes that come next; where the first differs, if one does.
    fn compare(&mut self, arrived: &[u8]) -> io::Result<Option<u64>> {
        let mut compared = 0;
        while compared < arrived.len() {
            if self.bytes == 0 {
                return Ok(Some(self.position));
            }
            let at = self.position % self.bytes;
            let left = usize::try_from(self.bytes - at).unwrap_or(usize::MAX);
            let part = &arrived[compared..][..left.min(arrived.len() - compared)];
            self.block.resize(part.len(), 0);
            self.file.read_exact_at(&mut self.block, at)?;
            if let Some(index) = part.iter().zip(&self.block).position(|(a, b)| a != b) {
                return Ok(Some(self.position + index as u64));
            }
            compared += part.len();
            self.position += part.len() as u64;
        }
        Ok(None)
    }
}

/// What is read at a time: it stays in the core's cache.
const BUFFER_BYTES: usize = 256 << 10;
/// More than a socket holds, so that one call drops all there is.
const DROP_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_wrong_byte_is_found_where_it_is() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abcde").unwrap();
        let expected = || Expected::of(file.try_clone().unwrap().into()).unwrap();
        let mut right = expected();
        for part in ["ab", "cdeabcdea", "", "bcde"] {
            assert_eq!(right.compare(part.as_bytes()).unwrap(), None);
        }
        assert_eq!(expected().compare(b"abcdeabXde").unwrap(), Some(7));
        let nothing = tempfile::tempfile().unwrap();
        assert_eq!(Expected::of(nothing.into()).unwrap().compare(b"a").unwrap(), Some(0));
    }
}
