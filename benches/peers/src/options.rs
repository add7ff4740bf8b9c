//! What is typed.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use serde::Serialize;

/// What to measure, and where the report goes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Only these peers; `--list` tells their names.
    #[arg(long, value_delimiter = ',')]
    pub(crate) peers: Vec<String>,
    /// Payloads.
    #[arg(long, value_delimiter = ',', default_value = "0,4KiB,64KiB,1MiB,8MiB,64MiB")]
    pub(crate) sizes: Vec<ByteSize>,
    /// Where the two processes run.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "same-core,cross-core")]
    pub(crate) placement: Vec<Placement>,
    /// Calls under way at a time.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(crate) in_flight: Vec<usize>,
    /// Every cell is measured once a round, each time by new processes.
    #[arg(long, default_value_t = 21)]
    pub(crate) rounds: usize,
    /// Time for each cell of a round, warming up apart.
    #[arg(long, default_value_t = 0.04)]
    pub(crate) seconds: f64,
    /// A cell that takes longer, in seconds, has failed.
    #[arg(long, default_value_t = 20.0)]
    pub(crate) deadline: f64,
    /// The client's CPU and, for cross-core, the server's.
    #[arg(long, value_delimiter = ',', num_args = 2, default_value = "0,1")]
    pub(crate) cpus: Vec<usize>,
    /// Writes every measurement there.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Writes the tables there, as Markdown.
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Tells which peers there are, and measures nothing.
    #[arg(long)]
    pub(crate) list: bool,
}

impl Options {
    pub(crate) fn sizes_bytes(&self) -> anyhow::Result<Vec<usize>> {
        self.sizes.iter().map(|size| Ok(usize::try_from(size.as_u64())?)).collect()
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_secs_f64(self.deadline)
    }

    /// Where client and server run.
    pub(crate) fn cpus(&self, placement: Placement) -> (usize, usize) {
        let client = self.cpus[0];
        match placement {
            Placement::SameCore => (client, client),
            Placement::CrossCore => (client, self.cpus[1]),
        }
    }
}

/// Where the two processes run, each pinned whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Placement {
    SameCore,
    CrossCore,
}

impl Placement {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SameCore => "same core",
            Self::CrossCore => "cross core",
        }
    }
}
