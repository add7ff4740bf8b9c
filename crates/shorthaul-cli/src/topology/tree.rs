//! The CPUs grouped for reading: packages, and in them runs of cores that are alike.

use shorthaul_platform::topology::Cpu;

/// A package and its parts.
#[derive(Debug)]
pub(super) struct Package<'a> {
    pub(super) socket_index: usize,
    pub(super) label: Option<u32>,
    pub(super) parts: Vec<Part<'a>>,
}

impl Package<'_> {
    /// Whether they differ in nothing but their labels and the numbers of their CPUs.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let shape = |part: &Part| (part.node, part.die, part.threads_per_core(), part.cores.len());
        self.parts.iter().map(shape).eq(other.parts.iter().map(shape))
    }
}

/// The cores of a package that share node, die and number of threads.
#[derive(Debug)]
pub(super) struct Part<'a> {
    pub(super) node: Option<u32>,
    pub(super) die: Option<u32>,
    /// Never empty; nor is any core.
    pub(super) cores: Vec<Vec<&'a Cpu>>,
}

impl<'a> Part<'a> {
    pub(super) fn threads_per_core(&self) -> usize {
        self.cores[0].len()
    }

    pub(super) fn cpus(&self) -> impl Iterator<Item = &'a Cpu> {
        self.cores.iter().flatten().copied()
    }

    /// Whether the threads of each core are numbered one after another.
    pub(super) fn has_neighbouring_threads(&self) -> bool {
        let neighbours = |core: &Vec<&Cpu>| core.is_sorted_by(|a, b| a.id + 1 == b.id);
        self.cores.iter().all(neighbours)
    }
}

/// All packages, by their index.
pub(super) fn packages(cpus: &[Cpu]) -> Vec<Package<'_>> {
    let mut cpus: Vec<_> = cpus.iter().collect();
    cpus.sort_by_key(|cpu| cpu.place());
    cpus.chunk_by(|a, b| a.socket_index == b.socket_index).map(package).collect()
}

fn package<'a>(cpus: &[&'a Cpu]) -> Package<'a> {
    let cores = cpus.chunk_by(|a, b| a.core_index == b.core_index);
    let mut cores: Vec<_> = cores.map(<[&Cpu]>::to_vec).collect();
    let kind = |core: &Vec<&Cpu>| (core[0].node, core[0].die, usize::MAX - core.len());
    // A stable sort: alike cores stay in their order.
    cores.sort_by_key(kind);
    let parts = cores.chunk_by(|a, b| kind(a) == kind(b)).map(part).collect();
    Package { socket_index: cpus[0].socket_index, label: cpus[0].package, parts }
}

fn part<'a>(cores: &[Vec<&'a Cpu>]) -> Part<'a> {
    let Cpu { node, die, .. } = *cores[0][0];
    Part { node, die, cores: cores.to_vec() }
}
