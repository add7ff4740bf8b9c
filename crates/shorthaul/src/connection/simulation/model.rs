//! What the applications on both sides know, and what must then be true of each event.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::pair::{
    ANSWER, FromClient, FromServer, Incoming, METHOD, Pair, REMAINING_NS, REQUEST, assert_payload,
    request,
};
use super::socket::Random;
use crate::connection::client::{Answered, ClientEvent};
use crate::connection::server::{Answer, IncomingTarget, ServerEvent};
use crate::error::{Code, Status};
use crate::limits::CANCEL_ACK_TIMEOUT;
use crate::payload::MessageBytes;
use crate::wire::{LaneNumber, Place};

/// Both applications.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) calls: HashMap<u64, ModelCall>,
    /// Calls that the server's application has in hand.
    pub(super) running: Vec<Incoming>,
    /// Regions announced, and the server application's decision if it was asked.
    pub(super) regions: HashMap<u64, ModelRegion>,
    pub(super) notices: VecDeque<(u32, Vec<u8>)>,
}

/// A call as its caller knows it.
#[derive(Debug)]
pub(super) struct ModelCall {
    pub(super) place: Place,
    pub(super) payload_bytes: usize,
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
    payload_bytes: u64,
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
    pub(super) fn add_call(&mut self, call: u64, place: Place, payload_bytes: usize) {
        let model = ModelCall {
            place,
            payload_bytes,
            phase: Phase::Waiting,
            has_arrived: false,
            promise: None,
        };
        assert!(self.calls.insert(call, model).is_none());
    }

    pub(super) fn count(&self, wanted: impl Fn(Phase) -> bool) -> usize {
        let calls = self.calls.values();
        calls.filter(|call| wanted(call.phase)).count()
    }

    /// The client's side of an event.
    pub(super) fn on_server_says(&mut self, event: FromServer, now: Instant) {
        match event {
            ClientEvent::Open => {}
            ClientEvent::Answered { token, answer } => {
                let call = self.calls.get_mut(&token.name).unwrap();
                assert_eq!(call.phase, Phase::Waiting, "call {}", token.name);
                call.phase = Phase::Ended;
                call.check(token.name, &answer);
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
                self.running.push(incoming);
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
            ServerEvent::Discard(descriptor) => drop(descriptor),
            ServerEvent::Cancel { call } => {
                assert!(self.running.iter().any(|running| running.call == call));
            }
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
            model.promise = Some(Promise::failure(status.code));
            pair.server.answer(incoming.call, Answer::failure(status));
            return;
        }
        let (lanes, bytes_max) = match incoming.target {
            IncomingTarget::None => ([LaneNumber::None; 2], 0),
            IncomingTarget::Inline { bytes_max } => ([LaneNumber::Inline; 2], bytes_max),
            IncomingTarget::Region { bytes, .. } | IncomingTarget::OneShot { bytes, .. } => {
                ([LaneNumber::FillMap, LaneNumber::FillWrite], bytes)
            }
        };
        let lane = lanes[random.below(2) as usize];
        let payload_bytes = random.up_to(bytes_max);
        model.promise = Some(Promise {
            code: Code::Ok,
            lane,
            payload_bytes,
            response: MessageBytes::from_slice(&super::pair::response(incoming.call)),
        });
        pair.answer_by(incoming.call, lane, payload_bytes);
    }
}

impl ModelCall {
    fn check(&self, id: u64, answer: &Answered) {
        let code = answer.status.as_ref().map_or(Code::Ok, |status| status.code);
        let Some(promise) = &self.promise else {
            assert!(!self.has_arrived, "answered by nobody: {self:?}");
            let refusals = [Code::ResourceExhausted, Code::NotFound, Code::InvalidArgument];
            assert!(refusals.contains(&code), "{answer:?}");
            return;
        };
        assert_eq!(code, promise.code);
        assert_eq!(answer.lane, promise.lane);
        assert_eq!(answer.payload_bytes as u64, promise.payload_bytes);
        assert_eq!(answer.response, promise.response);
        let inline = answer.payload.as_deref().unwrap_or(&[]);
        if answer.lane == LaneNumber::Inline {
            assert_eq!(inline.len(), answer.payload_bytes);
        }
        assert_payload(inline, ANSWER, id);
    }

    fn check_arrival(&self, incoming: &Incoming, now: Instant) {
        let id = incoming.call;
        let (method, asked) = incoming.text.split_at(incoming.method_bytes);
        assert_eq!((method, asked), (METHOD.as_bytes(), &request(id)[..]));
        let remaining = Duration::from_nanos(REMAINING_NS);
        assert_eq!(incoming.deadline, Some(now + remaining));
        let payload = incoming.payload.as_deref().unwrap_or(&[]);
        assert_eq!(payload.len(), self.payload_bytes);
        assert_payload(payload, REQUEST, id);
        match (&incoming.target, self.place) {
            (IncomingTarget::None, Place::None) => {}
            (IncomingTarget::Inline { bytes_max }, Place::Inline { bytes_max: asked }) => {
                assert_eq!(*bytes_max, asked);
            }
            (IncomingTarget::OneShot { descriptor, bytes }, Place::OneShot { bytes: asked }) => {
                assert_eq!((descriptor.name, *bytes), (id, asked));
            }
            (
                IncomingTarget::Region { region, offset, bytes },
                Place::Region { region: named, offset: at, bytes: asked },
            ) => {
                assert_eq!((region.descriptor.name, *offset, *bytes), (named, at, asked));
            }
            (found, asked) => panic!("{found:?} for {asked:?}"),
        }
    }
}

impl Promise {
    fn failure(code: Code) -> Self {
        Self { code, lane: LaneNumber::None, payload_bytes: 0, response: MessageBytes::new() }
    }
}
