//! `shorthaul topology`: the CPUs of a machine, and which placements it can do.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use shorthaul_platform::topology::Topology;

mod json;
mod text;
mod tree;

/// Show the CPUs of this machine and which thread placements it can do.
#[derive(Clone, Debug, Args)]
pub(crate) struct TopologyArgs {
    /// Print JSON, with every CPU.
    #[arg(long)]
    json: bool,

    /// Read a recorded machine: a directory that holds its sys/ (and proc/, for its cpuset).
    #[arg(long, value_name = "DIR")]
    sysfs: Option<PathBuf>,
}

/// Reads the topology and writes it to standard output. A reader that goes away (`| head`) is no
/// error.
///
/// # Errors
/// If the directory holds no recorded machine, or the output cannot be written.
pub(crate) fn run(args: TopologyArgs) -> anyhow::Result<()> {
    let topology = match &args.sysfs {
        Some(root) => recorded(root)?,
        None => Topology::read().context("cannot read the CPUs of this machine")?,
    };
    let mut output = BufWriter::new(io::stdout().lock());
    let write = if args.json { json::write } else { text::write };
    match write(&mut output, &topology).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

fn recorded(root: &Path) -> anyhow::Result<Topology> {
    if !root.is_dir() {
        bail!("{} is not a directory{HINT}", root.display());
    }
    if !root.join("sys/devices/system/cpu").is_dir() {
        let inside = root.join("devices/system/cpu").is_dir();
        let hint = if inside { "; give the directory above, which holds sys/" } else { HINT };
        bail!("{} holds no sys/devices/system/cpu{hint}", root.display());
    }
    Topology::read_from(root).with_context(|| format!("cannot read the CPUs in {}", root.display()))
}

const HINT: &str = "; --sysfs takes one that holds a machine's sys/ and proc/, or / for this one";
