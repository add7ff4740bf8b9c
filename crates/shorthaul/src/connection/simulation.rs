//! Both sides of a connection in one thread, joined by a simulated socket and a simulated clock, so
//! that any interleaving can be tried and any failure repeated from its seed or from its bytes.
#![cfg_attr(not(test), allow(dead_code, reason = "fuzzing takes the runs only"))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod choices;
mod hostile;
mod hostile_client;
mod hostile_server;
mod model;
mod pair;
mod plans;
mod random;
#[cfg(test)]
mod scenarios;
mod socket;
mod tokens;
#[cfg(test)]
mod violations;

use std::sync::{Arc, LazyLock};

use self::choices::Random;
use crate::payload::MemoryPool;

/// A run of which each byte decides something, the first what kind of run it is.
pub(crate) fn run_by(bytes: &[u8]) {
    let Some((kind, decisions)) = bytes.split_first() else { return };
    let random = Random::of_bytes(decisions);
    match kind % 3 {
        0 => drop(random::Run::new(random, &POOL).go()),
        1 => drop(hostile_client::Run::new(random, &POOL).go()),
        _ => drop(hostile_server::Run::new(random, &POOL).go()),
    }
}

static POOL: LazyLock<Arc<MemoryPool>> = LazyLock::new(Arc::default);

#[cfg(test)]
#[test]
fn whatever_was_once_of_interest_holds() {
    let inputs = crate::wire::any_bytes::kept("connection");
    assert!(inputs.len() > 10);
    inputs.iter().for_each(|bytes| run_by(bytes));
}
