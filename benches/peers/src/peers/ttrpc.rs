//! ttrpc, containerd's: gRPC without HTTP. Payloads go as they are, without a message around them.

use std::collections::HashMap;

use anyhow::Result;
use async_trait::async_trait;
use tokio::runtime::Runtime;
use ttrpc::asynchronous::{Client as Connection, MethodHandler, Server, Service, TtrpcContext};
use ttrpc::proto;

use super::{Caller, Habits, Peer, tasks};
use crate::meeting::Meeting;
use crate::work::{Load, Request};

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    vec![Box::new(Ttrpc)]
}

#[derive(Clone, Copy, Debug)]
struct Ttrpc;

impl Peer for Ttrpc {
    fn name(&self) -> &'static str {
        "ttrpc"
    }

    fn about(&self) -> &'static str {
        "asynchronous, over a Unix socket; its messages end at 4 MiB"
    }

    fn package(&self) -> Option<&'static str> {
        Some("ttrpc")
    }

    fn habits(&self) -> Habits {
        Habits { allocates: true, pipelines: true, ..Habits::default() }
    }

    fn refuses(&self, bytes: usize) -> Option<&'static str> {
        (bytes >= MESSAGE_BYTES_MAX).then_some("over its 4 MiB")
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        tasks::runtime()?.block_on(async {
            let make: Box<dyn MethodHandler + Send + Sync> = Box::new(Make);
            let methods = HashMap::from([(METHOD.to_owned(), make)]);
            let service = Service { methods, streams: HashMap::new() };
            let services = HashMap::from([(SERVICE.to_owned(), service)]);
            // It stops listening when it is dropped.
            let mut server = Server::new().bind(&address(meeting))?.register_service(services);
            server.start().await?;
            meeting.ready()?;
            std::future::pending().await
        })
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        let runtime = tasks::runtime()?;
        let connection = runtime.block_on(Connection::connect(&address(meeting)))?;
        Ok(Box::new(Client { runtime, connection }))
    }
}

fn address(meeting: &Meeting) -> String {
    format!("unix://{}", meeting.socket().display())
}

#[derive(Clone, Copy, Debug)]
struct Make;

#[async_trait]
impl MethodHandler for Make {
    async fn handler(
        &self,
        _: TtrpcContext,
        request: proto::Request,
    ) -> ttrpc::Result<proto::Response> {
        let request = Request::decode(&request.payload)
            .map_err(|error| ttrpc::Error::Others(error.to_string()))?;
        let mut response = proto::Response::new();
        response.set_status(ttrpc::get_status(ttrpc::Code::OK, String::new()));
        response.payload = request.made();
        Ok(response)
    }
}

struct Client {
    runtime: Runtime,
    connection: Connection,
}

impl Caller for Client {
    fn run(&mut self, load: &Load) -> Result<()> {
        let connection = &self.connection;
        self.runtime.block_on(tasks::run(load, |request| async move {
            let mut call = proto::Request::new();
            call.service = SERVICE.to_owned();
            call.method = METHOD.to_owned();
            call.payload = request.encode().to_vec();
            request.check(&connection.request(call).await?.payload)
        }))
    }
}

const SERVICE: &str = "peers.Make";
const METHOD: &str = "make";
const MESSAGE_BYTES_MAX: usize = 4 << 20;
