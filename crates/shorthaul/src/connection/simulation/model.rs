//! What the applications on both sides know, and what must then be true of each event.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::choices::Random;
use super::pair::{
    ANSWER, ANSWER_FILE, FromClient, FromServer, Incoming, METHOD, Pair, Plan, REMAINING_NS,
    REQUEST, UPLOAD_FILE, assert_payload, call_of_file, request, sealed_offset,
};
use super::plans::{lanes, some_parts};
use super::tokens::Counted;
use crate::connection::client::{Answered, ClientEvent};
use crate::connection::server::{Answer, IncomingFill, IncomingUpload, ServerEvent};
use crate::error::{Code, Status};
use crate::limits::CANCEL_ACK_TIMEOUT;
use crate::parts::Parts;
use crate::payload::MessageBytes;
use crate::wire::{Fill, LaneNumber, Upload};

/// Both applications.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) calls: HashMap<u64, ModelCall>,
    /// Calls that the server's application has in hand.
    pub(super) running: Vec<Incoming>,
    /// Regions announced, and the server application's decision if it was asked.
    pub(super) regions: HashMap<u64, ModelRegion>,
    pub(super) notices: VecDeque<(u32, Vec<u8>)>,
    /// Descriptors that either side was told to close.
    pub(super) discarded: HashSet<u64>,
    /// Whether either side may be out of descriptors.
    pub(super) is_lossy: bool,
    pub(super) reach: Reach,
}

/// What was reached: runs are of use only as far as they get.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// Calls that the service has carried out and that ended well, by what they offered to be
    /// filled (nothing, a region, a one-shot place, a descriptor) and how they brought bulk (not at
    /// all, inline, from a region, sealed).
    pub(super) calls: [[usize; 4]; 4],
    /// Sealed answers: taken, discarded, lost on their way.
    pub(super) sealed: [usize; 3],
    /// Relays that failed with bytes in the descriptor.
    pub(super) cut_short: usize,
    pub(super) retired: usize,
}

impl Reach {
    pub(super) fn add(&mut self, other: &Self) {
        for (row, more) in self.calls.iter_mut().zip(other.calls) {
            row.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
        self.sealed.iter_mut().zip(other.sealed).for_each(|(count, more)| *count += more);
        self.retired += other.retired;
        self.cut_short += other.cut_short;
    }
}

/// A call as its caller knows it.
#[derive(Debug)]
pub(super) struct ModelCall {
    plan: Plan,
    pub(super) phase: Phase,
    /// Whether the server's application has seen it.
    has_arrived: bool,
    /// What the server's application has answered.
    promise: Option<Promise>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Cancelled(Instant),
    Retired,
    Ended,
}

#[derive(Debug)]
struct Promise {
    code: Code,
    lane: LaneNumber,
    parts: Parts,
    /// Bytes in the descriptor.
    given_bytes: u64,
    response: MessageBytes,
}

#[derive(Debug)]
pub(super) struct ModelRegion {
    pub(super) bytes: u64,
    /// What the server's application said.
    decision: Option<bool>,
    is_known: bool,
}

impl ModelRegion {
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, decision: None, is_known: false }
    }
}

impl Model {
    pub(super) fn add_call(&mut self, call: u64, plan: Plan) {
        let (phase, has_arrived, promise) = (Phase::Waiting, false, None);
        let model = ModelCall { plan, phase, has_arrived, promise };
        assert!(self.calls.insert(call, model).is_none());
    }

    pub(super) fn count(&self, wanted: impl Fn(Phase) -> bool) -> usize {
        let calls = self.calls.values();
        calls.filter(|call| wanted(call.phase)).count()
    }

