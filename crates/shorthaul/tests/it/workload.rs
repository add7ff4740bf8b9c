//! Calls by every lane, whole ones, from making a buffer to giving it back: what those that are
//! killed, loaded and soaked do, and the server that serves them in a process of its own.

use std::env;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, exit};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use shorthaul::limits::Limits;
use shorthaul::{
    Buffer, Call, CallError, Client, Code, Descriptors, DirectClient, Error, InboundCall, Lane,
    Reply, RunningServer, SealedObject, Server, ServerOptions, Status, Transport,
    raise_descriptor_limit,
};

use super::child::{self, Process, say};
use super::service::{self, AnyClient, pattern, payload_bytes, request};

/// How a call's bulk travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Inline,
    FillWrite,
    FillMap,
    OneShot,
    Sealed,
    InlineUpload,
    SealedUpload,
    RegionUpload,
    Pipe,
    Socket,
}

/// A client of either kind, for one call.
pub(super) enum Caller<'a> {
    Direct(&'a mut DirectClient),
    Threaded(&'a Client),
}

/// Where a call failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// Making its buffer.
    Register(Error),
    Call(Error, Option<Buffer>),
}

/// What a call takes with it.
struct Luggage<'a> {
    request: &'a [u8],
    bytes: usize,
    payload: &'a [u8],
    buffer: Option<Buffer>,
    sink: Option<&'a OwnedFd>,
    timeout: Duration,
}

impl Way {
    pub(super) const ALL: [Self; 10] = [
        Self::Inline,
        Self::FillWrite,
        Self::FillMap,
        Self::OneShot,
        Self::Sealed,
        Self::InlineUpload,
        Self::SealedUpload,
        Self::RegionUpload,
        Self::Pipe,
        Self::Socket,
    ];

    /// One whole call, checked byte for byte.
    pub(super) fn call(
        self,
        mut caller: Caller<'_>,
        (bytes, seed): (usize, u8),
        timeout: Duration,
    ) -> Result<(), Failed> {
        let payload = pattern(bytes, seed);
        let mut buffer = None;
        if matches!(self, Self::FillWrite | Self::FillMap | Self::RegionUpload) {
            let made = match &mut caller {
                Caller::Direct(client) => client.buffer(bytes),
                Caller::Threaded(client) => client.buffer(bytes),
            };
            buffer = Some(made.map_err(Failed::Register)?);
        }
        let (sink, reading) = self.sink().unzip();
        let asked = request(bytes, seed);
        let luggage = Luggage {
            request: &asked,
            bytes,
            payload: &payload,
            buffer,
            sink: sink.as_ref(),
            timeout,
        };
        let method = self.method(seed);
        let outcome = match caller {
            Caller::Direct(client) => self.send(client.call(method), luggage),
            Caller::Threaded(client) => self.send(client.call(method), luggage),
        };
        drop(sink);
        let relayed = reading.map(|reading: JoinHandle<Vec<u8>>| reading.join().unwrap());
        match outcome {
            Ok(reply) => self.check(&reply, relayed.as_ref(), &payload, seed),
            Err(failed) => return Err(self.failed(failed, relayed.as_ref(), &payload)),
        }
        Ok(())
    }

    fn send<T: Transport>(
        self,
        call: Call<'_, T>,
        luggage: Luggage<'_>,
    ) -> Result<Reply, CallError> {
        let Luggage { request, bytes, payload, buffer, sink, timeout } = luggage;
        let call = call.request(request).deadline(timeout);
        match self {
            Self::Inline => call.inline(bytes).send(),
            Self::FillWrite | Self::FillMap => call.into(buffer.unwrap()).send(),
            Self::OneShot => call.into_fresh(bytes).send(),
            Self::Sealed => call.sealed(bytes).send(),
            Self::InlineUpload => call.payload_inline(payload).send(),
            Self::SealedUpload => {
                let object = SealedObject::copy_of(payload).unwrap();
                call.payload_sealed(&object, 0..bytes).send()
            }
            Self::RegionUpload => {
                let mut buffer = buffer.unwrap();
                buffer.copy_from(0, payload);
                call.payload_from(buffer, 0..bytes).send()
            }
            Self::Pipe | Self::Socket => call.into_descriptor(sink.unwrap()).send(),
        }
    }

