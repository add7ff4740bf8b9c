//! One client and its server process, their threads pinned as a placement says.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use shorthaul::placement::Assignment;
use shorthaul::{Buffer, Client, ClientOptions, DirectClient, Reply, peer_policy};
use shorthaul_platform::topology::pin_current_thread;

use super::limits::{megabytes_per_second, repeat};
use super::method::{Memory, Method};
use super::work::{Consume, EMPTY, MAKE, REQUEST_BYTES, RESPONSE_BYTES, Source, Work};

/// How many threads a call crosses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Four, as in the original: the client's, its reactor, the server's reactor, a worker.
    Threads,
    /// Two: the client's does its own I/O, the server's reactor runs the handler.
    Direct,
}

impl Mode {
    pub(crate) const ALL: [Self; 2] = [Self::Threads, Self::Direct];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Direct => "direct",
        }
    }
}

/// A connection to a server process of its own.
pub(crate) struct Session {
    client_cpu: u32,
    caller: Caller,
    _server: ServerProcess,
    buffers: HashMap<usize, Buffer>,
    sequence: u64,
    calls: u64,
}

#[allow(clippy::large_enum_variant, reason = "there are a handful of sessions")]
enum Caller {
    Threads(Client),
    Direct(DirectClient),
}

/// What running a cell for a while gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellRun {
    pub(crate) megabytes_per_second: f64,
    pub(crate) seconds_per_call: f64,
    pub(crate) calls: u64,
    /// Calls whose payload went through a mapping that the server had kept.
    pub(crate) reused: u64,
}

impl Session {
    /// Starts the server process and connects to it.
    pub(crate) fn start(mode: Mode, assignment: &Assignment, bytes_max: usize) -> Result<Self> {
        // In direct mode the reactor does the worker's work, where the worker would: so the payload
        // crosses what the placement says it crosses.
        let reactor = match mode {
            Mode::Threads => &assignment.server_reactor,
            Mode::Direct => &assignment.worker,
        };
        let mut arguments = vec![
            "--reactor-cpu".to_owned(),
            reactor.id.to_string(),
            "--worker-cpu".to_owned(),
            assignment.worker.id.to_string(),
            "--bytes-max".to_owned(),
            bytes_max.to_string(),
        ];
        if mode == Mode::Direct {
            arguments.push("--inline-handlers".to_owned());
        }
        let (stream, server) = spawn("bench-server", &arguments)?;
        let reactor_cpu = assignment.client_reactor.id;
        let pin = move || {
            pin_current_thread(reactor_cpu).expect("the CPU was usable when the bench was planned");
        };
        let options = ClientOptions {
            on_thread_start: Some(Arc::new(pin)),
            // The server is a child of ours, whatever user that is.
            policy: Some(peer_policy(|_| Ok(()))),
            ..ClientOptions::default()
        };
        let caller = match mode {
            Mode::Threads => Caller::Threads(Client::from_stream(stream, &options)?),
            Mode::Direct => Caller::Direct(DirectClient::from_stream(stream, &options)?),
        };
        let client_cpu = assignment.client.id;
        Ok(Self {
            client_cpu,
            caller,
            _server: server,
            buffers: HashMap::new(),
            sequence: 0,
            calls: 0,
        })
    }

    /// Calls by `method` for `time`.
    pub(crate) fn run(
        &mut self,
        method: Method,
        bytes: usize,
        source: Source,
        consume: Consume,
        time: Duration,
    ) -> Result<CellRun> {
        pin_current_thread(self.client_cpu)?;
        let mut buffer = match method.memory {
            Memory::Reused => Some(self.take_buffer(bytes)?),
            Memory::Fresh | Memory::Socket => None,
        };
        let (mut reused, calls) = (0, self.calls);
        let seconds = repeat(time, || {
            self.sequence += 1;
            self.calls += 1;
            let work = Work { method, source, sequence: self.sequence, bytes };
            let reply = self.caller.call(&work, buffer.take())?;
            work.check(&reply, consume)?;
            reused += u64::from(reply.response().first() == Some(&1));
            buffer = reply.into_buffer().filter(|_| method.memory == Memory::Reused);
            Ok(())
        })
        .with_context(|| format!("{method} of {bytes} bytes"))?;
        self.buffers.extend(buffer.map(|buffer| (bytes, buffer)));
        Ok(CellRun {
            megabytes_per_second: megabytes_per_second(bytes, seconds),
            seconds_per_call: seconds,
            calls: self.calls - calls,
            reused,
        })
    }