    /// The client's side of an event.
    pub(super) fn on_server_says(&mut self, event: FromServer, now: Instant) {
        match event {
            ClientEvent::Open | ClientEvent::Passed => {}
            ClientEvent::Answered { token, answer } => {
                let call = self.calls.get_mut(&token.name).unwrap();
                assert_eq!(call.phase, Phase::Waiting, "call {}", token.name);
                call.phase = Phase::Ended;
                call.check(token.name, &answer, self.is_lossy);
                self.reach.see(&call.plan, &answer);
            }
            ClientEvent::LetGo { token } => {
                let call = self.calls.get_mut(&token.name).unwrap();
                assert!(matches!(call.phase, Phase::Cancelled(_)), "{call:?}");
                assert!(call.promise.is_some() || !call.has_arrived, "{call:?}");
                call.phase = Phase::Ended;
            }
            ClientEvent::Retired { token } => {
                let call = self.calls.get_mut(&token.name).unwrap();
                let Phase::Cancelled(at) = call.phase else {
                    panic!("retired without a cancel: {call:?}")
                };
                assert!(now >= at + CANCEL_ACK_TIMEOUT, "retired too early");
                call.phase = Phase::Retired;
            }
            ClientEvent::Discard(descriptor) => {
                let id = call_of_file(descriptor.name);
                assert_eq!(descriptor.name, ANSWER_FILE + id, "only answers are sealed here");
                let call = &self.calls[&id];
                let promise = call.promise.as_ref().expect("an answer was sent");
                assert_eq!(promise.lane, LaneNumber::Sealed, "{call:?}");
                assert!(!matches!(call.phase, Phase::Waiting | Phase::Cancelled(_)), "{call:?}");
                self.reach.sealed[1] += 1;
                self.discard(&descriptor);
            }
            ClientEvent::Registered { region, result } => {
                let known = self.regions.get_mut(&region).unwrap();
                assert!(!known.is_known, "told twice of region {region}");
                known.is_known = true;
                assert_eq!(result.is_ok(), known.decision == Some(true), "{result:?}");
            }
            ClientEvent::Notice { topic, data } => {
                let (topic_sent, data_sent) = self.notices.pop_front().unwrap();
                assert_eq!((topic, &data[..]), (topic_sent, &data_sent[..]));
            }
            ClientEvent::Goodbye { code, message } => panic!("{code}: {message}"),
        }
    }

    /// The server's side of an event.
    pub(super) fn on_client_says(
        &mut self,
        event: FromClient,
        pair: &mut Pair,
        random: &mut Random,
    ) {
        match event {
            ServerEvent::Call(incoming) => {
                let call = self.calls.get_mut(&incoming.call).unwrap();
                assert!(!call.has_arrived, "call {} came twice", incoming.call);
                call.has_arrived = true;
                call.check_arrival(&incoming, pair.now);
                self.running.push(*incoming);
            }
            ServerEvent::Register { region, bytes, descriptor } => {
                let known = self.regions.get_mut(&region).unwrap();
                assert_eq!(bytes, known.bytes);
                let accept = !random.once_in(8);
                assert_eq!(known.decision.replace(accept), None);
                if accept {
                    pair.accept_region(region, descriptor, bytes);
                } else {
                    let status = Status::new(Code::InvalidArgument, "not this one");
                    pair.server.region_refused(region, &status);
                }
            }
            ServerEvent::Released(region) => {
                assert_eq!(self.regions[&region.descriptor.name].decision, Some(true));
            }
            ServerEvent::Discard(descriptor) => {
                let call = self.calls.get(&call_of_file(descriptor.name));
                assert!(call.is_none_or(|call| !call.has_arrived), "{call:?}");
                self.discard(&descriptor);
            }
            ServerEvent::Cancel { call } => {
                assert!(self.running.iter().any(|running| running.call == call));
            }
            ServerEvent::Rings { .. } => panic!("nobody offered rings"),
            ServerEvent::Passed => {}
            ServerEvent::Goodbye => panic!("nobody said goodbye"),
        }
    }

    /// Answers one of the calls in hand, any way that is allowed.
    pub(super) fn answer_one(&mut self, pair: &mut Pair, random: &mut Random) {
        if self.running.is_empty() {
            return;
        }
        let index = random.below(self.running.len() as u64) as usize;
        let incoming = self.running.swap_remove(index);
        let model = self.calls.get_mut(&incoming.call).unwrap();
        if random.once_in(4) {
            let codes = [Code::Internal, Code::OutOfRange, Code::Cancelled];
            let mut status = Status::new(codes[random.below(3) as usize], "it failed");
            status.bytes_needed = (status.code == Code::OutOfRange).then_some(77);
            let given_bytes = match incoming.room.fill {
                Fill::Descriptor { bytes } => random.up_to(bytes),
                _ => 0,
            };
            model.promise = Some(Promise::failure(status.code, given_bytes));
            let answer = Answer::failure(status).after_relay(given_bytes as usize);
            pair.server.answer(incoming.call, answer);
            return;
        }
        let lanes = lanes(&incoming.room);
        let (lane, bytes_max) = lanes[random.below(lanes.len() as u64) as usize];
        let parts = some_parts(random, bytes_max);
        model.promise = Some(Promise {
            code: Code::Ok,
            lane,
            parts: parts.clone(),
            given_bytes: if lane == LaneNumber::Descriptor { parts.bytes() as u64 } else { 0 },
            response: MessageBytes::from_slice(&super::pair::response(incoming.call)),
        });
        pair.answer_with(incoming.call, lane, parts);
    }

    /// A descriptor is given out to be closed once, and never if somebody got it.
    fn discard(&mut self, descriptor: &Counted) {
        assert!(self.discarded.insert(descriptor.name), "{descriptor:?} came out twice");
    }
}

