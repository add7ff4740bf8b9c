//! The least that a round trip between two processes can be.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use shorthaul_platform::socket::stream_from_stdin;
use shorthaul_platform::topology::pin_current_thread;

use super::limits::repeat;
use super::process::{PATIENCE, ServerProcess, die_with_parent, spawn};
use super::work::{CALLS_PER_CLOCK, REQUEST_BYTES, RESPONSE_BYTES};

/// Two pinned processes and a socketpair: 64 bytes there, 8 back.
pub(crate) struct PingPong {
    client_cpu: u32,
    stream: UnixStream,
    server: ServerProcess,
}

impl PingPong {
    pub(crate) fn start(client_cpu: u32, server_cpu: u32) -> Result<Self> {
        let arguments = ["--cpu".to_owned(), server_cpu.to_string()];
        let (stream, server) = spawn("bench-pong", &arguments)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { client_cpu, stream, server })
    }

    pub(crate) fn server(&self) -> u32 {
        self.server.id()
    }

    /// Seconds for each round trip.
    pub(crate) fn run(&mut self, time: Duration) -> Result<f64> {
        pin_current_thread(self.client_cpu)?;
        let (request, mut response) = ([0; REQUEST_BYTES], [0; RESPONSE_BYTES]);
        let seconds = repeat(time, || {
            for _ in 0..CALLS_PER_CLOCK {
                self.stream.write_all(&request)?;
                self.stream.read_exact(&mut response)?;
            }
            Ok(())
        })?;
        Ok(seconds / f64::from(CALLS_PER_CLOCK))
    }
}

/// Answer on a bare socket; its client is standard input.
#[derive(Clone, Debug, Args)]
pub(crate) struct PongArgs {
    /// CPU to run on.
    #[arg(long)]
    cpu: u32,
}

/// Answers 64 bytes with 8 until the client has gone.
pub(crate) fn pong(args: &PongArgs) -> Result<()> {
    die_with_parent(args.cpu)?;
    let mut socket = stream_from_stdin()?;
    let mut request = [0; REQUEST_BYTES];
    while socket.read_exact(&mut request).is_ok() {
        socket.write_all(&request[..RESPONSE_BYTES])?;
    }
    Ok(())
}
