//! write(2) from a mapping of the source.

use shorthaul_platform::memory::FileView;

use super::ends::{Sink, SourceKind};
use super::flow::{Flow, Halt};
use super::outcome::Fault;

/// Moves what is left.
pub(super) fn run(flow: &mut Flow<'_>, sink: &Sink<'_>) -> Result<(), Halt> {
    if !matches!(flow.source.kind, SourceKind::Sized(_)) {
        return Err(Halt::Unsupported("only files and block devices can be mapped".into()));
    }
    // Ends with the range: each turn gives a whole view, or fails.
    while let left @ 1.. = flow.bytes.unwrap_or(0) - flow.taken {
        let bytes = usize::try_from(left).map_or(VIEW_BYTES, |left| left.min(VIEW_BYTES));
        let view = FileView::map(flow.source.fd, flow.offset(), bytes)
            .map_err(|error| Halt::Unsupported(error.to_string()))?;
        give_view(flow, sink, &view).map_err(|halt| explain(flow, halt))?;
    }
    // The end of the last page may have been cut off, or the sink may not have looked.
    flow.ensure_not_cut()
}

fn give_view(flow: &mut Flow<'_>, sink: &Sink<'_>, view: &FileView) -> Result<(), Halt> {
    let (sink, way) = (sink.fd, sink.write_way(flow.patience.is_bounded()));
    let (bytes, chunk_bytes) = (view.len(), flow.chunk_bytes);
    flow.taken += bytes as u64;
    flow.give_all(sink, bytes, |from| {
        let end = bytes.min(from.saturating_add(chunk_bytes));
        view.write_to(from..end, sink, way)
    })
}

/// A page that can't be read is no fault of the sink's.
fn explain(flow: &Flow<'_>, halt: Halt) -> Halt {
    match halt {
        Halt::Fault(Fault::Io { cause, .. }) if cause.raw_os_error() == Some(BAD_ADDRESS) => {
            let context = "can't read a page of the source";
            flow.ensure_not_cut().err().unwrap_or(Halt::Fault(Fault::Io { context, cause }))
        }
        halt => halt,
    }
}

const BAD_ADDRESS: i32 = rustix::io::Errno::FAULT.raw_os_error();
/// What is mapped at a time: it costs address space, and page tables for what was read.
const VIEW_BYTES: usize = 1 << 30;
