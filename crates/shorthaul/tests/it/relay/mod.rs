//! Relays between real files, pipes and sockets.

mod cut;
mod ends;
mod large;
mod matrix;
mod memory;
mod refused;
pub(super) mod signals;
mod streams;
mod urgent;
mod waits;

use shorthaul::relay::{Method, Relay};

/// The methods that move bytes themselves.
const MOVING: [Method; 5] =
    [Method::ReadWrite, Method::Map, Method::Splice, Method::SendFile, Method::CopyFileRange];

/// Bytes that differ everywhere, so that none can be lost, doubled or moved unseen.
fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut words = Vec::with_capacity(bytes + 8);
    while words.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words.extend_from_slice(&state.to_le_bytes());
    }
    words.truncate(bytes);
    words
}

/// Without printing megabytes if it fails.
#[track_caller]
fn assert_same(got: &[u8], expected: &[u8], what: &str) {
    if got != expected {
        let at = got.iter().zip(expected).position(|(a, b)| a != b);
        panic!("{what}: {} bytes of {}, first other at {at:?}", got.len(), expected.len());
    }
}

fn relay(method: Method, chunk_bytes: usize) -> Relay {
    Relay::new().method(method).chunk_bytes(chunk_bytes)
}
