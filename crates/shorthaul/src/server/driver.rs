//! One connection of a reactor: moves bytes between its socket and its state machine.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::peer::Peer;
use super::region::{Membership, Region, Share};
use crate::connection::Violation;
use crate::connection::server::{ServerConnection, ServerEvent};
use crate::error::{Code, Status};
use crate::limits::{
    INLINE_BYTES_UNDER_WAY_MAX, LOOK_SERVER_MAX, REQUEST_BYTES_UNDER_WAY_MAX, TURN_BYTES_MAX,
    TURN_FRAMES_MAX,
};
use crate::stream::{self, Flushed};
use crate::waiting::{self, Patience, Wait};

pub(super) type Connection = ServerConnection<OwnedFd, Arc<Region>>;
pub(super) type Event = ServerEvent<OwnedFd, Arc<Region>>;

/// A connection and its socket.
#[derive(Debug)]
pub(super) struct Driver {
    socket: UnixStream,
    pub(super) connection: Connection,
    pub(super) peer: Peer,
    /// Its place in its user's account.
    pub(super) membership: Membership,
    /// The socket may have something to read.
    is_readable: bool,
    /// The poll has seen the end of the stream, which it tells once: a short read is not the last.
    is_read_closed: bool,
    /// The client sends nothing any more, but may wait for answers.
    is_half_closed: bool,
    /// Nothing new is taken from it; it ends when everything is answered.
    pub(super) is_draining: bool,
    has_said_goodbye: bool,
    waits_for_writing: bool,
    /// The turn ended before everything was written that the socket would have taken.
    is_write_paused: bool,
    /// Nothing is taken from it until some of what it is owed is done.
    is_held: bool,
    /// Whether it is on the reactor's run queue.
    pub(super) is_queued: bool,
    /// The earliest timer set for it.
    pub(super) timer_at: Option<Instant>,
    /// Bytes of request payloads that its calls still hold.
    pub(super) request_bytes: u64,
    /// Bytes of inline payloads waiting to be written.
    pub(super) unsent_bytes: u64,
    turn: TurnBudget,
    pub(super) rings: Rings,
}

/// What a reactor knows of a connection with rings.
#[derive(Debug)]
pub(super) struct Rings {
    patience: Patience,
    /// What its user is charged for their memory.
    share: Option<Share>,
    /// When the client had all its answers, until its next call.
    quiet_since: Option<Instant>,
    /// The reactor looks into its ring, until then at most.
    pub(super) looks_until: Option<Instant>,
}

/// What is left of a connection's turn.
#[derive(Debug, Default)]
struct TurnBudget {
    bytes: usize,
    frames: usize,
}

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// The client left, or all is said.
    Closed,
    /// The client broke the protocol: it is told before the end.
    Broken(Violation),
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        Self::Broken(violation)
    }
}

impl Driver {
    pub(super) fn new(
        socket: UnixStream,
        connection: Connection,
        peer: Peer,
        membership: Membership,
        wait: Wait,
    ) -> Self {
        Self {
            socket,
            connection,
            peer,
            membership,
            // Whether something is there is found out by reading.
            is_readable: true,
            is_read_closed: false,
            is_half_closed: false,
            is_draining: false,
            has_said_goodbye: false,
            waits_for_writing: false,
            is_write_paused: false,
            is_held: false,
            is_queued: false,
            timer_at: None,
            request_bytes: 0,
            unsent_bytes: 0,
            turn: TurnBudget::default(),
            rings: Rings {
                patience: Patience::new(wait),
                share: None,
                quiet_since: None,
                looks_until: None,
            },
        }
    }

    /// Takes memory for rings, or says why not.
    pub(super) fn take_rings(&mut self, region: Result<Region, Status>) {
        let mapped = region.and_then(|region| match region.file.map() {
            Ok(mapping) => Ok((region, Arc::new(mapping))),
            Err(error) => Err(Status::new(Code::ResourceExhausted, error.to_string())),
        });
        match mapped {
            Ok((region, mapping)) => {
                self.connection.rings_taken(&mapping);
                self.rings.share = Some(region.into_share());
            }
            Err(status) => self.connection.rings_refused(&status),
        }
    }

    /// A call has come: learns how long that took.
    pub(super) fn on_call(&mut self, now: Instant) {
        if let Some(since) = self.rings.quiet_since.take() {
            self.rings.patience.learn(now.saturating_duration_since(since));
        }
    }

    /// Whether to look into its ring after this turn, and until when: if the client has all its
    /// answers, and its next call is likely soon.
    pub(super) fn looks_until(&mut self, now: Instant) -> Option<Instant> {
        if !self.connection.link.has_rings() || self.connection.open_calls() > 0 {
            return None;
        }
        let cpu = waiting::cpu();
        let link = &mut self.connection.link;
        link.show_cpu(cpu);
        let budget = self.rings.patience.budget(link.peers_cpu(), cpu).min(LOOK_SERVER_MAX);
        let since = *self.rings.quiet_since.get_or_insert(now);
        Some(since + budget).filter(|until| *until > now)
    }

