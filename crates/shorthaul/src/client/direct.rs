//! A client without threads: the caller's own thread does the socket's work.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use shorthaul_platform::memory::{HugePages, Memfd, SharedMapping};
use shorthaul_platform::socket::{Credentials, Wait};

use super::buffer::{Buffer, Home};
use super::call::{Call, Outgoing, sealed};
use super::connect::{self, ClientOptions, Connected, broken, lost};
use super::looking::Looking;
use super::notices::{Notice, Notices};
use super::prepare::{Choices, MEMFD_NAME, Prepared, Way, ensure_region_bytes, wire_ns};
use super::reply::{CallError, Common, Held, Outcome, Reply, outcome};
use crate::connection::client::{ClientConnection, ClientEvent, OutgoingCall};
use crate::error::{Code, Error, Result, Status};
use crate::lane::LaneCounts;
use crate::limits::{CLIENT_TURN_FRAMES_MAX, FRAME_STALL_TIMEOUT, Limits};
use crate::origin::Origin;
use crate::stream::{self, Flushed, ReceiveError};
use crate::threads::{LazyReaper, after, deadline_after};
use crate::undertaker;
use crate::waiting::look_for;

/// A connection whose caller does its own socket I/O: two hops per call instead of four. It serves
/// one caller at a time; for several, see [`DirectPool`](super::DirectPool) or
/// [`Client`](super::Client).
///
/// Nothing happens in the background, but that memory of calls that were given up is unmapped.
/// Acknowledgements of cancelled calls (which give their buffers
/// back to the system) and notices are taken in **only inside calls and [`DirectClient::poll`]**.
#[derive(Debug)]
pub struct DirectClient {
    socket: connect::Socket,
    connection: ClientConnection<OwnedFd, Token>,
    common: Arc<Common>,
    released: Arc<Released>,
    home: Arc<dyn Home>,
    server: Credentials,
    origin: Origin,
    timeout_default: Duration,
    /// The socket's SO_RCVTIMEO as it is set now.
    receive_timeout: Option<Duration>,
    notices: Notices,
    reaper: LazyReaper,
    next_id: u64,
    dead: Option<Error>,
    /// The answer that came last, on its way to the caller.
    answered: Option<Outcome>,
    /// Answers to calls that were started; each has a [`Begun`] that waits for it.
    kept: Vec<Kept>,
    looking: Looking,
    /// How long to look into the ring before sleeping.
    looks_until: Option<Instant>,
    /// The socket has ended, but an answer may be in the ring.
    has_seen_end: bool,
    /// Frames that were taken in since the clock was looked at.
    frames_in_turn: usize,
    /// When the clock was last looked at: that costs as much as some looks into a ring.
    now: Instant,
}

/// What a call wants back with its answer.
#[derive(Debug)]
struct Token {
    call: u64,
    held: Box<Held>,
    /// Of a call that was started: alive as long as its caller may finish it.
    wanted: Option<Weak<()>>,
}

/// A call that is sent, or as good as sent.
struct Sent<'a> {
    call: u64,
    deadline: Instant,
    /// How long to look for its answer.
    look: Duration,
    since: Instant,
    borrowed: &'a [u8],
}

/// A call of a [`DirectClient`] that is under way; [`DirectClient::finish`] gives its answer. One
/// that is dropped is carried out all the same, and its buffer goes when the server has let go.
#[derive(Debug)]
#[must_use = "the answer is had by DirectClient::finish"]
pub struct Begun {
    call: u64,
    deadline: Instant,
    under_way: Arc<()>,
    /// What its client alone has.
    of: Weak<Released>,
}

/// The answer to a call that was started, until it is asked for.
#[derive(Debug)]
struct Kept {
    wanted: Weak<()>,
    outcome: Outcome,
}

/// Regions that were dropped and not given up yet.
#[derive(Debug, Default)]
struct Released {
    regions: Mutex<Vec<u64>>,
    /// Whether there may be some: cheaper to ask than the lock.
    has_some: AtomicBool,
}

impl Home for Released {
    fn release(&self, region: u64) {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).push(region);
        self.has_some.store(true, Ordering::Release);
    }
}

/// What came of one step.
enum Step {
    /// A call is answered: by what is in `DirectClient::answered`.
    Answered(u64),
    Registered(u64, Result<(), Status>),
    Other,
    /// Nothing more is here.
    Dry,
}

impl DirectClient {
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
    /// As [`DirectClient::connect`].
    pub fn connect_with(path: impl AsRef<Path>, options: &ClientOptions) -> Result<Self> {
        Self::from_stream(connect::connect(path.as_ref())?, options)
    }

