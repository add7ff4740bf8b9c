//! What the threads of one server have in common.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shorthaul_platform::memory::{HugePages, Trust};

use super::call::{InboundCall, Service};
use super::given::Descriptors;
use super::outgoing::FillPolicy;
use super::peer::Charge;
use super::queue::{self, ServiceQueue};
use super::region::{Accounts, Holder, Share, Whose};
use crate::error::Status;
use crate::lane::LaneCounters;
use crate::limits::{LENT_LOOKS_AT_REST, Limits};
use crate::payload::MemoryPool;
use crate::relay::Relay;
use crate::threads::Reaper;
use crate::trust::PeerPolicy;
use crate::waiting::Wait;

/// Everything that is shared.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) pool: Arc<MemoryPool>,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) queue: ServiceQueue<InboundCall>,
    /// Of calls that may wait for their clients. They have workers of their own, so that clients
    /// whose descriptors take nothing hold up no other calls.
    pub(crate) waiting_queue: ServiceQueue<InboundCall>,
    pub(crate) service: Box<dyn Service>,
    pub(crate) stats: Stats,
    /// Lets go of what is our own.
    pub(crate) reaper: Reaper,
    /// Connections over all reactors.
    pub(crate) connections: AtomicUsize,
    /// Relays that nobody uses at the moment.
    relays: Mutex<Vec<Relay>>,
    next_key: AtomicU64,
}

/// What was decided before the server started.
pub(crate) struct Config {
    pub(crate) limits: Limits,
    pub(crate) fill: FillPolicy,
    pub(crate) huge_pages: HugePages,
    pub(crate) inline_handlers: bool,
    pub(crate) wait: Wait,
    pub(crate) descriptors: Descriptors,
    pub(crate) kept_mappings_max: usize,
    /// Whether stores into peers' memory can't fail, see
    /// [`peers_can_be_mapped`](crate::trust::peers_can_be_mapped).
    pub(crate) may_map_peers: bool,
    /// Whether the kernel tells who holds a sealed file: without that, none is made for a client.
    pub(crate) may_lend: Result<(), String>,
    pub(crate) policy: PeerPolicy,
    /// Whether clients' memory may be had as slices.
    pub(crate) trust: Option<Trust>,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        accounts: Arc<Accounts>,
        service: Box<dyn Service>,
        reaper: Reaper,
    ) -> Self {
        Self {
            pool: Arc::new(MemoryPool::new(config.huge_pages)),
            config,
            accounts,
            queue: ServiceQueue::new(),
            waiting_queue: ServiceQueue::new(),
            service,
            stats: Stats::default(),
            reaper,
            connections: AtomicUsize::new(0),
            relays: Mutex::default(),
            next_key: AtomicU64::new(FIRST_KEY),
        }
    }

    /// Looks at sealed files that are out, of all users.
    pub(crate) fn look_after_lent(&self) {
        let returned = self.accounts.take_returned(LENT_LOOKS_AT_REST);
        if !returned.is_empty() {
            self.reaper.bury(returned);
        }
    }

    /// Charges a user for `bytes` bytes, in one piece. Quick: for reactors too.
    pub(crate) fn charge(
        &self,
        account: &Holder,
        whose: Whose,
        bytes: u64,
    ) -> Result<Share, Status> {
        self.accounts.charge(account, whose, bytes, |returned| self.reaper.bury(returned))
    }

    pub(super) fn relays(&self) -> MutexGuard<'_, Vec<Relay>> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a call where it gets its worker.
    pub(super) fn enqueue(&self, connection: u64, call: InboundCall) {
        let queue = if call.may_wait() { &self.waiting_queue } else { &self.queue };
        queue.push(connection, call);
    }

    /// Takes a call that has not begun out of its queue.
    pub(super) fn dequeue(&self, connection: u64, call: u64) -> Option<InboundCall> {
        let removed = self.queue.remove(connection, call);
        removed.or_else(|| self.waiting_queue.remove(connection, call))
    }

    /// Says that a call was answered by `moved_bytes` bytes, of which `inline_bytes` will be
    /// written to the socket.
    pub(super) fn answered(
        &self,
        connection: u64,
        charge: Charge,
        moved_bytes: u64,
        inline_bytes: u64,
    ) {
        let queues = [&self.queue, &self.waiting_queue];
        queue::settle(queues, connection, charge, moved_bytes, inline_bytes);
    }

    /// Says that so many bytes of a connection's inline answers are written to its socket.
    pub(super) fn written(&self, connection: u64, inline_bytes: u64) {
        self.queue.written(connection, inline_bytes);
        if self.config.descriptors != Descriptors::Refuse {
            self.waiting_queue.written(connection, inline_bytes);
        }
    }

    /// Forgets a connection; returns the calls that had not begun.
    pub(super) fn forget(&self, connection: u64) -> [VecDeque<InboundCall>; 2] {
        [self.queue.forget(connection), self.waiting_queue.forget(connection)]
    }

    /// A number for a connection that no other will ever have.
    pub(crate) fn new_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }
}

/// What a server has done so far.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) calls: Counter,
    pub(crate) mappings_made: Counter,
    pub(crate) mappings_reused: Counter,
    pub(crate) connections_refused: Counter,
    pub(crate) accepts_put_off: Counter,
    pub(crate) lanes: LaneCounters,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("stats", &self.stats).finish_non_exhaustive()
    }
}

/// The reactors use lower numbers for what is no connection.
pub(crate) const FIRST_KEY: u64 = 16;
