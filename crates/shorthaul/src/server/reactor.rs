//! A thread that drives many connections: one poll, bounded turns, no user code (unless the server
//! is told to run handlers inline), no payload touched.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use rustc_hash::FxHashMap;
use shorthaul_platform::socket::{self, Credentials, Wait};
use smallvec::SmallVec;

use super::call::InboundCall;
use super::driver::{Driver, End, Event};
use super::given::Descriptors;
use super::listener::Listener;
use super::peer::{Command, Completion, Peer, Spent};
use super::region::{MappingCache, Membership, Region, Whose};
use super::shared::Shared;
use super::workers;
use crate::connection::server::{IncomingUpload, ServerConnection};
use crate::error::{Code, Status};
use crate::inbox::Inbox;
use crate::limits::{
    ACCEPT_REST, CONNECTIONS_MAX, LENT_REST, LENT_REST_AFTER_END, RINGS_LOOKED_INTO_MAX,
};
use crate::ring::RINGS_BYTES;
use crate::undertaker;
use crate::waiting::{LOOK_AROUND, Patience, look_for};
use crate::wire::Frame;

/// One reactor of a server.
pub(super) struct Reactor {
    poll: Poll,
    inbox: Arc<Inbox<Command>>,
    /// Empty between uses; kept for its memory.
    commands: Vec<Command>,
    shared: Arc<Shared>,
    /// By the number of the connection, which is its token too.
    drivers: FxHashMap<u64, Driver>,
    /// Connections that have something to do, each at most once.
    run_queue: VecDeque<u64>,
    /// Connections whose rings are looked into while there is nothing else to do: few, and only
    /// those whose next call is likely soon.
    looked_into: Vec<u64>,
    /// When all else was last looked at, while there are such.
    polled_at: Instant,
    /// When the clock was last looked at: that costs as much as some looks into a ring.
    now: Instant,
    /// Looks into rings.
    looks: u32,
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    mappings: MappingCache,
    /// Mappings and the like that calls on this thread have used.
    spent: Vec<Spent>,
    acceptor: Option<Acceptor>,
    stop_by: Option<Instant>,
    /// When sealed answers that are out are looked at next, and how long after the last time.
    lent_at: Instant,
    lent_rest: Duration,
}

/// Accepts for all reactors.
pub(super) struct Acceptor {
    listener: Listener,
    reactors: Vec<Arc<Inbox<Command>>>,
    next: usize,
    is_ready: bool,
    /// Out of descriptors: not before then.
    rests_until: Option<Instant>,
}

impl Reactor {
    /// The poll of a reactor to be, and its inbox, which others must know before it runs.
    pub(super) fn parts() -> io::Result<(Poll, Arc<Inbox<Command>>)> {
        let poll = Poll::new()?;
        let inbox = Arc::new(Inbox::new(poll.registry(), BELL)?);
        Ok((poll, inbox))
    }

    pub(super) fn with(
        (poll, inbox): (Poll, Arc<Inbox<Command>>),
        shared: Arc<Shared>,
        acceptor: Option<Acceptor>,
    ) -> io::Result<Self> {
        if let Some(acceptor) = &acceptor {
            acceptor.listener.register(poll.registry(), LISTENER)?;
        }
        let mappings = MappingCache::new(shared.config.kept_mappings_max);
        Ok(Self {
            poll,
            inbox,
            commands: Vec::new(),
            shared,
            drivers: FxHashMap::default(),
            run_queue: VecDeque::new(),
            looked_into: Vec::new(),
            polled_at: Instant::now(),
            now: Instant::now(),
            looks: 0,
            timers: BinaryHeap::new(),
            mappings,
            spent: Vec::new(),
            acceptor,
            stop_by: None,
            lent_at: Instant::now(),
            lent_rest: LENT_REST,
        })
    }

