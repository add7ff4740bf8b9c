//! One client and its server process, their threads pinned as a placement says.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use shorthaul::placement::Assignment;
use shorthaul::{
    Buffer, Call, Client, ClientOptions, DirectClient, Pending, Reply, Transport, peer_policy,
};
use shorthaul_platform::topology::pin_current_thread;
use shorthaul_platform::usage::{Usage, process_usage};

use super::limits::repeat;
use super::measure::{CellRun, Engine, Job, Stretch, keep_in_flight};
use super::method::{Kind, Memory};
use super::process::{ServerProcess, spawn};
use super::stats::Times;
use super::work::{
    CALLS_PER_CLOCK, EMPTY, MAKE, REQUEST_BYTES, RESPONSE_BYTES, USAGE, Work, decode_usage,
};

/// How many threads a call crosses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
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

    /// Whether it can have so many calls under way: a direct client makes one at a time.
    pub(crate) fn can_have(self, in_flight: usize) -> bool {
        self == Self::Threads || in_flight == 1
    }
}

/// A connection to a server process of its own.
pub(crate) struct Session {
    client_cpu: u32,
    caller: Caller,
    server: ServerProcess,
    /// By their size.
    buffers: HashMap<usize, Vec<Buffer>>,
    sequence: u64,
    times: Times,
}

#[allow(clippy::large_enum_variant, reason = "there are a handful of sessions")]
enum Caller {
    Threads(Client),
    Direct(DirectClient),
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
        Ok(Self {
            client_cpu: assignment.client.id,
            caller,
            server,
            buffers: HashMap::new(),
            sequence: 0,
            times: Times::new(),
        })
    }

    pub(crate) fn server(&self) -> u32 {
        self.server.id()
    }

    /// Makes calls as the job says, for `time`.
    pub(crate) fn run(&mut self, job: &Job, time: Duration) -> Result<CellRun> {
        pin_current_thread(self.client_cpu)?;
        let spare = self.take_buffers(job)?;
        let mut calls = Calls { job, sequence: self.sequence, spare };
        let times = &mut self.times;
        let measured = match &mut self.caller {
            Caller::Threads(client) => {
                let mut threads = Threads { client, calls: &mut calls };
                measure(&mut threads, job.in_flight, time, times)
            }
            Caller::Direct(client) => {
                let mut direct = Direct { client, calls: &mut calls };
                measure(&mut direct, job.in_flight, time, times)
            }
        };
        let Calls { sequence, spare, .. } = calls;
        let (stretch, cost) =
            measured.with_context(|| format!("{} of {} bytes", job.method, job.bytes))?;
        self.sequence = sequence;
        self.buffers.insert(job.bytes, spare);
        Ok(CellRun::new(job.bytes, stretch, times.take(), cost))
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

    /// A buffer for each call in flight, if the job's method has any.
    fn take_buffers(&mut self, job: &Job) -> Result<Vec<Buffer>> {
        let mut buffers = self.buffers.remove(&job.bytes).unwrap_or_default();
        while job.method.reuses_buffer() && buffers.len() < job.in_flight {
            buffers.push(match &mut self.caller {
                Caller::Threads(client) => client.buffer(job.bytes)?,
                Caller::Direct(client) => client.buffer(job.bytes)?,
            });
        }
        Ok(buffers)
    }
}

/// The calls of one job, whoever makes them.
struct Calls<'a> {
    job: &'a Job,
    sequence: u64,
    /// Buffers that no call has.
    spare: Vec<Buffer>,
}

impl Calls<'_> {
    fn next(&mut self) -> (Work, Option<Buffer>) {
        self.sequence += 1;
        let Job { method, source, bytes, .. } = *self.job;
        let buffer = if method.reuses_buffer() { self.spare.pop() } else { None };
        (Work { method, source, sequence: self.sequence, bytes }, buffer)
    }

    /// Looks at an answer; whether its payload went through a mapping that the server had kept.
    fn take(&mut self, work: &Work, reply: Reply) -> Result<bool> {
        work.check(&reply, self.job.consume)?;
        let is_reused = reply.response().first() == Some(&1);
        let is_kept = work.method.reuses_buffer();
        self.spare.extend(reply.into_buffer().filter(|_| is_kept));
        Ok(is_reused)
    }
}

/// Says where the payload is wanted.
fn wanted<'a, T: Transport>(
    call: Call<'a, T>,
    work: &Work,
    buffer: Option<Buffer>,
) -> Result<Call<'a, T>> {
    Ok(match (work.method.kind, buffer) {
        (Kind::Fill { memory: Memory::Reused, .. }, Some(buffer)) => call.into(buffer),
        (Kind::Fill { .. }, _) => call.into_fresh(work.bytes),
        (Kind::Sidecar, _) => call.inline(work.bytes),
        (Kind::Sealed | Kind::Auto | Kind::Put(_), _) => {
            bail!("{} has a twin only; leave it out of --methods", work.method)
        }
    })
}

/// An engine whose server says what it has cost.
trait Metered: Engine {
    fn server_usage(&mut self) -> Result<Usage>;
}

/// Makes calls for `time`, after one that is not counted; and what they cost both processes. Being
/// asked costs the server too: how much is known by asking twice, and taken off.
fn measure<E: Metered>(
    engine: &mut E,
    in_flight: usize,
    time: Duration,
    times: &mut Times,
) -> Result<(Stretch, Usage)> {
    let warm = engine.start()?;
    engine.finish(warm)?;
    let first = engine.server_usage()?;
    let before = engine.server_usage()?;
    let ours_before = process_usage()?;
    let stretch = keep_in_flight(engine, in_flight, time, times)?;
    let ours = process_usage()?.since(ours_before);
    let asking = before.since(first);
    let theirs = engine.server_usage()?.since(before).since(asking);
    Ok((stretch, ours + theirs))
}

/// Calls by way of the client's reactor.
struct Threads<'c, 'j> {
    client: &'c Client,
    calls: &'c mut Calls<'j>,
}

impl<'c> Engine for Threads<'c, '_> {
    type Call = (Work, Pending<'c>);

    fn start(&mut self) -> Result<Self::Call> {
        let (work, buffer) = self.calls.next();
        let request = work.encode();
        let call = wanted(self.client.call(MAKE).request(&request), &work, buffer)?;
        Ok((work, Client::start(call)?))
    }

    fn finish(&mut self, (work, call): Self::Call) -> Result<bool> {
        self.calls.take(&work, call.wait()?)
    }
}

impl Metered for Threads<'_, '_> {
    fn server_usage(&mut self) -> Result<Usage> {
        decode_usage(self.client.call(USAGE).send()?.response())
    }
}

/// Calls by the caller's own thread, which makes one at a time: it is answered where it starts.
struct Direct<'c, 'j> {
    client: &'c mut DirectClient,
    calls: &'c mut Calls<'j>,
}

impl Engine for Direct<'_, '_> {
    type Call = (Work, Reply);

    fn start(&mut self) -> Result<Self::Call> {
        let (work, buffer) = self.calls.next();
        let request = work.encode();
        let call = wanted(self.client.call(MAKE).request(&request), &work, buffer)?;
        Ok((work, call.send()?))
    }

    fn finish(&mut self, (work, reply): Self::Call) -> Result<bool> {
        self.calls.take(&work, reply)
    }
}

impl Metered for Direct<'_, '_> {
    fn server_usage(&mut self) -> Result<Usage> {
        decode_usage(self.client.call(USAGE).send()?.response())
    }
}
