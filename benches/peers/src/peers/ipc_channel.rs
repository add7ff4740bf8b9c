//! ipc-channel, which Servo is made of: shared memory made for every message, or bytes.

use anyhow::{Result, bail};
use ipc_channel::ipc::{
    IpcBytesReceiver, IpcBytesSender, IpcOneShotServer, IpcReceiver, IpcSender, IpcSharedMemory,
    bytes_channel, channel,
};
use serde::{Deserialize, Serialize};

use super::window::InOrder;
use super::{Caller, Habits, Peer};
use crate::meeting::Meeting;
use crate::work::{Load, Request};

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    vec![Box::new(Kind::Memory), Box::new(Kind::Bytes)]
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Memory,
    Bytes,
}

/// What the client gets of the server's: where to ask, and where answers come.
#[derive(Deserialize, Serialize)]
enum Ends {
    Memory(IpcBytesSender, IpcReceiver<Answer>),
    Bytes(IpcBytesSender, IpcBytesReceiver),
}

#[derive(Deserialize, Serialize)]
enum Answer {
    Empty(u64),
    Memory(IpcSharedMemory),
}

impl Peer for Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Memory => "ipc-channel memory",
            Self::Bytes => "ipc-channel bytes",
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Self::Memory => "IpcSharedMemory::from_byte for every call",
            Self::Bytes => "bytes_channel both ways",
        }
    }

    fn package(&self) -> Option<&'static str> {
        Some("ipc-channel")
    }

    fn habits(&self) -> Habits {
        let allocates = matches!(self, Self::Bytes);
        Habits { allocates, pipelines: true, ..Habits::default() }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        meeting.ready()?;
        let name = String::from_utf8(meeting.receive()?)?;
        let rendezvous = IpcSender::<Ends>::connect(name)?;
        let (requests_in, requests) = bytes_channel()?;
        match self {
            Self::Memory => {
                let (answers, answers_out) = channel()?;
                rendezvous.send(Ends::Memory(requests_in, answers_out))?;
                answer(&requests, |request| Ok(answers.send(in_memory(request))?))
            }
            Self::Bytes => {
                let (answers, answers_out) = bytes_channel()?;
                rendezvous.send(Ends::Bytes(requests_in, answers_out))?;
                answer(&requests, |request| Ok(answers.send(&request.made())?))
            }
        }
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        let (rendezvous, name) = IpcOneShotServer::<Ends>::new()?;
        meeting.send(name.as_bytes())?;
        let (_, ends) = rendezvous.accept()?;
        Ok(Box::new(Client { ends }))
    }
}

fn answer(requests: &IpcBytesReceiver, mut send: impl FnMut(Request) -> Result<()>) -> Result<()> {
    loop {
        send(Request::decode(&requests.recv()?)?)?;
    }
}

fn in_memory(request: Request) -> Answer {
    match request.payload_bytes() {
        0 => Answer::Empty(request.sequence()),
        bytes => Answer::Memory(IpcSharedMemory::from_byte(request.fill_byte(), bytes)),
    }
}

struct Client {
    ends: Ends,
}

impl InOrder for Client {
    fn send(&mut self, request: Request) -> Result<()> {
        let (Ends::Memory(requests, _) | Ends::Bytes(requests, _)) = &self.ends;
        Ok(requests.send(&request.encode())?)
    }

    fn receive(&mut self, request: Request) -> Result<()> {
        match &self.ends {
            Ends::Memory(_, answers) => match answers.recv()? {
                Answer::Empty(sequence) => request.check(&sequence.to_le_bytes()),
                Answer::Memory(memory) => request.check(&memory),
            },
            Ends::Bytes(_, answers) => match answers.recv()? {
                bytes if bytes.is_empty() => bail!("an answer without a byte"),
                bytes => request.check(&bytes),
            },
        }
    }
}

impl Caller for Client {
    fn run(&mut self, load: &Load) -> Result<()> {
        InOrder::run(self, load)
    }
}
