//! The server: a listener, reactors, workers, and a door to start and stop them.

mod call;
mod driver;
mod given;
mod incoming;
mod listener;
mod outgoing;
mod peer;
mod queue;
mod reactor;
mod region;
mod relaying;
mod shared;
mod workers;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use shorthaul_platform::memory::{HugePages, LentFile, Trust};

pub use self::call::{InboundCall, Service};
pub use self::given::Descriptors;
pub use self::incoming::PayloadIn;
use self::listener::Listener;
pub use self::outgoing::{FillMethod, FillPolicy, PayloadOut};
use self::peer::Command;
pub use self::peer::Peer;
use self::reactor::{Acceptor, Reactor};
use self::region::Accounts;
use self::shared::{Config, Shared};
use crate::error::{Error, Result};
use crate::inbox::Inbox;
use crate::lane::LaneCounts;
use crate::limits::{KEPT_MAPPINGS_MAX, Limits, MESSAGE_BYTES_CAP, UserLimits};
use crate::origin::Origin;
use crate::threads::{Reaper, deadline_after, join_by};
use crate::trust::{PeerPolicy, default_policy, peers_can_be_mapped};
use crate::waiting::Wait;

/// How a server is to be.
#[derive(Clone)]
pub struct ServerOptions {
    /// Threads that drive connections.
    pub reactors: usize,
    /// Threads that run handlers.
    pub workers: usize,
    /// Threads that run handlers of calls that hand over a descriptor, where such are taken: these
    /// wait for its readers, so they hold up one another but nobody else.
    pub waiting_workers: usize,
    /// Runs handlers on the reactors instead: two context switches fewer, for handlers that are
    /// known to be quick. A slow one holds up every connection of its reactor.
    pub inline_handlers: bool,
    /// How reactors wait for the next call of a client that they share rings with: of one that
    /// doesn't wait asleep.
    pub wait: Wait,
    /// What each client is allowed, as the hello tells it.
    pub limits: Limits,
    /// What all connections of one user are allowed together.
    pub user_limits: UserLimits,
    /// How clients' buffers are filled, unless a handler says otherwise.
    pub fill: FillPolicy,
    /// Whether sealed answers and payloads that travel inline have huge pages where they are large
    /// enough. Buffers are their clients' own, and have what the client gives them.
    pub huge_pages: HugePages,
    /// Mappings that each reactor keeps, least recently used out first; a region whose mapping was
    /// pushed out is mapped anew when it is next filled.
    pub kept_mappings_max: usize,
    /// Permissions of the socket file.
    pub socket_mode: u32,
    /// Who may connect. By default the server's own user and root.
    pub policy: Option<PeerPolicy>,
    /// Vouches for all who may connect: handlers get slices of the clients' own memory then, where
    /// they would get copies.
    pub trust: Option<Trust>,
    /// Which descriptors of clients' payloads are relayed into. By default none.
    pub descriptors: Descriptors,
    /// Called on each thread when it starts; to pin it, for instance.
    pub on_thread_start: Option<Arc<dyn Fn(ThreadRole) + Send + Sync>>,
}

/// What a thread of the library is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadRole {
    /// Drives connections.
    Reactor(usize),
    /// Runs handlers.
    Worker(usize),
    /// Runs handlers of calls that hand over a descriptor.
    WaitingWorker(usize),
}

impl Default for ServerOptions {
    fn default() -> Self {
        let workers = thread::available_parallelism().map_or(2, |cpus| cpus.get()).max(2);
        Self {
            reactors: 1,
            workers,
            waiting_workers: 4 * workers,
            inline_handlers: false,
            wait: Wait::default(),
            limits: Limits::default(),
            user_limits: UserLimits::default(),
            fill: FillPolicy::default(),
            huge_pages: HugePages::Auto,
            kept_mappings_max: KEPT_MAPPINGS_MAX,
            socket_mode: 0o600,
            policy: None,
            trust: None,
            descriptors: Descriptors::Refuse,
            on_thread_start: None,
        }
    }
}

/// A server that is bound but not started.
#[derive(Debug)]
pub struct Server {
    listener: Option<Listener>,
    options: ServerOptions,
}

