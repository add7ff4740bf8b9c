//! Servers under load: noisy clients, crowds, clients that never read, nothing left to open.
//!
//! What is measured is told and held to bounds so wide that only a fault is outside of them.

mod both_ways;
mod crowd;
mod late;
pub(super) mod noisy;
mod out_of_descriptors;
mod unread;

use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