    /// Makes empty calls for `time`; seconds for each.
    pub(crate) fn run_empty(&mut self, time: Duration) -> Result<f64> {
        pin_current_thread(self.client_cpu)?;
        let request = [0; REQUEST_BYTES];
        let seconds = repeat(time, || {
            for _ in 0..CALLS_PER_CLOCK {
                let reply = match &mut self.caller {
                    Caller::Threads(client) => client.call(EMPTY).request(&request).send()?,
                    Caller::Direct(client) => client.call(EMPTY).request(&request).send()?,
                };
                ensure!(reply.response().len() == RESPONSE_BYTES, "an empty call's answer is off");
            }
            Ok(())
        })?;
        Ok(seconds / f64::from(CALLS_PER_CLOCK))
    }

    fn take_buffer(&mut self, bytes: usize) -> Result<Buffer> {
        if let Some(buffer) = self.buffers.remove(&bytes) {
            return Ok(buffer);
        }
        Ok(match &mut self.caller {
            Caller::Threads(client) => client.buffer(bytes)?,
            Caller::Direct(client) => client.buffer(bytes)?,
        })
    }
}

impl Caller {
    fn call(&mut self, work: &Work, buffer: Option<Buffer>) -> Result<Reply> {
        let request = work.encode();
        let bytes = work.bytes;
        macro_rules! send {
            ($call:expr) => {{
                let call = $call.request(&request);
                match (work.method.memory, buffer) {
                    (Memory::Reused, Some(buffer)) => call.into(buffer).send(),
                    (Memory::Socket, _) => call.inline(bytes).send(),
                    _ => call.into_fresh(bytes).send(),
                }
            }};
        }
        let outcome = match self {
            Self::Threads(client) => send!(client.call(MAKE)),
            Self::Direct(client) => send!(client.call(MAKE)),
        };
        Ok(outcome?)
    }
}

/// A process of ours. It would end by itself when its client is gone; dropping it is sooner.
struct ServerProcess(Child);

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Two pinned processes and a socketpair: 64 bytes there, 8 back.
pub(crate) struct PingPong {
    client_cpu: u32,
    stream: UnixStream,
    _server: ServerProcess,
}

impl PingPong {
    pub(crate) fn start(client_cpu: u32, server_cpu: u32) -> Result<Self> {
        let arguments = ["--cpu".to_owned(), server_cpu.to_string()];
        let (stream, server) = spawn("bench-pong", &arguments)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { client_cpu, stream, _server: server })
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

/// Starts this program again, as `command`, with one end of a socketpair as its standard input.
fn spawn(command: &str, arguments: &[String]) -> Result<(UnixStream, ServerProcess)> {
    let (ours, theirs) = UnixStream::pair().context("can't make a socketpair")?;
    let program = std::env::current_exe().context("can't find this program itself")?;
    let server = Command::new(&program)
        .arg(command)
        .args(arguments)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("can't start {}", program.display()))?;
    Ok((ours, ServerProcess(server)))
}

/// Reading the clock costs as much as a hundredth of a round trip.
const CALLS_PER_CLOCK: u32 = 64;
const PATIENCE: Duration = Duration::from_secs(20);

/// When a run that is to end at `by` has how much left for each of `count` parts.
pub(crate) fn share_of_time(by: Instant, count: usize) -> Duration {
    let left = by.saturating_duration_since(Instant::now());
    left / u32::try_from(count.max(1)).unwrap_or(u32::MAX)
}
