//! Shorthaul itself.

use std::collections::VecDeque;

use anyhow::{Context, Result, ensure};
use shorthaul::{
    Buffer, Call, Client, ClientOptions, DirectClient, InboundCall, Pending, Reply, Server,
    ServerOptions, Status, Wait,
};

use super::{Caller, Habits, Peer};
use crate::meeting::Meeting;
use crate::work::{Load, Request};

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    let way = |name, into, caller, wait| Way { name, into, caller, wait };
    let ways = [
        way("shorthaul", Into::Buffer, Who::Direct, Wait::Adaptive),
        way("shorthaul block", Into::Buffer, Who::Direct, Wait::Block),
        way("shorthaul spin", Into::Buffer, Who::Direct, Wait::Spin),
        way("shorthaul inline", Into::Inline, Who::Direct, Wait::Adaptive),
        way("shorthaul threads", Into::Buffer, Who::Threads, Wait::Adaptive),
    ];
    ways.into_iter().map(|way| Box::new(way) as Box<dyn Peer>).collect()
}

/// One way to use it.
#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    into: Into,
    caller: Who,
    /// How both sides wait.
    wait: Wait,
}

/// Where the payload goes.
#[derive(Clone, Copy, Debug)]
enum Into {
    /// A registered buffer, which the server fills by a mapping that it keeps.
    Buffer,
    /// The socket.
    Inline,
}

/// Which client makes the calls.
#[derive(Clone, Copy, Debug)]
enum Who {
    /// The one on the caller's thread.
    Direct,
    /// The one that has a thread for its socket, and so several calls under way.
    Threads,
}

impl Peer for Way {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        match (self.into, self.caller, self.wait) {
            (Into::Buffer, Who::Direct, Wait::Adaptive) => {
                "DirectClient, a registered buffer used again, inline handlers, Wait::Adaptive"
            }
            (Into::Buffer, Who::Direct, Wait::Block) => "the same, Wait::Block on both sides",
            (Into::Buffer, Who::Direct, Wait::Spin) => "the same, Wait::Spin on both sides",
            (Into::Inline, Who::Direct, _) => "DirectClient, the inline lane, inline handlers",
            (_, Who::Threads, _) => {
                "Client (a thread of its own), registered buffers, inline handlers"
            }
        }
    }

    fn package(&self) -> Option<&'static str> {
        Some("shorthaul")
    }

    fn habits(&self) -> Habits {
        Habits { pipelines: true, ..Habits::default() }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        let options = ServerOptions {
            workers: 1,
            inline_handlers: true,
            wait: self.wait,
            ..ServerOptions::default()
        };
        let _server = Server::bind_with(meeting.socket(), options)?.start(answer)?;
        meeting.ready()?;
        meeting.wait_until_left()
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        let options = ClientOptions { wait: self.wait, ..ClientOptions::default() };
        Ok(match self.caller {
            Who::Direct => {
                let mut client = DirectClient::connect_with(meeting.socket(), &options)?;
                let count = if let Into::Buffer = self.into { meeting.in_flight } else { 0 };
                let buffers = (0..count).map(|_| client.buffer(meeting.bytes.max(1)));
                let buffers = buffers.collect::<shorthaul::Result<_>>()?;
                Box::new(Direct { client, into: self.into, buffers })
            }
            Who::Threads => {
                let client = Client::connect_with(meeting.socket(), &options)?;
                let buffers = (0..meeting.in_flight).map(|_| client.buffer(meeting.bytes.max(1)));
                let buffers = buffers.collect::<shorthaul::Result<_>>()?;
                Box::new(Threads { client, buffers })
            }
        })
    }
}

fn answer(call: &mut InboundCall) -> Result<(), Status> {
    let request = Request::decode(call.request())
        .map_err(|error| Status::new(shorthaul::Code::InvalidArgument, error.to_string()))?;
    let bytes = request.payload_bytes();
    if bytes > 0 {
        call.payload(bytes)?.fill(request.fill_byte(), bytes)?;
    }
    call.reply(&request.sequence().to_le_bytes())
}

fn check(request: Request, reply: &Reply) -> Result<()> {
    if request.payload_bytes() == 0 {
        return request.check(reply.response());
    }
    request.check_sum(reply.len(), reply.sum(crate::work::STRIDE))
}

struct Direct {
    client: DirectClient,
    into: Into,
    /// Those that no call has; none on the inline lane.
    buffers: Vec<Buffer>,
}

impl Direct {
    fn call<'a>(
        &'a mut self,
        request: Request,
        encoded: &'a [u8],
    ) -> Result<Call<'a, &'a mut DirectClient>> {
        let call = self.client.call(METHOD).request(encoded);
        Ok(match (request.payload_bytes(), self.into) {
            (0, _) => call,
            (bytes, Into::Inline) => call.inline(bytes),
            (_, Into::Buffer) => call.into(self.buffers.pop().context("a buffer was lost")?),
        })
    }

    fn take(&mut self, request: Request, reply: Reply) -> Result<()> {
        check(request, &reply)?;
        self.buffers.extend(reply.into_buffer());
        Ok(())
    }
}

impl Caller for Direct {
    fn run(&mut self, load: &Load) -> Result<()> {
        if load.in_flight() == 1 {
            while let Some(request) = load.next() {
                let reply = self.call(request, &request.encode())?.send()?;
                self.take(request, reply)?;
            }
            return Ok(());
        }
        let mut open = VecDeque::new();
        loop {
            while open.len() < load.in_flight() {
                let Some(request) = load.next() else { break };
                let encoded = request.encode();
                let call = self.call(request, &encoded)?;
                open.push_back((request, DirectClient::start(call)?));
            }
            let Some((request, begun)) = open.pop_front() else { return Ok(()) };
            let reply = self.client.finish(begun)?;
            self.take(request, reply)?;
        }
    }
}

struct Threads {
    client: Client,
    /// Those that no call has.
    buffers: Vec<Buffer>,
}

impl Caller for Threads {
    fn run(&mut self, load: &Load) -> Result<()> {
        let mut open = VecDeque::new();
        loop {
            while open.len() < load.in_flight() {
                let Some(request) = load.next() else { break };
                open.push_back((request, start(&self.client, &mut self.buffers, request)?));
            }
            let Some((request, pending)) = open.pop_front() else { return Ok(()) };
            let reply = pending.wait()?;
            check(request, &reply)?;
            self.buffers.extend(reply.into_buffer());
        }
    }
}

fn start<'c>(
    client: &'c Client,
    buffers: &mut Vec<Buffer>,
    request: Request,
) -> Result<Pending<'c>> {
    let encoded = request.encode();
    let call = client.call(METHOD).request(&encoded);
    if request.payload_bytes() == 0 {
        return Ok(Client::start(call)?);
    }
    ensure!(!buffers.is_empty(), "a buffer was lost");
    Ok(Client::start(call.into(buffers.remove(0)))?)
}

const METHOD: &str = "make";
