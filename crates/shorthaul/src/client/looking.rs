//! How a client looks for its answers: into rings, which it offers the server when that first pays.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use shorthaul_platform::memory::HugePages;

use super::direct::registrable;
use crate::connection::Link;
use crate::connection::client::ClientConnection;
use crate::ring::RINGS_BYTES;
use crate::waiting::{self, Patience, Wait};

/// What one client knows of looking.
#[derive(Debug)]
pub(super) struct Looking {
    patience: Patience,
    has_offered: bool,
}

impl Looking {
    pub(super) fn new(wait: Wait) -> Self {
        Self { patience: Patience::new(wait), has_offered: false }
    }

    /// Decides how long to look for the answer to a call that is to be sent, and tells the server.
    pub(super) fn begin<T>(&mut self, connection: &mut ClientConnection<OwnedFd, T>) -> Duration {
        let budget = self.budget(&mut connection.link);
        if budget.is_zero() {
            return budget;
        }
        if connection.link.has_rings() {
            connection.link.begin_to_look();
        } else if !self.has_offered {
            // Without memory for them all goes on through the socket.
            self.has_offered = true;
            if let Ok((memory, memfd)) = registrable(RINGS_BYTES, HugePages::Never) {
                connection.offer_rings(Arc::new(memory), memfd.into_descriptor());
            }
        }
        budget
    }

    /// Whether to look on for an answer that has been waited for so long; then the server is told.
    pub(super) fn goes_on(&self, link: &mut Link<OwnedFd>, waited: Duration) -> bool {
        let goes_on = link.has_rings() && self.budget(link) > waited;
        if goes_on {
            link.begin_to_look();
        }
        goes_on
    }

    /// Takes in how long it took until an answer came, or none did.
    pub(super) fn learn(&mut self, waited: Duration) {
        self.patience.learn(waited);
    }

    fn budget(&self, link: &mut Link<OwnedFd>) -> Duration {
        if !self.patience.may_look() || !link.peer_takes_rings() {
            return Duration::ZERO;
        }
        let cpu = waiting::cpu();
        link.show_cpu(cpu);
        self.patience.budget(link.peers_cpu(), cpu)
    }
}
