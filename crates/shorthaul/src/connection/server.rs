//! The server's side of one connection.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use shorthaul_platform::memory::SharedMapping;
use smallvec::SmallVec;

use super::{Assembled, Claim, Link, Outbox, Rest, Violation};
use crate::error::{Code, Status};
use crate::limits::{Limits, PAYLOAD_ALIGNMENT};
use crate::parts::Parts;
use crate::payload::{MessageBytes, PooledMemory, Purse, concat};
use crate::ring::{Direction, RINGS_BYTES};
use crate::wire::{
    Call, FEATURE_DESCRIPTORS, FEATURE_RINGS, Fill, Frame, LaneNumber, Reply, Room, Span, Upload,
    VERSION,
};

/// One client, as its server sees it. `D` is what a descriptor is, `R` what a region becomes once
/// its descriptor was accepted.
#[derive(Debug)]
pub(crate) struct ServerConnection<D, R> {
    pub(crate) link: Link<D>,
    table: Table<D, R>,
}

/// Calls that are not answered, regions that are registered.
#[derive(Debug)]
struct Table<D, R> {
    limits: Limits,
    /// A hostile client may choose numbers whose hashes collide: then it waits for at most
    /// `calls_max` comparisons, its own.
    calls: FxHashMap<u64, Progress>,
    regions: FxHashMap<u64, (R, u64)>,
    refused: Vec<D>,
    /// Whether the client has sent memory for rings, which it may once.
    has_offered_rings: bool,
}

/// What a call that is not answered has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Open,
    /// Its client has taken it back, once or more often.
    Cancelled,
}

/// What happened, for the reactor to act on.
#[derive(Debug)]
pub(crate) enum ServerEvent<D, R> {
    /// A call to be carried out, and answered by [`ServerConnection::answer`] exactly once.
    /// Boxed: it is moved a dozen times on its way to its handler.
    Call(Box<IncomingCall<D, R>>),
    /// A region to be looked at: then [`ServerConnection::region_accepted`] or `region_refused`.
    Register { region: u64, bytes: u64, descriptor: D },
    /// Memory for rings to be looked at: then [`ServerConnection::rings_taken`] or `rings_refused`.
    Rings { descriptor: D },
    /// A region that the client gave up. Calls under way may still hold clones of it.
    Released(R),
    /// A descriptor that came with something that was refused: close it.
    Discard(D),
    /// The client takes a call back that is not answered yet.
    Cancel { call: u64 },
    /// The client's last word.
    Goodbye,
    /// A frame out of the ring that asks for nothing more: one of a turn all the same, for there
    /// may be no end of them.
    Passed,
}

/// A call as it came in, checked.
#[derive(Debug)]
pub(crate) struct IncomingCall<D, R> {
    pub(crate) call: u64,
    pub(crate) deadline: Option<Instant>,
    /// The method's name, then the request.
    pub(crate) text: MessageBytes,
    pub(crate) method_bytes: usize,
    pub(crate) room: Room,
    pub(crate) fill: IncomingFill<D, R>,
    pub(crate) upload: IncomingUpload<D, R>,
    pub(crate) parts: Parts,
}

/// What of the client's the answer may fill, as [`Room::fill`] says.
#[derive(Debug)]
pub(crate) enum IncomingFill<D, R> {
    None,
    Region(IncomingSpan<R>),
    OneShot { descriptor: D, bytes: u64 },
    Descriptor { descriptor: D },
}

/// The bulk that came with the request.
#[derive(Debug)]
pub(crate) enum IncomingUpload<D, R> {
    None,
    Inline(PooledMemory),
    Region(IncomingSpan<R>),
    Sealed { descriptor: D, offset: u64, bytes: u64 },
}

/// All memory that belongs to a call.
type Memory<D, R> = (IncomingFill<D, R>, IncomingUpload<D, R>);

/// A part of a region that is registered, known to be inside it; how long it is, the call says.
#[derive(Debug)]
pub(crate) struct IncomingSpan<R> {
    pub(crate) region: R,
    pub(crate) offset: u64,
}