    fn check(self, reply: &Reply, relayed: Option<&Vec<u8>>, payload: &[u8], seed: u8) {
        assert_eq!(reply.response(), [seed], "{self:?}");
        assert_eq!((reply.lane(), reply.upload_lane()), self.lanes(), "{self:?}");
        let found = match relayed {
            Some(relayed) => relayed.clone(),
            None if reply.lane() == Lane::None => payload.to_vec(),
            None => reply.to_vec(),
        };
        assert!(found == payload, "{self:?}: {} bytes, some are wrong", found.len());
    }

    /// A call that failed has let nothing else through than what it should.
    fn failed(self, failed: CallError, relayed: Option<&Vec<u8>>, payload: &[u8]) -> Failed {
        let is_part = relayed.is_none_or(|relayed| payload.starts_with(relayed));
        assert!(is_part, "{self:?}: what was relayed before it failed is wrong");
        let text = failed.to_string();
        let error = match failed.error() {
            Error::Status(status) => Error::Status(status.clone()),
            Error::DeadlineExceeded => Error::DeadlineExceeded,
            Error::Cancelled => Error::Cancelled,
            Error::LimitReached(message) => Error::LimitReached(message.clone()),
            Error::ConnectionLost(message) => Error::ConnectionLost(message.clone()),
            other => panic!("{self:?}: {other}: {text}"),
        };
        Failed::Call(error, failed.into_buffers().0)
    }

    /// Of the answer and of the upload.
    fn lanes(self) -> (Lane, Lane) {
        match self {
            Self::Inline => (Lane::Inline, Lane::None),
            Self::FillWrite => (Lane::FillWrite, Lane::None),
            Self::FillMap | Self::OneShot => (Lane::FillMap, Lane::None),
            Self::Sealed => (Lane::Sealed, Lane::None),
            Self::InlineUpload => (Lane::None, Lane::Inline),
            Self::SealedUpload => (Lane::None, Lane::Sealed),
            Self::RegionUpload => (Lane::None, Lane::CopyOut),
            Self::Pipe | Self::Socket => (Lane::Descriptor, Lane::None),
        }
    }

    fn method(self, seed: u8) -> &'static str {
        match self {
            Self::FillWrite => "write",
            Self::InlineUpload | Self::SealedUpload | Self::RegionUpload => "put",
            // Straight from a file, or staged.
            Self::Pipe | Self::Socket if seed.is_multiple_of(2) => "relay",
            _ => "map",
        }
    }

    fn sink(self) -> Option<(OwnedFd, JoinHandle<Vec<u8>>)> {
        let (sink, mut source): (OwnedFd, Box<dyn Read + Send>) = match self {
            Self::Pipe => {
                let (reader, writer) = io::pipe().unwrap();
                (writer.into(), Box::new(reader))
            }
            Self::Socket => {
                let (reader, writer) = UnixStream::pair().unwrap();
                (writer.into(), Box::new(reader))
            }
            _ => return None,
        };
        let read_all = move || {
            let mut found = Vec::new();
            source.read_to_end(&mut found).unwrap();
            found
        };
        Some((sink, thread::spawn(read_all)))
    }
}

impl AnyClient {
    pub(super) fn caller(&mut self) -> Caller<'_> {
        match self {
            Self::Direct(client) => Caller::Direct(client),
            Self::Threaded(client) => Caller::Threaded(client),
        }
    }
}

impl Failed {
    pub(super) fn error(&self) -> &Error {
        match self {
            Self::Register(error) | Self::Call(error, _) => error,
        }
    }
}

