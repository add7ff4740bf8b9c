//! Clients' memory as the server holds it: descriptors while they are registered, mappings as long
//! as they are worth keeping, who answers for how much of it; and the server's own memory that
//! clients hold.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use lru::LruCache;
use shorthaul_platform::memory::{LentFile, PeerMemfd, Refusal, Refused, SharedMapping};

use crate::error::{Code, Status};
use crate::limits::{LENT_LOOKS_AT_LIMIT, UserLimits};
use crate::meter::Meter;
use crate::sync::{self, Mutex, MutexGuard};

/// A client's memory file that was looked at and taken.
#[derive(Debug)]
pub(crate) struct Region {
    /// Never given twice in the life of the process, so that no two buffers can be confused:
    /// device and inode numbers are used again by the kernel, this is not.
    key: u64,
    pub(crate) file: PeerMemfd,
    share: Share,
}

impl Region {
    /// Looks at a received descriptor, and takes it if its user can be charged. One that is refused
    /// comes back, to be closed where that may take its time.
    pub(crate) fn accept(
        descriptor: OwnedFd,
        bytes: u64,
        share: Result<Share, Status>,
    ) -> Result<Self, Rejected> {
        static NEXT_KEY: AtomicU64 = AtomicU64::new(0);
        let share = match share {
            Ok(share) => share,
            Err(status) => return Err(Rejected { status, remains: (descriptor, None) }),
        };
        let file = match PeerMemfd::parse(descriptor, bytes) {
            Ok(file) => file,
            Err(Refused { refusal, descriptor }) => {
                let remains = (descriptor, Some(share));
                return Err(Rejected { status: refusal.into(), remains });
            }
        };
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        Ok(Self { key, file, share })
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// What its user is charged for it, without its file: a mapping keeps the memory as well.
    pub(crate) fn into_share(self) -> Share {
        self.share
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self::new(Code::InvalidArgument, refusal.to_string())
    }
}

/// A descriptor that was not taken.
#[derive(Debug)]
pub(crate) struct Rejected {
    pub(crate) status: Status,
    /// What is to be closed where that may take its time. Until then its user is charged for it.
    pub(crate) remains: (OwnedFd, Option<Share>),
}

/// The mappings that one reactor keeps, least recently used out first. A mapping that was pushed
/// out is made anew when its region is next used; nobody sees it but the clock.
#[derive(Debug)]
pub(crate) struct MappingCache {
    mappings: LruCache<u64, Arc<SharedMapping>>,
}

impl MappingCache {
    /// An empty cache for at most `mappings_max` mappings (at least one).
    pub(crate) fn new(mappings_max: usize) -> Self {
        let capacity = NonZeroUsize::new(mappings_max).unwrap_or(NonZeroUsize::MIN);
        Self { mappings: LruCache::new(capacity) }
    }

    pub(crate) fn get(&mut self, region: &Region) -> Option<Arc<SharedMapping>> {
        self.mappings.get(&region.key).cloned()
    }

    /// Keeps a mapping; returns what it pushed out, to be unmapped elsewhere.
    pub(crate) fn keep(
        &mut self,
        region_key: u64,
        mapping: Arc<SharedMapping>,
    ) -> Option<Arc<SharedMapping>> {
        self.mappings.push(region_key, mapping).map(|(_, pushed_out)| pushed_out)
    }

