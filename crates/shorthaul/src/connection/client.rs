//! The client's side of one connection.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;
use shorthaul_platform::memory::SharedMapping;
use smallvec::SmallVec;

use super::{Claim, Link, Rest, Violation};
use crate::error::{Code, Status};
use crate::limits::{CANCEL_ACK_TIMEOUT, Limits, PAYLOAD_ALIGNMENT, RETIRED_BYTES_MAX};
use crate::parts::Parts;
use crate::payload::{MessageBytes, PooledMemory, Purse};
use crate::ring::Direction;
use crate::wire::{Call, Fill, Frame, LaneNumber, Reply, Room, Upload, VERSION};

/// One server, as its client sees it. `D` is what a descriptor is; `T` is what the caller wants
/// back with the answer, its buffer above all: a token is given back exactly once, and not before
/// the server has let go of the call's memory or never will.
#[derive(Debug)]
pub(crate) struct ClientConnection<D, T> {
    pub(crate) link: Link<D>,
    table: Table<D, T>,
}

#[derive(Debug)]
struct Table<D, T> {
    calls: FxHashMap<u64, OpenCall<T>>,
    /// How many of them somebody waits for.
    waiting: usize,
    /// Cancelled calls by the time their acknowledgement is due, which is the order they came in.
    unacknowledged: VecDeque<(Instant, u64)>,
    retired_bytes: u64,
    /// Descriptors that came with answers of no use.
    refused: Vec<D>,
    /// Memory for rings that the server has not said a word on.
    rings: Option<Arc<SharedMapping>>,
}

#[derive(Debug)]
struct OpenCall<T> {
    room: Room,
    /// Bytes of the client's own memory that the server may be using.
    shared_bytes: u64,
    state: CallState<T>,
}

#[derive(Debug)]
enum CallState<T> {
    Waiting(T),
    /// Nobody waits any more, but the server may still be writing.
    Cancelled(T),
    /// The server did not say in time that it let go. Its memory is never used again.
    Retired,
}

/// A call to be sent.
#[derive(Debug)]
pub(crate) struct OutgoingCall<'a> {
    pub(crate) call: u64,
    pub(crate) remaining_ns: u64,
    pub(crate) room: Room,
    pub(crate) upload: Upload,
    pub(crate) parts: Parts,
    pub(crate) method: &'a str,
    pub(crate) request: &'a [u8],
}

/// What happened.
#[derive(Debug)]
pub(crate) enum ClientEvent<D, T> {
    /// The hellos are exchanged: calls can be made.
    Open,
    /// The answer to a call that somebody waits for.
    Answered { token: T, answer: Answered<D> },
    /// The server has let go of a call that was cancelled.
    LetGo { token: T },
    /// The server did not let go in time: unmap the buffer, never use it again.
    Retired { token: T },
    /// The server's word on a region.
    Registered { region: u64, result: Result<(), Status> },
    /// A descriptor that came with an answer of no use: close it where that may take its time.
    Discard(D),
    /// News from the server.
    Notice { topic: u32, data: MessageBytes },
    /// The server's last word.
    Goodbye { code: Code, message: String },
    /// A frame out of the ring that says nothing more: one of a turn all the same, for there may be
    /// no end of them.
    Passed,
}

/// An answer, checked against what was asked.
#[derive(Debug)]
pub(crate) struct Answered<D> {
    pub(crate) status: Option<Status>,
    /// None in a failure, whatever was relayed before it.
    pub(crate) lane: LaneNumber,
    pub(crate) parts: Parts,
    /// Bytes of payload that are in the descriptor that came with the call.
    pub(crate) given_bytes: u64,
    pub(crate) response: MessageBytes,
    pub(crate) payload: Option<PooledMemory>,
    /// The sealed memory file, and where in it the payload starts. None on the sealed lane: this
    /// process is out of descriptors.
    pub(crate) sealed: Option<(D, u64)>,
}

impl<D, T> ClientConnection<D, T> {
    /// A new connection; its hello waits to be written.
    pub(crate) fn new(limits: Limits, purse: Purse, now: Instant) -> Self {
        let mut link = Link::new(limits, purse, now);
        link.is_patient = true;
        link.push_hello(VERSION);
        let table = Table {
            calls: FxHashMap::default(),
            waiting: 0,
            unacknowledged: VecDeque::new(),
            retired_bytes: 0,
            refused: Vec::new(),
            rings: None,
        };
        Self { link, table }
    }

