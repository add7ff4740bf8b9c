//! Which methods are tried between which ends, best first.

use super::ends::{Sink, SinkKind, Source, SourceKind};
use super::method::Method;

/// The methods to try. The last one works between any two.
pub(super) fn methods(source: &Source<'_>, sink: &Sink<'_>) -> &'static [Method] {
    use Method::{CopyFileRange, Map, ReadWrite, SendFile, Splice};
    match (source.kind, sink.kind) {
        // Others wait for a socket if its modes say so, and those are a stranger's to change.
        (_, SinkKind::Socket) if sink.is_strangers => &[ReadWrite],
        // Named pipes can be spliced to without waiting, but not written to.
        (_, SinkKind::Pipe) if sink.is_strangers => &[Splice, ReadWrite],
        (SourceKind::Sized(_), SinkKind::File) => &[CopyFileRange, SendFile, ReadWrite],
        (SourceKind::Sized(_), SinkKind::Pipe) => &[Splice, ReadWrite],
        (SourceKind::Sized(_), SinkKind::Socket) => &[SendFile, ReadWrite],
        (SourceKind::Sized(_), SinkKind::Device) => &[Map, ReadWrite],
        (SourceKind::Pipe | SourceKind::Socket, SinkKind::Appending) => &[ReadWrite],
        (SourceKind::Pipe | SourceKind::Socket, _) => &[Splice, ReadWrite],
        (SourceKind::Unsized | SourceKind::Device, _) | (_, SinkKind::Appending) => &[ReadWrite],
    }
}