    pub(crate) fn forget(&mut self, region: &Region) -> Option<Arc<SharedMapping>> {
        self.mappings.pop(&region.key)
    }
}

/// What every user holds.
#[derive(Debug)]
pub(crate) struct Accounts {
    limits: UserLimits,
    users: Mutex<HashMap<u32, Holder>>,
    /// Sealed answers that clients may still hold, by user: they stay at the server's charge until
    /// then.
    lent: Mutex<HashMap<u32, VecDeque<Lent>>>,
}

/// Sealed memory of the server's that a client has.
#[derive(Debug)]
pub(crate) struct Lent {
    file: LentFile,
    _share: Share,
}

impl Lent {
    /// Ends its user's charge for it.
    fn into_file(self) -> LentFile {
        self.file
    }
}

/// Who may charge an account holds it; one that nobody holds is forgotten.
pub(crate) type Holder = sync::Arc<Account>;

/// What one user holds, over all of its connections.
#[derive(Debug)]
pub(crate) struct Account {
    uid: u32,
    connections: Meter,
    calls: Meter,
    /// Bytes of payloads that travel inline.
    inline_bytes: Arc<Meter>,
    regions: Mutex<Memory>,
    lent: Mutex<Memory>,
}

/// Pieces of memory, and their bytes: both are charged or neither, so that one who is refused has
/// not had, for a moment, what another is refused for.
#[derive(Debug)]
struct Memory {
    pieces: Meter,
    bytes: Meter,
}

/// Whose memory is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The client has made it: regions, one-shot places, sealed uploads.
    Client,
    /// The server has made it for the client: sealed answers, copies of uploads.
    Server,
}

impl Memory {
    fn new(pieces_max: u64, bytes_max: u64) -> Self {
        Self { pieces: Meter::new(pieces_max), bytes: Meter::new(bytes_max) }
    }

    /// Adds a piece of `bytes` bytes; else says what there is as much of as may be.
    fn add(&mut self, bytes: u64) -> Result<(), (u64, &'static str)> {
        if !self.pieces.add(1) {
            return Err((self.pieces.max(), "pieces"));
        }
        if !self.bytes.add(bytes) {
            self.pieces.subtract(1);
            return Err((self.bytes.max(), "bytes (or would have)"));
        }
        Ok(())
    }
}

/// A connection's place in its user's account.
#[derive(Debug)]
pub(crate) struct Membership {
    accounts: Arc<Accounts>,
    account: Option<Holder>,
}

/// A call's place in its user's account, until it is answered.
#[derive(Debug)]
pub(crate) struct Place {
    account: Holder,
}

/// A region's part of its user's account.
#[derive(Debug)]
pub(crate) struct Share {
    account: Holder,
    whose: Whose,
    bytes: u64,
}

impl Accounts {
    pub(crate) fn new(limits: UserLimits) -> Arc<Self> {
        Arc::new(Self { limits, users: Mutex::default(), lent: Mutex::default() })
    }

    /// Counts a connection of `uid`, if it may have one more.
    pub(crate) fn join(self: &Arc<Self>, uid: u32) -> Result<Membership, Status> {
        let mut users = lock(&self.users);
        let account =
            users.entry(uid).or_insert_with(|| Holder::new(Account::new(uid, self.limits)));
        if !account.connections.add(1) {
            let max = self.limits.connections_max;
            return Err(Status::new(
                Code::ResourceExhausted,
                format!("user {uid} has {max} connections already: close some"),
            ));
        }
        Ok(Membership { accounts: Arc::clone(self), account: Some(Holder::clone(account)) })
    }

    /// Charges a user for `bytes` bytes, in one piece. Some of what was lent to it may have come
    /// back unnoticed: it is given to `let_go`, for giving its pages back takes its time.
    pub(crate) fn charge(
        &self,
        account: &Holder,
        whose: Whose,
        bytes: u64,
        let_go: impl FnOnce(Vec<LentFile>),
    ) -> Result<Share, Status> {
        Account::take(account, whose, bytes).or_else(|status| {
            let returned = self.take_returned_by(account.uid, LENT_LOOKS_AT_LIMIT);
            if returned.is_empty() {
                return Err(status);
            }
            let_go(returned.into_iter().map(Lent::into_file).collect());
            Account::take(account, whose, bytes)
        })
    }

    /// Watches over memory that is given away.
    pub(crate) fn lend(&self, file: LentFile, share: Share) {
        let mut lent = self.lent();
        lent.entry(share.account.uid).or_default().push_back(Lent { file, _share: share });
    }

    /// Looks at up to `count` files that each user has, longest unlooked-at first, and takes those
    /// that nobody holds any more: dropping them gives their pages back, which takes its time.
    pub(crate) fn take_returned(&self, count: usize) -> Vec<Lent> {
        let mut returned = Vec::new();
        let mut lent = self.lent();
        lent.values_mut().for_each(|files| take_returned(files, count, &mut returned));
        lent.retain(|_, files| !files.is_empty());
        returned
    }

