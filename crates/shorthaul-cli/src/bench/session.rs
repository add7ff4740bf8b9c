//! One client and its server process, their threads pinned as a placement says.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use shorthaul::placement::Assignment;
use shorthaul::{
    Begun, Buffer, Call, Client, ClientOptions, DirectClient, Lane, Pending, Reason, Reply,
    SealedObject, Transport, peer_policy,
};
use shorthaul_platform::memory::PrivateMemory;
use shorthaul_platform::topology::pin_current_thread;
use shorthaul_platform::usage::{Usage, process_usage};

use super::limits::repeat;
use super::measure::{CellRun, Engine, Job, Stretch, keep_in_flight};
use super::method::{Kind, Memory, Put};
use super::process::{ServerProcess, spawn};
use super::stats::Times;
use super::work::{
    CALLS_PER_CLOCK, EMPTY, MAKE, Pages, REQUEST_BYTES, RESPONSE_BYTES, Source, USAGE, WaitKind,
    Work, decode_usage, warm_source,
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
}

/// A connection to a server process of its own.
pub(crate) struct Session {
    client_cpu: u32,
    caller: Caller,
    server: ServerProcess,
    /// By their size.
    buffers: HashMap<usize, Vec<Buffer>>,
    maker: Maker,
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
    pub(crate) fn start(
        mode: Mode,
        wait: WaitKind,
        assignment: &Assignment,
        bytes_max: usize,
        pages: Pages,
    ) -> Result<Self> {
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
            "--wait".to_owned(),
            wait.name().to_owned(),
            "--huge-pages".to_owned(),
            pages.name().to_owned(),
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
            wait: wait.wait(),
            huge_pages: pages.into(),
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
            maker: Maker::new(bytes_max, pages)?,
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
        let maker = &mut self.maker;
        let mut calls = Calls { job, sequence: self.sequence, spare, maker, last: None };
        let times = &mut self.times;
        let measured = match &mut self.caller {
            Caller::Threads(client) => {
                let mut threads = Threads { client, calls: &mut calls };
                measure(&mut threads, job.in_flight, time, times)
            }
            Caller::Direct(client) => {
                let is_pipelined = job.in_flight > 1;
                let mut direct = Direct { client, calls: &mut calls, is_pipelined };
                measure(&mut direct, job.in_flight, time, times)
            }
        };
        let Calls { sequence, spare, last, .. } = calls;
        let (stretch, cost) =
            measured.with_context(|| format!("{} of {} bytes", job.method, job.bytes))?;
        self.sequence = sequence;
        self.buffers.insert(job.bytes, spare);
        let mut run = CellRun::new(job.bytes, stretch, times.take(), cost);
        run.lane = last;
        Ok(run)
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
    maker: &'a mut Maker,
    /// The lane that the last payload took, and why.
    last: Option<(Lane, Reason)>,
}

impl Calls<'_> {
    /// The next call, and what goes along: of an upload, every byte is written here.
    fn next(&mut self) -> Result<(Work, Goods)> {
        self.sequence += 1;
        let Job { method, source, consume, bytes, .. } = *self.job;
        let work = Work { method, source, consume, sequence: self.sequence, bytes };
        let buffer = if method.reuses_buffer() { self.spare.pop() } else { None };
        let goods = match (method.kind, buffer) {
            (Kind::Put(Put::Region), Some(mut buffer)) => {
                self.maker.make_in(&mut buffer, &work);
                Goods::Buffer(buffer)
            }
            (Kind::Put(Put::Sealed), _) => {
                self.maker.make(&work);
                let pages = self.maker.pages.into();
                Goods::Object(SealedObject::copy_with(self.maker.made(&work), pages)?)
            }
            (Kind::Put(_), _) => {
                self.maker.make(&work);
                Goods::None
            }
            (_, Some(buffer)) => Goods::Buffer(buffer),
            (_, None) => Goods::None,
        };
        Ok((work, goods))
    }

    /// Looks at an answer; whether its payload went through a mapping that the server had kept.
    fn take(&mut self, work: &Work, reply: Reply) -> Result<bool> {
        work.check(&reply)?;
        let is_put = work.method.is_put();
        let is_reused = !is_put && reply.response().first() == Some(&1);
        self.last = Some(if is_put {
            (reply.upload_lane(), reply.upload_reason())
        } else {
            (reply.lane(), reply.reason())
        });
        if work.method.reuses_buffer() {
            let (answer, upload) = reply.into_buffers();
            self.spare.extend(answer.or(upload));
        }
        Ok(is_reused)
    }
}

