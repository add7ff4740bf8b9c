//! The client: calls from many threads over one connection, by a reactor thread of its own; or
//! direct, by the caller's thread.

mod auto;
mod buffer;
mod call;
mod connect;
mod direct;
mod looking;
mod notices;
mod pool;
mod prepare;
mod reactor;
mod reconnecting;
mod reply;
mod slot;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shorthaul_platform::socket::Credentials;

pub use self::auto::AutoPolicy;
pub use self::buffer::Buffer;
use self::buffer::Home;
pub use self::call::{Call, Transport};
use self::call::{Outgoing, sealed};
pub use self::connect::ClientOptions;
use self::direct::registrable;
pub use self::direct::{Begun, DirectClient};
pub use self::notices::Notice;
use self::notices::NoticeBoard;
pub use self::pool::{DirectPool, Lent};
use self::prepare::{Choices, Way, ensure_region_bytes};
use self::reactor::{Command, Reactor, Submission};
pub use self::reconnecting::Reconnecting;
pub use self::reply::{CallError, Reply};
use self::reply::{Common, Outcome};
use self::slot::Slot;
use crate::error::{Code, Error, Result};
use crate::inbox::Inbox;
use crate::lane::LaneCounts;
use crate::limits::Limits;
use crate::origin::Origin;
use crate::threads::{deadline_after, join_by};

/// A connection that many threads can call over at once. A thread of its own does the socket's
/// work.
///
/// Dropping it closes the connection: calls that wait on other threads can't exist then, for they
/// borrow it.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    server: Credentials,
    limits: Limits,
    takes_sealed: bool,
    takes_descriptors: bool,
    timeout_default: Duration,
    next_id: AtomicU64,
    /// Waiting places that nobody waits at.
    slots: Mutex<Vec<Arc<Slot>>>,
    home: Arc<dyn Home>,
}

/// What the callers' threads and the reactor have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    inbox: Arc<Inbox<Command>>,
    common: Arc<Common>,
    /// Calls that the server has not let go of.
    open_calls: AtomicUsize,
    notices: NoticeBoard,
    /// Why the connection ended, once it has.
    ended: Mutex<Option<String>>,
    origin: Origin,
}

impl Home for Shared {
    fn release(&self, region: u64) {
        if !self.origin.is_here() {
            return;
        }
        // A reactor that has ended has no regions.
        self.inbox.push(Command::Release(region)).ok();
    }
}