    /// Looks at up to `count` files that one user has.
    pub(crate) fn take_returned_by(&self, uid: u32, count: usize) -> Vec<Lent> {
        let mut returned = Vec::new();
        if let Some(files) = self.lent().get_mut(&uid) {
            take_returned(files, count, &mut returned);
        }
        returned
    }

    /// Whether sealed memory is out.
    pub(crate) fn has_lent(&self) -> bool {
        !self.lent().is_empty()
    }

    fn lent(&self) -> MutexGuard<'_, HashMap<u32, VecDeque<Lent>>> {
        lock(&self.lent)
    }
}

fn take_returned(files: &mut VecDeque<Lent>, count: usize, returned: &mut Vec<Lent>) {
    for _ in 0..count.min(files.len()) {
        match files.pop_front() {
            Some(oldest) if oldest.file.is_held() => files.push_back(oldest),
            oldest => returned.extend(oldest),
        }
    }
}

impl Membership {
    pub(crate) fn account(&self) -> &Holder {
        self.account.as_ref().expect("there until dropped")
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut users = lock(&self.accounts.users);
        // Let go of under the lock: who comes next sees it gone.
        let Some(account) = self.account.take() else {
            return;
        };
        account.connections.subtract(1);
        let was_last = account.connections.is_zero();
        drop(account);
        if was_last {
            // Kept while memory of ended connections is still in use, or may yet be taken into use
            // by handlers: shares and handlers hold the account beside the list. Those that were
            // kept for that go when a later user does.
            users.retain(|_, account| Holder::strong_count(account) > 1);
        }
    }
}

impl Account {
    fn new(uid: u32, limits: UserLimits) -> Self {
        Self {
            uid,
            connections: Meter::new(limits.connections_max),
            calls: Meter::new(limits.calls_max),
            inline_bytes: Arc::new(Meter::new(limits.inline_bytes_max)),
            regions: Mutex::new(Memory::new(limits.regions_max, limits.region_bytes_max)),
            lent: Mutex::new(Memory::new(limits.lent_max, limits.lent_bytes_max)),
        }
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// What its payloads that travel inline are counted by.
    pub(crate) fn inline_bytes(&self) -> &Arc<Meter> {
        &self.inline_bytes
    }

    /// Counts a call, if it may have one more.
    pub(crate) fn begin_call(account: &Holder) -> Result<Place, Status> {
        if account.calls.add(1) {
            return Ok(Place { account: Holder::clone(account) });
        }
        let (uid, max) = (account.uid, account.calls.max());
        let message = format!("user {uid} has {max} calls open already: wait for answers");
        Err(Status::new(Code::ResourceExhausted, message))
    }

    fn take(account: &Holder, whose: Whose, bytes: u64) -> Result<Share, Status> {
        let added = account.memory(whose).add(bytes);
        added.map_err(|(max, unit)| {
            let (what, advice) = match whose {
                Whose::Client => ("of its own memory", "drop buffers"),
                Whose::Server => ("of the server's memory", "drop sealed replies"),
            };
            let uid = account.uid;
            let message = format!("user {uid} has {max} {unit} {what} in use: {advice}");
            Status::new(Code::ResourceExhausted, message)
        })?;
        Ok(Share { account: Holder::clone(account), whose, bytes })
    }

    fn memory(&self, whose: Whose) -> MutexGuard<'_, Memory> {
        match whose {
            Whose::Client => lock(&self.regions),
            Whose::Server => lock(&self.lent),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.account.calls.subtract(1);
    }
}

impl Share {
    pub(crate) fn uid(&self) -> u32 {
        self.account.uid
    }

    /// Gives back what is over `bytes`.
    pub(crate) fn cut(&mut self, bytes: u64) {
        let over = self.bytes.saturating_sub(bytes);
        self.bytes -= over;
        self.account.memory(self.whose).bytes.subtract(over);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let memory = self.account.memory(self.whose);
        memory.pieces.subtract(1);
        memory.bytes.subtract(self.bytes);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, shorthaul_models))]