/// "put" takes a pattern, "stats" tells of the server, "never" ends with its call's time, "fail"
/// fails half-way; the others answer a pattern.
pub(super) fn serve(call: &mut InboundCall) -> Result<(), Status> {
    match call.method() {
        "put" => {
            let (bytes, seed) = (payload_bytes(call), call.request()[8]);
            let is_right = call.upload()?.into_slice()? == pattern(bytes, seed);
            if !is_right {
                return Err(Status::new(Code::DataLoss, "the upload is not what was asked"));
            }
            call.reply(&[seed])
        }
        "relay" => {
            let (bytes, seed) = (payload_bytes(call), call.request()[8]);
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let file = rustix::fs::memfd_create("source", flags).map_err(io::Error::from)?;
            let mut file = std::fs::File::from(file);
            io::Write::write_all(&mut file, &pattern(bytes, seed))?;
            call.relay(&file, ..)?;
            call.reply(&[seed])
        }
        "fail" => {
            let bytes = payload_bytes(call);
            call.payload(bytes)?.fill(1, bytes / 2)?;
            Err(Status::new(Code::NotFound, "half-way"))
        }
        "never" => {
            while !call.is_cancelled() {
                thread::sleep(Duration::from_micros(200));
            }
            Err(Status::new(Code::DeadlineExceeded, "at last"))
        }
        "quick" => {
            let bytes = call.payload_bytes_max() as usize;
            call.payload(bytes)?.fill(1, bytes)?;
            call.reply(b"")
        }
        "stats" => {
            let stats = SERVER.get().expect("started").stats();
            call.reply(&stats.accepts_put_off.to_le_bytes())
        }
        _ => service::serve(call),
    }
}

/// A process that serves all of this at `path`, with so many workers.
pub(super) fn start_server(path: &Path, workers: usize) -> Process {
    start_server_with(path, workers, Limits::default().calls_max)
}

/// Each client may have so many calls open.
pub(super) fn start_server_with(path: &Path, workers: usize, calls_max: u32) -> Process {
    let mut server = Process::spawn(server_command(path, workers, calls_max));
    assert_eq!(server.hear(), "serving");
    server
}

pub(super) fn server_command(path: &Path, workers: usize, calls_max: u32) -> Command {
    let mut command = command("serves", path);
    command.env(WORKERS, workers.to_string()).env(CALLS_MAX, calls_max.to_string());
    command
}

/// A child that ends with a failure as soon as one of its threads panics.
pub(super) fn command(role: &str, path: &Path) -> Command {
    child::command(role, path)
}

/// The role of a server.
pub(super) fn serve_for_ever(path: &Path) {
    fail_at_once();
    raise_descriptor_limit().unwrap();
    let number = |name| env::var(name).unwrap().parse::<usize>().unwrap();
    let limits = Limits { calls_max: number(CALLS_MAX) as u32, ..Limits::default() };
    let (workers, descriptors) = (number(WORKERS), Descriptors::Streams);
    let waiting_workers = workers;
    let options =
        ServerOptions { workers, waiting_workers, descriptors, limits, ..ServerOptions::default() };
    let server = Server::bind_with(path, options).unwrap().start(serve).unwrap();
    SERVER.set(server).unwrap();
    say("serving");
    // Ended by its parent, or with it.
    loop {
        thread::park();
    }
}

/// Makes a panic of any thread the end of this process, so that its parent finds out.
pub(super) fn fail_at_once() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        exit(3);
    }));
}

/// Random numbers that come again with their seed, which is told. `SHORTHAUL_TEST_SEED` sets it.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(what: &str) -> Self {
        let given = env::var("SHORTHAUL_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = given.unwrap_or(now);
        eprintln!("{what}: SHORTHAUL_TEST_SEED={seed}");
        Self(seed)
    }

    /// A thread's own numbers.
    pub(super) fn fork(&mut self) -> Self {
        Self(self.below(u64::MAX))
    }

    /// A number below `end`.
    ///
    /// # References
    /// Steele, Lea, Flood: *Fast Splittable Pseudorandom Number Generators*, 2014
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}

/// Whether tests are to take their time.
pub(super) fn is_long() -> bool {
    cfg!(feature = "long-tests") || env::var_os("SHORTHAUL_TEST_LONG").is_some()
}

static SERVER: OnceLock<RunningServer> = OnceLock::new();
const WORKERS: &str = "SHORTHAUL_TEST_WORKERS";
const CALLS_MAX: &str = "SHORTHAUL_TEST_CALLS_MAX";
