//! What a bench of relays found out. Exporters see only this.

use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::sink::{Files, Receive, Sink};
use crate::bench::machine::Machine;
use crate::bench::stats::Spread;

/// All of a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RelayReport {
    /// What tells it from other results.
    pub(crate) kind: Kind,
    pub(crate) machine: Machine,
    pub(crate) command_line: String,
    pub(crate) date: String,
    pub(crate) version: String,
    pub(crate) settings: Settings,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    /// What a reader must know before believing the figures; whole sentences.
    pub(crate) warnings: Vec<String>,
    pub(crate) groups: Vec<Group>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Relay,
}

/// What was asked for.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Settings {
    pub(crate) sink: Sink,
    /// None where nobody receives.
    pub(crate) receive: Option<Receive>,
    /// Whether every byte that arrived was compared.
    pub(crate) is_verified: bool,
    pub(crate) loops: u32,
    /// After so long a client begins no other loop.
    pub(crate) seconds_max: f64,
    /// The CPU of each client and of its receiver; none if they run where the kernel likes.
    pub(crate) client_cpus: Vec<u32>,
    pub(crate) files: Vec<SourceFile>,
    /// Whether several numbers of clients are held against one.
    pub(crate) is_scaling: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct SourceFile {
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// Methods that ran with the same clients, files and chunks.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Group {
    pub(crate) clients: usize,
    pub(crate) files: Files,
    pub(crate) chunk_bytes: usize,
    /// One thread copying a warm block of a chunk's size to another, in bytes per second.
    pub(crate) copy_limit: Spread,
    pub(crate) cells: Vec<Cell>,
}

/// One method.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Cell {
    pub(crate) method: String,
    /// What the row measures.
    pub(crate) meaning: String,
    /// Why the method can't do it, if it can't: then there are no figures.
    pub(crate) why_not: Option<String>,
    pub(crate) figures: Option<Figures>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Figures {
    /// All clients together: their bytes, by the time from the first start to the last end.
    pub(crate) bytes_per_second: Spread,
    /// A client, on average.
    pub(crate) bytes_per_second_each: Spread,
    /// What a client does, as a share of the memory-copy limit of the same round.
    pub(crate) of_copy_limit: Spread,
    /// Of clients and receivers; none if nothing was moved.
    pub(crate) cpu_seconds_per_gb: Option<Spread>,
    /// All clients together, as a share of so many times one client alone in the same round; with
    /// `--scale`.
    pub(crate) efficiency: Option<Spread>,
    /// Bytes that a system call moved on average.
    pub(crate) bytes_per_call: f64,
    /// The clients of the round in the middle, those that ended first before the others.
    pub(crate) clients: Vec<Client>,
}

/// What one client did in the round in the middle.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Client {
    pub(crate) client: usize,
    pub(crate) bytes: u64,
    pub(crate) loops: u32,
    /// From its start until the last byte had arrived.
    pub(crate) nanoseconds: u64,
}

impl RelayReport {
    /// Whether anything was measured.
    pub(crate) fn has_figures(&self) -> bool {
        self.groups.iter().flat_map(|group| &group.cells).any(|cell| cell.figures.is_some())
    }

    /// The chunk sizes, in the order in which they ran.
    pub(crate) fn chunks(&self) -> Vec<usize> {
        let mut chunks: Vec<usize> = self.groups.iter().map(|group| group.chunk_bytes).collect();
        chunks.dedup();
        chunks
    }
}

impl Settings {
    pub(super) fn of(plan: &Plan, files: Vec<SourceFile>) -> Self {
        Self {
            sink: plan.sink,
            receive: plan.receive,
            is_verified: plan.is_verified,
            loops: plan.loops,
            seconds_max: plan.time.as_secs_f64(),
            client_cpus: (0..plan.clients_max()).filter_map(|index| plan.cpu(index)).collect(),
            files,
            is_scaling: plan.is_scaling,
        }
    }
}

impl Group {
    pub(crate) fn cell(&self, method: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.method == method)
    }
}

impl Client {
    /// Nothing was moved in no time: that is nothing.
    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.nanoseconds.max(1) as f64
    }
}
