//! What a /sys tree says about CPUs and NUMA nodes, taken down as it stands.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::cpu::CpuDescription;
use super::cpu_set::CpuSet;
use super::files;

/// The CPUs that the tree names, and which of them are online.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) present: CpuSet,
    pub(super) online: CpuSet,
    pub(super) descriptions: Vec<CpuDescription>,
}

impl Found {
    fn listed(online: CpuSet) -> Self {
        let described = |id| CpuDescription { id, ..CpuDescription::default() };
        let descriptions = online.iter().map(described).collect();
        Self { present: online.clone(), online, descriptions }
    }

    /// Itself, unless none of the CPUs on which the kernel lets the thread run is online in it:
    /// then these are, described as far as they are there.
    pub(super) fn overruled_by(mut self, affinity: CpuSet) -> Self {
        if self.online.intersection(&affinity).is_empty() {
            self.online = self.present.intersection(&affinity);
        }
        if self.online.is_empty() { Self::listed(affinity) } else { self }
    }
}

/// Reads `<root>/sys/devices/system/{cpu,node}`.
///
/// A CPU is online if it has a folder, if the list `online` names it (where there is such a list),
/// and if its own `online` file does not deny it. Where no CPU has a folder, the list alone counts.
///
/// # Errors
/// `NotFound` if the tree names no CPU, and what reading the folder of CPUs gives.
///
/// # References
/// In the kernel's Documentation: admin-guide/cputopology.rst, ABI/stable/sysfs-devices-system-cpu
/// and ABI/stable/sysfs-devices-node.
pub(super) fn read(root: &Path) -> io::Result<Found> {
    let folder = root.join("sys/devices/system/cpu");
    let present = CpuSet::from_ids(files::numbered(&folder, "cpu")?)?;
    let listed = listed_online(&folder);
    if present.is_empty() {
        return listed.map(Found::listed).ok_or_else(|| no_cpu(&folder));
    }
    let nodes = nodes(&root.join("sys/devices/system/node"));
    let mut found = Found { present, ..Found::default() };
    for id in found.present.iter() {
        let cpu = folder.join(format!("cpu{id}"));
        found.descriptions.push(describe(id, &cpu, nodes.get(&id).copied()));
        // Asked after the topology: a CPU that went offline meanwhile is not taken for one without.
        if listed.as_ref().is_none_or(|listed| listed.contains(id)) && is_online(&cpu) {
            found.online.insert(id)?;
        }
    }
    Ok(found)
}

fn describe(id: u32, cpu: &Path, node: Option<u32>) -> CpuDescription {
    let topology = cpu.join("topology");
    // A mask that leaves out the CPU itself is no list of its siblings.
    let peer = |names: &[&str]| {
        let siblings = files::first_set(&topology, names)?;
        siblings.first().filter(|_| siblings.contains(id))
    };
    CpuDescription {
        id,
        package: files::label(&topology.join("physical_package_id")),
        die: files::label(&topology.join("die_id")),
        core: files::label(&topology.join("core_id")),
        node,
        package_peer: peer(&PACKAGE_SIBLINGS),
        core_peer: peer(&CORE_SIBLINGS),
    }
}

/// CPU 0 often has no `online` file, since it cannot be switched off.
fn is_online(cpu: &Path) -> bool {
    files::text(&cpu.join("online")).map_or_else(|_| cpu.is_dir(), |text| text != "0")
}

fn listed_online(folder: &Path) -> Option<CpuSet> {
    let listed: CpuSet = files::text(&folder.join("online")).ok()?.parse().ok()?;
    (!listed.is_empty()).then_some(listed)
}

/// The node of each CPU. Nodes that share CPUs are a fault of the firmware: the lowest keeps them,
/// and the others, whose memory could be anywhere, are ignored.
fn nodes(folder: &Path) -> BTreeMap<u32, u32> {
    let mut node_of = BTreeMap::new();
    for node in files::numbered(folder, "node").unwrap_or_default() {
        let node_folder = folder.join(format!("node{node}"));
        let cpus = files::first_set(&node_folder, &["cpulist", "cpumap"]).unwrap_or_default();
        if !cpus.iter().any(|cpu| node_of.contains_key(&cpu)) {
            node_of.extend(cpus.iter().map(|cpu| (cpu, node)));
        }
    }
    node_of
}

fn no_cpu(folder: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no CPU in {}", folder.display()))
}

/// Lists first, being shorter; newer names first, since the old ones are to go.
const PACKAGE_SIBLINGS: [&str; 4] =
    ["package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings"];
const CORE_SIBLINGS: [&str; 4] =
    ["core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings"];
