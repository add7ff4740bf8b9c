//! The socket that clients find: made without a moment of wrong permissions, taken over only from
//! the dead.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::fs::{Mode, OFlags};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use shorthaul_platform::socket;

use crate::address::check_path;
use crate::error::{Error, Result};

/// A listening socket, and the file that it goes by if this process made it.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    _file: Option<SocketFile>,
}

/// A socket file that is removed by the process that made it, if it is still the same.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    owner: u32,
    /// Held for as long as the server lives: who can lock it knows that no server lives.
    _lock: LockFile,
}

/// A locked file beside a socket.
#[derive(Debug)]
struct LockFile {
    path: PathBuf,
    owner: u32,
    _file: File,
}

impl Listener {
    /// Listens at `path` with permissions `mode`. A socket left behind by a server that was killed
    /// is replaced; one of a living server is not.
    pub(crate) fn bind(path: &Path, mode: u32) -> Result<Self> {
        check_path(path)?;
        let lock = lock_beside(path)?;
        remove_stale(path)?;
        let socket = bind_with_mode(path, mode).map_err(|error| {
            Error::io(format!("socket {}: can't listen", path.display()), error)
        })?;
        let metadata = fs::symlink_metadata(path)
            .map_err(|error| Error::io(format!("socket {}", path.display()), error))?;
        let file = SocketFile {
            path: path.to_owned(),
            identity: identity(&metadata),
            owner: std::process::id(),
            _lock: lock,
        };
        Ok(Self { socket, _file: Some(file) })
    }

    /// Takes over the one listener that a service manager passed to this process.
    pub(crate) fn from_service_manager() -> Result<Self> {
        let mut passed = socket::listen_fds();
        match (passed.pop(), passed.is_empty()) {
            (Some(listener), true) => Self::from_descriptor(listener),
            (Some(_), false) => Err(Error::Misuse(
                "the service manager passed several sockets; a server takes one".into(),
            )),
            (None, _) => Err(Error::Misuse(
                "the service manager passed no socket (LISTEN_FDS): start this by socket \
                 activation, or give a path"
                    .into(),
            )),
        }
    }

    /// Takes over a descriptor, if it is a listening Unix stream socket.
    pub(crate) fn from_descriptor(listener: OwnedFd) -> Result<Self> {
        let is_fit = net::sockopt::socket_domain(&listener).is_ok_and(|f| f == AddressFamily::UNIX)
            && net::sockopt::socket_type(&listener).is_ok_and(|t| t == SocketType::STREAM)
            && net::sockopt::socket_acceptconn(&listener).unwrap_or(false);
        if !is_fit {
            return Err(Error::Misuse(
                "the descriptor handed over is no listening Unix stream socket".into(),
            ));
        }
        Ok(Self { socket: UnixListener::from(listener), _file: None })
    }

    pub(crate) fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        self.socket.set_nonblocking(true)?;
        registry.register(&mut SourceFd(&self.socket.as_raw_fd()), token, Interest::READABLE)
    }

    pub(crate) fn accept(&self) -> io::Result<UnixStream> {
        self.socket.accept().map(|(stream, _)| stream)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A forked child has the lock too, but the files are its parent's.
        if self.owner != std::process::id() {
            return;
        }
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| identity(&found) == self.identity) {
            fs::remove_file(&self.path).ok();
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            // Before the lock is given up: see `lock_beside`.
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Locks PATH.lock. Whoever holds the lock removes the file at its end, so what was locked may be a
/// file that has just lost its name: then the one that has it now is tried.
fn lock_beside(path: &Path) -> Result<LockFile> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock_path = PathBuf::from(name);
    let trouble = |error| Error::io(format!("lock file {}", lock_path.display()), error);
    for _ in 0..LOCK_TRIES {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
            .open(&lock_path)
            .map_err(trouble)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(path)),
            Err(TryLockError::Error(error)) => return Err(trouble(error)),
        }
        let locked = identity(&file.metadata().map_err(trouble)?);
        if fs::symlink_metadata(&lock_path).is_ok_and(|named| identity(&named) == locked) {
            return Ok(LockFile { path: lock_path, owner: std::process::id(), _file: file });
        }
    }
    Err(in_use(path))
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Removes what a dead server left. The lock is ours, so no server of this library lives; but
/// somebody else's might.
fn remove_stale(path: &Path) -> Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| Error::io(format!("socket {}", path.display()), error))?,
    };
    if !found.file_type().is_socket() {
        return Err(Error::Misuse(format!(
            "{} exists and is no socket: it is left alone; choose another path",
            path.display()
        )));
    }
    match connect_at_once(path) {
        Err(rustix::io::Errno::CONNREFUSED) => fs::remove_file(path)
            .map_err(|error| Error::io(format!("stale socket {}", path.display()), error)),
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Err(in_use(path)),
        Err(error) => Err(Error::io(format!("socket {}", path.display()), error.into())),
    }
}

/// Finds out whether somebody listens, without waiting for a full backlog.
fn connect_at_once(path: &Path) -> rustix::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&probe, &SocketAddrUnix::new(path)?)
}

fn in_use(path: &Path) -> Error {
    Error::io(
        format!("socket {}: a server lives there; stop it or choose another path", path.display()),
        io::ErrorKind::AddrInUse.into(),
    )
}

/// The mode of a socket file is that of its socket, less the umask; so it is set before bind(2),
/// and what the umask took away is given back afterwards.
fn bind_with_mode(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(socket.as_fd(), Mode::from_raw_mode(mode))?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Connections that wait to be accepted; the kernel cuts it to net.core.somaxconn.
const BACKLOG: i32 = 1024;
/// How often a lock file may lose its name under our hands before that counts as a living server.
const LOCK_TRIES: usize = 100;
