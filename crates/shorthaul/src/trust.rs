//! Who the other side may be, and what of it may be mapped.

use std::sync::Arc;

use shorthaul_platform::socket::{self, Credentials};

/// Decides who may connect, or be connected to: the reason if not.
pub type PeerPolicy = Arc<dyn Fn(&Credentials) -> Result<(), String> + Send + Sync>;

/// A policy from a closure: the reason if a peer may not connect.
pub fn peer_policy(
    decide: impl Fn(&Credentials) -> Result<(), String> + Send + Sync + 'static,
) -> PeerPolicy {
    Arc::new(decide)
}

/// Talks to the same user and to root, and to nobody whose user id is a stand-in.
pub(crate) fn default_policy() -> PeerPolicy {
    let own_uid = rustix::process::geteuid().as_raw();
    let overflow_uid = socket::overflow_uid();
    Arc::new(move |peer| {
        if peer.uid == overflow_uid {
            return Err(format!(
                "user {} is the stand-in for users without a name here (another user namespace?); \
                 a policy of your own can let it in",
                peer.uid
            ));
        }
        if peer.uid == own_uid || peer.uid == 0 {
            return Ok(());
        }
        Err(format!("user {} is neither {own_uid} nor root", peer.uid))
    })
}

/// Whether a store into a peer's shmem can't fail: under strict overcommit (vm.overcommit_memory =
/// 2) a page behind a hole that the peer punched may be refused, which is SIGBUS. Then buffers are
/// filled by pwrite(2), whose failure is an error.
pub(crate) fn peers_can_be_mapped() -> bool {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() != "2")
}