    /// Runs until it is stopped and its connections have ended.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        loop {
            self.obey_all();
            self.accept();
            self.take_turns();
            self.expire();
            self.look_after_lent();
            // Looked at before each sleep: what ended the last connection may wake nobody.
            if self.is_finished() {
                return Ok(());
            }
            // All else can wait for some microseconds.
            while self.look_into_rings() {
                if !self.shared.config.inline_handlers {
                    self.obey_all();
                }
                self.take_turns();
            }
            self.sleep(&mut events)?;
            for event in &events {
                self.on_ready(event);
            }
        }
    }

    fn sleep(&mut self, events: &mut Events) -> io::Result<()> {
        let is_accepting = self.acceptor.as_ref().is_some_and(Acceptor::may_accept);
        let is_idle = self.run_queue.is_empty() && self.looked_into.is_empty() && !is_accepting;
        let may_sleep = is_idle && self.inbox.fall_asleep();
        let timeout = if may_sleep { self.until_next_timer() } else { Some(Duration::ZERO) };
        let polled = self.poll.poll(events, timeout);
        if may_sleep {
            self.inbox.wake_up();
        }
        self.now = Instant::now();
        self.polled_at = self.now;
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Looks for frames in rings for a while, if some are worth it. True if there is something to
    /// do and it is too early to poll.
    fn look_into_rings(&mut self) -> bool {
        if self.looked_into.is_empty() {
            return false;
        }
        let has_news = self.run_queue.is_empty() && self.look_on();
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_CLOCK) {
            self.now = Instant::now();
        }
        let now = self.now;
        for index in (0..self.looked_into.len()).rev() {
            let key = self.looked_into[index];
            let Some(driver) = self.drivers.get(&key) else {
                self.looked_into.swap_remove(index);
                continue;
            };
            if driver.connection.link.has_in_ring() {
                self.enqueue(key);
            } else if driver.rings.looks_until.is_none_or(|until| now >= until) {
                self.look_away(key);
            }
        }
        let is_due = now.saturating_duration_since(self.polled_at) >= LOOK_AROUND;
        !is_due && (has_news || !self.run_queue.is_empty())
    }

    /// Looks until there is something to do, or it is time to look at all else. Whether a command
    /// waits.
    fn look_on(&mut self) -> bool {
        let driver = |key: &u64| self.drivers.get(key);
        let drivers = self.looked_into.iter().filter_map(driver);
        let rings: SmallVec<[_; RINGS_LOOKED_INTO_MAX]> =
            drivers.filter_map(|driver| driver.connection.link.watch_ring()).collect();
        // With inline handlers they are rare.
        let has_news = || !self.shared.config.inline_handlers && self.inbox.has_some();
        self.now = look_for(self.now, || rings.iter().any(|has_some| has_some()) || has_news());
        has_news()
    }

    /// Looks into the connection's ring from now on if its next call is likely soon, else tells it
    /// to wake this reactor for it.
    fn settle_ring(&mut self, key: u64) {
        let Some(driver) = self.drivers.get_mut(&key).filter(|d| d.connection.link.has_rings())
        else {
            return;
        };
        let until = driver.looks_until(self.now);
        let is_listed = driver.rings.looks_until.is_some();
        if until.is_some() && (is_listed || self.looked_into.len() < RINGS_LOOKED_INTO_MAX) {
            driver.rings.looks_until = until;
            if !is_listed {
                driver.connection.link.begin_to_look();
                self.looked_into.push(key);
            }
        } else {
            self.look_away(key);
        }
    }

    fn look_away(&mut self, key: u64) {
        self.looked_into.retain(|listed| *listed != key);
        let Some(driver) = self.drivers.get_mut(&key) else { return };
        driver.rings.looks_until = None;
        match driver.fall_asleep() {
            Ok(true) => {}
            Ok(false) => self.enqueue(key),
            Err(violation) => self.end(key, violation.into()),
        }
    }

    fn until_next_timer(&self) -> Option<Duration> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let accept = self.acceptor.as_ref().and_then(|acceptor| acceptor.rests_until);
        let lent = self.shared.accounts.has_lent().then_some(self.lent_at);
        let next = [timer, accept, self.stop_by, lent].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn on_ready(&mut self, event: &mio::event::Event) {
        match event.token() {
            BELL => {}
            LISTENER => {
                if let Some(acceptor) = &mut self.acceptor {
                    acceptor.is_ready = true;
                }
            }
            Token(key) => {
                let key = key as u64;
                let Some(driver) = self.drivers.get_mut(&key) else {
                    return;
                };
                match driver.on_ready(event) {
                    Ok(()) => self.enqueue(key),
                    Err(end) => self.end(key, end),
                }
            }
        }
    }

    fn enqueue(&mut self, key: u64) {
        if let Some(driver) = self.drivers.get_mut(&key)
            && !driver.is_queued
        {
            driver.is_queued = true;
            self.run_queue.push_back(key);
        }
    }

    fn take_turns(&mut self) {
        for _ in 0..self.run_queue.len() {
            let Some(key) = self.run_queue.pop_front() else {
                break;
            };
            if let Err(end) = self.turn(key) {
                self.end(key, end);
            }
            if !self.run_queue.is_empty() {
                // Deadlines of calls count from when they are read.
                self.now = Instant::now();
            }
        }
        self.spent.clear();
    }

    /// One connection's turn: reads and acts on what came, then writes. Until it is over the
    /// connection counts as queued, so that answers made meanwhile need no turn of their own.
    fn turn(&mut self, key: u64) -> Result<(), End> {
        let Some(driver) = self.drivers.get_mut(&key) else {
            return Ok(());
        };
        driver.begin_turn();
        while let Some(driver) = self.drivers.get_mut(&key)
            && let Some(event) = driver.next_event(self.now)?
        {
            self.act(key, event)?;
        }
        let now = self.now;
        let Some(driver) = self.drivers.get_mut(&key) else {
            return Ok(());
        };
        driver.is_queued = false;
        driver.drain();
        let mut written = driver.flush(self.poll.registry(), now)?;
        // What was written may have been all that it was kept for.
        if driver.drain() {
            written += driver.flush(self.poll.registry(), now)?;
        }
        if !self.shared.config.inline_handlers {
            self.shared.written(key, written);
        }
        if driver.is_done() {
            return Err(End::Closed);
        }
        if driver.has_more() {
            self.enqueue(key);
        }
        self.set_timer(key);
        self.settle_ring(key);
        Ok(())
    }

    fn act(&mut self, key: u64, event: Event) -> Result<(), End> {
        let Some(driver) = self.drivers.get_mut(&key) else {
            return Ok(());
        };
        match event {
            Event::Call(incoming) => {
                driver.on_call(self.now);
                if let IncomingUpload::Inline(memory) = &incoming.upload {
                    driver.request_bytes += memory.len() as u64;
                }
                let link = &driver.connection.link;
                driver.peer.learn(link.peer_limits(), link.peer_takes_sealed());
                let mappings = &mut self.mappings;
                let kept = |region: &Region| mappings.get(region);
                let mut call = InboundCall::new(
                    incoming,
                    kept,
                    driver.peer.clone(),
                    driver.membership.account(),
                    Arc::clone(&self.shared),
                );
                self.shared.stats.calls.add(1);
                if let Err(status) = call.take_place(driver.membership.account()) {
                    self.answer_untouched(call, status);
                } else if self.shared.config.inline_handlers {
                    workers::carry_out(&mut call, &self.shared, self.now);
                    // There is none yet if the call was deferred.
                    if let Some(completion) = call.take_answer() {
                        self.complete(completion);
                    }
                    // Behind the answer, which nobody should wait longer for.
                    self.now = Instant::now();
                } else {
                    self.shared.enqueue(key, call);
                }
            }
            Event::Register { region, bytes, descriptor } => {
                register(driver, region, bytes, descriptor, &self.shared);
            }
            Event::Rings { descriptor } => take_rings(driver, descriptor, &self.shared),
            Event::Released(region) => {
                let mapping = self.mappings.forget(&region);
                self.shared.reaper.bury((mapping, region));
            }
            Event::Discard(descriptor) => undertaker::bury(driver.uid(), descriptor),
            Event::Cancel { call } => self.cancel(key, call),
            Event::Goodbye => return Err(End::Closed),
            Event::Passed => {}
        }
        Ok(())
    }

    /// A call taken back: one that waits is answered here and now, one that runs is told.
    fn cancel(&mut self, key: u64, call: u64) {
        match self.shared.dequeue(key, call) {
            Some(waiting) => {
                let status = Status::new(Code::Cancelled, "taken back before it began");
                self.answer_untouched(waiting, status);
            }
            None => {
                if let Some(driver) = self.drivers.get(&key) {
                    driver.peer.cancel(call);
                }
            }
        }
    }

    /// Answers a call that no handler has seen.
    fn answer_untouched(&mut self, call: InboundCall, status: Status) {
        if let Some(mut completion) = call.take_back(status) {
            // Its memory may be all the client's, and gone but for us.
            self.shared.reaper.bury(completion.spent.take());
            self.complete(completion);
        }
    }

    fn obey_all(&mut self) {
        let mut commands = std::mem::take(&mut self.commands);
        self.inbox.take(&mut commands);
        for command in commands.drain(..) {
            self.obey(command);
        }
        self.commands = commands;
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Adopt(socket, peer, membership) => self.adopt(socket, peer, membership),
            Command::Complete(completion) => self.complete(completion),
            Command::Notify { connection, topic, data } => {
                if let Some(driver) = self.drivers.get_mut(&connection)
                    && driver.connection.notify(topic, &data)
                {
                    self.enqueue(connection);
                }
            }
            Command::Stop { by } => self.stop(by),
        }
    }

    fn adopt(&mut self, socket: UnixStream, peer: Peer, membership: Membership) {
        let (key, now) = (peer.key(), self.now);
        let purse = self.shared.pool.counted(membership.account().inline_bytes());
        let mut connection = ServerConnection::new(self.shared.config.limits, purse, now);
        if self.shared.config.descriptors != Descriptors::Refuse {
            connection.take_given_descriptors();
        }
        let wait = self.shared.config.wait;
        if takes_rings(&self.shared) {
            connection.take_rings();
        }
        let driver = Driver::new(socket, connection, peer, membership, wait);
        if self.stop_by.is_some() || driver.register(self.poll.registry()).is_err() {
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
            let (socket, connection, membership) = driver.into_remains();
            undertaker::bury(membership.account().uid(), (socket, (connection, membership)));
            return;
        }
        self.drivers.insert(key, driver);
        self.enqueue(key);
    }

    fn complete(&mut self, completion: Box<Completion>) {
        let Completion { connection: key, call, answer, keep, spent, request_bytes, charge } =
            *completion;
        self.spent.extend(spent);
        let Some(driver) = self.drivers.get_mut(&key) else {
            self.shared.reaper.bury(keep);
            drop(answer);
            self.look_after_lent_soon();
            return;
        };
        let moved_bytes = answer.moved_bytes();
        let inline_bytes = answer.payload.as_ref().map_or(0, |_| moved_bytes);
        // First of all: its client may look for it.
        driver.connection.answer(call, answer);
        for (region_key, mapping) in keep {
            let is_registered = |region: &Arc<Region>| region.key() == region_key;
            // A region that was released meanwhile has nobody to forget its mapping later.
            let unwanted = if driver.connection.regions().any(is_registered) {
                self.mappings.keep(region_key, mapping)
            } else {
                Some(mapping)
            };
            if let Some(unwanted) = unwanted {
                self.shared.reaper.bury(unwanted);
            }
        }
        driver.request_bytes -= request_bytes;
        driver.unsent_bytes += inline_bytes;
        driver.peer.end(call);
        if let Some(charge) = charge {
            self.shared.answered(key, charge, moved_bytes, inline_bytes);
        }
        self.enqueue(key);
    }

    fn set_timer(&mut self, key: u64) {
        let Some(driver) = self.drivers.get_mut(&key) else {
            return;
        };
        let Some(at) = driver.connection.link.deadline() else {
            return;
        };
        if driver.timer_at.is_none_or(|set| at < set) {
            driver.timer_at = Some(at);
            self.timers.push(Reverse((at, key)));
        }
    }

    /// Looks at the connections whose time has come; most have moved on since and are set anew.
    fn expire(&mut self) {
        let now = self.now;
        while let Some(Reverse((at, key))) = self.timers.peek().copied()
            && at <= now
        {
            self.timers.pop();
            let Some(driver) = self.drivers.get_mut(&key) else {
                continue;
            };
            driver.timer_at = None;
            match driver.connection.link.check_time(now) {
                Ok(()) => self.set_timer(key),
                Err(violation) => self.end(key, violation.into()),
            }
        }
    }

    /// Lets go of sealed answers that clients have let go of, also while nothing else happens.
    fn look_after_lent(&mut self) {
        if self.now >= self.lent_at {
            self.lent_rest = (self.lent_rest * 2).min(LENT_REST);
            self.lent_at = self.now + self.lent_rest;
            self.shared.look_after_lent();
        }
    }

    /// What a client had may be its no more.
    fn look_after_lent_soon(&mut self) {
        self.lent_rest = LENT_REST_AFTER_END;
        self.lent_at = self.lent_at.min(Instant::now() + LENT_REST_AFTER_END);
    }

    /// Ends a connection: its waiting calls are dropped, its running ones told, its regions let go.
    fn end(&mut self, key: u64, end: End) {
        let Some(mut driver) = self.drivers.remove(&key) else {
            return;
        };
        if let End::Broken(violation) = end {
            let message = violation.to_string();
            driver.connection.link.say_goodbye(violation.code(), &message);
            // The peer may not listen; then it learns nothing.
            driver.flush(self.poll.registry(), Instant::now()).ok();
        }
        driver.peer.close();
        driver.deregister(self.poll.registry());
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.look_after_lent_soon();
        let waiting = self.shared.forget(key);
        let mappings: Vec<_> =
            driver.connection.regions().filter_map(|region| self.mappings.forget(region)).collect();
        // The socket too: descriptors that nobody has read are still in it.
        let strangers = driver.connection.take_descriptors();
        let uid = driver.uid();
        let (socket, connection, membership) = driver.into_remains();
        if shut_down(&socket) && strangers.is_empty() {
            self.shared.reaper.bury((waiting, mappings, connection, socket, membership));
        } else {
            self.shared.reaper.bury((waiting, mappings, connection));
            undertaker::bury(uid, strangers);
            undertaker::bury(uid, (socket, membership));
        }
    }

    fn stop(&mut self, by: Instant) {
        self.stop_by = Some(by);
        self.acceptor = None;
        let keys: Vec<u64> = self.drivers.keys().copied().collect();
        for key in keys {
            if let Some(driver) = self.drivers.get_mut(&key) {
                driver.is_draining = true;
            }
            self.enqueue(key);
        }
    }

    fn is_finished(&mut self) -> bool {
        let Some(by) = self.stop_by else { return false };
        if Instant::now() >= by {
            let keys: Vec<u64> = self.drivers.keys().copied().collect();
            keys.into_iter().for_each(|key| self.end(key, End::Closed));
        }
        self.drivers.is_empty()
    }

    fn accept(&mut self) {
        let now = self.now;
        let Some(acceptor) = &mut self.acceptor else {
            return;
        };
        if acceptor.rests_until.is_some_and(|until| now >= until) {
            acceptor.rests_until = None;
            acceptor.is_ready = true;
        }
        if acceptor.may_accept() {
            acceptor.accept_some(&self.shared, now);
        }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        // However it ended: answers of handlers that still run have nowhere to go any more, and who
        // is handed to it is let go of.
        drop(self.inbox.close());
        self.shared.connections.fetch_sub(self.drivers.len(), Ordering::Relaxed);
    }
}

