//! read(2) and write(2) through a buffer.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, pread, read};
use shorthaul_platform::transfer::{self, WriteWay};

use super::Tools;
use super::ends::Sink;
use super::flow::{End, Flow, Halt};
use super::wait::has_room;

/// Moves what is left.
pub(super) fn run(flow: &mut Flow<'_>, sink: &Sink<'_>, tools: &mut Tools) -> Result<(), Halt> {
    let buffer = tools.buffer(flow.chunk_bytes)?;
    // Ends with the range or the source, one chunk or an error further each turn.
    while flow.next_chunk() > 0 {
        let bytes = take(flow, buffer)?;
        if bytes == 0 {
            return flow.source_ended();
        }
        give(flow, sink, &buffer[..bytes])?;
    }
    Ok(())
}

/// Reads the next chunk, or what there is of it.
fn take(flow: &mut Flow<'_>, buffer: &mut [u8]) -> Result<usize, Halt> {
    let (source, bytes, offset) = (flow.source, flow.next_chunk(), flow.offset());
    let target = &mut buffer[..bytes];
    if source.is_stream() && flow.patience.is_bounded() {
        flow.wait_for_source()?;
    }
    let taken = flow.call(End::Source, || {
        let taken = match source.is_stream() {
            true => read(source.fd, &mut target[..]),
            false => pread(source.fd, &mut target[..], offset),
        };
        Ok(taken?)
    })?;
    flow.taken += taken as u64;
    Ok(taken)
}

/// Gives all of `bytes`.
pub(super) fn give(flow: &mut Flow<'_>, sink: &Sink<'_>, bytes: &[u8]) -> Result<(), Halt> {
    let mut way = sink.write_way(flow.patience.is_bounded());
    let (sink, is_strangers) = (sink.fd, sink.is_strangers);
    let mut is_careful = false;
    flow.give_all(sink, bytes.len(), |from| {
        let bytes = &bytes[from..];
        if is_careful {
            return write_carefully(sink, bytes);
        }
        match transfer::write(sink, bytes, way) {
            // A stranger could fill the pipe between the two calls of a careful write.
            Err(error) if way == WriteWay::PlainNow && is_not_known(&error) && !is_strangers => {
                (way, is_careful) = (WriteWay::Plain, true);
                write_carefully(sink, bytes)
            }
            written => written,
        }
    })
}

/// Writes to a pipe whose mode is to wait, without waiting: a pipe that says it is ready has room
/// for a page, and so for as much as is written at once or not at all.
fn write_carefully(sink: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    if !has_room(sink) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    transfer::write(sink, &bytes[..bytes.len().min(PIPE_WRITE_MAX)], WriteWay::Plain)
}

fn is_not_known(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::OPNOTSUPP)
}

/// PIPE_BUF: pipe(7).
const PIPE_WRITE_MAX: usize = 4096;
