//! A pipe of our own, as a place for pages between a source and a sink: splice(2).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{self, PipeFlags, SpliceFlags};

/// A pipe whose both ends are ours, which knows how many bytes are in it.
///
/// Taking never waits for room, nor for a Unix socket that has nothing (for other origins as their
/// own modes say), and giving only if it is told to. What it takes from a file are the file's own
/// pages, not copies: who overwrites the file before they are read from the other end changes what
/// is read.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    held: usize,
}

/// How bytes are given.
#[derive(Clone, Copy, Debug)]
pub struct Give {
    /// Whether others follow, so that a TCP socket needn't send a part of a packet.
    pub more: bool,
    /// Whether to wait for a pipe that is full; sockets do as their own mode says.
    pub waits: bool,
}

/// Where bytes are taken from.
#[derive(Debug)]
pub enum Origin<'a> {
    /// A file, at this offset; its own position stays where it is.
    File(BorrowedFd<'a>, u64),
    /// A socket or device: the bytes that come next.
    Stream(BorrowedFd<'a>),
}

impl Pipe {
    /// Makes an empty pipe.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` when descriptors or pipe pages are used up.
    ///
    /// # References
    /// pipe2(2)
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = pipe::pipe_with(PipeFlags::CLOEXEC)?;
        Ok(Self { reader, writer, held: 0 })
    }

    /// Makes room for `bytes` bytes, or for as much of it as the kernel grants: above
    /// /proc/sys/fs/pipe-max-size, or past the pages that all pipes of a user may have, only
    /// privileged processes get what they ask for. Gives the room that there is.
    ///
    /// # References
    /// fcntl(2) `F_SETPIPE_SZ`, pipe(7)
    pub fn make_room(&mut self, bytes: usize) -> usize {
        let mut room = self.room();
        let mut wanted = bytes;
        // Ends: it is halved each time.
        while room < wanted {
            // A refusal leaves the pipe as it was.
            room = pipe::fcntl_setpipe_size(&self.writer, wanted).unwrap_or(room).max(room);
            wanted /= 2;
        }
        room
    }

    /// Bytes that it can hold, in whole pages. Never below one page.
    pub fn room(&self) -> usize {
        pipe::fcntl_getpipe_size(&self.writer).unwrap_or(ROOM_MIN)
    }

    /// Bytes that were taken and not given yet.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Takes up to `bytes` bytes from `origin`, and returns how many came; 0 is its end.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when the pipe is full or a stream has nothing; `EINVAL` when
    /// the origin can't be spliced.
    ///
    /// # References
    /// splice(2)
    #[inline]
    pub fn take(&mut self, origin: Origin<'_>, bytes: usize) -> io::Result<usize> {
        let flags = SpliceFlags::NONBLOCK;
        let taken = match origin {
            Origin::File(file, mut offset) => {
                pipe::splice(file, Some(&mut offset), &self.writer, None, bytes, flags)
            }
            Origin::Stream(stream) => pipe::splice(stream, None, &self.writer, None, bytes, flags),
        }?;
        self.held += taken;
        Ok(taken)
    }

    /// Gives what is held to `sink`, or as much as it takes, and returns how many bytes went.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when a sink that doesn't wait is full; `EINVAL` when it can't
    /// take pages (a file that appends, some devices); `EPIPE`, with a SIGPIPE, when nobody reads.
    ///
    /// # References
    /// splice(2)
    #[inline]
    pub fn give(&mut self, sink: BorrowedFd<'_>, how: Give) -> io::Result<usize> {
        let mut flags = SpliceFlags::empty();
        flags.set(SpliceFlags::MORE, how.more);
        flags.set(SpliceFlags::NONBLOCK, !how.waits);
        let given = pipe::splice(&self.reader, None, sink, None, self.held, flags)?;
        self.held -= given;
        Ok(given)
    }

    /// Reads what is held into `target`.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is held.
    pub fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if self.held == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let read = rustix::io::read(&self.reader, target)?;
        self.held -= read;
        Ok(read)
    }
}

/// Moves up to `bytes` bytes from one descriptor to another of which one at least is a pipe, and
/// returns how many went; 0 is the end of the source. Unless it `waits`, a pipe that is empty or
/// full is [`io::ErrorKind::WouldBlock`].
///
/// # Errors
/// As [`Pipe::take`] and [`Pipe::give`].
///
/// # References
/// splice(2)
#[inline]
pub fn splice(
    origin: Origin<'_>,
    sink: BorrowedFd<'_>,
    bytes: usize,
    waits: bool,
) -> io::Result<usize> {
    let mut flags = SpliceFlags::empty();
    flags.set(SpliceFlags::NONBLOCK, !waits);
    let moved = match origin {
        Origin::File(file, mut offset) => {
            pipe::splice(file, Some(&mut offset), sink, None, bytes, flags)
        }
        Origin::Stream(stream) => pipe::splice(stream, None, sink, None, bytes, flags),
    };
    moved.map_err(|error: Errno| error.into())
}

/// A page of the smallest size that there is: what a pipe has at least.
const ROOM_MIN: usize = 4096;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn it_knows_what_it_holds() {
        let file = file_of(&[1, 2, 3, 4, 5, 6]);
        let mut pipe = Pipe::new().unwrap();
        assert_eq!(pipe.take(Origin::File(file.as_fd(), 1), 100).unwrap(), 5);
        assert_eq!(pipe.take(Origin::File(file.as_fd(), 6), 100).unwrap(), 0);
        assert_eq!(pipe.held(), 5);
        let null = File::options().write(true).open("/dev/null").unwrap();
        let mut some = [0; 2];
        assert_eq!(pipe.read(&mut some).unwrap(), 2);
        assert_eq!((some, pipe.held()), ([2, 3], 3));
        let how = Give { more: false, waits: false };
        assert_eq!(pipe.give(null.as_fd(), how).unwrap(), 3);
        assert_eq!(pipe.give(null.as_fd(), how).unwrap(), 0);
        assert_eq!(pipe.read(&mut some).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn room_grows_as_far_as_it_may_and_never_shrinks() {
        let mut pipe = Pipe::new().unwrap();
        let before = pipe.room();
        assert_eq!(pipe.make_room(1), before);
        assert!(pipe.make_room(4 * before) >= before);
        let granted = pipe.make_room(usize::MAX);
        assert_eq!(granted, pipe.room());
        assert!(granted >= before);
    }

    #[test]
    fn a_full_pipe_does_not_wait() {
        let file = file_of(&vec![7; 1 << 20]);
        let mut pipe = Pipe::new().unwrap();
        let taken = pipe.take(Origin::File(file.as_fd(), 0), 1 << 20).unwrap();
        assert!(taken < 1 << 20);
        let more = pipe.take(Origin::File(file.as_fd(), 0), 1).unwrap_err();
        assert_eq!(more.kind(), io::ErrorKind::WouldBlock);
    }
}
