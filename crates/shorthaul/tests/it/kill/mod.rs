//! Clients and servers that are killed at any moment, on every lane: who is left has a clear error
//! or right bytes, and nothing of the dead.

pub(super) mod clients;
pub(super) mod half_way;
mod reconnecting;
mod servers;

use std::time::Duration;

use super::workload::is_long;

/// How often each lane's clients, or servers, are killed.
fn rounds(short: u64) -> u64 {
    if is_long() { 500 } else { short }
}

/// What all recovering must be done within: far beyond the second that the library promises, for
/// machines are busy.
const RECOVERY_MAX: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(30);
const BYTES: usize = 300_000;
