//! Bulk data between processes on one Linux machine, at memory speed.
#![forbid(unsafe_code)]

mod client;
mod connection;
mod error;
mod inbox;
pub mod limits;
mod payload;
pub mod placement;
mod reaper;
mod region;
mod server;
mod service;
mod stream;
mod wire;

pub use client::{
    Buffer, Call, CallError, Client, ClientOptions, DirectClient, DirectPool, Lane, Lent, Notice,
    Pending, Reply, Transport,
};
pub use error::{Code, Error, Result, Status};
pub use payload::MessageBytes;
pub use server::{
    Peer, PeerPolicy, RunningServer, SOCKET_PATH_BYTES_MAX, Server, ServerOptions, ServerStats,
    ThreadRole, peer_policy,
};
pub use service::{FillMethod, FillPolicy, InboundCall, PayloadOut, Service};
