//! iceoryx2's request-response: polled, or with an event service each way.

use std::collections::VecDeque;

use anyhow::{Context, Result, anyhow};
use iceoryx2::config::Config;
use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::client::Client as ClientPort;
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::request_response::PortFactory;

use super::window::InOrder;
use super::{Caller, Habits, Peer};
use crate::meeting::Meeting;
use crate::work::{Load, REQUEST_BYTES, Request};

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    vec![Box::new(Wait::Polling), Box::new(Wait::Event)]
}

/// How both sides wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Polling,
    Event,
}

type Asked = [u8; REQUEST_BYTES];
type Calls = PortFactory<ipc::Service, Asked, (), [u8], ()>;
type Pending = PendingResponse<ipc::Service, Asked, (), [u8], ()>;

impl Peer for Wait {
    fn name(&self) -> &'static str {
        match self {
            Self::Polling => "iceoryx2 polling",
            Self::Event => "iceoryx2 event",
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Self::Polling => {
                "request-response, loan_slice_uninit, memory of fixed size, both sides poll"
            }
            Self::Event => "the same, an event service each way and Listener::blocking_wait",
        }
    }

    fn package(&self) -> Option<&'static str> {
        Some("iceoryx2")
    }

    fn habits(&self) -> Habits {
        Habits { spins: *self == Self::Polling, pipelines: true, ..Habits::default() }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        let node = node(meeting)?;
        let calls = calls(&node, meeting)?;
        let bytes = meeting.bytes.max(crate::work::EMPTY_ANSWER_BYTES);
        let server = calls.server_builder().initial_max_slice_len(bytes).create()?;
        let bells = Bells::new(*self, &node, ["requests", "answers"])?;
        meeting.ready()?;
        loop {
            let asked = loop {
                match server.receive()? {
                    Some(asked) => break asked,
                    None => bells.wait()?,
                }
            };
            let request = Request::decode(&asked[..])?;
            let mut answer = asked.loan_slice_uninit(request.answer_bytes())?;
            request.make_uninit(answer.payload_mut());
            // SAFETY: all of it was written just now.
            unsafe { answer.assume_init() }.send()?;
            bells.ring()?;
        }
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        let node = node(meeting)?;
        let port = calls(&node, meeting)?.client_builder().create()?;
        let bells = Bells::new(*self, &node, ["answers", "requests"])?;
        Ok(Box::new(Client { port, bells, open: VecDeque::new(), _node: node }))
    }
}

/// What it keeps in memory and files has the name of the meeting's folder, so it is found again.
fn node(meeting: &Meeting) -> Result<Node<ipc::Service>> {
    let mut config = Config::default();
    config.global.prefix = FileName::new(format!("{}-", meeting.unique()).as_bytes())
        .map_err(|error| anyhow!("{error:?}"))?;
    let root = meeting.folder.to_str().context("the folder's path is no text")?;
    let root = Path::new(root.as_bytes()).map_err(|error| anyhow!("{error:?}"))?;
    config.global.set_root_path(&root);
    Ok(NodeBuilder::new().config(&config).create::<ipc::Service>()?)
}

fn calls(node: &Node<ipc::Service>, meeting: &Meeting) -> Result<Calls> {
    let service = node.service_builder(&"make".try_into()?).request_response::<Asked, [u8]>();
    Ok(service.max_active_requests_per_client(meeting.in_flight).open_or_create()?)
}

/// An event service each way; none where one polls.
struct Bells {
    ends: Option<(Listener<ipc::Service>, Notifier<ipc::Service>)>,
}

impl Bells {
    /// Names: the one that is waited for, and the one that is rung.
    fn new(wait: Wait, node: &Node<ipc::Service>, names: [&str; 2]) -> Result<Self> {
        if wait == Wait::Polling {
            return Ok(Self { ends: None });
        }
        let service = |name: &str| -> Result<_> {
            Ok(node.service_builder(&name.try_into()?).event().open_or_create()?)
        };
        let listener = service(names[0])?.listener_builder().create()?;
        let notifier = service(names[1])?.notifier_builder().create()?;
        Ok(Self { ends: Some((listener, notifier)) })
    }

    fn wait(&self) -> Result<()> {
        match &self.ends {
            None => std::hint::spin_loop(),
            Some((listener, _)) => drop(listener.blocking_wait(|_| {})?),
        }
        Ok(())
    }

    fn ring(&self) -> Result<()> {
        if let Some((_, notifier)) = &self.ends {
            notifier.notify()?;
        }
        Ok(())
    }
}

struct Client {
    port: ClientPort<ipc::Service, Asked, (), [u8], ()>,
    bells: Bells,
    open: VecDeque<Pending>,
    _node: Node<ipc::Service>,
}

impl InOrder for Client {
    fn send(&mut self, request: Request) -> Result<()> {
        let asked = self.port.loan_uninit()?.write_payload(request.encode());
        self.open.push_back(asked.send()?);
        self.bells.ring()
    }

    fn receive(&mut self, request: Request) -> Result<()> {
        let pending = self.open.pop_front().context("an answer to no call")?;
        loop {
            if let Some(answer) = pending.receive()? {
                return request.check(answer.payload());
            }
            self.bells.wait()?;
        }
    }
}

impl Caller for Client {
    fn run(&mut self, load: &Load) -> Result<()> {
        InOrder::run(self, load)
    }
}