impl Server {
    /// Listens at `path` with the default options.
    ///
    /// A socket left behind by a server that was killed is replaced; a living server's is not.
    /// While the server lives there is a lock file PATH.lock beside it.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a path that can't be a socket's (over 107 bytes, a NUL inside, a file
    /// that is no socket); [`Error::Io`] if a server lives there or the kernel refuses.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self> {
        Self::bind_with(path, ServerOptions::default())
    }

    /// Listens at `path`.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub fn bind_with(path: impl AsRef<Path>, options: ServerOptions) -> Result<Self> {
        let listener = Listener::bind(path.as_ref(), options.socket_mode)?;
        Ok(Self { listener: Some(listener), options })
    }

    /// Takes over the socket that a service manager passed (`LISTEN_FDS`).
    ///
    /// # Errors
    /// [`Error::Misuse`] if none or several were passed, or it is no listening Unix stream socket.
    ///
    /// # References
    /// sd_listen_fds(3)
    pub fn from_service_manager(options: ServerOptions) -> Result<Self> {
        Ok(Self { listener: Some(Listener::from_service_manager()?), options })
    }

    /// Takes over a listening socket.
    ///
    /// # Errors
    /// [`Error::Misuse`] if it is no listening Unix stream socket.
    pub fn from_listener(listener: OwnedFd, options: ServerOptions) -> Result<Self> {
        Ok(Self { listener: Some(Listener::from_descriptor(listener)?), options })
    }

    /// A server that listens nowhere: it serves the streams given to [`RunningServer::adopt`].
    pub fn without_listener(options: ServerOptions) -> Self {
        Self { listener: None, options }
    }

    /// Starts the server's threads.
    ///
    /// # Errors
    /// [`Error::Io`] if a thread or a poll can't be had; [`Error::Misuse`] for options without a
    /// reactor or worker, or that take descriptors without workers to relay into them.
    pub fn start(self, service: impl Service) -> Result<RunningServer> {
        let options = self.options;
        if options.reactors == 0 || (options.workers == 0 && !options.inline_handlers) {
            return Err(Error::Misuse("a server needs a reactor and a worker at least".into()));
        }
        if options.waiting_workers == 0 && options.descriptors != Descriptors::Refuse {
            return Err(Error::Misuse(
                "a server that takes descriptors needs workers for them".into(),
            ));
        }
        if options.inline_handlers && options.descriptors != Descriptors::Refuse {
            return Err(Error::Misuse(
                "relaying into clients' descriptors can wait for them, which reactors must not: \
                 don't run handlers inline, or refuse descriptors"
                    .into(),
            ));
        }
        start(self.listener, &options, Box::new(service))
            .map_err(|error| Error::io("can't start the server's threads", error))
    }

    /// Starts the server and serves until the process ends.
    ///
    /// # Errors
    /// As [`Server::start`]; [`Error::Io`] if a reactor fails.
    pub fn serve(self, service: impl Service) -> Result<()> {
        let mut running = self.start(service)?;
        running.wait()
    }
}

/// A server that runs. Dropping it stops it, with a second for what is open.
#[derive(Debug)]
pub struct RunningServer {
    shared: Arc<Shared>,
    inboxes: Vec<Arc<Inbox<Command>>>,
    reactors: Vec<JoinHandle<io::Result<()>>>,
    workers: Vec<JoinHandle<()>>,
    next: usize,
    origin: Origin,
}

/// Counts since the server started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Calls that came in and were not refused out of hand.
    pub calls: u64,
    /// Times that a client's region was mapped, to be filled or to be copied out of.
    pub mappings_made: u64,
    /// Times that a mapping kept from an earlier call was used again to fill a region.
    pub mappings_reused: u64,
    /// Connections that were not let in.
    pub connections_refused: u64,
    /// Times that nobody could be let in, for 100 ms, because the process was out of descriptors
    /// (`RLIMIT_NOFILE`, see [`raise_descriptor_limit`](crate::raise_descriptor_limit)) or memory.
    /// Who connects meanwhile waits, and is served when there are some again.
    pub accepts_put_off: u64,
    /// Connections there are now.
    pub connections: usize,
    /// What took which lane: answers that were successes, and uploads.
    pub lanes: LaneCounts,
}

impl RunningServer {
    /// Serves the other end of `stream`: an inherited socketpair, say.
    ///
    /// Its client is checked like any other; one that is refused is told so.
    pub fn adopt(&mut self, stream: UnixStream) {
        let inbox = &self.inboxes[self.next % self.inboxes.len()];
        self.next = self.next.wrapping_add(1);
        reactor::admit(stream, &self.shared, inbox);
    }

    /// What it has done so far.
    pub fn stats(&self) -> ServerStats {
        let stats = &self.shared.stats;
        ServerStats {
            calls: stats.calls.get(),
            mappings_made: stats.mappings_made.get(),
            mappings_reused: stats.mappings_reused.get(),
            connections_refused: stats.connections_refused.get(),
            accepts_put_off: stats.accepts_put_off.get(),
            connections: self.shared.connections.load(std::sync::atomic::Ordering::Relaxed),
            lanes: stats.lanes.get(),
        }
    }

    /// Stops: takes nothing new, answers what is open for at most `drain`, then closes. Returns
    /// whether every reactor and worker ended; one whose handler never returns is left behind.
    pub fn stop(mut self, drain: Duration) -> bool {
        self.shut_down(drain)
    }

