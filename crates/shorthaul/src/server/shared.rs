//! What the threads of one server have in common.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use shorthaul_platform::socket::{self, Credentials};

use crate::limits::Limits;
use crate::payload::MemoryPool;
use crate::reaper::Reaper;
use crate::region::Accounts;
use crate::service::{FillPolicy, InboundCall, Service, ServiceQueue};

/// Everything that is shared.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) pool: Arc<MemoryPool>,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) queue: ServiceQueue<InboundCall>,
    pub(crate) service: Box<dyn Service>,
    pub(crate) stats: Stats,
    pub(crate) reaper: Reaper,
    /// Connections over all reactors.
    pub(crate) connections: AtomicUsize,
    next_key: AtomicU64,
}

/// What was decided before the server started.
pub(crate) struct Config {
    pub(crate) limits: Limits,
    pub(crate) fill: FillPolicy,
    pub(crate) inline_handlers: bool,
    /// Whether stores into peers' memory can't fail, see [`peers_can_be_mapped`].
    pub(crate) may_map_peers: bool,
    pub(crate) policy: PeerPolicy,
}

/// Decides who may connect: the reason if not.
pub type PeerPolicy = Arc<dyn Fn(&Credentials) -> Result<(), String> + Send + Sync>;

impl Shared {
    pub(crate) fn new(
        config: Config,
        accounts: Arc<Accounts>,
        service: Box<dyn Service>,
        reaper: Reaper,
    ) -> Self {
        Self {
            config,
            pool: Arc::new(MemoryPool::default()),
            accounts,
            queue: ServiceQueue::new(),
            service,
            stats: Stats::default(),
            reaper,
            connections: AtomicUsize::new(0),
            next_key: AtomicU64::new(FIRST_KEY),
        }
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

/// Talks to the same user and to root, and to nobody whose user id is a stand-in.
pub(crate) fn default_policy() -> PeerPolicy {
    let own_uid = rustix::process::geteuid().as_raw();
    let overflow_uid = socket::overflow_uid();
    Arc::new(move |peer| {
        if peer.uid == overflow_uid {
            return Err(format!(
                "user {} is the stand-in for users without a name here (another user namespace?); \
                 a policy of your own can let it in",
                peer.uid
            ));
        }
        if peer.uid == own_uid || peer.uid == 0 {
            return Ok(());
        }
        Err(format!("user {} is neither {own_uid} nor root", peer.uid))
    })
}

/// Whether a store into a peer's shmem can't fail: under strict overcommit (vm.overcommit_memory =
/// 2) a page behind a hole that the peer punched may be refused, which is SIGBUS. Then buffers are
/// filled by pwrite(2), whose failure is an error.
pub(crate) fn peers_can_be_mapped() -> bool {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() != "2")
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// The reactors use lower numbers for what is no connection.
pub(crate) const FIRST_KEY: u64 = 16;
