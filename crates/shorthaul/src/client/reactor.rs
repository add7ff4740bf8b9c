//! The thread that does the socket's work for a [`Client`](super::Client).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token as PollToken};
use smallvec::SmallVec;

use super::Shared;
use super::connect::{ClientOptions, Connected, Socket, broken, let_go_of_strangers, lost};
use super::looking::Looking;
use super::notices::NoticeBoard;
use super::prepare::{Prepared, wire_ns};
use super::reply::{CallError, Held, outcome};
use super::slot::Ticket;
use crate::connection::client::{ClientConnection, ClientEvent, OutgoingCall};
use crate::error::{Error, Result, Status};
use crate::inbox::Inbox;
use crate::limits::CLIENT_TURN_FRAMES_MAX;
use crate::origin::Origin;
use crate::parts::Parts;
use crate::payload::{MessageBytes, PooledMemory, concat};
use crate::stream::{self, Flushed, ReceiveError};
use crate::threads::LazyReaper;
use crate::undertaker;
use crate::waiting::{LOOK_AROUND, look_for};
use crate::wire::{Room, Upload};

/// What the callers' threads ask of the reactor.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "calls are what there is most of")]
pub(super) enum Command {
    Call(Submission),
    Cancel(u64),
    Register { region: u64, bytes: u64, descriptor: OwnedFd, answer: Registration },
    Release(u64),
    Stop,
}

/// A call to be made.
#[derive(Debug)]
pub(super) struct Submission {
    call: u64,
    /// The method's name, then the request.
    text: MessageBytes,
    method_bytes: usize,
    room: Room,
    upload: Upload,
    parts: Parts,
    payload: Option<PooledMemory>,
    descriptors: SmallVec<[OwnedFd; 2]>,
    pub(super) held: Box<Held>,
    deadline: Instant,
    ticket: Ticket,
}

impl Submission {
    pub(super) fn new(call: u64, prepared: Prepared<'_>, ticket: Ticket) -> Self {
        let Prepared { method, request, room, upload, parts, payload, descriptors, held, .. } =
            prepared;
        Self {
            call,
            text: concat(&[method.as_bytes(), request]),
            method_bytes: method.len(),
            room,
            upload,
            parts,
            payload,
            descriptors,
            held,
            deadline: prepared.deadline,
            ticket,
        }
    }
}

/// Who waits for a region to be registered.
pub(super) type Registration = mpsc::Sender<Result<(), Status>>;

/// What a call wants back with its answer.
#[derive(Debug)]
pub(super) struct Token {
    ticket: Ticket,
    held: Box<Held>,
}

/// The reactor: one connection, one poll.
pub(super) struct Reactor {
    poll: Poll,
    socket: Socket,
    connection: ClientConnection<OwnedFd, Token>,
    shared: Arc<Shared>,
    registrations: Vec<(u64, Registration)>,
    reaper: LazyReaper,
    is_readable: bool,
    /// The turn ended before everything was read.
    is_busy: bool,
    /// The poll has seen the end of the stream, which it tells once: a short read is not the last.
    is_read_closed: bool,
    /// The socket has ended, but an answer may be in the ring.
    has_seen_end: bool,
    waits_for_writing: bool,
    looking: Looking,
    /// When the last call was sent, or the last answer came; until one is heard.
    waits_since: Option<Instant>,
    /// When all else than the ring was last looked at, once there are rings.
    polled_at: Instant,
}

impl Reactor {
    /// Starts the thread.
    pub(super) fn start(
        connected: Connected<Token>,
        options: &ClientOptions,
    ) -> io::Result<(Arc<Shared>, JoinHandle<()>)> {
        let Connected { socket, connection, common, .. } = connected;
        let poll = Poll::new()?;
        let inbox = Arc::new(Inbox::new(poll.registry(), BELL)?);
        let fd = socket.as_raw_fd();
        poll.registry().register(&mut SourceFd(&fd), SOCKET, Interest::READABLE)?;
        let shared = Arc::new(Shared {
            inbox,
            common,
            open_calls: AtomicUsize::new(0),
            notices: NoticeBoard::default(),
            ended: Mutex::new(None),
            origin: Origin::here(),
        });
        let reactor = Self {
            poll,
            socket,
            connection,
            shared: Arc::clone(&shared),
            registrations: Vec::new(),
            reaper: LazyReaper::new("shorthaul-reap"),
            // The server may have spoken since the hello.
            is_readable: true,
            is_busy: false,
            is_read_closed: false,
            has_seen_end: false,
            waits_for_writing: false,
            looking: Looking::new(options.wait),
            waits_since: None,
            polled_at: Instant::now(),
        };
        let hook = options.on_thread_start.clone();
        let run = move || reactor.run(hook.as_deref());
        let thread = thread::Builder::new().name("shorthaul-crx".into()).spawn(run)?;
        Ok((shared, thread))
    }

