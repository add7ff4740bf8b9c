//! What gRPC's peers have in common: a channel over a Unix socket, and HTTP/2's sizes.

use anyhow::Result;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};

use crate::meeting::Meeting;

/// A server, as it comes or with larger windows and frames.
pub(super) fn server(is_tuned: bool) -> Server {
    let server = Server::builder();
    if !is_tuned {
        return server;
    }
    server
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
}

pub(super) fn listen(meeting: &Meeting) -> Result<UnixListenerStream> {
    let listener = UnixListener::bind(meeting.socket())?;
    meeting.ready()?;
    Ok(UnixListenerStream::new(listener))
}

pub(super) async fn connect(meeting: &Meeting, is_tuned: bool) -> Result<Channel> {
    let mut endpoint = Endpoint::from_shared(format!("unix:{}", meeting.socket().display()))?;
    if is_tuned {
        endpoint = endpoint
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX);
    }
    Ok(endpoint.connect().await?)
}

/// Room for the largest payload twice.
const WINDOW_BYTES: u32 = 128 << 20;
/// The largest that HTTP/2 has.
const FRAME_BYTES_MAX: u32 = (16 << 20) - 1;
/// Of messages; the default is 4 MiB.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 << 30;