/// An answer to a call.
#[derive(Debug)]
pub(crate) struct Answer<D> {
    pub(crate) status: Option<Status>,
    pub(crate) lane: LaneNumber,
    /// Of a failure: one of as many bytes as are in the descriptor, on that lane; else, with
    /// OUT_OF_RANGE, of as many as are needed.
    pub(crate) parts: Parts,
    pub(crate) response: MessageBytes,
    /// The inline payload, of which as many bytes are sent as the parts have.
    pub(crate) payload: Option<PooledMemory>,
    /// The sealed memory file, and where in it the payload starts.
    pub(crate) sealed: Option<(D, u64)>,
}

impl<D, R: Clone> ServerConnection<D, R> {
    pub(crate) fn new(limits: Limits, purse: Purse, now: Instant) -> Self {
        let table = Table {
            limits,
            calls: FxHashMap::default(),
            regions: FxHashMap::default(),
            refused: Vec::new(),
            has_offered_rings: false,
        };
        Self { link: Link::new(limits, purse, now), table }
    }

    /// Tells the client that frames may go through rings; before the hellos.
    pub(crate) fn take_rings(&mut self) {
        self.link.features |= FEATURE_RINGS;
    }

    /// Tells the client that calls may bring descriptors to be relayed into; before the hellos.
    pub(crate) fn take_given_descriptors(&mut self) {
        self.link.features |= FEATURE_DESCRIPTORS;
    }

    /// The next thing that happened. Time is what deadlines of calls count from.
    pub(crate) fn next_event(
        &mut self,
        now: Instant,
    ) -> Result<Option<ServerEvent<D, R>>, Violation> {
        self.link.check_ring()?;
        loop {
            let refused = self.table.refused.pop();
            if let Some(descriptor) = refused.or_else(|| self.link.assembler.pop_spoiled()) {
                return Ok(Some(ServerEvent::Discard(descriptor)));
            }
            let is_open = self.link.is_open();
            let Some(mut assembled) = self.link.assembler.next()? else {
                return Ok(None);
            };
            let is_from_ring = assembled.is_from_ring;
            let event = match (&assembled.frame, is_open) {
                (Frame::Hello(hello), _) => {
                    let hello = *hello;
                    self.link.accept_hello(&hello)?;
                    self.link.push_hello(VERSION);
                    None
                }
                (_, false) => {
                    self.table.refuse(assembled.descriptors);
                    return Err(Violation::Unexpected("the hello must come first"));
                }
                _ => self.table.on_frame(&mut assembled, &mut self.link.outbox, now)?,
            };
            if event.is_some() || is_from_ring {
                return Ok(event.or(Some(ServerEvent::Passed)));
            }
        }
    }

    /// Answers a call; one that is not open (the connection was told of its end) is passed over.
    pub(crate) fn answer(&mut self, call: u64, answer: Answer<D>) {
        if self.table.calls.remove(&call).is_some() {
            push_answer(&mut self.link.outbox, call, answer);
        }
    }

    /// The region that the last `Register` event told of is in order.
    pub(crate) fn region_accepted(&mut self, region: u64, handle: R, bytes: u64) {
        self.table.regions.insert(region, (handle, bytes));
        self.link.push(Frame::Registered { region, code: Code::Ok, message: "" });
    }

    /// The region that the last `Register` event told of is refused.
    pub(crate) fn region_refused(&mut self, region: u64, status: &Status) {
        let Status { code, message, .. } = status;
        self.link.push(Frame::Registered { region, code: *code, message });
    }

    /// The rings that the last `Rings` event told of are in order.
    pub(crate) fn rings_taken(&mut self, memory: &Arc<SharedMapping>) {
        // The client learns of it first: that goes through the socket.
        self.link.push(Frame::RingsTaken { code: Code::Ok, message: "" });
        self.link.use_rings(memory, Direction::ToServer, Direction::ToClient);
    }

    /// The rings that the last `Rings` event told of are refused.
    pub(crate) fn rings_refused(&mut self, status: &Status) {
        let Status { code, message, .. } = status;
        self.link.push(Frame::RingsTaken { code: *code, message });
    }

    /// Takes out every descriptor that the client has sent and nobody has taken.
    pub(crate) fn take_descriptors(&mut self) -> Vec<D> {
        let mut taken = std::mem::take(&mut self.table.refused);
        self.link.assembler.take_descriptors(&mut taken);
        taken
    }

