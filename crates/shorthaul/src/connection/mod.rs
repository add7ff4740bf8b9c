//! One peer, without any I/O: bytes, descriptors, time and decisions go in; bytes, descriptors and
//! events come out. No system call, no clock, no lock, no thread, so that every interleaving can be
//! tried in one thread with a simulated clock.
//!
//! Both sides share the way in ([`assembler`]) and the way out ([`outbox`]), and the same drill:
//!
//! 1. read into [`Link::space`], say so with [`Link::received`]
//! 2. take events until there are none
//! 3. write what [`Link::transmit`] gives, say so with [`Link::sent`], until there is nothing
//! 4. call again at [`Link::deadline`] at the latest
//!
//! A descriptor is of any type `D`: an owned one in production, a counted token in tests.

mod assembler;
pub(crate) mod client;
#[cfg(feature = "instructions")]
pub(crate) mod empty_calls;
mod outbox;
pub(crate) mod server;
#[cfg(any(all(test, not(shorthaul_models)), fuzzing))]
pub(crate) mod simulation;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use shorthaul_platform::memory::SharedMapping;
use smallvec::{SmallVec, smallvec};

use self::assembler::{Assembled, Assembler, Claim};
pub(crate) use self::outbox::Transmit;
use self::outbox::{Outbox, Rest};
use crate::error::Code;
use crate::limits::{HANDSHAKE_TIMEOUT, Limits, MESSAGE_BYTES_CAP};
use crate::payload::{MemoryPool, Purse};
use crate::ring::{Broken, Direction, Receiver, Sender};
use crate::wire::{
    FEATURE_DESCRIPTORS, FEATURE_RINGS, FEATURE_SEALED, Frame, Hello, VERSION, WireError,
};

/// The descriptors that came with one read.
#[derive(Debug)]
pub(crate) enum Arrival<D> {
    /// None: the usual case.
    None,
    /// These.
    Some(SmallVec<[D; 4]>),
    /// Some were sent, but this process is out of descriptors; these are the others.
    Lost(SmallVec<[D; 4]>),
    /// More than a frame may carry; these are some of them.
    TooMany(SmallVec<[D; 4]>),
}

/// How a peer broke the protocol. Its connection ends; nobody else's does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("more descriptors than a frame may carry")]
    TooManyDescriptors,
    #[error("not the {announced} descriptors that a frame announces came with its first byte")]
    DescriptorCount { announced: u8 },
    #[error("descriptors came that no frame claims")]
    UnclaimedDescriptors,
    #[error("a frame that has no place here: {0}")]
    Unexpected(&'static str),
    #[error("no version in common: the peer speaks {0} to {1}, this side {VERSION}")]
    Version(u16, u16),
    #[error("the hello did not come in time")]
    HandshakeTimeout,
    #[error("a frame stopped growing half-way")]
    FrameStalled,
    #[error("the peer takes no bytes any more")]
    WriteStalled,
    #[error("the peer answers what was not asked: {0}")]
    Answer(&'static str),
    #[error("the server holds on to too many buffers of calls that have ended")]
    RetiredBytes,
    #[error("{0}")]
    Ring(#[from] Broken),
}

impl Violation {
    /// What the peer is told.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::RetiredBytes => Code::ResourceExhausted,
            Self::HandshakeTimeout | Self::FrameStalled | Self::WriteStalled => {
                Code::DeadlineExceeded
            }
            Self::Version(..) => Code::Unimplemented,
            _ => Code::InvalidArgument,
        }
    }
}

/// What both sides of a connection have in common: the way in, the way out, and the hello.
#[derive(Debug)]
pub(crate) struct Link<D> {
    assembler: Assembler<D>,
    outbox: Outbox<D>,
    limits: Limits,
    /// Abilities of this side beyond the version.
    features: u64,
    /// The peer's limits and abilities, once its hello is here.
    peer: Option<(Limits, u64)>,
    hello_by: Instant,
    /// Whether the peer may take its time to read. A server may: it stops reading while a client
    /// has too much under way, and the client's calls have deadlines of their own.
    is_patient: bool,
}