    /// Makes a client of a stream that is connected already: an inherited socketpair, say.
    ///
    /// # Errors
    /// As [`DirectClient::connect`].
    pub fn from_stream(stream: UnixStream, options: &ClientOptions) -> Result<Self> {
        let Connected { socket, connection, common, server } = connect::open(stream, options)?;
        let released = Arc::new(Released::default());
        let home: Arc<dyn Home> = released.clone();
        Ok(Self {
            socket,
            connection,
            common,
            released,
            home,
            server,
            origin: Origin::here(),
            timeout_default: options.deadline,
            receive_timeout: None,
            notices: Notices::default(),
            reaper: LazyReaper::new("shorthaul-reap"),
            next_id: 1,
            dead: None,
            answered: None,
            kept: Vec::new(),
            looking: Looking::new(options.wait),
            looks_until: None,
            has_seen_end: false,
            frames_in_turn: 0,
            now: Instant::now(),
        })
    }

    /// Puts a call together.
    pub fn call<'a>(&'a mut self, method: &'a str) -> Call<'a, &'a mut Self> {
        Call::new(self, method)
    }

    /// Makes a buffer of `bytes` bytes and registers it. All its pages are allocated now, so that
    /// calls take no page fault.
    ///
    /// # Errors
    /// [`Error::LimitReached`] over the server's limit, [`Error::Status`] with RESOURCE_EXHAUSTED
    /// if the server has no room for another, [`Error::Io`] if there is no memory.
    pub fn buffer(&mut self, bytes: usize) -> Result<Buffer> {
        let by = deadline_after(self.timeout_default);
        match self.buffer_by(bytes, by) {
            // What is kept for automatic choices makes room.
            Err(Error::Status(status))
                if status.code == Code::ResourceExhausted && self.common.auto.let_go() =>
            {
                self.buffer_by(bytes, by)
            }
            other => other,
        }
    }

    fn buffer_by(&mut self, bytes: usize, by: Instant) -> Result<Buffer> {
        ensure_region_bytes(bytes, &self.limits())?;
        let (memory, memfd) = registrable(bytes, self.common.huge_pages)?;
        self.ensure_alive()?;
        self.look_at_clock();
        let region = self.new_id();
        // What was dropped goes first: it may be what makes room.
        self.give_up_released();
        self.connection.register(region, bytes as u64, memfd.into_descriptor());
        loop {
            match self.step(&[], by)? {
                Some(Step::Registered(number, Ok(()))) if number == region => {
                    return Ok(Buffer::registered(memory, region, Arc::clone(&self.home)));
                }
                Some(Step::Registered(number, Err(status))) if number == region => {
                    return Err(status.into());
                }
                Some(_) => {}
                None => {
                    // Should it be registered yet, it is not wanted any more.
                    self.connection.release(region);
                    return Err(Error::DeadlineExceeded);
                }
            }
        }
    }

    /// Takes in all that has arrived: acknowledgements and notices. Waits at most `timeout` for
    /// something to arrive, unless there are notices already; 0 doesn't wait.
    ///
    /// # Errors
    /// What ended the connection.
    pub fn poll(&mut self, timeout: Duration) -> Result<()> {
        self.ensure_alive()?;
        let by = deadline_after(timeout);
        match self.take_in_until(by) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.die(error)),
        }
    }

    /// The oldest notice that was taken in and not looked at.
    pub fn notice(&mut self) -> Option<Notice> {
        self.notices.pop()
    }

    /// Calls that the server has not let go of: cancelled ones, after their time-out.
    pub fn open_calls(&self) -> usize {
        self.connection.open_calls()
    }

    /// The server's limits.
    pub fn limits(&self) -> Limits {
        self.connection.link.peer_limits()
    }

    /// What took which lane so far.
    pub fn lanes(&self) -> LaneCounts {
        self.common.lanes.get()
    }

    /// Who the server is.
    pub fn server(&self) -> Credentials {
        self.server
    }

    /// Whether the connection still works, as far as is known.
    pub fn is_alive(&self) -> bool {
        self.dead.is_none()
    }

    /// Sends a call whose answer is taken later, by [`DirectClient::finish`]: as many can be under
    /// way as the server's `calls_max` allows, so that it fills one buffer while another is read.
    ///
    /// # Errors
    /// As [`Call::send`], as far as it is known before the answer.
    pub fn start(call: Call<'_, &mut Self>) -> Result<Begun, CallError> {
        let (client, outgoing) = call.into_parts();
        let under_way = Arc::new(());
        let wanted = Some(Arc::downgrade(&under_way));
        let Sent { call, deadline, .. } = client.send(outgoing, wanted)?;
        let flushed = client.flush(&[], Instant::now()).map_err(|error| client.die(error));
        flushed.map_err(CallError::without_buffers)?;
        Ok(Begun { call, deadline, under_way, of: Arc::downgrade(&client.released) })
    }

    /// Waits for the answer to a call of this client that was started, until the call's deadline.
    ///
    /// # Errors
    /// As [`Call::send`]; [`Error::Misuse`] for a call of another client.
    pub fn finish(&mut self, begun: Begun) -> Result<Reply, CallError> {
        self.origin.ensure_here().map_err(CallError::without_buffers)?;
        if begun.of.as_ptr() != Arc::as_ptr(&self.released) {
            let error = Error::Misuse("the call was started by another client".into());
            return Err(CallError::without_buffers(error));
        }
        let look = self.looking.begin(&mut self.connection);
        let since = self.look_at_clock();
        self.looks_until = looks_until(since, look, begun.deadline);
        loop {
            let is_it = |kept: &Kept| Arc::as_ptr(&begun.under_way) == kept.wanted.as_ptr();
            if let Some(index) = self.kept.iter().position(is_it) {
                self.looking.learn(self.now.saturating_duration_since(since));
                return self.kept.swap_remove(index).outcome?.open(&self.common);
            }
            if let Err(error) = self.ensure_alive() {
                return Err(CallError::without_buffers(error));
            }
            let step = self.step(&[], begun.deadline).map_err(CallError::without_buffers)?;
            if step.is_none() {
                return Err(self.give_up(begun.call, &[]));
            }
        }
    }

    fn execute(&mut self, outgoing: Outgoing<'_>) -> Outcome {
        let sent = self.send(outgoing, None)?;
        let borrowed = sent.borrowed;
        let outcome = self.wait_for(sent);
        // A server may answer before it has read all, and time may be over before.
        let owned = self.connection.link.own(borrowed, &self.common.pool);
        if let Err(error) = owned.map_err(|error| self.die(lost(error))) {
            return Err(CallError::without_buffers(error));
        }
        outcome
    }

    /// Checks a call and puts it where it is sent from.
    fn send<'a>(
        &mut self,
        outgoing: Outgoing<'a>,
        wanted: Option<Weak<()>>,
    ) -> Result<Sent<'a>, CallError> {
        // First: choosing may touch the buffers that are kept, which a child does not have.
        if let Err(error) = self.origin.ensure_here() {
            return Err(outgoing.into_error(error));
        }
        let mut remaining = outgoing.timeout.unwrap_or(self.timeout_default);
        // A buffer that has to be made first is waited for within the call's own time.
        let deadline = after(self.look_at_clock(), remaining);
        let choices = if outgoing.is_automatic() {
            let (common, limits) = (Arc::clone(&self.common), self.limits());
            let make = |bytes| self.buffer_by(bytes, deadline);
            match Choices::make(&outgoing, &common.auto, &limits, make) {
                Ok(choices) => {
                    remaining = deadline.saturating_duration_since(Instant::now());
                    choices
                }
                Err(error) => return Err(outgoing.into_error(error)),
            }
        } else {
            Choices::default()
        };
        let way = Way {
            peer: self.limits(),
            takes_sealed: self.connection.link.peer_takes_sealed(),
            takes_descriptors: self.connection.link.peer_takes_descriptors(),
            common: &self.common,
            home: &self.home,
            deadline,
            may_borrow: wanted.is_none(),
        };
        let prepared = outgoing.prepare(&way, choices)?;
        let trouble = self.ensure_alive().and_then(|()| self.ensure_room(&way.peer));
        if let Err(error) = trouble {
            return Err(prepared.held.into_error(error));
        }
        let (borrowed, deadline) = (prepared.borrowed, prepared.waits_until());
        if !prepared.descriptors.is_empty() || prepared.held.guess.is_some() {
            // Memory for this call alone took its time to be made.
            self.look_at_clock();
        }
        // One that looks already goes on, and sends first: the rest is done while the server works.
        let look =
            (!self.connection.link.looks()).then(|| self.looking.begin(&mut self.connection));
        let call = self.put(prepared, remaining, wanted);
        let look = look.unwrap_or_else(|| self.looking.begin(&mut self.connection));
        Ok(Sent { call, deadline, look, since: self.now, borrowed })
    }

    fn wait_for(&mut self, sent: Sent<'_>) -> Outcome {
        let Sent { call, deadline, look, since, borrowed } = sent;
        self.looks_until = looks_until(since, look, deadline);
        loop {
            match self.step(borrowed, deadline).map_err(CallError::without_buffers)? {
                Some(Step::Answered(answered)) => {
                    // Or the late answer to an earlier call, which is dropped.
                    if let Some(outcome) = self.answered.take()
                        && answered == call
                    {
                        self.looking.learn(self.now.saturating_duration_since(since));
                        return outcome?.open(&self.common);
                    }
                }
                Some(_) => {}
                None => {
                    self.looking.learn(self.now.saturating_duration_since(since));
                    return Err(self.give_up(call, borrowed));
                }
            }
        }
    }

    /// Takes a call back whose time is over.
    fn give_up(&mut self, call: u64, borrowed: &[u8]) -> CallError {
        let now = Instant::now();
        self.connection.cancel(call, now);
        let flushed = self.flush(borrowed, now).map_err(|error| self.die(error));
        CallError::without_buffers(flushed.err().unwrap_or(Error::DeadlineExceeded))
    }

    fn put(
        &mut self,
        prepared: Prepared<'_>,
        remaining: Duration,
        wanted: Option<Weak<()>>,
    ) -> u64 {
        let call = self.new_id();
        let remaining_ns = wire_ns(remaining);
        let Prepared { method, request, room, upload, parts, payload, descriptors, held, .. } =
            prepared;
        let outgoing = OutgoingCall { call, remaining_ns, room, upload, parts, method, request };
        self.connection.start(outgoing, payload, descriptors, Token { call, held, wanted });
        call
    }

    /// Takes in what is here; waits until `by` if that is nothing.
    fn take_in_until(&mut self, by: Instant) -> Result<()> {
        loop {
            let something_happened = self.take_in()?;
            let is_late = Instant::now() >= by;
            if something_happened || is_late || !self.notices.is_empty() {
                return Ok(());
            }
            if !self.connection.link.fall_asleep().map_err(broken)? {
                continue;
            }
            let is_blocked = !self.connection.link.is_flushed();
            let deadline = self.connection.deadline().map_or(by, |d| d.min(by));
            connect::wait(&self.socket, is_blocked, Some(deadline)).map_err(lost)?;
        }
    }

    /// Takes in what is here, without waiting; whether it was an event.
    fn take_in(&mut self) -> Result<bool> {
        let mut something_happened = false;
        let mut frames = 0;
        // Ends when the socket is dry, or after a turn: a server may send notices without end.
        while frames < CLIENT_TURN_FRAMES_MAX {
            while frames < CLIENT_TURN_FRAMES_MAX
                && let Some(event) = self.connection.next_event().map_err(broken)?
            {
                self.on_event(event)?;
                something_happened = true;
                frames += 1;
            }
            self.give_up_released();
            self.flush(&[], Instant::now())?;
            if let Step::Dry = self.receive_once(Wait::Never)? {
                break;
            }
        }
        while let Some(event) = self.connection.handle_timeout(Instant::now()).map_err(broken)? {
            self.on_event(event)?;
            something_happened = true;
        }
        Ok(something_happened)
    }

    /// One step forward: the next thing that happened, waiting until `by` for it. None: time is up.
    /// `borrowed` is the payload under way that lies in the caller's memory.
    fn step(&mut self, borrowed: &[u8], by: Instant) -> Result<Option<Step>> {
        match self.try_step(borrowed, by) {
            Ok(step) => Ok(step),
            Err(error) => Err(self.die(error)),
        }
    }

    fn try_step(&mut self, borrowed: &[u8], by: Instant) -> Result<Option<Step>> {
        // A server may say things without end: now and then it is time to look at the clock.
        if self.frames_in_turn < CLIENT_TURN_FRAMES_MAX
            && let Some(event) = self.connection.next_event().map_err(broken)?
        {
            self.frames_in_turn += 1;
            return self.on_event(event).map(Some);
        }
        if self.frames_in_turn >= FRAMES_PER_CLOCK {
            self.look_at_clock();
        }
        self.give_up_released();
        let flushed = self.flush(borrowed, self.now)?;
        if self.now >= by {
            return Ok(None);
        }
        let step = self.receive(flushed, by)?;
        // Nobody is late for whose bytes nobody has looked: only a dry socket tells.
        if let Step::Dry = step
            && let Some(event) = self.connection.handle_timeout(self.now).map_err(broken)?
        {
            return self.on_event(event).map(Some);
        }
        Ok(Some(step))
    }

    /// Waits for what comes next, and looks at the clock then.
    fn receive(&mut self, flushed: Flushed, by: Instant) -> Result<Step> {
        let by = self.connection.deadline().map_or(by, |deadline| deadline.min(by));
        if let Some(until) = self.looks_until
            && flushed == Flushed::All
            && let Some(step) = self.look(until.min(by))?
        {
            return Ok(step);
        }
        self.looks_until = None;
        if !self.connection.link.fall_asleep().map_err(broken)? {
            return Ok(Step::Other);
        }
        let wait = match flushed {
            Flushed::All => {
                // Never longer than for half a frame: to and fro would cost two calls each time.
                let left = by.saturating_duration_since(self.now).min(FRAME_STALL_TIMEOUT);
                self.set_receive_timeout(left).map_err(lost)?;
                // The rest of a payload in one call, however many pieces the socket makes of it.
                if self.connection.link.is_in_payload() { Wait::Fill } else { Wait::Block }
            }
            Flushed::Blocked | Flushed::Paused => {
                connect::wait(&self.socket, true, Some(by)).map_err(lost)?;
                Wait::Never
            }
        };
        self.receive_once(wait)
    }

    /// Looks into the ring until something comes, there or through the socket; none if it is to be
    /// waited for asleep.
    fn look(&mut self, until: Instant) -> Result<Option<Step>> {
        if !self.connection.link.has_rings() {
            return Ok(None);
        }
        // What is there already has just come, or waits for a frame of the socket's.
        let mut is_due = self.connection.link.has_in_ring();
        loop {
            if is_due {
                match self.receive_once(Wait::Never)? {
                    Step::Dry if !self.connection.link.has_in_ring() => {}
                    Step::Dry => return Ok((self.now < until).then_some(Step::Other)),
                    step => return Ok(Some(step)),
                }
            }
            let Some(has_some) = self.connection.link.watch_ring() else { return Ok(None) };
            self.now = look_for(self.now, has_some);
            if self.connection.link.has_in_ring() {
                return Ok(Some(Step::Other));
            }
            if self.now >= until {
                return Ok(None);
            }
            is_due = true;
        }
    }

    fn receive_once(&mut self, wait: Wait) -> Result<Step> {
        let (link, now) = (&mut self.connection.link, &mut self.now);
        let mut look_at_clock = || {
            *now = Instant::now();
            *now
        };
        match stream::receive_with(self.socket.as_fd(), link, wait, &mut look_at_clock) {
            Ok(read) if read.is_end => self.on_end(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(Step::Other),
            Err(ReceiveError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                look_at_clock();
                Ok(Step::Dry)
            }
            Err(ReceiveError::Io(error)) => self.on_end(error),
            Err(ReceiveError::Violation(violation)) => Err(broken(violation)),
        }
    }

    /// The socket has ended. What is in the ring comes before that.
    fn on_end(&mut self, error: io::Error) -> Result<Step> {
        let is_news = !std::mem::replace(&mut self.has_seen_end, true);
        if is_news && self.connection.link.has_in_ring() {
            Ok(Step::Other)
        } else {
            Err(lost(error))
        }
    }

    fn on_event(&mut self, event: ClientEvent<OwnedFd, Token>) -> Result<Step> {
        Ok(match event {
            ClientEvent::Answered { token: Token { call, held, wanted }, answer } => {
                let outcome = outcome(answer, held, &self.common);
                match wanted {
                    None => {
                        self.answered = Some(outcome);
                        Step::Answered(call)
                    }
                    Some(wanted) => {
                        // Those that nobody will ask for any more go.
                        self.kept.retain(|kept| kept.wanted.strong_count() > 0);
                        if wanted.strong_count() > 0 {
                            self.kept.push(Kept { wanted, outcome });
                        }
                        Step::Other
                    }
                }
            }
            ClientEvent::Registered { region, result } => Step::Registered(region, result),
            ClientEvent::Notice { topic, data } => {
                self.notices.push(topic, data);
                Step::Other
            }
            ClientEvent::Goodbye { code, message } => {
                return Err(Error::ConnectionLost(format!("the server says {code}: {message}")));
            }
            ClientEvent::Discard(descriptor) => {
                undertaker::bury(self.server.uid, descriptor);
                Step::Other
            }
            // What an earlier call has left goes elsewhere: this one has a deadline.
            ClientEvent::LetGo { token } | ClientEvent::Retired { token } => {
                self.reaper.bury(token);
                Step::Other
            }
            ClientEvent::Open | ClientEvent::Passed => Step::Other,
        })
    }

    fn flush(&mut self, borrowed: &[u8], now: Instant) -> Result<Flushed> {
        if self.connection.link.is_flushed() {
            return Ok(Flushed::All);
        }
        let link = &mut self.connection.link;
        stream::flush_with(self.socket.as_fd(), link, borrowed, now, usize::MAX, |_| {})
            .map_err(|error| self.last_words(now).unwrap_or_else(|| lost(error)))
    }

    /// What the server said before it closed the connection, if it did.
    fn last_words(&mut self, now: Instant) -> Option<Error> {
        let mut frames = 0;
        loop {
            let link = &mut self.connection.link;
            let read = stream::receive(self.socket.as_fd(), link, now).ok()?;
            while frames < CLIENT_TURN_FRAMES_MAX
                && let Some(event) = self.connection.next_event().ok()?
            {
                if let Err(said) = self.on_event(event) {
                    return Some(said);
                }
                frames += 1;
            }
            if read.is_end || frames >= CLIENT_TURN_FRAMES_MAX {
                return None;
            }
        }
    }

    fn give_up_released(&mut self) {
        if !self.released.has_some.load(Ordering::Relaxed) {
            return;
        }
        self.released.has_some.store(false, Ordering::Relaxed);
        let mut released = self.released.regions.lock().unwrap_or_else(PoisonError::into_inner);
        for region in released.drain(..) {
            self.connection.release(region);
        }
    }

    /// Sets the socket's time-out, unless the one it has is close enough: a wait that ends early is
    /// begun again, and one that ends late is late by no more than the slack.
    fn set_receive_timeout(&mut self, wanted: Duration) -> io::Result<()> {
        let slack = TIMEOUT_SLACK.max(wanted / 64);
        if self.receive_timeout.is_some_and(|set| set.abs_diff(wanted) <= slack) {
            return Ok(());
        }
        let wanted = wanted.max(TIMEOUT_SLACK);
        self.socket.set_read_timeout(Some(wanted))?;
        self.receive_timeout = Some(wanted);
        Ok(())
    }

    fn ensure_room(&self, limits: &Limits) -> Result<()> {
        if self.connection.open_calls() < limits.calls_max as usize {
            return Ok(());
        }
        Err(Error::LimitReached(format!(
            "{} calls of this connection wait for the server to let go of them: poll, or connect \
             anew",
            limits.calls_max
        )))
    }

    fn ensure_alive(&self) -> Result<()> {
        self.origin.ensure_here()?;
        match &self.dead {
            None => Ok(()),
            Some(error) => Err(Error::ConnectionLost(format!("it ended before: {error}"))),
        }
    }

    /// The connection is of no use any more; everything that it held is let go of.
    fn die(&mut self, error: Error) -> Error {
        self.socket.shutdown(std::net::Shutdown::Both).ok();
        drop(self.connection.drain_tokens());
        self.common.auto.close();
        connect::let_go_of_strangers(&mut self.connection, self.server.uid);
        self.dead = Some(Error::ConnectionLost(error.to_string()));
        error
    }

    fn look_at_clock(&mut self) -> Instant {
        (self.now, self.frames_in_turn) = (Instant::now(), 0);
        self.now
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

impl sealed::Transport for &mut DirectClient {
    #[allow(private_interfaces)]
    fn execute(self, call: Outgoing<'_>) -> Outcome {
        DirectClient::execute(self, call)
    }
}

/// Memory for a buffer, with all its pages.
pub(super) fn registrable(bytes: usize, pages: HugePages) -> Result<(SharedMapping, Memfd)> {
    let made = Memfd::create_mapped(MEMFD_NAME, bytes, pages);
    let (memfd, memory) =
        made.map_err(|error| Error::memory(&format!("a buffer of {bytes} bytes"), error))?;
    Ok((memory, memfd))
}

/// Until when to look, if at all.
fn looks_until(since: Instant, look: Duration, deadline: Instant) -> Option<Instant> {
    (!look.is_zero()).then(|| since.checked_add(look).unwrap_or(deadline))
}

/// Frames taken in before the clock is looked at, should nothing else have done so.
const FRAMES_PER_CLOCK: usize = 16;
/// What a wait may be late or early by.
const TIMEOUT_SLACK: Duration = Duration::from_millis(1);