    /// The regions that are registered.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &R> {
        self.table.regions.values().map(|(handle, _)| handle)
    }

    /// Calls that are not answered yet.
    pub(crate) fn open_calls(&self) -> usize {
        self.table.calls.len()
    }

    /// Sends a notice, unless so much waits already that the client doesn't seem to read.
    pub(crate) fn notify(&mut self, topic: u32, data: &[u8]) -> bool {
        let sendable = self.link.is_open() && !self.link.is_crowded();
        if sendable {
            self.link.push(Frame::Notice { topic, data });
        }
        sendable
    }
}

impl<D, R: Clone> Table<D, R> {
    fn on_frame(
        &mut self,
        assembled: &mut Assembled<'_, D>,
        outbox: &mut Outbox<D>,
        now: Instant,
    ) -> Result<Option<ServerEvent<D, R>>, Violation> {
        let descriptors = assembled.descriptors.take();
        match &mut assembled.frame {
            Frame::Call(call) => {
                self.on_call(call, descriptors, assembled.payload.take(), outbox, now)
            }
            &mut Frame::Register { region, bytes } => {
                self.on_register(region, bytes, descriptors, outbox)
            }
            &mut Frame::Release { region } => {
                let released = self.regions.remove(&region);
                Ok(released.map(|(handle, _)| ServerEvent::Released(handle)))
            }
            &mut Frame::Cancel { call } => {
                // One that crosses its call's answer, or comes again, has nothing to do.
                let progress = self.calls.get_mut(&call).filter(|p| **p == Progress::Open);
                Ok(progress.map(|progress| {
                    *progress = Progress::Cancelled;
                    ServerEvent::Cancel { call }
                }))
            }
            Frame::Goodbye { .. } => Ok(Some(ServerEvent::Goodbye)),
            &mut Frame::Rings { bytes } => self.on_rings(bytes, descriptors, outbox),
            Frame::Bell => Ok(None),
            _ => {
                self.refuse(descriptors);
                Err(Violation::Unexpected("only a server sends it"))
            }
        }
    }

    fn on_call(
        &mut self,
        call: &mut Call<'_>,
        descriptors: Option<Claim<D>>,
        payload: Option<PooledMemory>,
        outbox: &mut Outbox<D>,
        now: Instant,
    ) -> Result<Option<ServerEvent<D, R>>, Violation> {
        if self.calls.contains_key(&call.call) {
            self.refuse(descriptors);
            return Err(Violation::Unexpected("a call with the id of one that is open"));
        }
        let (fill, upload) = match self.memory(call, descriptors, payload) {
            Ok(memory) => memory,
            Err(status) => {
                push_answer(outbox, call.call, Answer::failure(status));
                return Ok(None);
            }
        };
        self.calls.insert(call.call, Progress::Open);
        let text = concat(&[call.method.as_bytes(), call.request]);
        let remaining = Duration::from_nanos(call.remaining_ns);
        let deadline = (call.remaining_ns > 0).then(|| now.checked_add(remaining)).flatten();
        let method_bytes = call.method.len();
        let (call, room, parts) = (call.call, call.room, std::mem::take(&mut call.parts));
        let incoming =
            IncomingCall { call, deadline, text, method_bytes, room, fill, upload, parts };
        Ok(Some(ServerEvent::Call(Box::new(incoming))))
    }

    /// Checks what the call wants and brings, once, and turns it into what can be used without
    /// another look.
    fn memory(
        &mut self,
        call: &Call<'_>,
        descriptors: Option<Claim<D>>,
        payload: Option<PooledMemory>,
    ) -> Result<Memory<D, R>, Status> {
        if let Err(status) =
            self.admit(call).and_then(|()| self.check_memory(call, payload.is_some()))
        {
            self.refuse(descriptors);
            return Err(status);
        }
        let mut descriptors = match descriptors {
            None => SmallVec::new(),
            Some(Claim::Arrived(descriptors)) => descriptors,
            Some(Claim::Lost) => return Err(no_descriptor_arrived()),
        }
        .into_iter();
        // The decoder has counted them.
        let mut next = || descriptors.next().ok_or_else(no_descriptor_arrived);
        let fill = match call.room.fill {
            Fill::None => IncomingFill::None,
            Fill::Region(span) => IncomingFill::Region(self.span(span)?),
            Fill::OneShot { bytes } => IncomingFill::OneShot { descriptor: next()?, bytes },
            Fill::Descriptor { .. } => IncomingFill::Descriptor { descriptor: next()? },
        };
        let upload = match (call.upload, payload) {
            (Upload::Region(span), _) => IncomingUpload::Region(self.span(span)?),
            (Upload::Sealed { offset, bytes }, _) => {
                IncomingUpload::Sealed { descriptor: next()?, offset, bytes }
            }
            (_, Some(payload)) => IncomingUpload::Inline(payload),
            (_, None) => IncomingUpload::None,
        };
        Ok((fill, upload))
    }

