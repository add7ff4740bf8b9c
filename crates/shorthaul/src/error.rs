//! What can go wrong, in families by who is to blame.

use std::io;

/// gRPC's canonical status codes, by their numbers on the wire.
///
/// # References
/// <https://grpc.io/docs/guides/status-codes/>
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)] // The names are gRPC's own, described at the reference.
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// The code with this number, if there is one.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// The name in gRPC's spelling, such as `DEADLINE_EXCEEDED`.
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// An answer that is no success: what a handler returns, and what its caller then gets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Status {
    /// What kind of failure.
    pub code: Code,
    /// What happened, why, and what to do.
    pub message: String,
    /// With [`Code::OutOfRange`] on a payload that doesn't fit: the bytes a buffer needs.
    pub bytes_needed: Option<u64>,
}

impl Status {
    /// A failure of kind `code`.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), bytes_needed: None }
    }
}

impl From<io::Error> for Status {
    /// A handler's `?` on a file or pipe: the caller is told what the kernel said.
    fn from(error: io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::NotFound => Code::NotFound,
            io::ErrorKind::PermissionDenied => Code::PermissionDenied,
            io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull => Code::ResourceExhausted,
            io::ErrorKind::InvalidInput => Code::InvalidArgument,
            io::ErrorKind::UnexpectedEof => Code::DataLoss,
            _ => Code::Internal,
        };
        Self::new(code, error.to_string())
    }
}

/// Everything a call, a connection or a server can fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service, or the server for it, answered the call with a failure. The connection lives.
    #[error(transparent)]
    Status(#[from] Status),

    /// The call's deadline passed before its answer came. Its buffer stays with the library until
    /// the server has let go of it. The connection lives.
    #[error("the deadline of the call passed; whether the server did the work is unknown")]
    DeadlineExceeded,

    /// The caller took the call back. The connection lives.
    #[error("the call was cancelled by its caller")]
    Cancelled,

    /// A bound of this side was reached before anything was sent. The connection lives.
    #[error("{0}")]
    LimitReached(String),

    /// The call was made in a way that can't work. Nothing was sent; the connection lives.
    #[error("{0}")]
    Misuse(String),

    /// The connection is gone. A call that was under way may or may not have been carried out.
    #[error("connection lost, outcome unknown: {0}")]
    ConnectionLost(String),

    /// The other side broke the protocol; the connection was closed.
    #[error("the peer broke the protocol: {0}")]
    PeerMisbehaved(String),

    /// The call was carried out, but the payload of its answer can't be had: this process is out of
    /// descriptors or memory, or what the server sent is not what was agreed on. The connection
    /// lives.
    #[error("the call was carried out, but its payload is lost: {0}")]
    PayloadLost(String),

    /// The other side is not somebody to talk to, or said so of us.
    #[error("refused: {0}")]
    PeerRefused(String),

    /// The kernel refused something that this side needs: memory, a socket, a thread. A connection
    /// that exists lives.
    #[error("{context}: {cause}")]
    Io {
        /// What was being done, and what to do about it.
        context: String,
        /// What the kernel said. Part of the message, so not told again as the error's source.
        cause: io::Error,
    },
}

impl Error {
    /// No memory for `what`.
    pub(crate) fn memory(what: &str, cause: io::Error) -> Self {
        Self::io(format!("no memory for {what}{}", memory_advice(&cause)), cause)
    }

    pub(crate) fn io(context: impl Into<String>, cause: io::Error) -> Self {
        Self::Io { context: context.into(), cause }
    }

    /// The canonical code that says this best.
    pub fn code(&self) -> Code {
        match self {
            Self::Status(status) => status.code,
            Self::DeadlineExceeded => Code::DeadlineExceeded,
            Self::Cancelled => Code::Cancelled,
            Self::LimitReached(_) => Code::ResourceExhausted,
            Self::Misuse(_) => Code::InvalidArgument,
            Self::ConnectionLost(_) => Code::Unavailable,
            Self::Io { cause, .. } => match cause.kind() {
                io::ErrorKind::OutOfMemory => Code::ResourceExhausted,
                io::ErrorKind::PermissionDenied => Code::PermissionDenied,
                _ => Code::Unavailable,
            },
            Self::PeerMisbehaved(_) => Code::Internal,
            Self::PayloadLost(_) => Code::DataLoss,
            Self::PeerRefused(_) => Code::PermissionDenied,
        }
    }

    /// Whether the same call may succeed later **and** was certainly not carried out now.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Status(status) => {
                matches!(status.code, Code::ResourceExhausted | Code::Unavailable)
            }
            Self::LimitReached(_) => true,
            _ => false,
        }
    }

    /// Whether the connection is of no use any more.
    pub fn closes_connection(&self) -> bool {
        matches!(self, Self::ConnectionLost(_) | Self::PeerMisbehaved(_) | Self::PeerRefused(_))
    }
}

/// What is to be known, or done, about memory that can't be had for a reason other than that there
/// is none.
pub(crate) fn memory_advice(error: &io::Error) -> &'static str {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::INVAL) => {
            " (memory files are refused here, by the kernel or a sandbox: offer room inline)"
        }
        Some(Errno::FBIG) => " (it is over this process's limit for files: raise RLIMIT_FSIZE)",
        Some(Errno::MFILE | Errno::NFILE) => " (no descriptor is left: raise RLIMIT_NOFILE)",
        None if error.kind() == io::ErrorKind::QuotaExceeded => {
            " (its user has as much inline as it may: wait for answers, or offer a buffer)"
        }
        _ => "",
    }
}

/// The library's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    #[test]
    fn code_numbers_are_their_places() {
        for (number, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, number);
            assert_eq!(Code::from_number(number as u32), Some(code));
        }
        assert_eq!(Code::from_number(17), None);
        assert_eq!(Code::OutOfRange.to_string(), "OUT_OF_RANGE");
    }
}
