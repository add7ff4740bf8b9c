//! What the processes of a bench of relays say to each other.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

use super::sink::Receive;

/// A process of one bench of relays; who commands it is standard input.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProcessArgs {
    /// CPU to run on.
    #[arg(long)]
    pub(super) cpu: Option<u32>,
}

/// What a process is told to do. Descriptors come along.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Request {
    /// Read this file to its end, so that it is in the page cache.
    Warm,
    /// Be ready to relay; source and sink come along.
    Relay(Job),
    /// Relay, from this time on.
    Go { start_ns: u64 },
    /// Take all that comes out of the descriptor that comes along, and compare it with the file
    /// that comes along, if one does.
    Take(Receive),
}

/// What a client is to relay.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Job {
    pub(super) method: String,
    pub(super) chunk_bytes: usize,
    pub(super) loops: u32,
    pub(super) time: Duration,
    /// Whether the sink is written from its start in each loop.
    pub(super) rewinds: bool,
}

/// What a process answers.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Answer {
    Ready,
    Warmed {
        bytes: u64,
    },
    Relayed(Stretch),
    Taken(Taken),
    /// The method can't do this, and why.
    Unsupported(String),
    Failed(String),
}

/// What a client did.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Stretch {
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) bytes: u64,
    pub(super) loops: u32,
    pub(super) calls: u64,
    pub(super) cpu: Duration,
    /// The method that was used.
    pub(super) method: String,
}

/// What a receiver got.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Taken {
    pub(super) end_ns: u64,
    pub(super) bytes: u64,
    pub(super) cpu: Duration,
    /// Where the first byte was that differed from the file's.
    pub(super) differs_at: Option<u64>,
}

/// The clock of all processes: nanoseconds since the machine began.
pub(super) fn now_ns() -> u64 {
    u64::try_from(duration(clock_gettime(ClockId::Monotonic)).as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of this process, to the moment: getrusage(2) would tell it to the last tick.
pub(super) fn cpu_time() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

fn duration(time: Timespec) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Begins such a process.
pub(super) fn begin(args: &ProcessArgs) -> Result<super::channel::Channel> {
    crate::bench::process::die_with_parent(args.cpu)?;
    let stream = shorthaul_platform::socket::stream_from_stdin()?;
    super::channel::Channel::new(stream).context("can't talk to the process that started this one")
}