    fn run(mut self, hook: Option<&(dyn Fn() + Send + Sync)>) {
        // Whatever happens, who waits must be told.
        let served = catch_unwind(AssertUnwindSafe(|| {
            if let Some(hook) = hook {
                hook();
            }
            self.serve()
        }));
        let end = match served {
            Ok(Ok(())) => "it was closed by this side".to_owned(),
            Ok(Err(Error::ConnectionLost(reason))) => reason,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the client's thread panicked; see its log".to_owned(),
        };
        self.finish(&end);
    }

    /// Serves until it is told to stop.
    fn serve(&mut self) -> Result<()> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut commands = Vec::new();
        loop {
            self.shared.inbox.take(&mut commands);
            let now = Instant::now();
            if commands.iter().any(|command| matches!(command, Command::Call(_))) {
                // First, so that the answers may come through the ring.
                self.looking.begin(&mut self.connection);
                self.waits_since = Some(now);
            }
            for command in commands.drain(..) {
                if let Command::Stop = command {
                    return Ok(());
                }
                self.obey(command, now);
            }
            self.read(now)?;
            self.write(now)?;
            while let Some(event) = self.connection.handle_timeout(now).map_err(broken)? {
                self.on_event(event)?;
            }
            self.wait(&mut events, now)?;
            for event in events.iter().filter(|event| event.token() == SOCKET) {
                self.is_readable = true;
                self.is_read_closed |= event.is_read_closed();
            }
        }
    }

    fn obey(&mut self, command: Command, now: Instant) {
        match command {
            Command::Call(submission) => self.start_call(submission, now),
            Command::Cancel(call) => {
                // False if its answer has just come.
                let was_waited_for = self.connection.cancel(call, now);
                if was_waited_for && self.connection.waiting_calls() == 0 {
                    self.end_wait();
                }
            }
            Command::Register { region, bytes, descriptor, answer } => {
                self.registrations.push((region, answer));
                self.connection.register(region, bytes, descriptor);
            }
            Command::Release(region) => self.connection.release(region),
            Command::Stop => {}
        }
    }

    fn start_call(&mut self, submission: Submission, now: Instant) {
        let Submission { call, text, method_bytes, room, upload, parts, .. } = submission;
        let Submission { payload, descriptors, held, deadline, ticket, .. } = submission;
        let (method, request) = text.split_at(method_bytes);
        let outgoing = OutgoingCall {
            call,
            remaining_ns: wire_ns(deadline.saturating_duration_since(now)),
            room,
            upload,
            parts,
            method: std::str::from_utf8(method).unwrap_or(""),
            request,
        };
        self.connection.start(outgoing, payload, descriptors, Token { ticket, held });
    }

    /// Reads until ring and socket are empty, or the turn is over: a server may send notices for
    /// ever.
    fn read(&mut self, now: Instant) -> Result<()> {
        self.is_busy = false;
        let mut frames = 0;
        loop {
            while frames < CLIENT_TURN_FRAMES_MAX
                && let Some(event) = self.next_event()?
            {
                self.on_event(event)?;
                frames += 1;
            }
            self.is_busy = frames >= CLIENT_TURN_FRAMES_MAX;
            // A ring that never runs dry does not hide that the server has gone.
            if !self.is_readable || (self.is_busy && !self.is_read_closed) {
                return Ok(());
            }
            match stream::receive(self.socket.as_fd(), &mut self.connection.link, now) {
                Ok(read) if read.is_end => {
                    self.on_end(io::ErrorKind::UnexpectedEof.into())?;
                    // No more is in the ring than a turn takes.
                    frames = 0;
                }
                Ok(read) => self.is_readable = !read.is_drained || self.is_read_closed,
                Err(ReceiveError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_readable = false;
                }
                Err(ReceiveError::Io(error)) => {
                    self.on_end(error)?;
                    frames = 0;
                }
                Err(ReceiveError::Violation(violation)) => {
                    self.say_goodbye(&violation, now);
                    return Err(broken(violation));
                }
            }
            if self.is_busy {
                return Ok(());
            }
        }
    }

    /// The socket has ended. What is in the ring comes before that.
    fn on_end(&mut self, error: io::Error) -> Result<()> {
        let is_news = !std::mem::replace(&mut self.has_seen_end, true);
        if is_news && self.connection.link.has_in_ring() { Ok(()) } else { Err(lost(error)) }
    }

    fn next_event(&mut self) -> Result<Option<ClientEvent<OwnedFd, Token>>> {
        let open = self.connection.open_calls();
        let event = self.connection.next_event().map_err(broken)?;
        // The late answer to a call whose buffer was retired is no event, but it counts here.
        let ended = open - self.connection.open_calls();
        self.shared.open_calls.fetch_sub(ended, Ordering::Relaxed);
        Ok(event)
    }

    fn on_event(&mut self, event: ClientEvent<OwnedFd, Token>) -> Result<()> {
        match event {
            ClientEvent::Answered { token, answer } => {
                self.end_wait();
                let outcome = outcome(answer, token.held, &self.shared.common);
                if let Err(nobody_waits) = token.ticket.answer(outcome) {
                    self.bury(nobody_waits);
                }
            }
            ClientEvent::Discard(descriptor) => {
                undertaker::bury(self.shared.common.server_uid, descriptor)
            }
            ClientEvent::LetGo { token } | ClientEvent::Retired { token } => self.bury(token),
            ClientEvent::Registered { region, result } => {
                let found = self.registrations.iter().position(|(waiting, _)| *waiting == region);
                if let Some(index) = found {
                    // Who asked may have given up.
                    self.registrations.swap_remove(index).1.send(result).ok();
                }
            }
            ClientEvent::Notice { topic, data } => {
                self.shared.notices.push(topic, data);
            }
            ClientEvent::Goodbye { code, message } => {
                return Err(Error::ConnectionLost(format!("the server says {code}: {message}")));
            }
            ClientEvent::Open | ClientEvent::Passed => {}
        }
        Ok(())
    }

    fn write(&mut self, now: Instant) -> Result<()> {
        let flushed =
            stream::flush(self.socket.as_fd(), &mut self.connection.link, now, usize::MAX, |_| {});
        let is_blocked = match flushed {
            Ok(flushed) => flushed == Flushed::Blocked,
            // What the server said before it went is still to be read: it may say why.
            Err(error) => {
                self.is_readable = true;
                self.read(now)?;
                return Err(lost(error));
            }
        };
        if is_blocked != self.waits_for_writing {
            self.waits_for_writing = is_blocked;
            let writable = is_blocked.then_some(Interest::WRITABLE);
            let interest = writable.map_or(Interest::READABLE, |w| w | Interest::READABLE);
            let fd = self.socket.as_raw_fd();
            let registry = self.poll.registry();
            registry.reregister(&mut SourceFd(&fd), SOCKET, interest).map_err(lost)?;
        }
        Ok(())
    }

    /// Waits for something to do: looking while that pays, else asleep.
    fn wait(&mut self, events: &mut Events, now: Instant) -> Result<()> {
        let looks = !self.is_busy && self.is_looking(now);
        if looks && !self.look_on(now) {
            events.clear();
            return Ok(());
        }
        let may_sleep = !self.is_busy
            && !looks
            && self.connection.link.fall_asleep().map_err(broken)?
            && self.shared.inbox.fall_asleep();
        self.poll(events, may_sleep).map_err(lost)?;
        if self.connection.link.has_rings() {
            self.polled_at = Instant::now();
        }
        Ok(())
    }

    /// Whether to look for an answer, now that all that was here is taken.
    fn is_looking(&mut self, now: Instant) -> bool {
        if self.connection.waiting_calls() == 0 {
            self.waits_since = None;
            return false;
        }
        let since = *self.waits_since.get_or_insert(now);
        let waited = now.saturating_duration_since(since);
        self.looking.goes_on(&mut self.connection.link, waited)
    }

    /// Looks for a few microseconds. Whether it is time to poll.
    fn look_on(&self, now: Instant) -> bool {
        // What is there already has just come, or waits for a frame of the socket's.
        let is_due = self.connection.link.has_in_ring();
        let in_ring = self.connection.link.watch_ring();
        let in_ring = || in_ring.as_ref().is_some_and(|has_some| has_some());
        let now = look_for(now, || in_ring() || self.shared.inbox.has_some());
        is_due || now.saturating_duration_since(self.polled_at) >= LOOK_AROUND
    }

    /// An answer has come, or nobody waits for one any more: learns how long that took.
    fn end_wait(&mut self) {
        if let Some(since) = self.waits_since.take() {
            self.looking.learn(since.elapsed());
        }
    }

    fn poll(&mut self, events: &mut Events, may_sleep: bool) -> io::Result<()> {
        let until = |by: Instant| by.saturating_duration_since(Instant::now());
        let timeout =
            if may_sleep { self.connection.deadline().map(until) } else { Some(Duration::ZERO) };
        let polled = self.poll.poll(events, timeout);
        if may_sleep {
            self.shared.inbox.wake_up();
        }
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    fn say_goodbye(&mut self, violation: &crate::connection::Violation, now: Instant) {
        self.connection.link.say_goodbye(violation.code(), &violation.to_string());
        // The peer may not listen; then it learns nothing.
        stream::flush(self.socket.as_fd(), &mut self.connection.link, now, usize::MAX, |_| {}).ok();
    }

    /// Drops elsewhere what nobody waits for: unmapping a large buffer takes long.
    fn bury(&mut self, remains: impl Send + 'static) {
        self.reaper.bury(remains);
    }

    /// The connection has ended: everybody who waits is told.
    fn finish(mut self, reason: &str) {
        let lost = || Error::ConnectionLost(reason.to_owned());
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
        self.shared.notices.close();
        for command in self.shared.inbox.close() {
            if let Command::Call(Submission { held, ticket, .. }) = command {
                // Never sent: the buffers are still the caller's.
                ticket.answer(Err(held.into_error(lost()))).ok();
            }
        }
        for token in self.connection.drain_tokens() {
            token.ticket.answer(Err(CallError::without_buffers(lost()))).ok();
        }
        self.shared.common.auto.close();
        let_go_of_strangers(&mut self.connection, self.shared.common.server_uid);
    }
}

const BELL: PollToken = PollToken(0);
const SOCKET: PollToken = PollToken(1);
const EVENTS_MAX: usize = 8;