impl Reach {
    fn see(&mut self, plan: &Plan, answer: &Answered<Counted>) {
        if answer.status.is_some() {
            self.cut_short += usize::from(answer.given_bytes > 0);
            return;
        }
        let fill = match plan.room.fill {
            Fill::None => 0,
            Fill::Region(_) => 1,
            Fill::OneShot { .. } => 2,
            Fill::Descriptor { .. } => 3,
        };
        let upload = match plan.upload {
            Upload::None => 0,
            Upload::Inline { .. } => 1,
            Upload::Region(_) => 2,
            Upload::Sealed { .. } => 3,
        };
        self.calls[fill][upload] += 1;
        if answer.lane == LaneNumber::Sealed {
            self.sealed[if answer.sealed.is_some() { 0 } else { 2 }] += 1;
        }
    }
}

impl ModelCall {
    fn check(&self, id: u64, answer: &Answered<Counted>, is_lossy: bool) {
        let code = answer.status.as_ref().map_or(Code::Ok, |status| status.code);
        let Some(promise) = &self.promise else {
            assert!(!self.has_arrived, "answered by nobody: {self:?}");
            let refusals = [Code::ResourceExhausted, Code::NotFound, Code::InvalidArgument];
            assert!(refusals.contains(&code), "{answer:?}");
            assert!(answer.sealed.is_none(), "{answer:?}");
            return;
        };
        assert_eq!(code, promise.code);
        assert_eq!(answer.lane, promise.lane);
        assert_eq!(answer.parts, promise.parts);
        assert_eq!(answer.given_bytes, promise.given_bytes);
        assert_eq!(answer.response, promise.response);
        let inline = answer.payload.as_deref().unwrap_or(&[]);
        let is_inline = answer.lane == LaneNumber::Inline;
        assert_eq!(inline.len(), if is_inline { answer.parts.bytes() } else { 0 });
        assert_payload(inline, ANSWER, id);
        match &answer.sealed {
            Some((descriptor, offset)) => {
                assert_eq!(answer.lane, LaneNumber::Sealed);
                assert_eq!((descriptor.name, *offset), (ANSWER_FILE + id, sealed_offset(id)));
            }
            None => assert!(answer.lane != LaneNumber::Sealed || is_lossy, "{answer:?}"),
        }
    }

    fn check_arrival(&self, incoming: &Incoming, now: Instant) {
        let id = incoming.call;
        let (method, asked) = incoming.text.split_at(incoming.method_bytes);
        assert_eq!((method, asked), (METHOD.as_bytes(), &request(id)[..]));
        let remaining = Duration::from_nanos(REMAINING_NS);
        assert_eq!(incoming.deadline, Some(now + remaining));
        assert_eq!((incoming.room, &incoming.parts), (self.plan.room, &self.plan.parts));
        match (&incoming.fill, self.plan.room.fill) {
            (IncomingFill::None, Fill::None) => {}
            (IncomingFill::OneShot { descriptor, bytes }, Fill::OneShot { bytes: asked }) => {
                assert_eq!((descriptor.name, *bytes), (id, asked));
            }
            (IncomingFill::Descriptor { descriptor }, Fill::Descriptor { .. }) => {
                assert_eq!(descriptor.name, id);
            }
            (IncomingFill::Region(found), Fill::Region(asked)) => {
                assert_eq!(found.region.descriptor.name, asked.region);
                assert_eq!(found.offset, asked.offset);
            }
            (found, asked) => panic!("{found:?} for {asked:?}"),
        }
        match (&incoming.upload, self.plan.upload) {
            (IncomingUpload::None, Upload::None) => {}
            (IncomingUpload::Inline(payload), Upload::Inline { bytes }) => {
                assert_eq!(payload.len() as u64, bytes);
                assert_payload(payload, REQUEST, id);
            }
            (IncomingUpload::Region(found), Upload::Region(asked)) => {
                assert_eq!(found.region.descriptor.name, asked.region);
                assert_eq!(found.offset, asked.offset);
            }
            (
                IncomingUpload::Sealed { descriptor, offset, bytes },
                Upload::Sealed { offset: at, bytes: asked },
            ) => {
                assert_eq!(descriptor.name, UPLOAD_FILE + id);
                assert_eq!((*offset, *bytes), (at, asked));
            }
            (found, asked) => panic!("{found:?} for {asked:?}"),
        }
    }
}

impl Promise {
    fn failure(code: Code, given_bytes: u64) -> Self {
        let (parts, response) = (Parts::default(), MessageBytes::new());
        Self { code, lane: LaneNumber::None, parts, given_bytes, response }
    }
}