    /// Whose connection it is.
    pub(super) fn uid(&self) -> u32 {
        self.membership.account().uid()
    }

    pub(super) fn register(&self, registry: &Registry) -> io::Result<()> {
        registry.register(
            &mut SourceFd(&self.socket.as_raw_fd()),
            Token(self.peer.key() as usize),
            Interest::READABLE,
        )
    }

    pub(super) fn deregister(&self, registry: &Registry) {
        // Fails only if it was never registered.
        registry.deregister(&mut SourceFd(&self.socket.as_raw_fd())).ok();
    }

    /// Takes in what the poll has seen.
    pub(super) fn on_ready(&mut self, event: &mio::event::Event) -> Result<(), End> {
        self.is_read_closed |= event.is_read_closed();
        self.is_readable |= event.is_readable() || event.is_read_closed();
        if event.is_error() || event.is_write_closed() {
            return Err(End::Closed);
        }
        Ok(())
    }

    pub(super) fn begin_turn(&mut self) {
        self.turn = TurnBudget { bytes: TURN_BYTES_MAX, frames: TURN_FRAMES_MAX };
    }

    /// The next event of this turn; none when there is nothing, or the turn is over.
    pub(super) fn next_event(&mut self, now: Instant) -> Result<Option<Event>, End> {
        while self.hold_or_go_on(now) && self.turn.frames > 0 {
            if let Some(event) = self.connection.next_event(now)? {
                self.turn.frames -= 1;
                return Ok(Some(event));
            }
            if self.turn.bytes == 0 || !self.read(now)? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Whether the turn ended before the work did: then it must have another. So it must if it was
    /// held and may go on by now: the poll tells of what arrived only once.
    pub(super) fn has_more(&self) -> bool {
        let may_go_on = self.is_held || self.turn.frames == 0 || self.turn.bytes == 0;
        self.is_write_paused || (may_go_on && self.may_read())
    }

    /// Writes what the socket takes. Returns the bytes of inline payload in frames written whole.
    pub(super) fn flush(&mut self, registry: &Registry, now: Instant) -> Result<u64, End> {
        let mut payload_bytes = 0;
        let link = &mut self.connection.link;
        let on_sent = |bytes| payload_bytes += bytes;
        let flushed = stream::flush(self.socket.as_fd(), link, now, TURN_BYTES_MAX, on_sent);
        self.is_write_paused = matches!(flushed, Ok(Flushed::Paused));
        self.unsent_bytes = self.unsent_bytes.saturating_sub(payload_bytes);
        let is_blocked = matches!(flushed, Ok(Flushed::Blocked));
        if flushed.is_err() || self.want_writing(registry, is_blocked).is_err() {
            return Err(End::Closed);
        }
        Ok(payload_bytes)
    }

    /// What is left of it at its end.
    pub(super) fn into_remains(self) -> (UnixStream, Connection, Membership) {
        (self.socket, self.connection, self.membership)
    }

    /// Tells the client that its ring is looked into no more; false if that is not so, for there is
    /// something in it. What is held up is taken in the turn in which it goes on.
    pub(super) fn fall_asleep(&mut self) -> Result<bool, Violation> {
        if self.is_held { Ok(true) } else { self.connection.link.fall_asleep() }
    }

    /// Whether everything that it was here for is done.
    pub(super) fn is_done(&self) -> bool {
        // After a turn that ended early there may be last words in the ring.
        let has_heard_all = self.is_half_closed && self.turn.frames > 0;
        self.is_idle() && (has_heard_all || self.has_said_goodbye)
    }

    /// Says goodbye once nothing is open any more, if it is to; true if it has.
    pub(super) fn drain(&mut self) -> bool {
        let says_goodbye = self.is_draining && !self.has_said_goodbye && self.is_idle();
        if says_goodbye {
            self.has_said_goodbye = true;
            self.connection.link.say_goodbye(Code::Unavailable, "the server is shutting down");
        }
        says_goodbye
    }

    fn is_idle(&self) -> bool {
        self.connection.open_calls() == 0 && self.connection.link.is_flushed()
    }

    /// What a client is not allowed to send is left in its socket: it stops when that is full.
    fn may_read(&self) -> bool {
        !self.is_draining
            && !self.connection.link.is_crowded()
            && self.request_bytes <= REQUEST_BYTES_UNDER_WAY_MAX
            && self.unsent_bytes <= INLINE_BYTES_UNDER_WAY_MAX
    }

    /// Whether something may be taken from the client; the time for which it may not is not held
    /// against it.
    fn hold_or_go_on(&mut self, now: Instant) -> bool {
        let is_held = !self.may_read();
        if is_held != self.is_held {
            self.is_held = is_held;
            if is_held {
                self.connection.link.pause_reading();
            } else {
                self.connection.link.resume_reading(now);
            }
        }
        !is_held
    }

    /// Reads once; false if there is nothing to read.
    fn read(&mut self, now: Instant) -> Result<bool, End> {
        if !self.is_readable || self.is_half_closed {
            return Ok(false);
        }
        let read = match stream::receive(self.socket.as_fd(), &mut self.connection.link, now) {
            Ok(read) => read,
            Err(stream::ReceiveError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_readable = false;
                return Ok(false);
            }
            Err(stream::ReceiveError::Io(_)) => return Err(End::Closed),
            Err(stream::ReceiveError::Violation(violation)) => return Err(violation.into()),
        };
        self.is_half_closed = read.is_end;
        if self.is_half_closed {
            // Nothing grows any more, and nobody is late: answers may take as long as they do.
            self.connection.link.pause_reading();
            // What was put into the ring before the end comes before it.
            return Ok(self.connection.link.has_in_ring());
        }
        self.is_readable = !read.is_drained || self.is_read_closed;
        self.turn.bytes = self.turn.bytes.saturating_sub(read.bytes);
        Ok(read.bytes > 0)
    }

    /// Asks the poll for room to write only while there is none: otherwise each read of the client
    /// would wake this reactor.
    fn want_writing(&mut self, registry: &Registry, wanted: bool) -> io::Result<()> {
        if self.waits_for_writing == wanted {
            return Ok(());
        }
        self.waits_for_writing = wanted;
        let interest =
            if wanted { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        let token = Token(self.peer.key() as usize);
        // Registering anew also reports again what is readable already, which is harmless.
        registry.reregister(&mut SourceFd(&self.socket.as_raw_fd()), token, interest)
    }
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use std::io::Write;

    use mio::Poll;
    use shorthaul_platform::memory::Memfd;
    use shorthaul_platform::socket::peer_credentials;

    use super::super::region::Accounts;
    use super::*;
    use crate::connection::server::Answer;
    use crate::inbox::Inbox;
    use crate::limits::{FRAME_STALL_TIMEOUT, Limits, UserLimits};
    use crate::parts::Parts;
    use crate::payload::Purse;
    use crate::ring::{Direction, RINGS_BYTES, Sender, Sent};
    use crate::wire::{Call, Frame, Hello, Room, Upload, VERSION};

    /// A call that offers no room and brings nothing.
    fn call() -> Vec<u8> {
        call_with_id(1)
    }

    fn call_with_id(call: u64) -> Vec<u8> {
        let (room, upload, parts) = (Room::default(), Upload::None, Parts::default());
        let (method, request) = ("", &[][..]);
        Frame::Call(Call { call, remaining_ns: 0, room, upload, parts, method, request }).encode(0)
    }

    /// A connection whose hellos are exchanged, and the client's end of its socket.
    struct Bench {
        driver: Driver,
        client: UnixStream,
        poll: Poll,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let (poll, now) = (Poll::new().unwrap(), Instant::now());
            let inbox = Arc::new(Inbox::new(poll.registry(), Token(0)).unwrap());
            let accounts = Accounts::new(UserLimits::default());
            let membership = accounts.join(1).unwrap();
            let (socket, client) = UnixStream::pair().unwrap();
            let credentials = peer_credentials(socket.as_fd()).unwrap();
            let peer = Peer::new(1, credentials, inbox);
            let connection = ServerConnection::new(Limits::default(), Purse::default(), now);
            let driver = Driver::new(socket, connection, peer, membership, Wait::Block);
            driver.register(poll.registry()).unwrap();
            let mut bench = Self { driver, client, poll, now };
            let hello = Frame::Hello(Hello {
                version_min: VERSION,
                version_max: VERSION,
                features: 0,
                limits: Limits::default(),
            });
            bench.client.write_all(&hello.encode(0)).unwrap();
            assert!(bench.turn().is_none());
            bench
        }

        /// The one event of a turn, which flushes too.
        fn turn(&mut self) -> Option<Event> {
            self.driver.is_readable = true;
            self.driver.begin_turn();
            let event = self.driver.next_event(self.now).unwrap();
            self.driver.flush(self.poll.registry(), self.now).unwrap();
            event
        }

        /// The client's end of a ring that the server looks into.
        fn ring(&mut self) -> Sender {
            let memory = Memfd::create("rings", RINGS_BYTES).unwrap().map().unwrap();
            let memory = Arc::new(memory);
            self.driver.connection.rings_taken(&memory);
            self.driver.connection.link.begin_to_look();
            Sender::new(memory, Direction::ToServer)
        }

        /// The events of a whole turn, without those that come of nothing.
        fn calls_of_turn(&mut self) -> usize {
            self.driver.begin_turn();
            let mut calls = 0;
            while let Some(event) = self.driver.next_event(self.now).unwrap() {
                calls += usize::from(matches!(event, Event::Call(_)));
            }
            calls
        }

        fn check_time(&self) -> Result<(), Violation> {
            self.driver.connection.link.check_time(self.now)
        }
    }

    #[test]
    fn a_client_that_is_held_up_is_not_blamed_for_half_a_frame() {
        let mut bench = Bench::new();
        bench.client.write_all(&call()[..20]).unwrap();
        assert!(bench.turn().is_none());
        bench.driver.request_bytes = REQUEST_BYTES_UNDER_WAY_MAX + 1;
        assert!(bench.turn().is_none());
        bench.now += FRAME_STALL_TIMEOUT * 2;
        bench.check_time().unwrap();
        // From now on it may go on, and must.
        bench.driver.request_bytes = 0;
        assert!(bench.driver.has_more());
        assert!(bench.turn().is_none());
        bench.check_time().unwrap();
        bench.now += FRAME_STALL_TIMEOUT;
        assert_eq!(bench.check_time(), Err(Violation::FrameStalled));
    }

    #[test]
    fn a_half_closed_client_may_wait_for_its_answer_for_long() {
        for frame in [&call()[..], &call()[..20]] {
            let mut bench = Bench::new();
            bench.client.write_all(frame).unwrap();
            bench.client.shutdown(std::net::Shutdown::Write).unwrap();
            // One for the bytes, one for the end of them, if they don't come in one.
            (0..2).for_each(|_| drop(bench.turn()));
            assert!(bench.driver.is_half_closed);
            bench.now += FRAME_STALL_TIMEOUT * 10;
            bench.check_time().unwrap();
        }
    }

    #[test]
    fn a_ring_that_never_runs_dry_ends_no_later_than_a_turn() {
        for frame in [Frame::Bell.encode(0), Frame::Cancel { call: 7 }.encode(0)] {
            let mut bench = Bench::new();
            let mut ring = bench.ring();
            while ring.send(&frame, 1).unwrap() == Sent::Seen {}
            bench.driver.begin_turn();
            let mut events = 0;
            while let Some(event) = bench.driver.next_event(bench.now).unwrap() {
                assert!(matches!(event, Event::Passed), "{event:?}");
                events += 1;
                // As much as was taken comes in anew.
                ring.send(&frame, 1).unwrap();
            }
            assert_eq!(events, TURN_FRAMES_MAX);
            assert!(bench.driver.has_more());
        }
    }

    #[test]
    fn the_end_of_the_stream_comes_behind_all_that_is_in_the_ring() {
        let mut bench = Bench::new();
        let mut ring = bench.ring();
        let calls = TURN_FRAMES_MAX as u64 + 10;
        for call in 0..calls {
            assert_eq!(ring.send(&call_with_id(call), 1), Ok(Sent::Seen));
        }
        bench.client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(bench.calls_of_turn(), TURN_FRAMES_MAX);
        // Though all that was taken be answered: some wait.
        for call in 0..TURN_FRAMES_MAX as u64 {
            bench.driver.connection.answer(call, Answer::failure(Status::new(Code::Ok, "")));
        }
        bench.driver.flush(bench.poll.registry(), bench.now).unwrap();
        assert!(!bench.driver.is_done());
        assert_eq!(bench.calls_of_turn(), 10);
    }

    /// What the client puts into the ring between the last look and the end of its stream.
    #[test]
    fn the_last_words_are_heard() {
        let mut bench = Bench::new();
        let mut ring = bench.ring();
        bench.driver.begin_turn();
        assert!(bench.driver.next_event(bench.now).unwrap().is_none());
        ring.send(&call(), 1).unwrap();
        bench.client.shutdown(std::net::Shutdown::Write).unwrap();
        bench.driver.is_readable = true;
        assert!(bench.driver.read(bench.now).unwrap());
        assert!(matches!(bench.driver.next_event(bench.now), Ok(Some(Event::Call(_)))));
    }

    #[test]
    fn what_came_while_the_client_was_held_up_is_not_forgotten() {
        let mut bench = Bench::new();
        while bench.driver.connection.notify(1, b"") {}
        bench.client.write_all(&call()).unwrap();
        assert!(bench.turn().is_none(), "too much waits to be written");
        assert!(bench.driver.connection.link.is_flushed());
        assert!(bench.driver.has_more(), "no poll will tell of it again");
        assert!(matches!(bench.turn(), Some(Event::Call(_))));
        assert!(!bench.driver.has_more());
    }
}
