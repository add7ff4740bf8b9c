//! One CPU: what the machine calls it, and where it stands among the others.

use std::collections::HashMap;
use std::fmt;

/// A CPU that may be used: its labels, and its place among the CPUs that may be used.
///
/// *Labels* are the machine's own numbers: good for telling one from another, never as an index.
/// They have gaps, may be missing (`None`), and those of dies and cores may repeat. *Indexes* are
/// dense and count from 0, in the order of the lowest CPU id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cpu {
    /// The number by which the operating system knows it, and by which it is pinned.
    pub id: u32,
    /// The label of its package.
    pub package: Option<u32>,
    /// The label of its die, which may repeat in the next package.
    pub die: Option<u32>,
    /// The label of its core, which may repeat in the next package, die or node.
    pub core: Option<u32>,
    /// The label of its NUMA node.
    pub node: Option<u32>,
    /// Which package it is in. Those whose package is not known are in one package
    /// together, after all others.
    pub socket_index: usize,
    /// Which core of its package it is in. A CPU whose core is not known counts as a core.
    pub core_index: usize,
    /// Which thread of its core it is.
    pub thread_index: usize,
}

impl Cpu {
    /// Its place as `SaCbTc`: socket (package) a, core b, thread c.
    #[must_use]
    pub const fn place(&self) -> Place {
        let Self { socket_index, core_index, thread_index, .. } = *self;
        Place { socket_index, core_index, thread_index }
    }
}

/// A place in the CPU tree, by dense indexes. It is written `S0C1T0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Which package of the machine.
    pub socket_index: usize,
    /// Which core of the package.
    pub core_index: usize,
    /// Which thread of the core.
    pub thread_index: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { socket_index, core_index, thread_index } = self;
        f.pad(&format!("S{socket_index}C{core_index}T{thread_index}"))
    }
}

/// What is known of a CPU before the tree is built; everything but the id may be unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuDescription {
    /// The number by which the operating system knows it.
    pub id: u32,
    /// The label of its package.
    pub package: Option<u32>,
    /// The label of its die.
    pub die: Option<u32>,
    /// The label of its core.
    pub core: Option<u32>,
    /// The label of its NUMA node.
    pub node: Option<u32>,
    /// The lowest CPU of its package: tells packages apart that have no label.
    pub package_peer: Option<u32>,
    /// The lowest CPU among its hardware threads: tells cores apart that have no label, or the same
    /// one. Threads with unequal labels are two cores nevertheless (AMD's compute units).
    pub core_peer: Option<u32>,
}

/// The CPUs in their places, and how many packages and cores the machine names.
#[derive(Debug, Default)]
pub(super) struct Arranged {
    pub(super) cpus: Vec<Cpu>,
    pub(super) packages: Option<usize>,
    pub(super) cores: Option<usize>,
}

/// Gives each CPU its place. A second description of the same id is ignored.
pub(super) fn arrange(mut descriptions: Vec<CpuDescription>) -> Arranged {
    descriptions.sort_by_key(|described| described.id);
    descriptions.dedup_by_key(|described| described.id);
    descriptions.sort_by_key(|described| PackageKey::of(described) == PackageKey::Unknown);
    let mut sockets = HashMap::new();
    let mut cores = HashMap::new();
    let mut core_counts: Vec<usize> = Vec::new();
    let mut cpus = Vec::with_capacity(descriptions.len());
    for described in &descriptions {
        let socket_count = sockets.len();
        let socket = *sockets.entry(PackageKey::of(described)).or_insert(socket_count);
        core_counts.resize(core_counts.len().max(socket + 1), 0);
        let core = cores.entry((socket, CoreKey::of(described))).or_insert_with(|| {
            core_counts[socket] += 1;
            Core { index: core_counts[socket] - 1, threads: 0 }
        });
        cpus.push(placed(described, socket, core));
        core.threads += 1;
    }
    cpus.sort_by_key(|cpu: &Cpu| cpu.id);
    let packages = sockets.keys().filter(|key| **key != PackageKey::Unknown).count();
    let cores = cores.keys().filter(|(_, key)| !matches!(key, CoreKey::Unknown { .. })).count();
    Arranged { cpus, packages: named(packages), cores: named(cores) }
}