mod models;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use shorthaul_platform::memory::{Draft, Memfd};

    use super::*;

    fn limits() -> UserLimits {
        UserLimits {
            connections_max: 2,
            calls_max: 2,
            inline_bytes_max: 10_000,
            regions_max: 2,
            region_bytes_max: 10_000,
            lent_max: 2,
            lent_bytes_max: 10_000,
        }
    }

    fn region(membership: &Membership, bytes: usize) -> Result<Region, Status> {
        let descriptor = Memfd::create("test", bytes).unwrap().into_descriptor();
        let share =
            membership.accounts.charge(membership.account(), Whose::Client, bytes as u64, drop);
        Region::accept(descriptor, bytes as u64, share).map_err(|rejected| rejected.status)
    }

    #[test]
    fn a_user_is_bounded_over_all_connections() {
        let accounts = Accounts::new(limits());
        let (first, second) = (accounts.join(7).unwrap(), accounts.join(7).unwrap());
        assert_eq!(accounts.join(7).unwrap_err().code, Code::ResourceExhausted);
        accounts.join(8).unwrap();

        let held = region(&first, 8000).unwrap();
        assert_eq!(region(&second, 4096).unwrap_err().code, Code::ResourceExhausted);
        let small = region(&second, 1000).unwrap();
        assert_eq!(region(&second, 0).unwrap_err().code, Code::ResourceExhausted);
        drop((held, small));
        region(&second, 10_000).unwrap();
        drop((first, second));
        assert!(accounts.users.lock().unwrap().is_empty());
    }

    #[test]
    fn a_users_calls_are_bounded_over_all_connections() {
        let accounts = Accounts::new(limits());
        let (first, second) = (accounts.join(7).unwrap(), accounts.join(7).unwrap());
        let places = [
            Account::begin_call(first.account()).unwrap(),
            Account::begin_call(second.account()).unwrap(),
        ];
        assert_eq!(Account::begin_call(first.account()).unwrap_err().code, Code::ResourceExhausted);
        let other = accounts.join(8).unwrap();
        Account::begin_call(other.account()).unwrap();
        drop(places);
        Account::begin_call(second.account()).unwrap();
    }

    #[test]
    fn what_came_back_makes_room_and_is_let_go_of_by_the_caller() {
        let accounts = Accounts::new(limits());
        let user = accounts.join(7).unwrap();
        let lend = || {
            let share = accounts.charge(user.account(), Whose::Server, 5000, drop).unwrap();
            let sealed = Draft::create("test", 5000).unwrap().seal(5000).unwrap();
            let (gift, watch) = LentFile::lend(sealed).unwrap();
            accounts.lend(watch, share);
            gift
        };
        let (first, _second) = (lend(), lend());
        assert!(
            accounts.charge(user.account(), Whose::Server, 1, |_| panic!("all are held")).is_err()
        );
        drop(first);
        let mut returned = Vec::new();
        let share = accounts.charge(user.account(), Whose::Server, 5000, |files| returned = files);
        assert!(share.is_ok() && returned.len() == 1);
    }

    #[test]
    fn two_regions_never_share_a_mapping() {
        let accounts = Accounts::new(limits());
        let user = accounts.join(7).unwrap();
        let mut cache = MappingCache::new(8);
        let first = region(&user, 64).unwrap();
        cache.keep(first.key(), Arc::new(first.file.map().unwrap()));
        assert!(cache.get(&first).is_some());
        drop(first);
        // The kernel may give the next file the same inode number; the key differs all the same.
        let second = region(&user, 64).unwrap();
        assert!(cache.get(&second).is_none());
    }

    #[test]
    fn the_least_recently_used_mapping_goes_first() {
        let accounts = Accounts::new(UserLimits::default());
        let user = accounts.join(7).unwrap();
        let region = region(&user, 64).unwrap();
        let mapping = Arc::new(region.file.map().unwrap());
        let mut cache = MappingCache::new(8);
        for key in 0..8 {
            assert!(cache.keep(key + 1_000_000, Arc::clone(&mapping)).is_none());
        }
        assert!(cache.keep(region.key(), mapping).is_some());
        assert_eq!(cache.mappings.len(), 8);
        assert!(cache.forget(&region).is_some());
    }
}
