//! The server's side of one connection.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::{Assembled, Claim, Link, OutFrame, Outbox, Violation};
use crate::error::{Code, Status};
use crate::limits::{Limits, PAYLOAD_ALIGNMENT};
use crate::payload::{MemoryPool, MessageBytes, PooledMemory, concat};
use crate::wire::{Call, Frame, LaneNumber, Place, Reply, VERSION};

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
    Call(IncomingCall<D, R>),
    /// A region to be looked at: then [`ServerConnection::region_accepted`] or `region_refused`.
    Register { region: u64, bytes: u64, descriptor: D },
    /// A region that the client gave up. Calls under way may still hold clones of it.
    Released(R),
    /// A descriptor that came with something that was refused: close it.
    Discard(D),
    /// The client takes a call back that is not answered yet.
    Cancel { call: u64 },
    /// The client's last word.
    Goodbye,
}

/// A call as it came in, checked.
#[derive(Debug)]
pub(crate) struct IncomingCall<D, R> {
    pub(crate) call: u64,
    pub(crate) deadline: Option<Instant>,
    /// The method's name, then the request.
    pub(crate) text: MessageBytes,
    pub(crate) method_bytes: usize,
    pub(crate) target: IncomingTarget<D, R>,
    pub(crate) payload: Option<PooledMemory>,
}

/// Where the payload of the answer belongs.
#[derive(Debug)]
pub(crate) enum IncomingTarget<D, R> {
    None,
    Inline { bytes_max: u64 },
    Region { region: R, offset: u64, bytes: u64 },
    OneShot { descriptor: D, bytes: u64 },
}

/// An answer to a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Option<Status>,
    pub(crate) lane: LaneNumber,
    pub(crate) payload_bytes: u64,
    pub(crate) response: MessageBytes,
    /// The inline payload; its first `payload_bytes` bytes are sent.
    pub(crate) payload: Option<PooledMemory>,
}

impl<D, R: Clone> ServerConnection<D, R> {
    pub(crate) fn new(limits: Limits, pool: Arc<MemoryPool>, now: Instant) -> Self {
        let table = Table {
            limits,
            calls: FxHashMap::default(),
            regions: FxHashMap::default(),
            refused: Vec::new(),
        };
        Self { link: Link::new(limits, pool, now), table }
    }

