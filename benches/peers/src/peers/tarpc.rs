//! tarpc over a Unix socket, with bincode.

use anyhow::Result;
use futures::StreamExt;
use serde_bytes::ByteBuf;
use tarpc::context;
use tarpc::serde_transport::unix;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tokio::runtime::Runtime;

use super::{Caller, Habits, Peer, tasks};
use crate::meeting::Meeting;
use crate::work::{Load, Request};

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    vec![Box::new(Tarpc)]
}

#[derive(Clone, Copy, Debug)]
struct Tarpc;

#[tarpc::service]
trait Make {
    async fn make(request: ByteBuf) -> ByteBuf;
}

impl Peer for Tarpc {
    fn name(&self) -> &'static str {
        "tarpc"
    }

    fn about(&self) -> &'static str {
        "Unix transport, bincode, serde_bytes::ByteBuf; a raised frame limit"
    }

    fn package(&self) -> Option<&'static str> {
        Some("tarpc")
    }

    fn habits(&self) -> Habits {
        Habits { allocates: true, pipelines: true, ..Habits::default() }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        tasks::runtime()?.block_on(async {
            let mut clients = unix::listen(meeting.socket(), Bincode::default).await?;
            clients.config_mut().max_frame_length(FRAME_BYTES_MAX);
            meeting.ready()?;
            while let Some(client) = clients.next().await {
                let calls = BaseChannel::with_defaults(client?).execute(Server.serve());
                tokio::spawn(calls.for_each(|call| async {
                    tokio::spawn(call);
                }));
            }
            Ok(())
        })
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        let runtime = tasks::runtime()?;
        let client = runtime.block_on(async {
            let mut transport = unix::connect(meeting.socket(), Bincode::default);
            transport.config_mut().max_frame_length(FRAME_BYTES_MAX);
            anyhow::Ok(MakeClient::new(Default::default(), transport.await?).spawn())
        })?;
        Ok(Box::new(Client { runtime, client }))
    }
}

#[derive(Clone, Copy, Debug)]
struct Server;

impl Make for Server {
    async fn make(self, _: context::Context, request: ByteBuf) -> ByteBuf {
        // One that can't be read is answered by nothing, which the client notices.
        ByteBuf::from(Request::decode(&request).map(Request::made).unwrap_or_default())
    }
}

struct Client {
    runtime: Runtime,
    client: MakeClient,
}

impl Caller for Client {
    fn run(&mut self, load: &Load) -> Result<()> {
        let client = &self.client;
        self.runtime.block_on(tasks::run(load, |request| async move {
            let encoded = ByteBuf::from(request.encode());
            request.check(&client.make(context::current(), encoded).await?)
        }))
    }
}

/// The default is 8 MiB.
const FRAME_BYTES_MAX: usize = 1 << 30;