    /// Waits until a reactor ends, which none does by itself; dropping `self` stops the others.
    fn wait(&mut self) -> Result<()> {
        let ended = loop {
            match self.reactors.iter().position(JoinHandle::is_finished) {
                Some(index) => break self.reactors.swap_remove(index),
                None => thread::sleep(LOOK_AGAIN),
            }
        };
        match ended.join() {
            Ok(ended) => ended.map_err(|error| Error::io("a reactor failed", error)),
            Err(_) => Err(Error::Misuse("a reactor panicked; see the server's log".into())),
        }
    }

    fn shut_down(&mut self, drain: Duration) -> bool {
        // A child that fork(2) has made has none of the threads; the server goes on without it.
        if !self.origin.is_here() {
            return false;
        }
        let by = deadline_after(drain);
        for inbox in &self.inboxes {
            // One that has ended needs not be stopped.
            inbox.push(Command::Stop { by }).ok();
        }
        let late = join_all(self.reactors.drain(..), by + GRACE);
        self.shared.queue.close();
        self.shared.waiting_queue.close();
        late + join_all(self.workers.drain(..), by + GRACE) == 0
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.shut_down(DROP_DRAIN);
    }
}

fn start(
    listener: Option<Listener>,
    options: &ServerOptions,
    service: Box<dyn Service>,
) -> io::Result<RunningServer> {
    let mut limits = options.limits;
    limits.message_bytes_max = limits.message_bytes_max.min(MESSAGE_BYTES_CAP);
    let config = Config {
        limits,
        fill: options.fill,
        huge_pages: options.huge_pages,
        inline_handlers: options.inline_handlers,
        wait: options.wait,
        descriptors: options.descriptors,
        kept_mappings_max: options.kept_mappings_max,
        may_map_peers: peers_can_be_mapped(),
        may_lend: LentFile::ensure_possible().map_err(|error| error.to_string()),
        policy: options.policy.clone().unwrap_or_else(default_policy),
        trust: options.trust,
    };
    let accounts = Accounts::new(options.user_limits);
    let reaper = Reaper::start("shorthaul-reap")?;
    let shared = Arc::new(Shared::new(config, accounts, service, reaper));
    let parts = (0..options.reactors).map(|_| Reactor::parts()).collect::<io::Result<Vec<_>>>()?;
    let inboxes: Vec<_> = parts.iter().map(|(_, inbox)| Arc::clone(inbox)).collect();
    let mut acceptor = listener.map(|listener| Acceptor::new(listener, inboxes.clone()));
    let mut running = RunningServer {
        shared: Arc::clone(&shared),
        inboxes,
        reactors: Vec::new(),
        workers: Vec::new(),
        next: 0,
        origin: Origin::here(),
    };
    for (index, parts) in parts.into_iter().enumerate() {
        let reactor = Reactor::with(parts, Arc::clone(&shared), acceptor.take())?;
        let role = ThreadRole::Reactor(index);
        running.reactors.push(spawn(options, role, move || reactor.run())?);
    }
    let workers = if options.inline_handlers { 0 } else { options.workers };
    for index in 0..workers {
        let shared = Arc::clone(&shared);
        let role = ThreadRole::Worker(index);
        running.workers.push(spawn(options, role, move || workers::work(&shared, &shared.queue))?);
    }
    let takes_descriptors = options.descriptors != Descriptors::Refuse;
    let waiting_workers = if takes_descriptors { options.waiting_workers } else { 0 };
    for index in 0..waiting_workers {
        let shared = Arc::clone(&shared);
        let role = ThreadRole::WaitingWorker(index);
        let work = move || workers::work(&shared, &shared.waiting_queue);
        running.workers.push(spawn(options, role, work)?);
    }
    Ok(running)
}

fn spawn<T: Send + 'static>(
    options: &ServerOptions,
    role: ThreadRole,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let name = match role {
        ThreadRole::Reactor(index) => format!("shorthaul-rx{index}"),
        ThreadRole::Worker(index) => format!("shorthaul-wk{index}"),
        ThreadRole::WaitingWorker(index) => format!("shorthaul-ww{index}"),
    };
    let hook = options.on_thread_start.clone();
    thread::Builder::new().name(name).spawn(move || {
        if let Some(hook) = hook {
            hook(role);
        }
        run()
    })
}

/// Joins threads that should end soon; returns how many didn't.
fn join_all<T>(threads: impl Iterator<Item = JoinHandle<T>>, by: Instant) -> usize {
    threads.map(|thread| join_by(thread, by)).filter(|ended| !ended).count()
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("reactors", &self.reactors)
            .field("workers", &self.workers)
            .field("waiting_workers", &self.waiting_workers)
            .field("inline_handlers", &self.inline_handlers)
            .field("wait", &self.wait)
            .field("limits", &self.limits)
            .field("user_limits", &self.user_limits)
            .field("fill", &self.fill)
            .field("descriptors", &self.descriptors)
            .finish_non_exhaustive()
    }
}

const DROP_DRAIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const GRACE: Duration = Duration::from_secs(1);
