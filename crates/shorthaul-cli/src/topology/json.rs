//! The topology for programs. What the machine does not name is left out.

use std::io::{self, Write};

use serde::Serialize;
use shorthaul::placement::{Assignment, Placement};
use shorthaul_platform::topology::{Cpu, CpuSet, Topology};

/// Writes the topology as one JSON object.
pub(super) fn write(output: &mut dyn Write, topology: &Topology) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *output, &Report::of(topology))?;
    writeln!(output)
}

#[derive(Serialize)]
struct Report {
    counts: CountsReport,
    cpus: Vec<CpuReport>,
    offline: Vec<u32>,
    not_allowed: Vec<u32>,
    placements: Vec<PlacementReport>,
}

impl Report {
    fn of(topology: &Topology) -> Self {
        let ids = |set: &CpuSet| set.iter().collect();
        let placements = Placement::ALL.map(|placement| PlacementReport::of(placement, topology));
        Self {
            counts: CountsReport::of(topology),
            cpus: topology.cpus().iter().map(CpuReport::of).collect(),
            offline: ids(topology.offline()),
            not_allowed: ids(topology.disallowed()),
            placements: placements.into(),
        }
    }
}

#[derive(Serialize)]
struct CountsReport {
    cpus: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cores: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packages: Option<usize>,
    numa_nodes: usize,
}

impl CountsReport {
    fn of(topology: &Topology) -> Self {
        let counts = topology.counts();
        Self {
            cpus: counts.cpus,
            cores: counts.cores,
            packages: counts.packages,
            numa_nodes: counts.numa_nodes,
        }
    }
}

#[derive(Serialize)]
struct CpuReport {
    id: u32,
    place: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    package: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    die: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    core: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<u32>,
}

impl CpuReport {
    fn of(cpu: &Cpu) -> Self {
        let Cpu { id, package, die, core, node, .. } = *cpu;
        Self { id, place: cpu.place().to_string(), package, die, core, node }
    }
}

#[derive(Serialize)]
struct PlacementReport {
    name: &'static str,
    possible: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<ThreadsReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
}

impl PlacementReport {
    fn of(placement: Placement, topology: &Topology) -> Self {
        let threads = placement.assign(topology).map(|assigned| ThreadsReport::of(&assigned));
        let why_not = threads.is_none().then(|| placement.why_not(topology));
        Self { name: placement.name(), possible: threads.is_some(), threads, why_not }
    }
}

#[derive(Serialize)]
struct ThreadsReport {
    client: CpuReport,
    client_reactor: CpuReport,
    server_reactor: CpuReport,
    worker: CpuReport,
}

impl ThreadsReport {
    fn of(assigned: &Assignment) -> Self {
        let [client, client_reactor, server_reactor, worker] = assigned.cpus().map(CpuReport::of);
        Self { client, client_reactor, server_reactor, worker }
    }
}
