//! splice(2): pages change hands, and bytes are copied only if the sink has to have its own.

use std::os::fd::BorrowedFd;

use rustix::net::{self, RecvFlags};
use shorthaul_platform::pipe::{self, Give, Pipe};

use super::ends::{Sink, SinkKind, SourceKind};
use super::flow::{End, Flow, Halt};
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
        let moved = flow.call(end, || pipe::splice(source.origin(offset), sink, bytes, waits))?;
        if moved == 0 {
            return source_ended(flow);
        }
        flow.taken += moved as u64;
        flow.arrived(moved)?;
    }
    Ok(())
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
        let taken = flow.call(End::Source, || pipe.take(source.origin(offset), bytes))?;
        if taken == 0 {
            return source_ended(flow);
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

/// What it means that nothing came. Of a TCP socket it needn't be the end: splice(2) also stops at
/// a byte that was sent out of band, which reading passes over.
fn source_ended(flow: &Flow<'_>) -> Result<(), Halt> {
    let peeks = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let is_socket = flow.source.kind == SourceKind::Socket;
    if is_socket && !matches!(net::recv(flow.source.fd, &mut [0_u8; 1], peeks), Ok((_, 0))) {
        return Err(Halt::Unsupported("a byte out of band is in the way".into()));
    }
    flow.source_ended()
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
