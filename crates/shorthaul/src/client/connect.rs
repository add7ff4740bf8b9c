//! From a path or a stream to a connection whose hellos are exchanged.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use shorthaul_platform::memory::{HugePages, Trust};
use shorthaul_platform::socket::{self, Credentials};

use super::auto::{Auto, AutoPolicy};
use super::reply::Common;

use crate::address::check_path;
use crate::connection::Violation;
use crate::connection::client::{ClientConnection, ClientEvent};
use crate::error::{Error, Result};
use crate::lane::LaneCounters;
use crate::limits::{DEADLINE_DEFAULT, HANDSHAKE_TIMEOUT, Limits};
use crate::origin::Origin;
use crate::payload::MemoryPool;
use crate::stream::{self, Flushed, ReceiveError};
use crate::trust::{PeerPolicy, default_policy};
use crate::undertaker;
use crate::waiting::Wait;

/// How a client is to be.
#[derive(Clone)]
pub struct ClientOptions {
    /// What the server is allowed; of interest are `inline_bytes_max`, for this side's memory, and
    /// `region_bytes_max`, for sealed memory.
    pub limits: Limits,
    /// Deadline of calls that have none of their own.
    pub deadline: Duration,
    /// Who the server may be. By default the client's own user or root. It is asked with the
    /// credentials of whoever made the listening socket.
    pub policy: Option<PeerPolicy>,
    /// Vouches for the server: replies then give slices of buffers that it has filled, where they
    /// would give copies.
    pub trust: Option<Trust>,
    /// How an answer is waited for: by a [`DirectClient`](crate::DirectClient), or by the reactor
    /// thread of a [`Client`](crate::Client), whose callers always sleep. Who looks shares memory
    /// with the server for that, made when it first pays.
    pub wait: Wait,
    /// Where automatic choices of a lane change their mind.
    pub auto: AutoPolicy,
    /// Whether buffers, sealed uploads and payloads that travel inline have huge pages where they
    /// are large enough.
    pub huge_pages: HugePages,
    /// Called on the client's reactor thread when it starts; to pin it, for instance.
    pub on_thread_start: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            deadline: DEADLINE_DEFAULT,
            policy: None,
            trust: None,
            wait: Wait::default(),
            auto: AutoPolicy::default(),
            huge_pages: HugePages::Auto,
            on_thread_start: None,
        }
    }
}

impl std::fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientOptions")
            .field("limits", &self.limits)
            .field("deadline", &self.deadline)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

/// A connection that is open, and its socket.
#[derive(Debug)]
pub(crate) struct Connected<T> {
    pub(crate) socket: Socket,
    pub(crate) connection: ClientConnection<OwnedFd, T>,
    pub(super) common: Arc<Common>,
    pub(crate) server: Credentials,
}

/// Connects to `path`. A full backlog is waited for, but not for ever.
pub(crate) fn connect(path: &Path) -> Result<UnixStream> {
    check_path(path)?;
    let by = Instant::now() + HANDSHAKE_TIMEOUT;
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connected = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .and_then(|fd| {
                net::connect(&fd, &SocketAddrUnix::new(path)?)?;
                rustix::io::ioctl_fionbio(&fd, false)?;
                Ok(fd)
            });
        match connected {
            Ok(fd) => return Ok(UnixStream::from(fd)),
            Err(rustix::io::Errno::AGAIN) if Instant::now() < by => thread::sleep(BACKLOG_REST),
            Err(error) => return Err(cannot_connect(path, error.into())),
        }
    }
}

fn cannot_connect(path: &Path, error: io::Error) -> Error {
    let what = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "nobody listens there; start the server first"
        }
        io::ErrorKind::PermissionDenied => {
            "its permissions keep this user out; run as the server's user"
        }
        io::ErrorKind::WouldBlock => "its server accepts nobody; is it stuck?",
        _ => "can't connect",
    };
    Error::io(format!("socket {}: {what}", path.display()), error)
}

