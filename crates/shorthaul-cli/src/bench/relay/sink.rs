//! Where relays go, and what receives them there.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Where the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sink {
    /// /dev/null.
    Null,
    /// A TCP connection over the loopback interface.
    Tcp,
    /// A Unix stream socket.
    Unix,
    /// A pipe.
    Pipe,
    /// A file without a name, in the folder of the source.
    File,
}

/// What a receiver does with what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Receive {
    /// Drops it uncopied, by MSG_TRUNC: TCP alone can do this.
    Trunc,
    /// Reads it into a buffer.
    Read,
    /// Moves it on to /dev/null by splice(2).
    Splice,
}

/// Which files the clients read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Files {
    /// All of them the same one.
    Shared,
    /// Each its own.
    Own,
}

impl Sink {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Pipe => "pipe",
            Self::File => "file",
        }
    }

    /// As it stands in a sentence.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Null => "/dev/null",
            Self::Tcp => "TCP over the loopback interface",
            Self::Unix => "a Unix socket",
            Self::Pipe => "a pipe",
            Self::File => "a file beside the source",
        }
    }

    /// Whether a process of its own takes what goes there.
    pub(crate) fn has_receiver(self) -> bool {
        matches!(self, Self::Tcp | Self::Unix | Self::Pipe)
    }

    /// What its receiver does unless told otherwise: the original's where that is possible.
    pub(crate) fn receive_default(self) -> Option<Receive> {
        match self {
            Self::Tcp => Some(Receive::Trunc),
            Self::Unix | Self::Pipe => Some(Receive::Read),
            Self::Null | Self::File => None,
        }
    }
}

impl Receive {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Trunc => "trunc",
            Self::Read => "read",
            Self::Splice => "splice",
        }
    }

    /// As it stands in a sentence about the receiver.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Trunc => "drops the bytes uncopied (MSG_TRUNC)",
            Self::Read => "reads the bytes into a buffer",
            Self::Splice => "moves the bytes on to /dev/null by splice",
        }
    }
}

impl Files {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Own => "own",
        }
    }

    /// As it stands in a heading.
    pub(crate) fn description(self, clients: usize) -> &'static str {
        match (self, clients) {
            (_, 1) | (Self::Shared, _) => "one file",
            (Self::Own, _) => "a file each",
        }
    }
}

/// `1 client`, `2 clients`.
pub(crate) fn clients(count: usize) -> String {
    format!("{count} client{}", if count == 1 { "" } else { "s" })
}