impl Client {
    /// Connects to the server at `path`.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a path that can't be a socket's, [`Error::Io`] if nobody listens,
    /// [`Error::PeerRefused`] if either side doesn't want the other.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self> {
        Self::connect_with(path, &ClientOptions::default())
    }

    /// Connects to the server at `path`.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(path: impl AsRef<Path>, options: &ClientOptions) -> Result<Self> {
        Self::from_stream(connect::connect(path.as_ref())?, options)
    }

    /// Makes a client of a stream that is connected already: an inherited socketpair, say.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn from_stream(stream: UnixStream, options: &ClientOptions) -> Result<Self> {
        let connected = connect::open(stream, options)?;
        let link = &connected.connection.link;
        let (server, limits) = (connected.server, link.peer_limits());
        let takes_sealed = link.peer_takes_sealed();
        let takes_descriptors = link.peer_takes_descriptors();
        let (shared, thread) = Reactor::start(connected, options)
            .map_err(|error| Error::io("can't start the client's thread", error))?;
        let home: Arc<dyn Home> = shared.clone();
        Ok(Self {
            shared,
            thread: Some(thread),
            server,
            limits,
            takes_sealed,
            takes_descriptors,
            timeout_default: options.deadline,
            next_id: AtomicU64::new(1),
            slots: Mutex::default(),
            home,
        })
    }

    /// Puts a call together.
    pub fn call<'a>(&'a self, method: &'a str) -> Call<'a, &'a Self> {
        Call::new(self, method)
    }

    /// Makes a buffer of `bytes` bytes and registers it. All its pages are allocated now, so that
    /// calls take no page fault.
    ///
    /// # Errors
    /// [`Error::LimitReached`] over the server's limit, [`Error::Status`] with RESOURCE_EXHAUSTED
    /// if the server has no room for another, [`Error::Io`] if there is no memory.
    pub fn buffer(&self, bytes: usize) -> Result<Buffer> {
        let by = deadline_after(self.timeout_default);
        match self.buffer_by(bytes, by) {
            // What is kept for automatic choices makes room.
            Err(Error::Status(status))
                if status.code == Code::ResourceExhausted && self.shared.common.auto.let_go() =>
            {
                self.buffer_by(bytes, by)
            }
            other => other,
        }
    }

    fn buffer_by(&self, bytes: usize, by: Instant) -> Result<Buffer> {
        self.shared.origin.ensure_here()?;
        ensure_region_bytes(bytes, &self.limits)?;
        let (memory, memfd) = registrable(bytes, self.shared.common.huge_pages)?;
        let region = self.new_id();
        let (answer, answered) = mpsc::channel();
        let descriptor = memfd.into_descriptor();
        let command = Command::Register { region, bytes: bytes as u64, descriptor, answer };
        self.shared.inbox.push(command).map_err(|_| self.shared.end())?;
        // Released when dropped, whatever comes of it.
        let buffer = Buffer::registered(memory, region, Arc::clone(&self.home));
        match answered.recv_timeout(by.saturating_duration_since(Instant::now())) {
            Ok(Ok(())) => Ok(buffer),
            Ok(Err(status)) => Err(status.into()),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(Error::DeadlineExceeded),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(self.shared.end()),
        }
    }

    /// Waits at most `timeout` for a notice from the server. None if none came, or the connection
    /// has ended and every notice was taken, or this is a child that fork(2) has made.
    pub fn notice(&self, timeout: Duration) -> Option<Notice> {
        self.shared.origin.ensure_here().ok()?;
        self.shared.notices.wait(deadline_after(timeout))
    }

    /// Starts a call that can be waited for, or taken back, later.
    ///
    /// # Errors
    /// As [`Call::send`], as far as it is known before the answer.
    pub fn start<'c>(call: Call<'_, &'c Self>) -> Result<Pending<'c>, CallError> {
        let (client, outgoing) = call.into_parts();
        client.submit(outgoing)
    }

    /// Calls that the server has not let go of.
    pub fn open_calls(&self) -> usize {
        self.shared.open_calls.load(Ordering::Relaxed)
    }

    /// The server's limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether the connection still works, as far as is known.
    pub fn is_alive(&self) -> bool {
        self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// What took which lane so far.
    pub fn lanes(&self) -> LaneCounts {
        self.shared.common.lanes.get()
    }

    /// Who the server is.
    pub fn server(&self) -> Credentials {
        self.server
    }

    fn submit(&self, outgoing: Outgoing<'_>) -> Result<Pending<'_>, CallError> {
        if let Err(error) = self.shared.origin.ensure_here() {
            return Err(outgoing.into_error(error));
        }
        let common = &self.shared.common;
        // A buffer that has to be made first is waited for within the call's own time.
        let deadline = outgoing.deadline(self.timeout_default);
        let choices = if outgoing.is_automatic() {
            let make = |bytes| self.buffer_by(bytes, deadline);
            match Choices::make(&outgoing, &common.auto, &self.limits, make) {
                Ok(choices) => choices,
                Err(error) => return Err(outgoing.into_error(error)),
            }
        } else {
            Choices::default()
        };
        let way = Way {
            peer: self.limits,
            takes_sealed: self.takes_sealed,
            takes_descriptors: self.takes_descriptors,
            common,
            home: &self.home,
            deadline,
            may_borrow: false,
        };
        let prepared = outgoing.prepare(&way, choices)?;
        let calls_max = self.limits.calls_max as usize;
        if self.shared.open_calls.fetch_add(1, Ordering::Relaxed) >= calls_max {
            self.shared.open_calls.fetch_sub(1, Ordering::Relaxed);
            let message = format!("{calls_max} calls of this connection are open: wait for some");
            return Err(prepared.held.into_error(Error::LimitReached(message)));
        }
        let slot = self.slots().pop().unwrap_or_default();
        let (call, deadline) = (self.new_id(), prepared.waits_until());
        let submission = Submission::new(call, prepared, slot.ticket());
        match self.shared.inbox.push(Command::Call(submission)) {
            Ok(()) => Ok(Pending { client: self, call, deadline, slot: Some(slot) }),
            Err(Command::Call(submission)) => {
                self.shared.open_calls.fetch_sub(1, Ordering::Relaxed);
                Err(submission.held.into_error(self.shared.end()))
            }
            Err(_) => Err(CallError::without_buffers(self.shared.end())),
        }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // In a child there is no reactor, and what is locked stays so.
        if !self.shared.origin.is_here() {
            return;
        }
        // One that has ended needs not be stopped.
        self.shared.inbox.push(Command::Stop).ok();
        if let Some(thread) = self.thread.take() {
            join_by(thread, Instant::now() + STOP_TIMEOUT);
        }
        self.shared.common.auto.close();
    }
}

impl sealed::Transport for &Client {
    #[allow(private_interfaces)]
    fn execute(self, call: Outgoing<'_>) -> Outcome {
        self.submit(call)?.wait()
    }
}

/// A call under way. Dropping it takes the call back.
#[derive(Debug)]
#[must_use = "dropping it takes the call back"]
pub struct Pending<'a> {
    client: &'a Client,
    call: u64,
    deadline: Instant,
    slot: Option<Arc<Slot>>,
}

impl Pending<'_> {
    /// Waits for the answer, until the call's deadline.
    ///
    /// # Errors
    /// As [`Call::send`].
    pub fn wait(mut self) -> Result<Reply, CallError> {
        let Some(slot) = self.slot.take() else {
            return Err(CallError::without_buffers(Error::Cancelled));
        };
        self.client.shared.origin.ensure_here().map_err(CallError::without_buffers)?;
        match slot.wait(self.deadline) {
            Some(outcome) => {
                // The reactor has let go of the slot.
                self.client.slots().push(slot);
                outcome?.open(&self.client.shared.common)
            }
            None => {
                self.take_back();
                Err(CallError::without_buffers(Error::DeadlineExceeded))
            }
        }
    }

    /// Takes the call back. Its buffer stays with the library until the server has let go of it.
    pub fn cancel(self) {}

    fn take_back(&self) {
        // A reactor that has ended has ended all calls.
        self.client.shared.inbox.push(Command::Cancel(self.call)).ok();
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take()
            && self.client.shared.origin.is_here()
        {
            // What has come already is dropped with the slot; what comes later finds nobody.
            if slot.wait(Instant::now()).is_none() {
                self.take_back();
            }
        }
    }
}

impl Shared {
    /// What a caller is told when the connection has ended.
    fn end(&self) -> Error {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        Error::ConnectionLost(ended.clone().unwrap_or_else(|| "it was closed".into()))
    }
}

const STOP_TIMEOUT: Duration = Duration::from_secs(2);