    /// Offers the server memory for rings, once.
    pub(crate) fn offer_rings(&mut self, memory: Arc<SharedMapping>, descriptor: D) {
        self.link.push_with(Frame::Rings { bytes: memory.len() as u64 }, descriptor);
        self.table.rings = Some(memory);
    }

    /// The server's word on the rings.
    fn on_rings_taken(&mut self, are_taken: bool) -> Result<(), Violation> {
        let memory = self.table.rings.take();
        let memory = memory.ok_or(Violation::Answer("no rings were offered"))?;
        if are_taken {
            self.link.use_rings(&memory, Direction::ToClient, Direction::ToServer);
        }
        Ok(())
    }

    /// The next thing that happened.
    pub(crate) fn next_event(&mut self) -> Result<Option<ClientEvent<D, T>>, Violation> {
        self.link.check_ring()?;
        loop {
            let refused = self.table.refused.pop();
            if let Some(descriptor) = refused.or_else(|| self.link.assembler.pop_spoiled()) {
                return Ok(Some(ClientEvent::Discard(descriptor)));
            }
            let is_open = self.link.is_open();
            let Some(assembled) = self.link.assembler.next()? else {
                return Ok(None);
            };
            let is_from_ring = assembled.is_from_ring;
            let event = match assembled.frame {
                Frame::Hello(hello) => {
                    self.link.accept_hello(&hello)?;
                    Some(ClientEvent::Open)
                }
                Frame::Goodbye { code, message } => {
                    Some(ClientEvent::Goodbye { code, message: message.to_owned() })
                }
                _ if !is_open => {
                    self.table.refuse(assembled.descriptors);
                    return Err(Violation::Unexpected("the hello must come first"));
                }
                Frame::Reply(reply) => {
                    self.table.on_reply(&reply, assembled.payload, assembled.descriptors)?
                }
                Frame::Registered { region, code, message } => {
                    let failed = code != Code::Ok;
                    let result = if failed { Err(Status::new(code, message)) } else { Ok(()) };
                    Some(ClientEvent::Registered { region, result })
                }
                Frame::RingsTaken { code, .. } => {
                    self.on_rings_taken(code == Code::Ok)?;
                    None
                }
                Frame::Bell => None,
                Frame::Notice { topic, data } => {
                    Some(ClientEvent::Notice { topic, data: MessageBytes::from_slice(data) })
                }
                _ => {
                    self.table.refuse(assembled.descriptors);
                    return Err(Violation::Unexpected("only a client sends it"));
                }
            };
            if event.is_some() || is_from_ring {
                return Ok(event.or(Some(ClientEvent::Passed)));
            }
        }
    }

    /// Sends a call, with the inline payload of its request (none if it has one: that stays in
    /// memory of the caller's, see [`Link::transmit`]) and the memory files that belong to it.
    /// The caller has checked it against [`Link::peer_limits`]; ids are never used twice.
    pub(crate) fn start(
        &mut self,
        call: OutgoingCall<'_>,
        payload: Option<PooledMemory>,
        descriptors: SmallVec<[D; 2]>,
        token: T,
    ) {
        let OutgoingCall { call: id, remaining_ns, room, upload, parts, method, request } = call;
        let payload_bytes = if let Upload::Inline { bytes } = upload { bytes as usize } else { 0 };
        debug_assert!(payload.as_ref().is_none_or(|payload| payload.len() == payload_bytes));
        let call = Call { call: id, remaining_ns, room, upload, parts, method, request };
        let rest = Rest { payload, payload_bytes, descriptors };
        self.link.outbox.push(&Frame::Call(call), rest);
        let shared_bytes = room.fill.memory_bytes() + upload_bytes_shared(upload);
        let state = CallState::Waiting(token);
        self.table.calls.insert(id, OpenCall { room, shared_bytes, state });
        self.table.waiting += 1;
    }

    /// Takes a call back: its token comes out as `LetGo` or `Retired`. False if it is not waiting.
    pub(crate) fn cancel(&mut self, call: u64, now: Instant) -> bool {
        let Some(open) = self.table.calls.get_mut(&call) else {
            return false;
        };
        match std::mem::replace(&mut open.state, CallState::Retired) {
            CallState::Waiting(token) => open.state = CallState::Cancelled(token),
            taken_back_before => {
                open.state = taken_back_before;
                return false;
            }
        }
        self.table.waiting -= 1;
        self.table.unacknowledged.push_back((now + CANCEL_ACK_TIMEOUT, call));
        self.link.push(Frame::Cancel { call });
        true
    }