/// What goes into a call.
enum Goods {
    None,
    Buffer(Buffer),
    Object(SealedObject),
}

/// Makes what is uploaded, in the caller's own memory or in its buffer.
struct Maker {
    pages: Pages,
    page: PrivateMemory,
    warm: PrivateMemory,
}

impl Maker {
    fn new(bytes_max: usize, pages: Pages) -> Result<Self> {
        let (page, warm) = (pages.private(bytes_max)?, warm_source(bytes_max, pages)?);
        Ok(Self { pages, page, warm })
    }

    fn made(&self, work: &Work) -> &[u8] {
        &self.page[..work.bytes]
    }

    fn make(&mut self, work: &Work) {
        match work.source {
            Source::Fill => self.page.fill(0..work.bytes, work.fill_byte(), work.method.store()),
            Source::Warm => {
                let warm = &self.warm[work.warm_start()..][..work.bytes];
                self.page.copy_in(0, warm, work.method.store());
            }
        }
    }

    fn make_in(&self, buffer: &mut Buffer, work: &Work) {
        match work.source {
            Source::Fill => buffer.fill(0..work.bytes, work.fill_byte()),
            Source::Warm => buffer.copy_from(0, &self.warm[work.warm_start()..][..work.bytes]),
        }
    }
}

/// Says where the payload is wanted, or what it is.
fn wanted<'a, T: Transport>(
    call: Call<'a, T>,
    work: &Work,
    goods: Goods,
    made: &'a [u8],
) -> Result<Call<'a, T>> {
    let bytes = work.bytes;
    Ok(match (work.method.kind, goods) {
        (Kind::Fill { memory: Memory::Reused, .. }, Goods::Buffer(buffer)) => call.into(buffer),
        (Kind::Fill { memory: Memory::Fresh, .. }, _) => call.into_fresh(bytes),
        // Room for nothing would be none.
        (Kind::Sidecar, _) => call.inline(bytes.max(1)),
        (Kind::Sealed, _) => call.sealed(bytes.max(1)),
        (Kind::Auto, _) => call.auto(bytes.max(1)),
        (Kind::Put(Put::Region), Goods::Buffer(buffer)) => call.payload_from(buffer, 0..bytes),
        (Kind::Put(Put::Sealed), Goods::Object(object)) => call.payload_sealed(&object, 0..bytes),
        (Kind::Put(Put::Inline), _) => call.payload_inline(made),
        (Kind::Put(Put::Auto), _) => call.payload(made),
        (Kind::Fill { .. } | Kind::Put(_), _) => bail!("{}: its buffer is missing", work.method),
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
        let (work, goods) = self.calls.next()?;
        let (request, made) = (work.encode(), self.calls.maker.made(&work));
        let call = wanted(self.client.call(MAKE).request(&request), &work, goods, made)?;
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

/// Calls by the caller's own thread. One at a time is answered where it starts.
struct Direct<'c, 'j> {
    client: &'c mut DirectClient,
    calls: &'c mut Calls<'j>,
    is_pipelined: bool,
}

#[allow(clippy::large_enum_variant, reason = "there are a handful under way")]
enum DirectCall {
    Answered(Reply),
    UnderWay(Begun),
}

impl Engine for Direct<'_, '_> {
    type Call = (Work, DirectCall);

    fn start(&mut self) -> Result<Self::Call> {
        let (work, goods) = self.calls.next()?;
        let (request, made) = (work.encode(), self.calls.maker.made(&work));
        let call = wanted(self.client.call(MAKE).request(&request), &work, goods, made)?;
        let call = match self.is_pipelined {
            true => DirectCall::UnderWay(DirectClient::start(call)?),
            false => DirectCall::Answered(call.send()?),
        };
        Ok((work, call))
    }

    fn finish(&mut self, (work, call): Self::Call) -> Result<bool> {
        let reply = match call {
            DirectCall::Answered(reply) => reply,
            DirectCall::UnderWay(begun) => self.client.finish(begun)?,
        };
        self.calls.take(&work, reply)
    }
}

impl Metered for Direct<'_, '_> {
    fn server_usage(&mut self) -> Result<Usage> {
        decode_usage(self.client.call(USAGE).send()?.response())
    }
}
