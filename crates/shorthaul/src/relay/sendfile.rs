//! sendfile(2): a splice through a pipe of the kernel's own.

use rustix::fs;

use super::ends::{Sink, SinkKind, SourceKind};
use super::flow::{End, Flow, Halt};

/// Moves what is left.
pub(super) fn run(flow: &mut Flow<'_>, sink: &Sink<'_>) -> Result<(), Halt> {
    if !matches!(flow.source.kind, SourceKind::Sized(_)) {
        return Err(Halt::Unsupported("it takes files and block devices of known size".into()));
    }
    if sink.kind == SinkKind::Appending {
        return Err(Halt::Unsupported("the kernel sends nothing to files that append".into()));
    }
    let limit = flow.limit_sends(sink);
    let moved = move_chunks(flow, sink);
    drop(limit);
    moved?;
    flow.ensure_not_cut()
}

fn move_chunks(flow: &mut Flow<'_>, sink: &Sink<'_>) -> Result<(), Halt> {
    // To a pipe it moves what fits, and waits only if that is nothing.
    let looks_first = sink.kind == SinkKind::Pipe && flow.patience.is_bounded();
    let (source, sink) = (flow.source.fd, sink.fd);
    // Ends with the range or the source, one chunk or an error further each turn.
    while flow.next_chunk() > 0 {
        if looks_first {
            flow.patience.wait_for_sink(sink)?;
        }
        let (mut offset, bytes) = (flow.offset(), flow.next_chunk());
        let moved = flow
            .call(End::Sink(sink), || Ok(fs::sendfile(sink, source, Some(&mut offset), bytes)?))?;
        if moved == 0 {
            return flow.source_ended();
        }
        flow.taken += moved as u64;
        flow.arrived(moved)?;
    }
    Ok(())
}
