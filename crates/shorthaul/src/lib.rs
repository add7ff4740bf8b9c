//! Bulk data between processes on one Linux machine, at memory speed.
//!
//! A client registers memory with a server once; the server's answers are stored straight into it.
//! Small answers, and clients that share no memory, get their bytes over the socket instead: the
//! same handler serves every lane.
//!
//! ```
//! use shorthaul::{DirectClient, InboundCall, Server, Status};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("blob.sock");
//! // The server: fills as many bytes as it is asked for.
//! let server = Server::bind(&path)?.start(|call: &mut InboundCall| -> Result<(), Status> {
//!     let bytes = usize::from(call.request()[0]) << 20;
//!     let mut out = call.payload(bytes)?; // the client's own memory, or the socket
//!     out.fill(7, bytes)?;
//!     call.reply(b"done")
//! })?;
//!
//! // The client: one buffer, used again for every call.
//! let mut client = DirectClient::connect(&path)?;
//! let mut buffer = client.buffer(4 << 20)?;
//! for megabytes in 1..=4 {
//!     let reply = client.call("make").request(&[megabytes]).into(buffer).send()?;
//!     assert_eq!(reply.sum(4096), 7 * 256 * u64::from(megabytes));
//!     println!("{} bytes by {}: {:?}", reply.len(), reply.lane(), reply.response());
//!     buffer = reply.into_buffer().expect("it went in");
//! }
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! A call says where its answer's payload may go: [`into`](Call::into) a buffer that is used again,
//! [`inline`](Call::inline) behind the reply, [`sealed`](Call::sealed) in memory of the server's
//! that nobody can change any more, [`into_descriptor`](Call::into_descriptor) a pipe, socket or
//! file that is handed over, where the service allows it; or [`auto`](Call::auto): the client
//! chooses by size and by what earlier calls taught, and the [`Reply`] says what it took and why.
//! Bulk goes the other way as [`payload`](Call::payload), or by one of the calls beside it that
//! name a lane.
//!
//! [`Client`] makes calls from many threads over one connection, with a thread of its own;
//! [`DirectClient`] makes one at a time on the caller's thread, in half the hops. Servers and
//! clients trust nobody's numbers: descriptors, sizes and offsets are checked once, every queue and
//! wait is bounded ([`limits`]), and a fault of one call or connection stays there.
//!
//! # What it does not do
//! - No remote transport, no encryption: both sides share a kernel.
//! - No `&[u8]` over memory that the peer can write: filled buffers are copied from, or summed,
//!   unless you vouch for the peer ([`ClientOptions::trust`], [`ServerOptions::trust`]).
//! - No schema: a request is bytes. No retries: only the caller knows what may be done twice.
//!   [`Reconnecting`] and [`DirectPool`] connect anew where a connection has ended.
//! - No change to what belongs to the whole process: a server of many clients needs more
//!   descriptors than most processes may have, so its owner calls [`raise_descriptor_limit`] first.
//! - No unsafe code: all of that is in `shorthaul-platform`.
#![forbid(unsafe_code)]

mod address;
mod client;
mod connection;
mod error;
mod inbox;
mod lane;
pub mod limits;
mod meter;
mod object;
mod origin;
mod parts;
mod payload;
pub mod placement;
pub mod relay;
mod ring;
mod server;
mod stream;
mod sync;
mod threads;
mod trust;
mod undertaker;
mod waiting;
mod wire;

pub use address::SOCKET_PATH_BYTES_MAX;
pub use client::{
    AutoPolicy, Begun, Buffer, Call, CallError, Client, ClientOptions, DirectClient, DirectPool,
    Lent, Notice, Pending, Reconnecting, Reply, Transport,
};
pub use error::{Code, Error, Result, Status};
pub use lane::{Lane, LaneCount, LaneCounts, Reason};
pub use object::SealedObject;
pub use parts::{Parts, parts_bytes};
pub use payload::MessageBytes;
pub use server::{
    Descriptors, FillMethod, FillPolicy, InboundCall, PayloadIn, PayloadOut, Peer, RunningServer,
    Server, ServerOptions, ServerStats, Service, ThreadRole,
};
pub use shorthaul_platform::descriptors::raise_descriptor_limit;
pub use shorthaul_platform::memory::{HugePages, huge_pages_refused};
pub use trust::{PeerPolicy, peer_policy};
pub use waiting::Wait;

/// What the targets of `fuzz/` call; there in no other build.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    /// Takes the bytes for a frame.
    pub fn frames(bytes: &[u8]) {
        crate::wire::any_bytes::check(bytes);
    }

    /// Takes each byte for a decision in the life of a connection.
    pub fn connection(bytes: &[u8]) {
        crate::connection::simulation::run_by(bytes);
    }
}

/// What `.ci/instructions` counts; there in no other build.
#[cfg(feature = "instructions")]
pub mod instructions {
    /// Makes `calls` empty calls between two connections without a socket, and adds up the answers.
    pub fn empty_calls(calls: u64) -> u64 {
        crate::connection::empty_calls::make(calls)
    }
}
