//! Empty calls between both sides of a connection, in one thread and without a system call: what
//! `.ci/instructions` counts the instructions of.

use std::io::IoSlice;
use std::time::Instant;

use smallvec::SmallVec;

use super::client::{ClientConnection, ClientEvent, OutgoingCall};
use super::server::{Answer, IncomingCall, ServerConnection, ServerEvent};
use super::{Arrival, Link};
use crate::limits::Limits;
use crate::parts::Parts;
use crate::payload::{MessageBytes, Purse};
use crate::wire::{LaneNumber, Room, Upload};

/// Neither descriptors nor regions travel here.
type Client = ClientConnection<(), u64>;
type Server = ServerConnection<(), ()>;

/// Connects, then makes `calls` calls: 64 bytes there, 8 back, the server's being the sum of the
/// client's. Returns the sum of all answers.
pub(crate) fn make(calls: u64) -> u64 {
    let now = Instant::now();
    let mut client = Client::new(Limits::default(), Purse::default(), now);
    let mut server = Server::new(Limits::default(), Purse::default(), now);
    carry(&mut client.link, &mut server.link, now);
    assert!(server.next_event(now).expect("a hello").is_none());
    carry(&mut server.link, &mut client.link, now);
    assert!(matches!(client.next_event(), Ok(Some(ClientEvent::Open))));
    (1..=calls).map(|call| make_one(&mut client, &mut server, call, now)).sum()
}

fn make_one(client: &mut Client, server: &mut Server, call: u64, now: Instant) -> u64 {
    let request = [call as u8; REQUEST_BYTES];
    let outgoing = OutgoingCall {
        call,
        remaining_ns: REMAINING_NS,
        room: Room::default(),
        upload: Upload::None,
        parts: Parts::default(),
        method: "empty",
        request: &request,
    };
    client.start(outgoing, None, SmallVec::new(), call);
    carry(&mut client.link, &mut server.link, now);
    let Ok(Some(ServerEvent::Call(incoming))) = server.next_event(now) else {
        panic!("no call came");
    };
    assert!(server.next_event(now).expect("nothing more").is_none());
    server.answer(call, answer_to(&incoming));
    carry(&mut server.link, &mut client.link, now);
    let Ok(Some(ClientEvent::Answered { token, answer })) = client.next_event() else {
        panic!("no answer came");
    };
    assert!(token == call && answer.status.is_none());
    assert!(client.next_event().expect("nothing more").is_none());
    u64::from_le_bytes(answer.response[..].try_into().expect("eight bytes"))
}

fn answer_to(incoming: &IncomingCall<(), ()>) -> Answer<()> {
    let request = &incoming.text[incoming.method_bytes..];
    let sum: u64 = request.iter().map(|&byte| u64::from(byte)).sum();
    Answer {
        status: None,
        lane: LaneNumber::None,
        parts: Parts::default(),
        response: MessageBytes::from_slice(&sum.to_le_bytes()),
        payload: None,
        sealed: None,
    }
}

/// Moves all that waits, as a socket would.
fn carry(from: &mut Link<()>, to: &mut Link<()>, now: Instant) {
    while let Some(bytes) = from.transmit(&[]).map(|transmit| put(&transmit.parts, to.space())) {
        to.received(bytes, Arrival::None, now).expect("whole frames");
        from.sent(bytes, now);
    }
}

fn put(parts: &[IoSlice<'_>], space: &mut [u8]) -> usize {
    let mut bytes = 0;
    for part in parts {
        space[bytes..bytes + part.len()].copy_from_slice(part);
        bytes += part.len();
    }
    bytes
}

const REQUEST_BYTES: usize = 64;
const REMAINING_NS: u64 = 1_000_000_000;
