//! The CPU tree: packages, dies, cores, hardware threads and NUMA nodes, as /sys tells it.
//!
//! ```no_run
//! use shorthaul_platform::topology::{Topology, pin_current_thread};
//!
//! let topology = Topology::read()?;
//! let cpu = &topology.cpus()[0];
//! println!("pinned to CPU {}, which is {}", cpu.id, cpu.place());
//! pin_current_thread(cpu.id)?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The module reads and arranges; which thread belongs where is for others to choose.

use std::collections::HashSet;
use std::io;
use std::path::Path;

mod affinity;
mod allowed;
mod cpu;
mod cpu_set;
mod files;
mod sysfs;

pub use affinity::{current_affinity, pin_current_thread, set_current_affinity};
pub use cpu::{Cpu, CpuDescription, Place};
pub use cpu_set::{CPU_IDS_MAX, CpuSet};

use allowed::Allowed;
use cpu::Arranged;
use sysfs::Found;

/// The CPUs of a machine: those that may be used, in their places, and those that may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cpus: Vec<Cpu>,
    counts: Counts,
    offline: CpuSet,
    disallowed: CpuSet,
}

impl Topology {
    /// Reads this machine. The CPUs that may be used are those on which the calling thread may run.
    ///
    /// Where /sys is missing, or names none of these CPUs (some containers make one up), the kernel
    /// is right: it is the kernel that pins.
    ///
    /// # Errors
    /// What sched_getaffinity(2) and reading the folder of CPUs give.
    pub fn read() -> io::Result<Self> {
        let root = Path::new("/");
        let affinity = current_affinity()?;
        let found = match sysfs::read(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Found::default(),
            found => found?,
        };
        let nodes = Allowed::recorded(root).nodes;
        let allowed = Allowed { cpus: Some(affinity.clone()), nodes };
        Ok(Self::new(found.overruled_by(affinity), &allowed))
    }

    /// Reads a recorded machine: a folder that holds its `sys/`, and its `proc/` if there is one.
    /// The CPUs that may be used are those that the recorded process was allowed.
    ///
    /// Files that are missing or malformed are things that the machine does not name.
    ///
    /// # Errors
    /// What reading `sys/devices/system/cpu` gives, and `NotFound` if it names no CPU.
    pub fn read_from(root: &Path) -> io::Result<Self> {
        Ok(Self::new(sysfs::read(root)?, &Allowed::recorded(root)))
    }

    /// A machine of these CPUs, all of which may be used. Of two with the same id the first counts.
    #[must_use]
    pub fn from_cpus(cpus: Vec<CpuDescription>) -> Self {
        let Arranged { cpus, packages, cores } = cpu::arrange(cpus);
        let numa_nodes = count_nodes(&cpus, None);
        let counts = Counts { cpus: cpus.len(), cores, packages, numa_nodes };
        Self { cpus, counts, offline: CpuSet::new(), disallowed: CpuSet::new() }
    }

    /// The CPUs that may be used, by ascending id.
    #[must_use]
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// How many of each kind may be used.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The CPUs that are there, but offline.
    #[must_use]
    pub const fn offline(&self) -> &CpuSet {
        &self.offline
    }

    /// The CPUs that are online, but not for this process: outside its cpuset or its mask.
    #[must_use]
    pub const fn disallowed(&self) -> &CpuSet {
        &self.disallowed
    }

    fn new(found: Found, allowed: &Allowed) -> Self {
        let Found { present, online, descriptions } = found;
        let usable = allowed.cpus.as_ref().map_or(online.clone(), |set| online.intersection(set));
        let cpus = descriptions.into_iter().filter(|described| usable.contains(described.id));
        let mut topology = Self::from_cpus(cpus.collect());
        topology.counts.numa_nodes = count_nodes(&topology.cpus, allowed.nodes.as_ref());
        topology.offline = present.difference(&online);
        topology.disallowed = online.difference(&usable);
        topology
    }
}

/// How many of each kind may be used. A kind that the machine does not name is `None`.
///
/// These are the counts of hwloc, with two of its rules worth knowing. A NUMA node counts if the
/// process may use both its memory and at least one of its CPUs, so nodes of memory alone do not. A
/// machine that names no nodes is one node, since its memory has to be somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// CPUs, that is hardware threads.
    pub cpus: usize,
    /// Cores. Clusters of cores are not cores.
    pub cores: Option<usize>,
    /// Packages.
    pub packages: Option<usize>,
    /// NUMA nodes, at least 1.
    pub numa_nodes: usize,
}

fn count_nodes(cpus: &[Cpu], allowed: Option<&CpuSet>) -> usize {
    let nodes: HashSet<u32> = cpus.iter().filter_map(|cpu| cpu.node).collect();
    let allowed = |node: &&u32| allowed.is_none_or(|allowed| allowed.contains(**node));
    nodes.iter().filter(allowed).count().max(1)
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests;