impl Acceptor {
    pub(super) fn new(listener: Listener, reactors: Vec<Arc<Inbox<Command>>>) -> Self {
        Self { listener, reactors, next: 0, is_ready: true, rests_until: None }
    }

    /// Whether somebody may wait to be let in, and it is not resting.
    fn may_accept(&self) -> bool {
        self.is_ready && self.rests_until.is_none()
    }

    fn accept_some(&mut self, shared: &Arc<Shared>, now: Instant) {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok(socket) => {
                    let inbox = &self.reactors[self.next % self.reactors.len()];
                    self.next = self.next.wrapping_add(1);
                    admit(socket, shared, inbox);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_ready = false;
                    return;
                }
                // The client gave up before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // Out of descriptors or memory: trying again at once would only spin.
                Err(_) => {
                    shared.stats.accepts_put_off.add(1);
                    self.rests_until = Some(now + ACCEPT_REST);
                    return;
                }
            }
        }
    }
}

/// Lets a connection in, or tells it why not.
pub(super) fn admit(socket: UnixStream, shared: &Arc<Shared>, inbox: &Arc<Inbox<Command>>) {
    let credentials = socket::peer_credentials(socket.as_fd());
    let uid = credentials.as_ref().map_or(u32::MAX, |credentials| credentials.uid);
    let admitted = socket::prepare(socket.as_fd())
        .and(credentials)
        .map_err(|error| Status::new(Code::Unauthenticated, error.to_string()))
        .and_then(|credentials| welcome(credentials, shared, inbox));
    match admitted {
        Ok((peer, membership)) => {
            if let Err(refused) = inbox.push(Command::Adopt(socket, peer, membership)) {
                shared.connections.fetch_sub(1, Ordering::Relaxed);
                if let Command::Adopt(socket, _, membership) = refused {
                    undertaker::bury(uid, (socket, membership));
                }
            }
        }
        Err(status) => {
            shared.stats.connections_refused.add(1);
            let goodbye = Frame::Goodbye { code: status.code, message: &status.message }.encode(0);
            socket::send(socket.as_fd(), &[io::IoSlice::new(&goodbye)], &[], Wait::Never).ok();
            if !shut_down(&socket) {
                undertaker::bury(uid, socket);
            }
        }
    }
}

