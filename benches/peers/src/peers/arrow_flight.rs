//! Arrow Flight over a Unix socket: one record batch of one column for every call.

use std::sync::Arc;

use anyhow::{Context, Result};
use arrow_array::{Array, RecordBatch, UInt8Array};
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use super::grpc::{self, MESSAGE_BYTES_MAX};
use super::{Caller, Habits, Peer, tasks};
use crate::meeting::Meeting;
use crate::work::{Load, Request};

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    vec![Box::new(Flight { is_tuned: false }), Box::new(Flight { is_tuned: true })]
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    is_tuned: bool,
}

impl Peer for Flight {
    fn name(&self) -> &'static str {
        if self.is_tuned { "arrow-flight tuned" } else { "arrow-flight" }
    }

    fn about(&self) -> &'static str {
        if self.is_tuned {
            "the same, windows of 128 MiB, frames of up to 16 MiB"
        } else {
            "do_get of one batch of one UInt8 column, in one message"
        }
    }

    fn package(&self) -> Option<&'static str> {
        Some("arrow-flight")
    }

    fn habits(&self) -> Habits {
        Habits { allocates: true, pipelines: true, ..Habits::default() }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        tasks::runtime()?.block_on(async {
            let calls = grpc::listen(meeting)?;
            let service = FlightServiceServer::new(Make::new())
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX);
            let server = grpc::server(self.is_tuned).add_service(service);
            Ok(server.serve_with_incoming(calls).await?)
        })
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        let runtime = tasks::runtime()?;
        let channel = runtime.block_on(grpc::connect(meeting, self.is_tuned))?;
        let client = FlightServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        Ok(Box::new(Client { runtime, client }))
    }
}

struct Make {
    schema: Arc<Schema>,
}

impl Make {
    fn new() -> Self {
        let field = Field::new("bytes", DataType::UInt8, false);
        Self { schema: Arc::new(Schema::new(vec![field])) }
    }

    fn batch(&self, ticket: &Ticket) -> Result<RecordBatch> {
        let column = UInt8Array::from(Request::decode(&ticket.ticket)?.made());
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), vec![Arc::new(column)])?)
    }
}

type Stream<T> = BoxStream<'static, Result<T, Status>>;
type Answer<T> = Result<Response<T>, Status>;

fn nothing_but_get<T>() -> Answer<T> {
    Err(Status::unimplemented("there is nothing here but what can be got"))
}

#[tonic::async_trait]
impl FlightService for Make {
    type HandshakeStream = Stream<HandshakeResponse>;
    type ListFlightsStream = Stream<FlightInfo>;
    type DoGetStream = Stream<FlightData>;
    type DoPutStream = Stream<PutResult>;
    type DoActionStream = Stream<arrow_flight::Result>;
    type ListActionsStream = Stream<ActionType>;
    type DoExchangeStream = Stream<FlightData>;

    async fn do_get(&self, ticket: tonic::Request<Ticket>) -> Answer<Self::DoGetStream> {
        let batch = self.batch(ticket.get_ref());
        let batch = batch.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let messages = FlightDataEncoderBuilder::new()
            .with_schema(Arc::clone(&self.schema))
            .with_max_flight_data_size(MESSAGE_BYTES_MAX)
            .build(stream::iter([Ok(batch)]));
        Ok(Response::new(messages.map_err(Status::from).boxed()))
    }

    async fn handshake(
        &self,
        _: tonic::Request<Streaming<HandshakeRequest>>,
    ) -> Answer<Self::HandshakeStream> {
        nothing_but_get()
    }

    async fn list_flights(&self, _: tonic::Request<Criteria>) -> Answer<Self::ListFlightsStream> {
        nothing_but_get()
    }

    async fn get_flight_info(&self, _: tonic::Request<FlightDescriptor>) -> Answer<FlightInfo> {
        nothing_but_get()
    }

    async fn poll_flight_info(&self, _: tonic::Request<FlightDescriptor>) -> Answer<PollInfo> {
        nothing_but_get()
    }

    async fn get_schema(&self, _: tonic::Request<FlightDescriptor>) -> Answer<SchemaResult> {
        nothing_but_get()
    }

    async fn do_put(&self, _: tonic::Request<Streaming<FlightData>>) -> Answer<Self::DoPutStream> {
        nothing_but_get()
    }

    async fn do_action(&self, _: tonic::Request<Action>) -> Answer<Self::DoActionStream> {
        nothing_but_get()
    }

    async fn list_actions(&self, _: tonic::Request<Empty>) -> Answer<Self::ListActionsStream> {
        nothing_but_get()
    }

    async fn do_exchange(
        &self,
        _: tonic::Request<Streaming<FlightData>>,
    ) -> Answer<Self::DoExchangeStream> {
        nothing_but_get()
    }
}

struct Client {
    runtime: Runtime,
    client: FlightServiceClient<Channel>,
}

impl Caller for Client {
    fn run(&mut self, load: &Load) -> Result<()> {
        let client = &self.client;
        self.runtime.block_on(tasks::run(load, |request| async move {
            let ticket = Ticket { ticket: Bytes::copy_from_slice(&request.encode()) };
            let messages = client.clone().do_get(ticket).await?.into_inner();
            let messages = messages.map_err(|status| FlightError::Tonic(Box::new(status)));
            let mut batches = FlightRecordBatchStream::new_from_flight_data(messages);
            let batch = batches.try_next().await?.context("an answer without a batch")?;
            let column = batch.column(0).as_any().downcast_ref::<UInt8Array>();
            request.check(column.context("a column of another type")?.values())
        }))
    }
}
