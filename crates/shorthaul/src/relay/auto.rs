//! Which methods are tried between which ends, best first.

use rustix::fs;

use super::ends::{Sink, SinkKind, Source, SourceKind};
use super::method::Method;

/// The methods to try. The last one works between any two.
///
/// Splicing through a pipe as large as the chunk was as fast as sendfile(2) or faster between all
/// of them; sendfile's own pipe is smaller (benchmarks/relay-probe/README.md).
pub(super) fn methods(source: &Source<'_>, sink: &Sink<'_>) -> &'static [Method] {
    use Method::{CopyFileRange, ReadWrite, Splice};
    match (source.kind, sink.kind) {
        // Others wait for a socket if its modes say so, and those are a stranger's to change.
        (_, SinkKind::Socket) if sink.is_strangers => &[ReadWrite],
        // Named pipes can be spliced to without waiting, but not written to.
        (_, SinkKind::Pipe) if sink.is_strangers => &[Splice, ReadWrite],
        (SourceKind::Unsized | SourceKind::Device, _) | (_, SinkKind::Appending) => &[ReadWrite],
        (SourceKind::Sized(_), SinkKind::File) if may_share_blocks(sink) => {
            &[CopyFileRange, Splice, ReadWrite]
        }
        _ => &[Splice, ReadWrite],
    }
}

/// Whether the sink's file system may copy a file without moving its bytes. Of those that never do
/// the common ones are told apart: there it is a splice by a smaller pipe.
fn may_share_blocks(sink: &Sink<'_>) -> bool {
    let magic = fs::fstatfs(sink.fd).map(|found| found.f_type);
    magic.is_ok_and(|magic| ![EXT4, TMPFS].contains(&magic))
}

/// See linux/magic.h. ext2 and ext3 have the same.
const EXT4: fs::FsWord = 0xef53;
const TMPFS: fs::FsWord = 0x0102_1994;
