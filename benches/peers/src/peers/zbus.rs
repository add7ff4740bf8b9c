//! D-Bus from peer to peer by zbus, without a bus between.

use anyhow::Result;
use serde_bytes::ByteBuf;
use tokio::runtime::Runtime;
use zbus::connection::{Builder, Connection};
use zbus::{Guid, interface};

use super::{Caller, Habits, Peer, tasks};
use crate::meeting::Meeting;
use crate::work::{Load, Request};

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    vec![Box::new(Zbus { is_tuned: false }), Box::new(Zbus { is_tuned: true })]
}

#[derive(Clone, Copy, Debug)]
struct Zbus {
    is_tuned: bool,
}

impl Peer for Zbus {
    fn name(&self) -> &'static str {
        if self.is_tuned { "zbus tuned" } else { "zbus" }
    }

    fn about(&self) -> &'static str {
        if self.is_tuned {
            "peer to peer, ByteBuf (serde_bytes) made, borrowed bytes read"
        } else {
            "peer to peer, Vec<u8> both ways"
        }
    }

    fn package(&self) -> Option<&'static str> {
        Some("zbus")
    }

    fn habits(&self) -> Habits {
        Habits { allocates: true, pipelines: true, ..Habits::default() }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        tasks::runtime()?.block_on(async {
            let stream = meeting.link.try_clone()?;
            meeting.ready()?;
            let builder = Builder::unix_stream(stream).server(Guid::generate()).p2p();
            let _connection = builder.serve_at(PATH, Make).build().await?;
            std::future::pending().await
        })
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        let runtime = tasks::runtime()?;
        let connection = runtime.block_on(async {
            anyhow::Ok(Builder::unix_stream(meeting.link.try_clone()?).p2p().build().await?)
        })?;
        Ok(Box::new(Client { runtime, connection, is_tuned: self.is_tuned }))
    }
}

struct Make;

#[interface(name = "org.peers.Make")]
impl Make {
    // One that can't be read is answered by nothing, which the client notices.
    fn make(&self, request: Vec<u8>) -> Vec<u8> {
        Request::decode(&request).map(Request::made).unwrap_or_default()
    }

    fn make_tuned(&self, request: ByteBuf) -> ByteBuf {
        Request::decode(&request).map(Request::made).unwrap_or_default().into()
    }
}

struct Client {
    runtime: Runtime,
    connection: Connection,
    is_tuned: bool,
}

impl Caller for Client {
    fn run(&mut self, load: &Load) -> Result<()> {
        let (connection, is_tuned) = (&self.connection, self.is_tuned);
        self.runtime.block_on(tasks::run(load, |request| async move {
            let encoded = request.encode();
            let asked = &encoded[..];
            let method = if is_tuned { "MakeTuned" } else { "Make" };
            let to = None::<&str>;
            let answer = connection.call_method(to, PATH, Some(INTERFACE), method, &asked).await?;
            let body = answer.body();
            if is_tuned {
                request.check(body.deserialize::<&[u8]>()?)
            } else {
                request.check(&body.deserialize::<Vec<u8>>()?)
            }
        }))
    }
}

const PATH: &str = "/make";
const INTERFACE: &str = "org.peers.Make";
