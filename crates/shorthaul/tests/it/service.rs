//! What the servers of these tests do, and what their clients expect.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use shorthaul::{
    Buffer, Call, CallError, Client, ClientOptions, DirectClient, FillMethod, FillPolicy,
    InboundCall, Reply, RunningServer, Server, ServerOptions, Service, Status, Transport, Wait,
};
use tempfile::TempDir;

/// A server on a socket of its own.
pub(super) struct Running {
    pub(super) server: RunningServer,
    pub(super) path: PathBuf,
    _folder: TempDir,
}

pub(super) fn start(options: ServerOptions, service: impl Service) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = Server::bind_with(&path, options).unwrap().start(service).unwrap();
    Running { server, path, _folder: folder }
}

/// The bytes of one payload, and of no other with another seed.
pub(super) fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed).collect()
}

/// Answers a pattern: the request is its length and its seed. The method's name says how a buffer
/// is filled.
pub(super) fn serve(call: &mut InboundCall) -> Result<(), Status> {
    let seed = call.request()[8];
    let bytes = payload_bytes(call);
    write_payload(call, &pattern(bytes, seed))?;
    call.reply(&[seed])
}

pub(super) fn write_payload(call: &mut InboundCall, source: &[u8]) -> Result<(), Status> {
    let method = if call.method().contains("write") { FillMethod::Write } else { FillMethod::Map };
    let policy = FillPolicy { method, ..FillPolicy::default() };
    call.payload_with(payload_bytes(call), policy)?.copy_from(source)
}

pub(super) fn payload_bytes(call: &InboundCall) -> usize {
    u64::from_le_bytes(call.request()[..8].try_into().unwrap()) as usize
}

pub(super) fn request(bytes: usize, seed: u8) -> Vec<u8> {
    let mut request = (bytes as u64).to_le_bytes().to_vec();
    request.push(seed);
    request
}

pub(super) fn check(reply: &Reply, bytes: usize, seed: u8) {
    assert_eq!(reply.response(), [seed]);
    assert!(
        reply.to_vec() == pattern(bytes, seed),
        "{bytes} bytes by {} of seed {seed}",
        reply.lane()
    );
}

/// How a test's call wants its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Inline,
    FillMap,
    FillWrite,
    OneShot,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Inline, Self::FillMap, Self::FillWrite, Self::OneShot];

    /// Starts the method's name with it; the rest is the service's.
    pub(super) fn method(self, rest: &str) -> String {
        let how = if self == Self::FillWrite { "write" } else { "map" };
        format!("{how}{rest}")
    }

    pub(super) fn wants_buffer(self) -> bool {
        matches!(self, Self::FillMap | Self::FillWrite)
    }

    pub(super) fn send<T: Transport>(
        self,
        call: Call<'_, T>,
        bytes: usize,
        buffer: Option<Buffer>,
    ) -> Result<Reply, CallError> {
        match (self, buffer) {
            (Self::Inline, _) => call.inline(bytes).send(),
            (Self::OneShot, _) => call.into_fresh(bytes).send(),
            (_, buffer) => call.into(buffer.unwrap()).send(),
        }
    }
}

/// Either kind of client.
pub(super) enum AnyClient {
    Direct(Box<DirectClient>),
    Threaded(Client),
}

impl AnyClient {
    pub(super) fn connect(path: &std::path::Path, is_direct: bool) -> shorthaul::Result<Self> {
        Ok(if is_direct {
            Self::Direct(Box::new(DirectClient::connect(path)?))
        } else {
            Self::Threaded(Client::connect(path)?)
        })
    }

    /// One that never looks into a ring: what its server keeps for it does not depend on how fast
    /// the machine is at the moment.
    pub(super) fn connect_asleep(path: &std::path::Path) -> shorthaul::Result<Self> {
        let options = ClientOptions { wait: Wait::Block, ..ClientOptions::default() };
        Ok(Self::Direct(Box::new(DirectClient::connect_with(path, &options)?)))
    }

    pub(super) fn buffer(&mut self, bytes: usize) -> Buffer {
        match self {
            Self::Direct(client) => client.buffer(bytes).unwrap(),
            Self::Threaded(client) => client.buffer(bytes).unwrap(),
        }
    }

    /// One call of `way`, with a buffer of its own if it needs one.
    pub(super) fn send(
        &mut self,
        way: Way,
        rest: &str,
        request: &[u8],
        bytes: usize,
        timeout: Duration,
    ) -> Result<Reply, CallError> {
        let buffer = way.wants_buffer().then(|| self.buffer(bytes));
        let method = way.method(rest);
        match self {
            Self::Direct(client) => {
                let call = client.call(&method).request(request).deadline(timeout);
                way.send(call, bytes, buffer)
            }
            Self::Threaded(client) => {
                let call = client.call(&method).request(request).deadline(timeout);
                way.send(call, bytes, buffer)
            }
        }
    }

    pub(super) fn open_calls(&self) -> usize {
        match self {
            Self::Direct(client) => client.open_calls(),
            Self::Threaded(client) => client.open_calls(),
        }
    }

    /// Lets a direct client look at its socket.
    pub(super) fn poll(&mut self) {
        if let Self::Direct(client) = self {
            client.poll(Duration::ZERO).unwrap();
        }
    }
}

/// Holds handlers up until it is opened, but not for ever.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Gate {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Waits for the gate, on a handler's thread.
    pub(super) fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |s| !s.1);
        assert!(!waited.unwrap().1.timed_out(), "nobody opened the gate");
    }

    /// Waits until `count` handlers have come.
    pub(super) fn wait_for(&self, count: usize) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |state| state.0 < count);
        assert!(!waited.unwrap().1.timed_out(), "no handler came");
    }

    pub(super) fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

/// Waits for something that must soon be so.
pub(super) fn eventually(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let by = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < by, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Longer than anything takes that works, on a busy machine too.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
