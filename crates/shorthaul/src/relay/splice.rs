//! splice(2): pages change hands, and bytes are copied only if the sink has to have its own.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use shorthaul_platform::pipe::{self, Give, Pipe};

use super::ends::{Peeked, Sink, SinkKind, Source, SourceKind};
use super::flow::{End, Flow, Halt};
use super::wait::has_room;
use super::{Tools, rw};

/// Moves what is left.
pub(super) fn run(flow: &mut Flow<'_>, sink: &Sink<'_>, tools: &mut Tools) -> Result<(), Halt> {
    if sink.kind == SinkKind::Appending {
        return Err(Halt::Unsupported("the kernel splices nothing to files that append".into()));
    }
    let limit = flow.limit_sends(sink);
    let moved = match (flow.source.kind, sink.kind) {
        (SourceKind::Pipe, _) => directly(flow, sink.fd),
        (_, SinkKind::Pipe) if flow.source.is_stream() => directly(flow, sink.fd),
        _ => by_pipe(flow, sink, tools),
    };
    drop(limit);
    moved?;
    flow.ensure_not_cut()
}

/// Source or sink is a pipe itself.
fn directly(flow: &mut Flow<'_>, sink: BorrowedFd<'_>) -> Result<(), Halt> {
    let waits = !flow.patience.is_bounded();
    let source = flow.source;
    let end = if source.is_stream() { End::Either(sink) } else { End::Sink(sink) };
    // Ends with the range or the source, one chunk or an error further each turn.
    while flow.next_chunk() > 0 {
        if source.is_stream() && !waits {
            flow.wait_for_source()?;
        }
        let (offset, bytes) = (flow.offset(), flow.next_chunk());
        let splice = || pipe::splice(source.origin(offset), sink, bytes, waits);
        let moved = flow.call(end, || not_stuck(source, Some(sink), splice))?;
        if moved == 0 {
            return flow.source_ended();
        }
        flow.taken += moved as u64;
        flow.arrived(moved)?;
    }
    Ok(())
}

/// Splices, and tells apart what looks the same: at a byte that was sent out of band (MSG_OOB) a
/// splice from a TCP socket stops for ever, as if the stream had ended or had nothing. Then it is
/// an error, `EOPNOTSUPP`: reading goes past it.
fn not_stuck(
    source: Source<'_>,
    sink: Option<BorrowedFd<'_>>,
    mut splice: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    let moved = splice();
    if source.kind != SourceKind::Socket || !has_moved_nothing(&moved) {
        return moved;
    }
    let is_stuck = match (&moved, source.peek()?) {
        (Ok(_), left) => left != Peeked::End,
        // A sink that is full gives no other error.
        (Err(_), left) => left == Peeked::Bytes && sink.is_none_or(has_room),
    };
    if !is_stuck {
        return moved;
    }
    // They may have come only now.
    let moved = splice();
    if has_moved_nothing(&moved) { Err(Errno::OPNOTSUPP.into()) } else { moved }
}

fn has_moved_nothing(moved: &io::Result<usize>) -> bool {
    match moved {
        Ok(bytes) => *bytes == 0,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// Through a pipe of our own, which goes back to the tools only if it is empty. Into a pipe too:
/// moving between pipes is short, and keeps its reader out for less time than filling it does
/// (benchmarks/relay-probe/README.md).
fn by_pipe(flow: &mut Flow<'_>, sink: &Sink<'_>, tools: &mut Tools) -> Result<(), Halt> {
    let mut pipe = tools.pipe(flow.next_chunk())?;
    let moved = move_chunks(flow, sink.fd, &mut pipe);
    match moved {
        // What came out of a stream comes from nowhere else: so it goes another way.
        Err(Halt::Unsupported(_)) if flow.source.is_stream() => {
            // Nor may the next method go on behind what this one can't give.
            flow.is_last_resort = true;
            empty(flow, sink, tools, &mut pipe)?;
        }
        _ => {}
    }
    if pipe.held() == 0 {
        tools.keep_pipe(pipe);
    }
    moved
}

fn move_chunks(flow: &mut Flow<'_>, sink: BorrowedFd<'_>, pipe: &mut Pipe) -> Result<(), Halt> {
    let source = flow.source;
    // Ends with the range or the source, one chunk or an error further each turn.
    while flow.next_chunk() > 0 {
        if source.is_stream() && flow.patience.is_bounded() {
            flow.wait_for_source()?;
        }
        let (offset, bytes) = (flow.offset(), flow.next_chunk());
        let mut take = || pipe.take(source.origin(offset), bytes);
        let taken = flow.call(End::Source, || not_stuck(source, None, &mut take))?;
        if taken == 0 {
            return flow.source_ended();
        }
        flow.taken += taken as u64;
        give(flow, sink, pipe)?;
    }
    Ok(())
}

/// Gives all that the pipe holds.
fn give(flow: &mut Flow<'_>, sink: BorrowedFd<'_>, pipe: &mut Pipe) -> Result<(), Halt> {
    let waits = !flow.patience.is_bounded();
    let how = Give { more: flow.has_more_than(pipe.held()), waits };
    flow.give_all(sink, pipe.held(), |_| pipe.give(sink, how))
}

fn empty(
    flow: &mut Flow<'_>,
    sink: &Sink<'_>,
    tools: &mut Tools,
    pipe: &mut Pipe,
) -> Result<(), Halt> {
    let buffer = tools.buffer(pipe.held())?;
    // Ends: a pipe that holds something gives it.
    while pipe.held() > 0 {
        let bytes = flow.call(End::Source, || pipe.read(buffer))?;
        rw::give(flow, sink, &buffer[..bytes])?;
    }
    Ok(())
}