impl<D> Link<D> {
    fn new(limits: Limits, purse: Purse, now: Instant) -> Self {
        Self {
            assembler: Assembler::new(limits, purse),
            outbox: Outbox::new(),
            limits,
            features: FEATURE_SEALED,
            peer: None,
            hello_by: now + HANDSHAKE_TIMEOUT,
            is_patient: false,
        }
    }

    /// Where the next bytes read belong. Call it only when the events are used up.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.assembler.space()
    }

    /// Whether [`Self::space`] is the rest of a payload, all of which may be waited for.
    pub(crate) fn is_in_payload(&self) -> bool {
        self.assembler.is_in_payload()
    }

    /// Says what was read into [`Self::space`].
    pub(crate) fn received(
        &mut self,
        bytes: usize,
        arrival: Arrival<D>,
        now: Instant,
    ) -> Result<(), Violation> {
        self.assembler.commit(bytes, arrival, now)
    }

    /// Says that nothing is read for a while, by this side's own choice: the peer is not blamed for
    /// a frame that does not grow.
    pub(crate) fn pause_reading(&mut self) {
        self.assembler.pause_reading();
    }

    /// Says that reading goes on.
    pub(crate) fn resume_reading(&mut self, now: Instant) {
        self.assembler.resume_reading(now);
    }

    /// What to write next, if anything. `borrowed` is the payload of the call that was started with
    /// one in memory of the caller's, else empty.
    pub(crate) fn transmit<'a>(&'a self, borrowed: &'a [u8]) -> Option<Transmit<'a, D>> {
        self.outbox.transmit(borrowed)
    }

    /// Copies what of `borrowed` is still to be written: the caller wants it back.
    pub(crate) fn own(&mut self, borrowed: &[u8], pool: &Arc<MemoryPool>) -> io::Result<()> {
        self.outbox.own(borrowed, pool)
    }

    /// Says how much of the last transmit was written. Returns the bytes of inline payload in
    /// frames that are now written whole.
    pub(crate) fn sent(&mut self, bytes: usize, now: Instant) -> u64 {
        self.outbox.sent(bytes, now)
    }

    /// Says that the socket takes nothing at the moment.
    pub(crate) fn write_blocked(&mut self, now: Instant) {
        self.outbox.blocked(now);
    }

    /// Whether everything is written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Whether so much waits to be written that nothing more should be read.
    pub(crate) fn is_crowded(&self) -> bool {
        self.outbox.is_crowded()
    }

    /// Whether the hellos have been exchanged.
    pub(crate) fn is_open(&self) -> bool {
        self.peer.is_some()
    }

    /// The peer's limits; the smallest possible before its hello.
    pub(crate) fn peer_limits(&self) -> Limits {
        self.peer.map_or(NO_LIMITS, |(limits, _)| limits)
    }

    /// Whether the peer takes sealed memory files.
    pub(crate) fn peer_takes_sealed(&self) -> bool {
        self.peer.is_some_and(|(_, features)| features & FEATURE_SEALED != 0)
    }

    /// Whether the peer relays into descriptors that come with calls.
    pub(crate) fn peer_takes_descriptors(&self) -> bool {
        self.peer.is_some_and(|(_, features)| features & FEATURE_DESCRIPTORS != 0)
    }

    /// Whether the peer takes frames out of a ring.
    pub(crate) fn peer_takes_rings(&self) -> bool {
        self.peer.is_some_and(|(_, features)| features & FEATURE_RINGS != 0)
    }

    /// Whether frames may go through rings.
    pub(crate) fn has_rings(&self) -> bool {
        self.outbox.ring().is_some()
    }

    /// Whether a frame may be in the ring.
    pub(crate) fn has_in_ring(&self) -> bool {
        self.assembler.ring().is_some_and(Receiver::has_some)
    }

    /// The same question about a ring that there is, to be asked again and again.
    pub(crate) fn watch_ring(&self) -> Option<impl Fn() -> bool> {
        self.assembler.ring().map(Receiver::watch)
    }

    /// Tells the peer which CPU this side is on.
    pub(crate) fn show_cpu(&mut self, cpu: u32) {
        if let Some(ring) = self.assembler.ring_mut() {
            ring.show_cpu(cpu);
        }
    }

    /// Whether this side has told the peer that it looks into its ring.
    pub(crate) fn looks(&self) -> bool {
        self.assembler.ring().is_some_and(Receiver::looks)
    }

    /// Tells the peer that this side looks into its ring from now on.
    pub(crate) fn begin_to_look(&mut self) {
        if let Some(ring) = self.assembler.ring_mut() {
            ring.begin_to_look();
        }
    }

    /// Tells the peer that this side looks into its ring no more; false if there is something in
    /// it: then this side goes on looking.
    pub(crate) fn fall_asleep(&mut self) -> Result<bool, Violation> {
        self.assembler.fall_asleep()
    }

    /// The CPU that the peer was last on, if it has said so.
    pub(crate) fn peers_cpu(&self) -> Option<u32> {
        self.outbox.ring().and_then(Sender::receivers_cpu)
    }

    /// From now on frames may go through the rings in `memory`.
    fn use_rings(&mut self, memory: &Arc<SharedMapping>, inwards: Direction, outwards: Direction) {
        self.assembler.use_ring(Receiver::new(Arc::clone(memory), inwards));
        self.outbox.use_ring(Sender::new(Arc::clone(memory), outwards));
    }

    fn check_ring(&self) -> Result<(), Violation> {
        if self.outbox.is_ring_broken() { Err(Broken.into()) } else { Ok(()) }
    }

    /// When [`Self::check_time`] has something to find.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let hello = (!self.is_open()).then_some(self.hello_by);
        let write = self.outbox.deadline().filter(|_| !self.is_patient);
        [hello, self.assembler.deadline(), write].into_iter().flatten().min()
    }

    /// Finds what has taken too long.
    pub(crate) fn check_time(&self, now: Instant) -> Result<(), Violation> {
        if !self.is_open() && now >= self.hello_by {
            return Err(Violation::HandshakeTimeout);
        }
        if self.assembler.deadline().is_some_and(|by| now >= by) {
            return Err(Violation::FrameStalled);
        }
        if !self.is_patient && self.outbox.deadline().is_some_and(|by| now >= by) {
            return Err(Violation::WriteStalled);
        }
        Ok(())
    }

    /// Queues the last word on this connection.
    pub(crate) fn say_goodbye(&mut self, code: Code, message: &str) {
        self.push(Frame::Goodbye { code, message });
    }

    fn push(&mut self, frame: Frame<'_>) {
        self.outbox.push_head(&frame);
    }

    fn push_with(&mut self, frame: Frame<'_>, descriptor: D) {
        let descriptors = smallvec![descriptor];
        self.outbox.push(&frame, Rest { payload: None, payload_bytes: 0, descriptors });
    }

    fn push_hello(&mut self, version_min: u16) {
        let (limits, features) = (self.limits, self.features);
        let hello = Hello { version_min, version_max: VERSION, features, limits };
        self.push(Frame::Hello(hello));
    }

    fn accept_hello(&mut self, hello: &Hello) -> Result<(), Violation> {
        let Hello { version_min, version_max, mut limits, features } = *hello;
        if self.is_open() {
            return Err(Violation::Unexpected("a second hello"));
        }
        if !(version_min..=version_max).contains(&VERSION) {
            return Err(Violation::Version(version_min, version_max));
        }
        limits.message_bytes_max = limits.message_bytes_max.min(MESSAGE_BYTES_CAP);
        self.peer = Some((limits, features));
        Ok(())
    }
}

const NO_LIMITS: Limits = Limits {
    calls_max: 0,
    regions_max: 0,
    message_bytes_max: 0,
    inline_bytes_max: 0,
    region_bytes_max: 0,
};
