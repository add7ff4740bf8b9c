//! What a run of relays is to do: what was typed, made into what is meant.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use shorthaul::relay::Method;
use shorthaul_platform::topology::Topology;

use super::args::RelayArgs;
use super::sink::{Files, Receive, Sink};
use super::source;
use crate::bench::plan::without_repeats;

/// A run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) topology: Topology,
    pub(super) name: PathBuf,
    /// Bytes of files that are to be made, if they are missing.
    pub(super) make_bytes: Option<u64>,
    pub(super) methods: Vec<Method>,
    pub(super) chunks: Vec<usize>,
    pub(super) crowds: Vec<Crowd>,
    pub(super) sink: Sink,
    pub(super) receive: Option<Receive>,
    pub(super) is_verified: bool,
    pub(super) is_pinned: bool,
    pub(super) port: u16,
    pub(super) loops: u32,
    pub(super) time: Duration,
    pub(super) rounds: usize,
    /// Whether several numbers of clients are held against one.
    pub(super) is_scaling: bool,
}

/// Clients that run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crowd {
    pub(super) clients: usize,
    pub(super) files: Files,
}

impl Plan {
    pub(super) fn new(args: &RelayArgs) -> Result<Self> {
        let sink = if args.null { Sink::Null } else { args.sink };
        let receive = receive(sink, args.receive)?;
        ensure_verifiable(sink, receive, args.verify)?;
        let crowds = match &args.scale[..] {
            [] => vec![crowd(args)],
            counts => scaled(counts),
        };
        let plan = Self {
            topology: Topology::read().context("cannot read the CPUs of this machine")?,
            name: args.name.clone(),
            make_bytes: args.make,
            methods: args.methods.0.clone(),
            chunks: without_repeats(&args.chunks),
            crowds,
            sink,
            receive,
            is_verified: args.verify,
            is_pinned: args.affinity,
            port: args.port,
            loops: args.loops,
            time: Duration::from_secs_f64(args.seconds),
            rounds: args.rounds.into(),
            is_scaling: !args.scale.is_empty(),
        };
        let last = usize::from(plan.port) + plan.clients_max() - 1;
        ensure!(
            sink != Sink::Tcp || last <= usize::from(u16::MAX),
            "the receivers would need ports up to {last}, and 65535 is the last: give a lower -p"
        );
        Ok(plan)
    }

    /// Clients that there are at most at once.
    pub(super) fn clients_max(&self) -> usize {
        self.crowds.iter().map(|crowd| crowd.clients).max().unwrap_or(0)
    }

    /// The CPU of a client and of its receiver, if they are kept on one.
    pub(super) fn cpu(&self, client: usize) -> Option<u32> {
        let cpus = self.topology.cpus();
        (self.is_pinned && !cpus.is_empty()).then(|| cpus[client % cpus.len()].id)
    }

    /// The files that are read, each once.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let is_shared = |crowd: &Crowd| crowd.clients == 1 || crowd.files == Files::Shared;
        let count = match self.crowds.iter().all(is_shared) {
            true => 1,
            false => self.clients_max(),
        };
        (0..count).map(|index| source::path(&self.name, index)).collect()
    }
}

fn crowd(args: &RelayArgs) -> Crowd {
    let files = if args.shared { Files::Shared } else { Files::Own };
    Crowd { clients: args.clients.into(), files }
}

/// One client alone, to which the others are compared; then each number on one file and on a file
/// each.
fn scaled(counts: &[u16]) -> Vec<Crowd> {
    let mut counts: Vec<usize> = counts.iter().map(|&count| count.into()).collect();
    counts.push(1);
    counts.sort_unstable();
    counts.dedup();
    let crowds = counts.into_iter().flat_map(|clients| {
        let all = [Files::Shared, Files::Own].map(|files| Crowd { clients, files });
        all.into_iter().take(if clients == 1 { 1 } else { 2 })
    });
    crowds.collect()
}

fn receive(sink: Sink, asked: Option<Receive>) -> Result<Option<Receive>> {
    let name = sink.name();
    match asked {
        None => Ok(sink.receive_default()),
        Some(receive) => {
            ensure!(
                sink.has_receiver(),
                "nobody receives what goes to --sink {name}: leave out --receive"
            );
            ensure!(
                receive != Receive::Trunc || sink == Sink::Tcp,
                "only TCP drops bytes uncopied: with --sink {name} take --receive read or splice"
            );
            Ok(Some(receive))
        }
    }
}

fn ensure_verifiable(sink: Sink, receive: Option<Receive>, is_verified: bool) -> Result<()> {
    let is_possible = sink == Sink::File || receive == Some(Receive::Read);
    ensure!(
        is_possible || !is_verified,
        "--verify needs bytes that can be looked at: take --receive read, or --sink file"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_alone_is_always_among_the_scaled() {
        let crowds = scaled(&[4, 2, 2]);
        let found: Vec<_> = crowds.iter().map(|crowd| (crowd.clients, crowd.files)).collect();
        let (shared, own) = (Files::Shared, Files::Own);
        assert_eq!(found, [(1, shared), (2, shared), (2, own), (4, shared), (4, own)]);
        assert_eq!(scaled(&[1]).len(), 1);
    }

    #[test]
    fn receivers_do_what_their_sinks_can() {
        assert_eq!(receive(Sink::Tcp, None).unwrap(), Some(Receive::Trunc));
        assert_eq!(receive(Sink::Pipe, None).unwrap(), Some(Receive::Read));
        assert_eq!(receive(Sink::File, None).unwrap(), None);
        for (sink, asked) in [
            (Sink::Null, Receive::Read),
            (Sink::File, Receive::Splice),
            (Sink::Unix, Receive::Trunc),
            (Sink::Pipe, Receive::Trunc),
        ] {
            let said = receive(sink, Some(asked)).unwrap_err().to_string();
            assert!(said.contains("--receive"), "{said}");
        }
    }

    #[test]
    fn what_nobody_looks_at_is_not_verified() {
        assert!(ensure_verifiable(Sink::Null, None, true).is_err());
        assert!(ensure_verifiable(Sink::Tcp, Some(Receive::Trunc), true).is_err());
        assert!(ensure_verifiable(Sink::Tcp, Some(Receive::Read), true).is_ok());
        assert!(ensure_verifiable(Sink::File, None, true).is_ok());
        assert!(ensure_verifiable(Sink::Null, None, false).is_ok());
    }
}
