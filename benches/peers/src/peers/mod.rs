//! The peers: each moves the same work in its own way, one file each.

#[cfg(feature = "arrow-flight")]
mod arrow_flight;
mod bare;
#[cfg(feature = "capnp")]
mod capnp;
mod descriptors;
#[cfg(feature = "grpc")]
mod grpc;
#[cfg(feature = "iceoryx2")]
mod iceoryx2;
#[cfg(feature = "ipc-channel")]
mod ipc_channel;
mod memfd;
mod pipe;
#[cfg(feature = "shmipc")]
mod shmipc;
mod shorthaul;
mod socket;
#[cfg(feature = "tarpc")]
mod tarpc;
#[cfg(feature = "async")]
mod tasks;
#[cfg(feature = "tonic")]
mod tonic;
#[cfg(feature = "ttrpc")]
mod ttrpc;
mod window;
#[cfg(feature = "zbus")]
mod zbus;
#[cfg(feature = "zmq")]
mod zmq;

use anyhow::Result;

use crate::meeting::Meeting;
use crate::work::Load;

/// One way from a server process to a client process.
pub(crate) trait Peer: Sync {
    /// What it is called in tables and on the command line.
    fn name(&self) -> &'static str;

    /// What it is and how it is set up, in a line.
    fn about(&self) -> &'static str;

    /// Of which package of Cargo.lock it is, where it is of one.
    fn package(&self) -> Option<&'static str> {
        None
    }

    /// What has to be known before it is started.
    fn habits(&self) -> Habits {
        Habits::default()
    }

    /// Why it can't carry payloads of so many bytes, if its documentation says that it can't.
    fn refuses(&self, _bytes: usize) -> Option<&'static str> {
        None
    }

    /// Calls after which everything that it keeps has been used once.
    fn calls_to_warm_up(&self, _bytes: usize) -> u64 {
        0
    }

    /// Answers calls until the process is ended; says so at the meeting when it can be called.
    fn serve(&self, meeting: &Meeting) -> Result<()>;

    /// Connects to the server, which is ready.
    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>>;
}

/// A client that is connected.
pub(crate) trait Caller {
    /// Makes all calls of the load, as many at a time as it says, and checks each answer.
    fn run(&mut self, load: &Load) -> Result<()>;
}

/// What has to be known of a peer before it is started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Habits {
    /// It waits without letting go of its CPU, so two of it can't share one.
    pub(crate) spins: bool,
    /// It allocates memory for every call, so what the allocator keeps matters.
    pub(crate) allocates: bool,
    /// It can have more than one call under way on a connection.
    pub(crate) pipelines: bool,
}

/// All that were built, in the order of the tables.
pub(crate) fn all() -> Vec<Box<dyn Peer>> {
    let peers = [
        shorthaul::all(),
        bare::all(),
        socket::all(),
        pipe::all(),
        memfd::all(),
        #[cfg(feature = "iceoryx2")]
        iceoryx2::all(),
        #[cfg(feature = "shmipc")]
        shmipc::all(),
        #[cfg(feature = "ipc-channel")]
        ipc_channel::all(),
        #[cfg(feature = "zmq")]
        zmq::all(),
        #[cfg(feature = "tonic")]
        tonic::all(),
        #[cfg(feature = "ttrpc")]
        ttrpc::all(),
        #[cfg(feature = "tarpc")]
        tarpc::all(),
        #[cfg(feature = "capnp")]
        capnp::all(),
        #[cfg(feature = "arrow-flight")]
        arrow_flight::all(),
        #[cfg(feature = "zbus")]
        zbus::all(),
    ];
    peers.into_iter().flatten().collect()
}

/// The one of that name.
pub(crate) fn named(name: &str) -> Result<Box<dyn Peer>> {
    let found = all().into_iter().find(|peer| peer.name() == name);
    found.ok_or_else(|| anyhow::anyhow!("no peer {name}; `--list` tells which there are"))
}

/// Features that this program was built without.
pub(crate) fn left_out() -> Vec<&'static str> {
    FEATURES.iter().filter(|(_, is_in)| !is_in).map(|(name, _)| *name).collect()
}

const FEATURES: [(&str, bool); 10] = [
    ("arrow-flight", cfg!(feature = "arrow-flight")),
    ("capnp", cfg!(feature = "capnp")),
    ("iceoryx2", cfg!(feature = "iceoryx2")),
    ("ipc-channel", cfg!(feature = "ipc-channel")),
    ("shmipc", cfg!(feature = "shmipc")),
    ("tarpc", cfg!(feature = "tarpc")),
    ("tonic", cfg!(feature = "tonic")),
    ("ttrpc", cfg!(feature = "ttrpc")),
    ("zbus", cfg!(feature = "zbus")),
    ("zmq", cfg!(feature = "zmq")),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_peers_have_one_name() {
        let all = all();
        let names: HashSet<&str> = all.iter().map(|peer| peer.name()).collect();
        assert_eq!(names.len(), all.len());
    }
}
