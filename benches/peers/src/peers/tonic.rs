//! gRPC by tonic, over a Unix socket. The service is written by hand as tonic-build would.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::uri::PathAndQuery;
use tokio::runtime::Runtime;
use tonic::body::Body;
use tonic::server::{NamedService, UnaryService};
use tonic::transport::Channel;
use tonic::{Response, Status};
use tonic_prost::ProstCodec;

use super::grpc::{self, MESSAGE_BYTES_MAX};
use super::{Caller, Habits, Peer, tasks};
use crate::meeting::Meeting;
use crate::work::{Load, Request};

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    vec![Box::new(Tonic { is_tuned: false }), Box::new(Tonic { is_tuned: true })]
}

#[derive(Clone, Copy, Debug)]
struct Tonic {
    is_tuned: bool,
}

/// Request and answer: one field of bytes.
#[derive(Clone, PartialEq, prost::Message)]
struct Message {
    #[prost(bytes = "bytes", tag = "1")]
    bytes: Bytes,
}

impl Peer for Tonic {
    fn name(&self) -> &'static str {
        if self.is_tuned { "tonic tuned" } else { "tonic" }
    }

    fn about(&self) -> &'static str {
        if self.is_tuned {
            "unary over a Unix socket, windows of 128 MiB, frames of up to 16 MiB"
        } else {
            "unary over a Unix socket, a field of Bytes, as it comes but for the message limit"
        }
    }

    fn package(&self) -> Option<&'static str> {
        Some("tonic")
    }

    fn habits(&self) -> Habits {
        Habits { allocates: true, pipelines: true, ..Habits::default() }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        tasks::runtime()?.block_on(async {
            let calls = grpc::listen(meeting)?;
            Ok(grpc::server(self.is_tuned).add_service(Make).serve_with_incoming(calls).await?)
        })
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        let runtime = tasks::runtime()?;
        let channel = runtime.block_on(grpc::connect(meeting, self.is_tuned))?;
        Ok(Box::new(Client { runtime, channel }))
    }
}

#[derive(Clone, Copy, Debug)]
struct Make;

impl NamedService for Make {
    const NAME: &'static str = "peers.Make";
}

impl tower::Service<http::Request<Body>> for Make {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let codec = ProstCodec::<Message, Message>::new();
            let limit = Some(MESSAGE_BYTES_MAX);
            let mut grpc =
                tonic::server::Grpc::new(codec).apply_max_message_size_config(limit, limit);
            Ok(grpc.unary(Self, request).await)
        })
    }
}

impl UnaryService<Message> for Make {
    type Response = Message;
    type Future = Ready<Result<Response<Message>, Status>>;

    fn call(&mut self, request: tonic::Request<Message>) -> Self::Future {
        let request = Request::decode(&request.get_ref().bytes);
        ready(match request {
            Ok(request) => Ok(Response::new(Message { bytes: request.made().into() })),
            Err(error) => Err(Status::invalid_argument(error.to_string())),
        })
    }
}

struct Client {
    runtime: Runtime,
    channel: Channel,
}

impl Caller for Client {
    fn run(&mut self, load: &Load) -> Result<()> {
        let channel = &self.channel;
        self.runtime.block_on(tasks::run(load, |request| async move {
            let mut grpc = tonic::client::Grpc::new(channel.clone())
                .max_decoding_message_size(MESSAGE_BYTES_MAX);
            grpc.ready().await?;
            let message = Message { bytes: Bytes::copy_from_slice(&request.encode()) };
            let codec = ProstCodec::<Message, Message>::new();
            let path = PathAndQuery::from_static("/peers.Make/make");
            let answer = grpc.unary(tonic::Request::new(message), path, codec).await?;
            request.check(&answer.get_ref().bytes)
        }))
    }
}