    /// Keeps a descriptor to be closed where that may take its time.
    fn refuse(&mut self, descriptors: Option<Claim<D>>) {
        self.refused.extend(descriptors.into_iter().flat_map(Claim::into_arrived));
    }

    fn admit(&self, call: &Call<'_>) -> Result<(), Status> {
        let Limits { calls_max, message_bytes_max, .. } = self.limits;
        if self.calls.len() >= calls_max as usize {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!("{calls_max} calls of this connection are open already: wait for answers"),
            ));
        }
        if call.request.len() > message_bytes_max as usize {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!(
                    "a request of {} bytes is over the limit of {message_bytes_max}: send bulk as \
                     payload",
                    call.request.len()
                ),
            ));
        }
        Ok(())
    }

    /// Looks at all memory that the call names, before any descriptor is parted from the others.
    fn check_memory(&self, call: &Call<'_>, has_payload: bool) -> Result<(), Status> {
        let bytes_max = self.limits.region_bytes_max;
        match call.room.fill {
            Fill::OneShot { bytes } if bytes > bytes_max => {
                return Err(region_too_large(bytes, bytes_max));
            }
            Fill::Region(span) => drop(self.span(span)?),
            Fill::None | Fill::OneShot { .. } | Fill::Descriptor { .. } => {}
        }
        match call.upload {
            Upload::Sealed { offset, bytes } => {
                ensure_aligned(offset)?;
                let end = offset.saturating_add(bytes);
                if end > bytes_max { Err(region_too_large(end, bytes_max)) } else { Ok(()) }
            }
            Upload::Region(span) => self.span(span).map(drop),
            Upload::Inline { bytes } if bytes > 0 && !has_payload => Err(Status::new(
                Code::ResourceExhausted,
                format!(
                    "the server has no memory for {bytes} bytes more of this user's: wait for \
                     answers, or send them in a buffer"
                ),
            )),
            Upload::None | Upload::Inline { .. } => Ok(()),
        }
    }

    fn span(&self, span: Span) -> Result<IncomingSpan<R>, Status> {
        let Span { region, offset, bytes } = span;
        let Some((handle, region_bytes)) = self.regions.get(&region) else {
            return Err(Status::new(
                Code::NotFound,
                format!("no region {region} is registered on this connection"),
            ));
        };
        ensure_aligned(offset)?;
        if offset.checked_add(bytes).is_none_or(|end| end > *region_bytes) {
            return Err(Status::new(
                Code::InvalidArgument,
                format!(
                    "{bytes} bytes at {offset} are outside region {region}, which has \
                     {region_bytes}"
                ),
            ));
        }
        Ok(IncomingSpan { region: handle.clone(), offset })
    }

    fn on_register(
        &mut self,
        region: u64,
        bytes: u64,
        descriptors: Option<Claim<D>>,
        outbox: &mut Outbox<D>,
    ) -> Result<Option<ServerEvent<D, R>>, Violation> {
        let count = self.regions.len();
        if let Entry::Occupied(_) = self.regions.entry(region) {
            self.refuse(descriptors);
            return Err(Violation::Unexpected("a region is registered twice"));
        }
        let Limits { regions_max, region_bytes_max, .. } = self.limits;
        let refusal = if count >= regions_max as usize {
            Some(Status::new(
                Code::ResourceExhausted,
                format!("{regions_max} buffers are registered on this connection: drop some"),
            ))
        } else if bytes > region_bytes_max {
            Some(region_too_large(bytes, region_bytes_max))
        } else {
            None
        };
        let arrived = descriptors.and_then(|claim| claim.into_arrived().pop());
        match (refusal, arrived) {
            (None, Some(descriptor)) => {
                return Ok(Some(ServerEvent::Register { region, bytes, descriptor }));
            }
            (refusal, arrived) => {
                self.refused.extend(arrived);
                push_registered(outbox, region, &refusal.unwrap_or_else(no_descriptor_arrived));
            }
        }
        Ok(None)
    }
}