    /// The next thing that happened. Time is what deadlines of calls count from.
    pub(crate) fn next_event(
        &mut self,
        now: Instant,
    ) -> Result<Option<ServerEvent<D, R>>, Violation> {
        loop {
            if let Some(descriptor) = self.table.refused.pop() {
                return Ok(Some(ServerEvent::Discard(descriptor)));
            }
            let is_open = self.link.is_open();
            let Some(assembled) = self.link.assembler.next()? else {
                return Ok(None);
            };
            let event = match (assembled.frame, is_open) {
                (Frame::Hello(hello), _) => {
                    self.link.accept_hello(&hello)?;
                    self.link.push_hello(VERSION);
                    None
                }
                (_, false) => {
                    self.table.refuse(assembled.descriptor);
                    return Err(Violation::Unexpected("the hello must come first"));
                }
                _ => self.table.on_frame(assembled, &mut self.link.outbox, now)?,
            };
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// Answers a call; one that is not open (the connection was told of its end) is passed over.
    pub(crate) fn answer(&mut self, call: u64, answer: Answer) {
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
        assembled: Assembled<'_, D>,
        outbox: &mut Outbox<D>,
        now: Instant,
    ) -> Result<Option<ServerEvent<D, R>>, Violation> {
        let Assembled { frame, descriptor, payload } = assembled;
        match frame {
            Frame::Call(call) => self.on_call(&call, descriptor, payload, outbox, now),
            Frame::Register { region, bytes } => {
                self.on_register(region, bytes, descriptor, outbox)
            }
            Frame::Release { region } => {
                let released = self.regions.remove(&region);
                Ok(released.map(|(handle, _)| ServerEvent::Released(handle)))
            }
            Frame::Cancel { call } => {
                // One that crosses its call's answer, or comes again, has nothing to do.
                let progress = self.calls.get_mut(&call).filter(|p| **p == Progress::Open);
                Ok(progress.map(|progress| {
                    *progress = Progress::Cancelled;
                    ServerEvent::Cancel { call }
                }))
            }
            Frame::Goodbye { .. } => Ok(Some(ServerEvent::Goodbye)),
            _ => Err(Violation::Unexpected("only a server sends it")),
        }
    }

    fn on_call(
        &mut self,
        call: &Call<'_>,
        descriptor: Option<Claim<D>>,
        payload: Option<PooledMemory>,
        outbox: &mut Outbox<D>,
        now: Instant,
    ) -> Result<Option<ServerEvent<D, R>>, Violation> {
        if self.calls.contains_key(&call.call) {
            self.refuse(descriptor);
            return Err(Violation::Unexpected("a call with the id of one that is open"));
        }
        let target = match self.target(call, descriptor) {
            Ok(target) => target,
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
        let call = call.call;
        Ok(Some(ServerEvent::Call(IncomingCall {
            call,
            deadline,
            text,
            method_bytes,
            target,
            payload,
        })))
    }

    /// Checks what the call wants, once, and turns it into what can be used without another look.
    fn target(
        &mut self,
        call: &Call<'_>,
        descriptor: Option<Claim<D>>,
    ) -> Result<IncomingTarget<D, R>, Status> {
        let admitted = self.admit(call).and_then(|()| self.place(call.place));
        match (admitted, descriptor) {
            (Ok(target), None) => Ok(target),
            (Ok(_), Some(Claim::Arrived(descriptor))) => {
                let bytes = if let Place::OneShot { bytes } = call.place { bytes } else { 0 };
                Ok(IncomingTarget::OneShot { descriptor, bytes })
            }
            (Ok(_), Some(Claim::Lost)) => Err(no_descriptor_arrived()),
            (Err(status), descriptor) => {
                self.refuse(descriptor);
                Err(status)
            }
        }
    }

    /// Keeps a descriptor to be closed where that may take its time.
    fn refuse(&mut self, descriptor: Option<Claim<D>>) {
        self.refused.extend(descriptor.and_then(Claim::into_arrived));
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

    fn place(&self, place: Place) -> Result<IncomingTarget<D, R>, Status> {
        match place {
            Place::None => Ok(IncomingTarget::None),
            Place::Inline { bytes_max } => Ok(IncomingTarget::Inline { bytes_max }),
            Place::Region { region, offset, bytes } => self.region(region, offset, bytes),
            Place::OneShot { bytes } if bytes > self.limits.region_bytes_max => {
                Err(region_too_large(bytes, self.limits.region_bytes_max))
            }
            // Stands for the descriptor, which the caller of this function has.
            Place::OneShot { .. } => Ok(IncomingTarget::None),
        }
    }

    fn region(&self, region: u64, offset: u64, bytes: u64) -> Result<IncomingTarget<D, R>, Status> {
        let Some((handle, region_bytes)) = self.regions.get(&region) else {
            return Err(Status::new(
                Code::NotFound,
                format!("no region {region} is registered on this connection"),
            ));
        };
        if !offset.is_multiple_of(PAYLOAD_ALIGNMENT) {
            return Err(Status::new(
                Code::InvalidArgument,
                format!("offset {offset} is not a multiple of {PAYLOAD_ALIGNMENT}"),
            ));
        }
        if offset.checked_add(bytes).is_none_or(|end| end > *region_bytes) {
            return Err(Status::new(
                Code::InvalidArgument,
                format!(
                    "{bytes} bytes at {offset} are outside region {region}, which has \
                     {region_bytes}"
                ),
            ));
        }
        Ok(IncomingTarget::Region { region: handle.clone(), offset, bytes })
    }

    fn on_register(
        &mut self,
        region: u64,
        bytes: u64,
        descriptor: Option<Claim<D>>,
        outbox: &mut Outbox<D>,
    ) -> Result<Option<ServerEvent<D, R>>, Violation> {
        let count = self.regions.len();
        if let Entry::Occupied(_) = self.regions.entry(region) {
            self.refuse(descriptor);
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
        match (refusal, descriptor) {
            (None, Some(Claim::Arrived(descriptor))) => {
                return Ok(Some(ServerEvent::Register { region, bytes, descriptor }));
            }
            (Some(status), Some(Claim::Arrived(descriptor))) => {
                self.refused.push(descriptor);
                push_registered(outbox, region, &status);
            }
            (status, _) => {
                push_registered(outbox, region, &status.unwrap_or_else(no_descriptor_arrived));
            }
        }
        Ok(None)
    }
}

impl Answer {
    /// An answer that is no success, whatever the handler has put into it.
    pub(crate) fn failure(mut status: Status) -> Self {
        match status.code {
            Code::Ok => status.code = Code::Internal,
            Code::OutOfRange => {}
            _ => status.bytes_needed = None,
        }
        let payload_bytes =
            status.bytes_needed.filter(|_| status.code == Code::OutOfRange).unwrap_or(0);
        let (lane, response, payload) = (LaneNumber::None, MessageBytes::new(), None);
        Self { status: Some(status), lane, payload_bytes, response, payload }
    }
}

fn push_answer<D>(outbox: &mut Outbox<D>, call: u64, answer: Answer) {
    let Answer { status, lane, payload_bytes, response, payload } = answer;
    let (code, message) = match &status {
        Some(status) => (status.code, status.message.as_str()),
        None => (Code::Ok, ""),
    };
    let reply = Reply { call, code, lane, payload_bytes, response: &response, message };
    let inline_bytes = if lane == LaneNumber::Inline { payload_bytes } else { 0 };
    let head = Frame::Reply(reply).encode(inline_bytes);
    let payload_bytes = inline_bytes as usize;
    let payload = payload.filter(|_| payload_bytes > 0);
    outbox.push(OutFrame { head, payload, payload_bytes, descriptor: None });
}

fn push_registered<D>(outbox: &mut Outbox<D>, region: u64, status: &Status) {
    let Status { code, message, .. } = status;
    outbox.push_head(Frame::Registered { region, code: *code, message }.encode(0));
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
