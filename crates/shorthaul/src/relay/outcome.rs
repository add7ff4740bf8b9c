//! How a relay went.

use std::io;

use super::method::Method;
use crate::error::{Code, Status};

/// What a relay has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Relayed {
    /// Bytes that are in the sink.
    pub bytes: u64,
    /// System calls that moved them; those that waited or asked are not counted.
    pub calls: u64,
    /// The method that was used; with [`Method::Auto`] the one that it ended with.
    pub method: Method,
}

/// Why a relay did not move all of its range, and how far it came.
#[derive(Debug, thiserror::Error)]
#[error("{fault}; bytes relayed: {}", .relayed.bytes)]
#[non_exhaustive]
pub struct RelayError {
    /// What went wrong.
    pub fault: Fault,
    /// What is in the sink all the same.
    pub relayed: Relayed,
    /// Bytes that were taken from a pipe or socket and that the sink did not take. They are gone.
    pub bytes_lost: u64,
}

/// What went wrong with a relay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The source ended before the range did: it was shorter, or was cut under way. Of a file that
    /// was cut, what was relayed of the cut-off part may be zeros.
    #[error("the source ended at byte {at} of a range up to {end}")]
    SourceEnded {
        /// Where it ends now.
        at: u64,
        /// Where the range ends.
        end: u64,
    },

    /// Nobody reads the sink any more.
    #[error("the reader of the sink has gone away")]
    SinkClosed,

    /// The deadline passed.
    #[error("the deadline of the relay passed")]
    DeadlineExceeded,

    /// Somebody cancelled it.
    #[error("the relay was cancelled")]
    Cancelled,

    /// The method can't do it between these two; [`Method::Auto`] takes another one.
    #[error("{method} can't relay from {source_kind} to {sink_kind}: {why}; auto takes what can")]
    Unsupported {
        /// The method that was asked for.
        method: Method,
        /// What the source is.
        source_kind: &'static str,
        /// What the sink is.
        sink_kind: &'static str,
        /// The kernel's word for it, or ours.
        why: String,
    },

    /// It was asked for in a way that can't work.
    #[error("{0}")]
    Misuse(String),

    /// The kernel refused something else.
    #[error("{context}: {cause}")]
    Io {
        /// What was being done.
        context: &'static str,
        /// What the kernel said. Part of the message, so not told again as the error's source.
        cause: io::Error,
    },
}

impl From<RelayError> for Status {
    /// A handler's `?`: the caller is told how far it came.
    fn from(error: RelayError) -> Self {
        let code = match &error.fault {
            Fault::SourceEnded { .. } => Code::DataLoss,
            Fault::SinkClosed => Code::Aborted,
            Fault::DeadlineExceeded => Code::DeadlineExceeded,
            Fault::Cancelled => Code::Cancelled,
            Fault::Unsupported { .. } => Code::Unimplemented,
            Fault::Misuse(_) => Code::InvalidArgument,
            Fault::Io { cause, .. } => match cause.kind() {
                io::ErrorKind::OutOfMemory
                | io::ErrorKind::StorageFull
                | io::ErrorKind::FileTooLarge
                | io::ErrorKind::QuotaExceeded => Code::ResourceExhausted,
                io::ErrorKind::PermissionDenied => Code::PermissionDenied,
                _ => Code::Internal,
            },
        };
        Self::new(code, error.to_string())
    }
}
