//! The client of a connection, as handlers see it; and the way from any thread to its reactor.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};

use std::os::fd::OwnedFd;

use shorthaul_platform::memory::SharedMapping;
use shorthaul_platform::socket::Credentials;
use smallvec::SmallVec;

use super::call::Open;
use super::region::Membership;
use crate::connection::server::Answer;
use crate::inbox::Inbox;
use crate::limits::{Limits, NOTICE_BYTES_MAX};
use crate::payload::MessageBytes;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard};

/// The client that a call came from. Cheap to clone; outlives the call, and keeps nothing of the
/// server alive or occupied.
#[derive(Clone, Debug)]
pub struct Peer {
    inner: Arc<PeerInner>,
}

#[derive(Debug)]
struct PeerInner {
    key: u64,
    credentials: Credentials,
    inbox: Arc<Inbox<Command>>,
    /// Its limits, and whether it takes sealed memory.
    hello: OnceLock<(Limits, bool)>,
    is_closed: AtomicBool,
    /// Calls taken back while their handlers run; counted so that asking is cheap.
    cancelled: Mutex<Vec<u64>>,
    cancelled_count: AtomicUsize,
}

/// What a reactor is asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    Adopt(std::os::unix::net::UnixStream, Peer, Membership),
    Complete(Box<Completion>),
    Notify {
        connection: u64,
        topic: u32,
        data: MessageBytes,
    },
    /// Answer what is open, take nothing new, and end.
    Stop {
        by: std::time::Instant,
    },
}

/// A call that was answered.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) connection: u64,
    pub(crate) call: u64,
    pub(crate) answer: Answer<OwnedFd>,
    /// Mappings to be kept, by their regions' keys.
    pub(crate) keep: SmallVec<[(u64, Arc<SharedMapping>); 1]>,
    /// What the reactor lets go of once the answer is sent.
    pub(crate) spent: Option<Spent>,
    /// Bytes of the request's payload.
    pub(crate) request_bytes: u64,
    /// None for one that no worker was given: taken back while it waited, or run inline.
    pub(crate) charge: Option<Charge>,
}

/// What the queue of a call has charged for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge {
    pub(crate) bytes: u64,
    /// Bytes that an inline answer could have had.
    pub(crate) inline_bytes: u64,
    /// Whether it was in the queue of those that may wait for their clients.
    pub(crate) may_wait: bool,
}

/// What a call held, to be dropped where it doesn't hurt.
#[derive(Debug)]
pub(crate) struct Spent {
    pub(crate) _mapping: Option<Arc<SharedMapping>>,
    pub(crate) _open: Box<Open>,
}

impl Peer {
    pub(crate) fn new(key: u64, credentials: Credentials, inbox: Arc<Inbox<Command>>) -> Self {
        let inner = PeerInner {
            key,
            credentials,
            inbox,
            hello: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            cancelled: Mutex::new(Vec::new()),
            cancelled_count: AtomicUsize::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Who it is, as the kernel says.
    pub fn credentials(&self) -> Credentials {
        self.inner.credentials
    }

    /// Whether the connection is gone.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed.load(Ordering::Relaxed)
    }

    /// Sends the client a notice: a topic of the service's choice and up to
    /// [`NOTICE_BYTES_MAX`] bytes. False if it won't get there: too long, connection gone, or too
    /// much waits already. A notice that true was said of may still be lost with the connection.
    pub fn notify(&self, topic: u32, data: &[u8]) -> bool {
        if self.is_closed() || data.len() > NOTICE_BYTES_MAX {
            return false;
        }
        let data = MessageBytes::from_slice(data);
        self.inner.inbox.offer(Command::Notify { connection: self.inner.key, topic, data })
    }

    pub(crate) fn key(&self) -> u64 {
        self.inner.key
    }

    pub(crate) fn complete(&self, completion: Box<Completion>) {
        // A reactor that has ended has closed the connection: nobody waits for the answer.
        self.inner.inbox.push(Command::Complete(completion)).ok();
    }

    /// Learns what the client's hello says.
    pub(crate) fn learn(&self, limits: Limits, takes_sealed: bool) {
        self.inner.hello.set((limits, takes_sealed)).ok();
    }

    pub(crate) fn message_bytes_max(&self) -> usize {
        self.inner.hello.get().map_or(0, |(limits, _)| limits.message_bytes_max as usize)
    }

    pub(crate) fn inline_bytes_max(&self) -> u64 {
        self.inner.hello.get().map_or(0, |(limits, _)| limits.inline_bytes_max)
    }

    /// Bytes of the largest sealed memory file that it takes; 0 if it takes none.
    pub(crate) fn sealed_bytes_max(&self) -> u64 {
        let hello = self.inner.hello.get().filter(|&&(_, takes_sealed)| takes_sealed);
        hello.map_or(0, |(limits, _)| limits.region_bytes_max)
    }

    pub(crate) fn is_cancelled(&self, call: u64) -> bool {
        self.is_closed()
            || (self.inner.cancelled_count.load(Ordering::Relaxed) > 0
                && self.cancelled().contains(&call))
    }

    /// Notes that a running call was taken back.
    pub(crate) fn cancel(&self, call: u64) {
        let mut cancelled = self.cancelled();
        cancelled.push(call);
        self.inner.cancelled_count.store(cancelled.len(), Ordering::Relaxed);
    }

    /// Notes that a call has ended.
    pub(crate) fn end(&self, call: u64) {
        if self.inner.cancelled_count.load(Ordering::Relaxed) > 0 {
            let mut cancelled = self.cancelled();
            cancelled.retain(|&other| other != call);
            self.inner.cancelled_count.store(cancelled.len(), Ordering::Relaxed);
        }
    }

    /// Notes that the connection is gone.
    pub(crate) fn close(&self) {
        self.inner.is_closed.store(true, Ordering::Relaxed);
    }

    fn cancelled(&self) -> MutexGuard<'_, Vec<u64>> {
        self.inner.cancelled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, shorthaul_models))]
mod models;