    /// Announces a region.
    pub(crate) fn register(&mut self, region: u64, bytes: u64, descriptor: D) {
        self.link.push_with(Frame::Register { region, bytes }, descriptor);
    }

    /// Gives a region up; no call that names it is open.
    pub(crate) fn release(&mut self, region: u64) {
        self.link.push(Frame::Release { region });
    }

    /// Calls that are not answered, cancelled ones included.
    pub(crate) fn open_calls(&self) -> usize {
        self.table.calls.len()
    }

    /// Calls that somebody waits for.
    pub(crate) fn waiting_calls(&self) -> usize {
        self.table.waiting
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let acknowledgement = self.table.unacknowledged.front().map(|&(by, _)| by);
        [self.link.deadline(), acknowledgement].into_iter().flatten().min()
    }

    /// Finds what has taken too long; call it again until it gives nothing.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
    ) -> Result<Option<ClientEvent<D, T>>, Violation> {
        self.link.check_time(now)?;
        self.table.retire(now)
    }

    /// Takes out every descriptor that the server has sent and nobody has taken, and with all that
    /// was still to be sent those that go with it: of use only at the end.
    pub(crate) fn take_descriptors(&mut self) -> Vec<D> {
        let mut taken = std::mem::take(&mut self.table.refused);
        taken.extend(self.link.outbox.clear());
        self.link.assembler.take_descriptors(&mut taken);
        taken
    }

    /// What is true at any time, whatever the server says.
    #[cfg(any(all(test, not(shorthaul_models)), fuzzing))]
    pub(super) fn check(&self) {
        let Table { calls, unacknowledged, retired_bytes, .. } = &self.table;
        let is = |wanted: fn(&CallState<T>) -> bool| {
            calls.values().filter(move |open| wanted(&open.state))
        };
        let cancelled = is(|state| matches!(state, CallState::Cancelled(_))).count();
        assert_eq!(self.waiting_calls(), is(|s| matches!(s, CallState::Waiting(_))).count());
        let retired = is(|state| matches!(state, CallState::Retired));
        let sum: u64 = retired.map(|open| open.shared_bytes).sum();
        // The call whose end was one too many counts, but is not retired.
        let is_over = *retired_bytes > RETIRED_BYTES_MAX;
        assert!(is_over || (*retired_bytes == sum && unacknowledged.len() == cancelled));
        assert!(*retired_bytes >= sum);
    }

    /// The connection is gone: every token that is still out comes back.
    pub(crate) fn drain_tokens(&mut self) -> impl Iterator<Item = T> {
        let calls = std::mem::take(&mut self.table.calls);
        self.table.waiting = 0;
        calls.into_values().filter_map(|open| match open.state {
            CallState::Waiting(token) | CallState::Cancelled(token) => Some(token),
            CallState::Retired => None,
        })
    }
}

impl<D, T> Table<D, T> {
    /// Keeps descriptors to be closed where that may take its time.
    fn refuse(&mut self, descriptors: Option<Claim<D>>) {
        self.refused.extend(descriptors.into_iter().flat_map(Claim::into_arrived));
    }

    fn on_reply(
        &mut self,
        reply: &Reply<'_>,
        payload: Option<PooledMemory>,
        sealed: Option<Claim<D>>,
    ) -> Result<Option<ClientEvent<D, T>>, Violation> {
        let mut sealed = sealed.map(Claim::into_arrived).unwrap_or_default();
        let Entry::Occupied(entry) = self.calls.entry(reply.call) else {
            self.refused.extend(sealed);
            return Err(Violation::Answer("no such call is open"));
        };
        // Checked while the call is open: should this end the connection, its token comes out with
        // the others.
        let checked = check_answer(&entry.get().room, reply);
        let is_waited_for = matches!(entry.get().state, CallState::Waiting(_));
        if checked.is_err() || !is_waited_for {
            self.refused.extend(sealed.drain(..));
        }
        let (status, lane) = checked?;
        let open = entry.remove();
        Ok(match open.state {
            CallState::Waiting(token) => {
                self.waiting -= 1;
                let answer = Answered {
                    parts: if status.is_none() { reply.parts.clone() } else { Parts::default() },
                    status,
                    lane,
                    given_bytes: if reply.lane == LaneNumber::Descriptor {
                        reply.payload_bytes
                    } else {
                        0
                    },
                    response: MessageBytes::from_slice(reply.response),
                    payload,
                    sealed: sealed.pop().map(|descriptor| (descriptor, reply.offset)),
                };
                Some(ClientEvent::Answered { token, answer })
            }
            CallState::Cancelled(token) => {
                self.unacknowledged.retain(|&(_, call)| call != reply.call);
                Some(ClientEvent::LetGo { token })
            }
            CallState::Retired => {
                self.retired_bytes -= open.shared_bytes;
                None
            }
        })
    }