impl<D, R> Table<D, R> {
    fn on_rings(
        &mut self,
        bytes: u64,
        descriptors: Option<Claim<D>>,
        outbox: &mut Outbox<D>,
    ) -> Result<Option<ServerEvent<D, R>>, Violation> {
        let arrived = descriptors.and_then(|claim| claim.into_arrived().pop());
        if std::mem::replace(&mut self.has_offered_rings, true) {
            self.refused.extend(arrived);
            return Err(Violation::Unexpected("rings are offered twice"));
        }
        let refusal = match arrived {
            Some(descriptor) if bytes == RINGS_BYTES as u64 => {
                return Ok(Some(ServerEvent::Rings { descriptor }));
            }
            Some(descriptor) => {
                self.refused.push(descriptor);
                let message = format!("rings take {RINGS_BYTES} bytes, and not {bytes}");
                Status::new(Code::InvalidArgument, message)
            }
            None => no_descriptor_arrived(),
        };
        let Status { code, message, .. } = refusal;
        outbox.push_head(&Frame::RingsTaken { code, message: &message });
        Ok(None)
    }
}

impl<D> Answer<D> {
    /// An answer that is no success, whatever the handler has put into it.
    pub(crate) fn failure(mut status: Status) -> Self {
        match status.code {
            Code::Ok => status.code = Code::Internal,
            Code::OutOfRange => {}
            _ => status.bytes_needed = None,
        }
        let needed = status.bytes_needed.filter(|_| status.code == Code::OutOfRange).unwrap_or(0);
        Self {
            status: Some(status),
            lane: LaneNumber::None,
            parts: Parts::one(usize::try_from(needed).unwrap_or(usize::MAX)),
            response: MessageBytes::new(),
            payload: None,
            sealed: None,
        }
    }

    /// The same, with so many bytes of payload in the client's descriptor.
    pub(crate) fn after_relay(mut self, bytes: usize) -> Self {
        if bytes > 0 {
            (self.lane, self.parts) = (LaneNumber::Descriptor, Parts::one(bytes));
        }
        self
    }

    /// Bytes of payload that it moves.
    pub(crate) fn moved_bytes(&self) -> u64 {
        // In other failures the bytes are what a buffer needs, and nothing was moved.
        let has_moved = self.status.is_none() || self.lane == LaneNumber::Descriptor;
        if has_moved { self.parts.bytes() as u64 } else { 0 }
    }
}

fn push_answer<D>(outbox: &mut Outbox<D>, call: u64, answer: Answer<D>) {
    let Answer { status, lane, parts, response, payload, sealed } = answer;
    let (code, message) = match &status {
        Some(status) => (status.code, status.message.as_str()),
        None => (Code::Ok, ""),
    };
    let payload_bytes = if lane == LaneNumber::Inline { parts.bytes() } else { 0 };
    let offset = sealed.as_ref().map_or(0, |&(_, offset)| offset);
    let reply = Reply {
        call,
        code,
        lane,
        payload_bytes: parts.bytes() as u64,
        offset,
        parts,
        response: &response,
        message,
    };
    let payload = payload.filter(|_| payload_bytes > 0);
    let descriptors = sealed.map(|(descriptor, _)| descriptor).into_iter().collect();
    outbox.push(&Frame::Reply(reply), Rest { payload, payload_bytes, descriptors });
}

fn ensure_aligned(offset: u64) -> Result<(), Status> {
    if offset.is_multiple_of(PAYLOAD_ALIGNMENT) {
        return Ok(());
    }
    let message = format!("offset {offset} is not a multiple of {PAYLOAD_ALIGNMENT}");
    Err(Status::new(Code::InvalidArgument, message))
}

fn push_registered<D>(outbox: &mut Outbox<D>, region: u64, status: &Status) {
    let Status { code, message, .. } = status;
    outbox.push_head(&Frame::Registered { region, code: *code, message });
}

fn region_too_large(bytes: u64, limit: u64) -> Status {
    Status::new(
        Code::InvalidArgument,
        format!("a region of {bytes} bytes is over the server's limit of {limit}"),
    )
}

fn no_descriptor_arrived() -> Status {
    Status::new(
        Code::ResourceExhausted,
        "no descriptor arrived: the server is out of descriptors; try again, or raise its \
         RLIMIT_NOFILE",
    )
}