/// Checks who the server is, exchanges the hellos.
pub(crate) fn open<T>(socket: UnixStream, options: &ClientOptions) -> Result<Connected<T>> {
    let server = socket::prepare(socket.as_fd())
        .and_then(|()| socket::peer_credentials(socket.as_fd()))
        .map_err(|error| Error::io("the stream handed over is no Unix socket", error))?;
    let policy = options.policy.clone().unwrap_or_else(default_policy);
    policy(&server)
        .map_err(|reason| Error::PeerRefused(format!("the server is not trusted: {reason}")))?;
    let pool = Arc::new(MemoryPool::new(options.huge_pages));
    let now = Instant::now();
    let connection = ClientConnection::new(options.limits, pool.uncounted(), now);
    let common = Arc::new(Common {
        pool,
        auto: Auto::new(options.auto),
        lanes: LaneCounters::default(),
        limits: options.limits,
        huge_pages: options.huge_pages,
        trust: options.trust,
        server_uid: server.uid,
    });
    let socket = Socket { stream: Some(socket), server_uid: server.uid, origin: Origin::here() };
    let mut connected = Connected { socket, connection, common, server };
    if let Err(error) = connected.shake_hands() {
        let_go_of_strangers(&mut connected.connection, server.uid);
        return Err(error);
    }
    Ok(connected)
}

/// Closes every descriptor that the server has sent and nobody has taken, where that may take its
/// time; of use only at the end of a connection.
pub(super) fn let_go_of_strangers<T>(
    connection: &mut ClientConnection<OwnedFd, T>,
    server_uid: u32,
) {
    let strangers = connection.take_descriptors();
    if !strangers.is_empty() {
        undertaker::bury(server_uid, strangers);
    }
}

/// A client's socket. What the server has sent into it and nobody has read goes with it, and
/// closing that can wait for the server.
#[derive(Debug)]
pub(crate) struct Socket {
    /// There until dropped.
    stream: Option<UnixStream>,
    server_uid: u32,
    origin: Origin,
}

impl Deref for Socket {
    type Target = UnixStream;

    fn deref(&self) -> &UnixStream {
        self.stream.as_ref().expect("there until dropped")
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A forked child's is its parent's too: what is in it is not for the child to take.
        if self.origin.is_here() {
            undertaker::bury(self.server_uid, self.stream.take());
        }
    }
}

impl<T> Connected<T> {
    fn shake_hands(&mut self) -> Result<()> {
        loop {
            let now = Instant::now();
            self.connection.link.check_time(now).map_err(broken)?;
            let flushed = stream::flush(
                self.socket.as_fd(),
                &mut self.connection.link,
                now,
                usize::MAX,
                |_| {},
            );
            // A server that refuses says why before it closes: look at what it said even then.
            let is_blocked = matches!(flushed, Ok(Flushed::Blocked));
            wait(&self.socket, is_blocked, self.connection.deadline()).map_err(lost)?;
            if self.receive(now)? {
                return Ok(());
            }
        }
    }

    /// True when the server's hello is here.
    fn receive(&mut self, now: Instant) -> Result<bool> {
        match stream::receive(self.socket.as_fd(), &mut self.connection.link, now) {
            Ok(read) if read.is_end => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(ReceiveError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(ReceiveError::Io(error)) => return Err(lost(error)),
            Err(ReceiveError::Violation(violation)) => return Err(broken(violation)),
        }
        match self.connection.next_event().map_err(broken)? {
            Some(ClientEvent::Open) => Ok(true),
            Some(ClientEvent::Goodbye { code, message }) => {
                Err(Error::PeerRefused(format!("the server says {code}: {message}")))
            }
            _ => Ok(false),
        }
    }
}

/// Waits until the socket can be read (or written, if that is wanted too), or until `by`.
pub(crate) fn wait(socket: &UnixStream, writing: bool, by: Option<Instant>) -> io::Result<()> {
    let mut flags = PollFlags::IN;
    flags.set(PollFlags::OUT, writing);
    let left = by.map(|by| by.saturating_duration_since(Instant::now()));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut [PollFd::new(socket, flags)], timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What a lost socket means to callers.
pub(crate) fn lost(error: io::Error) -> Error {
    Error::ConnectionLost(match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed it".into(),
        _ => error.to_string(),
    })
}

/// What a violation means to callers.
pub(crate) fn broken(violation: Violation) -> Error {
    match violation {
        Violation::WriteStalled => {
            Error::ConnectionLost("the server takes no bytes any more".into())
        }
        Violation::HandshakeTimeout => Error::ConnectionLost(
            "the server did not say hello: is it stuck, or out of descriptors?".into(),
        ),
        violation => Error::PeerMisbehaved(violation.to_string()),
    }
}

const BACKLOG_REST: Duration = Duration::from_millis(2);