    fn retire(&mut self, now: Instant) -> Result<Option<ClientEvent<D, T>>, Violation> {
        let Some(&(by, call)) = self.unacknowledged.front().filter(|&&(by, _)| now >= by) else {
            return Ok(None);
        };
        debug_assert!(now >= by);
        self.unacknowledged.pop_front();
        let Some(open) = self.calls.get_mut(&call) else {
            return Ok(None);
        };
        self.retired_bytes += open.shared_bytes;
        match std::mem::replace(&mut open.state, CallState::Retired) {
            CallState::Waiting(token) | CallState::Cancelled(token) => {
                if self.retired_bytes > RETIRED_BYTES_MAX {
                    // The token must come out with the others.
                    open.state = CallState::Cancelled(token);
                    return Err(Violation::RetiredBytes);
                }
                Ok(Some(ClientEvent::Retired { token }))
            }
            CallState::Retired => Ok(None),
        }
    }
}

/// Checks an answer against what was asked: a lane that was not offered, or more bytes than were
/// offered, is a violation.
fn check_answer(room: &Room, reply: &Reply<'_>) -> Result<(Option<Status>, LaneNumber), Violation> {
    if reply.code != Code::Ok {
        let status = check_failure(room, reply)?;
        return Ok((Some(status), LaneNumber::None));
    }
    let inline_bytes_max = room.inline_bytes_max();
    let (is_offered, bytes_max) = match reply.lane {
        LaneNumber::None => (reply.payload_bytes == 0, 0),
        LaneNumber::Inline => (inline_bytes_max > 0, inline_bytes_max),
        LaneNumber::FillMap | LaneNumber::FillWrite => (room.fill.is_memory(), room.fill.bytes()),
        LaneNumber::Sealed => (room.sealed_bytes > 0, room.sealed_bytes),
        LaneNumber::Descriptor => (takes_relay(room), room.fill.bytes()),
    };
    if !is_offered {
        return Err(Violation::Answer("a lane that the call did not offer"));
    }
    if !reply.offset.is_multiple_of(PAYLOAD_ALIGNMENT) {
        return Err(Violation::Answer("a payload that does not start at a multiple of 64"));
    }
    if reply.payload_bytes > bytes_max {
        return Err(Violation::Answer("more payload than the call offered room for"));
    }
    Ok((None, reply.lane))
}

/// A failure has no payload, but for what of it was relayed before.
fn check_failure(room: &Room, reply: &Reply<'_>) -> Result<Status, Violation> {
    let mut status = Status::new(reply.code, reply.message);
    match reply.lane {
        LaneNumber::None => {
            let is_size = reply.code == Code::OutOfRange && reply.payload_bytes > 0;
            status.bytes_needed = is_size.then_some(reply.payload_bytes);
        }
        LaneNumber::Descriptor if takes_relay(room) => {
            let is_possible = (1..=room.fill.bytes()).contains(&reply.payload_bytes);
            if !is_possible || reply.parts.count() != 1 {
                return Err(Violation::Answer("a failure with a payload that can't be"));
            }
        }
        _ => return Err(Violation::Answer("a failure with a payload")),
    }
    Ok(status)
}

fn takes_relay(room: &Room) -> bool {
    matches!(room.fill, Fill::Descriptor { .. })
}

/// Bytes of the client's own memory that the server reads until its reply.
fn upload_bytes_shared(upload: Upload) -> u64 {
    if let Upload::Region(span) = upload { span.bytes } else { 0 }
}
