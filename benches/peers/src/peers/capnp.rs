//! Cap'n Proto's RPC over a Unix socket.

use std::rc::Rc;

use anyhow::Result;
use capnp::message::ReaderOptions;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::twoparty::VatNetwork;
use capnp_rpc::{RpcSystem, new_client};
use futures::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::task::LocalSet;
use tokio_util::compat::TokioAsyncReadCompatExt;

use super::{Caller, Habits, Peer, tasks};
use crate::meeting::Meeting;
use crate::work::{Load, Request};
use make_capnp::make;

/// Made of `schema/make.capnp`.
#[allow(clippy::all, clippy::pedantic, warnings, reason = "it is not ours")]
mod make_capnp {
    include!(concat!(env!("OUT_DIR"), "/make_capnp.rs"));
}

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    vec![Box::new(Capnp)]
}

#[derive(Clone, Copy, Debug)]
struct Capnp;

impl Peer for Capnp {
    fn name(&self) -> &'static str {
        "capnp-rpc"
    }

    fn about(&self) -> &'static str {
        "two-party over a Unix socket, a field of Data, no traversal limit"
    }

    fn package(&self) -> Option<&'static str> {
        Some("capnp-rpc")
    }

    fn habits(&self) -> Habits {
        Habits { allocates: true, pipelines: true, ..Habits::default() }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        LocalSet::new().block_on(&tasks::runtime()?, async {
            let listener = UnixListener::bind(meeting.socket())?;
            meeting.ready()?;
            let (stream, _) = listener.accept().await?;
            let network = network(stream, Side::Server);
            let service: make::Client = new_client(Server);
            Ok(RpcSystem::new(network, Some(service.client)).await?)
        })
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        let (runtime, tasks) = (tasks::runtime()?, LocalSet::new());
        let service = tasks.block_on(&runtime, async {
            let stream = UnixStream::connect(meeting.socket()).await?;
            let mut system = RpcSystem::new(network(stream, Side::Client), None);
            let service: make::Client = system.bootstrap(Side::Server);
            tokio::task::spawn_local(system);
            anyhow::Ok(service)
        })?;
        Ok(Box::new(Client { runtime, tasks, service }))
    }
}

fn network(
    stream: UnixStream,
    side: Side,
) -> Box<VatNetwork<impl futures::AsyncRead + Unpin + 'static>> {
    let (reader, writer) = stream.compat().split();
    let mut options = ReaderOptions::new();
    options.traversal_limit_in_words(None);
    Box::new(VatNetwork::new(reader, writer, side, options))
}

struct Server;

impl make::Server for Server {
    async fn make(
        self: Rc<Self>,
        params: make::MakeParams,
        mut results: make::MakeResults,
    ) -> Result<(), capnp::Error> {
        let request = Request::decode(params.get()?.get_request()?)
            .map_err(|error| capnp::Error::failed(error.to_string()))?;
        let bytes = u32::try_from(request.answer_bytes())
            .map_err(|error| capnp::Error::failed(error.to_string()))?;
        request.make(results.get().init_answer(bytes));
        Ok(())
    }
}

struct Client {
    runtime: Runtime,
    tasks: LocalSet,
    service: make::Client,
}

impl Caller for Client {
    fn run(&mut self, load: &Load) -> Result<()> {
        let service = &self.service;
        let calls = tasks::run(load, |request| async move {
            let mut call = service.make_request();
            call.get().set_request(&request.encode());
            let answer = call.send().promise.await?;
            request.check(answer.get()?.get_answer()?)
        });
        self.tasks.block_on(&self.runtime, calls)
    }
}
