//! copy_file_range(2): the file system's own way.

use rustix::fs;

use super::ends::{Sink, SinkKind, SourceKind};
use super::flow::{End, Flow, Halt};

/// Moves what is left.
pub(super) fn run(flow: &mut Flow<'_>, sink: &Sink<'_>) -> Result<(), Halt> {
    let is_possible =
        matches!(flow.source.kind, SourceKind::Sized(_)) && sink.kind == SinkKind::File;
    if !is_possible {
        return Err(Halt::Unsupported("it goes from file to file, and appends to none".into()));
    }
    let (source, sink) = (flow.source.fd, sink.fd);
    // Ends with the range or the source, one chunk or an error further each turn.
    while flow.next_chunk() > 0 {
        let (mut offset, bytes) = (flow.offset(), flow.next_chunk());
        let moved = flow.call(End::Sink(sink), || {
            Ok(fs::copy_file_range(source, Some(&mut offset), sink, None, bytes)?)
        })?;
        if moved == 0 {
            // Some kernels give this as their "can't".
            flow.ensure_not_cut()?;
            return Err(Halt::Unsupported("it moved nothing of what is there".into()));
        }
        flow.taken += moved as u64;
        flow.arrived(moved)?;
    }
    flow.ensure_not_cut()
}