fn placed(described: &CpuDescription, socket_index: usize, core: &Core) -> Cpu {
    let CpuDescription { id, package, die, core: core_label, node, .. } = *described;
    let (core_index, thread_index) = (core.index, core.threads);
    Cpu { id, package, die, core: core_label, node, socket_index, core_index, thread_index }
}

fn named(count: usize) -> Option<usize> {
    (count > 0).then_some(count)
}

struct Core {
    index: usize,
    threads: usize,
}

/// What makes two CPUs share a package. The label is unique in the machine, and counts more than
/// the list of siblings, which has been wrong more often.
#[derive(PartialEq, Eq, Hash)]
enum PackageKey {
    Label(u32),
    Siblings(u32),
    Unknown,
}

impl PackageKey {
    fn of(described: &CpuDescription) -> Self {
        match (described.package, described.package_peer) {
            (Some(label), _) => Self::Label(label),
            (None, Some(peer)) => Self::Siblings(peer),
            (None, None) => Self::Unknown,
        }
    }
}

/// What makes two CPUs of one package share a core. The label repeats within a package, so the list
/// of siblings counts more.
#[derive(PartialEq, Eq, Hash)]
enum CoreKey {
    Siblings { peer: u32, label: Option<u32> },
    Label { die: Option<u32>, label: u32 },
    Unknown { cpu: u32 },
}

impl CoreKey {
    fn of(described: &CpuDescription) -> Self {
        match (described.core_peer, described.core) {
            (Some(peer), label) => Self::Siblings { peer, label },
            (None, Some(label)) => Self::Label { die: described.die, label },
            (None, None) => Self::Unknown { cpu: described.id },
        }
    }
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    fn places(descriptions: Vec<CpuDescription>) -> Vec<String> {
        arrange(descriptions).cpus.iter().map(|cpu| cpu.place().to_string()).collect()
    }

    fn labelled(id: u32, package: u32, die: u32, core: u32) -> CpuDescription {
        let (package, die, core) = (Some(package), Some(die), Some(core));
        CpuDescription { id, package, die, core, ..CpuDescription::default() }
    }

    #[test]
    fn labels_become_dense_indexes_in_the_order_of_cpu_ids() {
        let cpus = vec![labelled(9, 36, 0, 500), labelled(4, 8442, 0, 7), labelled(6, 36, 0, 500)];
        assert_eq!(places(cpus), ["S0C0T0", "S1C0T0", "S1C0T1"]);
    }

    #[test]
    fn dies_and_cores_may_repeat_their_labels() {
        let cpus = (0..8).map(|id| labelled(id, id / 4, id / 2 % 2, 0)).collect();
        let arranged = arrange(cpus);
        assert_eq!((arranged.packages, arranged.cores), (Some(2), Some(4)));
        assert_eq!(arranged.cpus[6].place().to_string(), "S1C1T0");
    }

    #[test]
    fn threads_with_unequal_labels_are_two_cores() {
        let cpu = |id| CpuDescription { core_peer: Some(0), ..labelled(id, 0, 0, id) };
        assert_eq!(arrange(vec![cpu(0), cpu(1)]).cores, Some(2));
    }

    #[test]
    fn cpus_of_an_unknown_package_come_last() {
        let unknown = CpuDescription::default();
        let cpus = vec![unknown, labelled(1, 7, 0, 0), labelled(2, 8, 0, 0)];
        assert_eq!(arrange(cpus.clone()).packages, Some(2));
        assert_eq!(places(cpus), ["S2C0T0", "S0C0T0", "S1C0T0"]);
    }

    #[test]
    fn what_is_not_named_is_not_counted() {
        let unknown = |id| CpuDescription { id, ..CpuDescription::default() };
        let arranged = arrange(vec![unknown(3), unknown(u32::MAX), unknown(3)]);
        assert_eq!((arranged.packages, arranged.cores), (None, None));
        let places: Vec<_> = arranged.cpus.iter().map(Cpu::place).collect();
        assert_eq!(format!("{} {:>8}", places[0], places[1]), "S0C0T0   S0C1T0");
    }
}