/// Tells a client that this is all, and whether closing the socket waits for nobody: so it is if
/// nothing is in it that nobody has read, for then no descriptors are.
fn shut_down(socket: &UnixStream) -> bool {
    // Nothing more can come after this.
    socket.shutdown(Shutdown::Both).is_ok()
        && rustix::io::ioctl_fionread(socket).is_ok_and(|bytes| bytes == 0)
}

fn welcome(
    credentials: Credentials,
    shared: &Arc<Shared>,
    inbox: &Arc<Inbox<Command>>,
) -> Result<(Peer, Membership), Status> {
    (shared.config.policy)(&credentials)
        .map_err(|reason| Status::new(Code::PermissionDenied, reason))?;
    let membership = shared.accounts.join(credentials.uid)?;
    if shared.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
        shared.connections.fetch_sub(1, Ordering::Relaxed);
        let message = format!("the server has {CONNECTIONS_MAX} connections already");
        return Err(Status::new(Code::ResourceExhausted, message));
    }
    let peer = Peer::new(shared.new_key(), credentials, Arc::clone(inbox));
    Ok((peer, membership))
}

fn register(driver: &mut Driver, region: u64, bytes: u64, descriptor: OwnedFd, shared: &Shared) {
    let share = shared.charge(driver.membership.account(), Whose::Client, bytes);
    match Region::accept(descriptor, bytes, share) {
        Ok(accepted) => driver.connection.region_accepted(region, Arc::new(accepted), bytes),
        Err(rejected) => {
            driver.connection.region_refused(region, &rejected.status);
            undertaker::bury(driver.uid(), rejected.remains);
        }
    }
}

/// Whether clients are told that they may offer rings.
fn takes_rings(shared: &Shared) -> bool {
    shared.config.may_map_peers && Patience::new(shared.config.wait).may_look()
}

fn take_rings(driver: &mut Driver, descriptor: OwnedFd, shared: &Shared) {
    if !takes_rings(shared) {
        driver.take_rings(Err(Status::new(Code::Unimplemented, "this server takes no rings")));
        return undertaker::bury(driver.uid(), descriptor);
    }
    let bytes = RINGS_BYTES as u64;
    let share = shared.charge(driver.membership.account(), Whose::Client, bytes);
    match Region::accept(descriptor, bytes, share) {
        Ok(region) => driver.take_rings(Ok(region)),
        Err(rejected) => {
            driver.take_rings(Err(rejected.status));
            undertaker::bury(driver.uid(), rejected.remains);
        }
    }
}

const BELL: Token = Token(0);
const LISTENER: Token = Token(1);
const _: () = assert!((LISTENER.0 as u64) < super::shared::FIRST_KEY);
const EVENTS_MAX: usize = 256;
/// Looks that found something before the clock is looked at, should nothing else have done so.
const LOOKS_PER_CLOCK: u32 = 16;
const ACCEPTS_PER_TURN: usize = 64;
