//! Several calls under way on a connection that answers in order.

use std::collections::VecDeque;

use anyhow::Result;

use crate::work::{Load, Request};

/// Both halves of a call on such a connection.
pub(super) trait InOrder {
    fn send(&mut self, request: Request) -> Result<()>;

    /// Receives the answer to `request`, which is the oldest that is open, and checks it.
    fn receive(&mut self, request: Request) -> Result<()>;

    /// Makes all calls, as many at a time as the load says.
    fn run(&mut self, load: &Load) -> Result<()> {
        let mut open = VecDeque::with_capacity(load.in_flight());
        loop {
            while open.len() < load.in_flight() {
                let Some(request) = load.next() else { break };
                self.send(request)?;
                open.push_back(request);
            }
            let Some(oldest) = open.pop_front() else { return Ok(()) };
            self.receive(oldest)?;
        }
    }
}
