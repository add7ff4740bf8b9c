//! ZeroMQ over ipc://, by libzmq, which its package builds.

use anyhow::Result;
use zmq::{Context, Message, Socket, SocketType};

use super::window::InOrder;
use super::{Caller, Habits, Peer};
use crate::meeting::Meeting;
use crate::work::{Load, Request};

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    vec![Box::new(ZeroMq)]
}

#[derive(Clone, Copy, Debug)]
struct ZeroMq;

impl Peer for ZeroMq {
    fn name(&self) -> &'static str {
        "zeromq"
    }

    fn about(&self) -> &'static str {
        "REQ (several in flight: DEALER) and REP over ipc://; an owned Vec is answered, uncopied"
    }

    fn package(&self) -> Option<&'static str> {
        Some("zeromq-src")
    }

    fn habits(&self) -> Habits {
        Habits { allocates: true, pipelines: true, ..Habits::default() }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        let socket = Context::new().socket(SocketType::REP)?;
        socket.bind(&endpoint(meeting))?;
        meeting.ready()?;
        let mut message = Message::new();
        loop {
            socket.recv(&mut message, 0)?;
            socket.send(Request::decode(&message)?.made(), 0)?;
        }
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        let is_dealer = meeting.in_flight > 1;
        let kind = if is_dealer { SocketType::DEALER } else { SocketType::REQ };
        let socket = Context::new().socket(kind)?;
        socket.connect(&endpoint(meeting))?;
        Ok(Box::new(Client { socket, is_dealer, message: Message::new() }))
    }
}

fn endpoint(meeting: &Meeting) -> String {
    format!("ipc://{}", meeting.socket().display())
}

struct Client {
    socket: Socket,
    /// Writes and reads the empty frame itself that REQ puts before a request.
    is_dealer: bool,
    message: Message,
}

impl InOrder for Client {
    fn send(&mut self, request: Request) -> Result<()> {
        if self.is_dealer {
            self.socket.send("", zmq::SNDMORE)?;
        }
        Ok(self.socket.send(&request.encode()[..], 0)?)
    }

    fn receive(&mut self, request: Request) -> Result<()> {
        if self.is_dealer {
            self.socket.recv(&mut self.message, 0)?;
        }
        self.socket.recv(&mut self.message, 0)?;
        request.check(&self.message)
    }
}

impl Caller for Client {
    fn run(&mut self, load: &Load) -> Result<()> {
        InOrder::run(self, load)
    }
}
