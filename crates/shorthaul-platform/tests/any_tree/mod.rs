//! What must be true of any files in the place of /sys and /proc. `fuzz/` uses this module too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;

use shorthaul_platform::topology::{CPU_IDS_MAX, Cpu, CpuSet, Topology};

/// Takes the bytes for a tree: of each file which one it is, whose (of a CPU or a node), how long,
/// and what is in it.
pub(super) fn check(bytes: &[u8]) {
    let Some(files) = files(bytes) else { return };
    // A tree is a few files, which have no place on a disk.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.expect("a folder for the tree");
    for (name, content) in &files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
        fs::write(path, content).expect("a file");
        std::str::from_utf8(content).into_iter().for_each(check_list);
    }
    let Ok(topology) = Topology::read_from(folder.path()) else { return };
    check_choice(&topology, &files);
    check_places(&topology);
    let again = Topology::read_from(folder.path()).expect("it could be read before");
    assert_eq!(again, topology, "the same files, another machine");
}

/// The files that the bytes tell of. None if one of them names so many CPUs that they would only be
/// slow to read.
fn files(mut bytes: &[u8]) -> Option<BTreeMap<String, &[u8]>> {
    let mut files = BTreeMap::new();
    while let [name, number, length, rest @ ..] = bytes {
        let (content, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        bytes = rest;
        if set(content).is_some_and(|set| set.len() > 10_000) {
            return None;
        }
        let number = match number {
            255 => CPU_IDS_MAX,
            254 => CPU_IDS_MAX - 1,
            253 => 8191,
            other => u32::from(*other),
        };
        let name = NAMES[usize::from(*name) % NAMES.len()];
        files.insert(name.replace("{}", &number.to_string()), content);
    }
    Some(files)
}

/// The set that a file holds in list format.
fn set(content: &[u8]) -> Option<CpuSet> {
    text(content)?.parse().ok()
}

fn text(content: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(content).ok()?;
    Some(text.trim_matches(|c: char| c.is_whitespace() || c == '\0'))
}

/// A list that is taken names what it says, and is the same set when it is written again.
fn check_list(list: &str) {
    let Ok(set) = list.parse::<CpuSet>() else { return };
    let ids: BTreeSet<u32> = list.split(',').filter(|_| !list.is_empty()).flat_map(range).collect();
    assert!(set.iter().eq(ids.iter().copied()), "{list:?}");
    assert_eq!((set.len(), set.first()), (ids.len(), ids.first().copied()));
    assert_eq!(set.to_string().parse::<CpuSet>().ok().as_ref(), Some(&set));
    assert_eq!(CpuSet::from_ids(ids).ok().as_ref(), Some(&set));
    assert_eq!(set.intersection(&set), set);
    assert!(set.difference(&set).is_empty());
}

fn range(range: &str) -> std::ops::RangeInclusive<u32> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let [first, last] = [first, last].map(|id| id.parse::<u32>().expect("it was taken for one"));
    assert!(first <= last && last < CPU_IDS_MAX, "{range:?}");
    first..=last
}

/// No CPU is chosen that the files deny.
fn check_choice(topology: &Topology, files: &BTreeMap<String, &[u8]>) {
    let ids: Vec<u32> = topology.cpus().iter().map(|cpu| cpu.id).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    let chosen = CpuSet::from_ids(ids).expect("they are below the bound");
    let [offline, disallowed] = [topology.offline(), topology.disallowed()];
    for (a, b) in [(&chosen, offline), (&chosen, disallowed), (offline, disallowed)] {
        assert!(a.intersection(b).is_empty(), "{topology:?}");
    }
    let file = |name: &str| files.get(name).copied();
    for id in chosen.iter() {
        let own = file(&format!("{CPU}/cpu{id}/online")).and_then(text);
        assert_ne!(own, Some("0"), "CPU {id} is offline");
    }
    let online = file("sys/devices/system/cpu/online").and_then(set);
    if let Some(online) = online.filter(|online| !online.is_empty()) {
        assert!(chosen.difference(&online).is_empty(), "{topology:?}");
        assert!(disallowed.difference(&online).is_empty(), "{topology:?}");
    }
    let status = file("proc/self/status").and_then(text).unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed = allowed.and_then(|list| list.trim().parse::<CpuSet>().ok());
    if let Some(allowed) = allowed.filter(|allowed| !allowed.is_empty()) {
        assert!(chosen.difference(&allowed).is_empty(), "{topology:?}");
    }
}

/// Places are dense, no two CPUs have the same, and they are as many as the counts say.
fn check_places(topology: &Topology) {
    let cpus = topology.cpus();
    let counts = topology.counts();
    assert_eq!(counts.cpus, cpus.len());
    assert!(counts.numa_nodes >= 1 && counts.numa_nodes <= cpus.len().max(1));
    let mut threads: HashMap<(usize, usize), BTreeSet<usize>> = HashMap::new();
    for cpu in cpus {
        let core = threads.entry((cpu.socket_index, cpu.core_index)).or_default();
        assert!(core.insert(cpu.thread_index), "two CPUs at {}", cpu.place());
    }
    threads.values().for_each(assert_dense);
    let sockets: BTreeSet<usize> = cpus.iter().map(|cpu| cpu.socket_index).collect();
    assert_dense(&sockets);
    for socket in &sockets {
        let here = threads.keys().filter(|(other, _)| other == socket);
        assert_dense(&here.map(|&(_, core)| core).collect());
    }
    assert!(counts.packages.unwrap_or(0) <= sockets.len());
    assert!(counts.cores.unwrap_or(0) <= threads.len());
    let labels = |cpu: &Cpu| [cpu.package, cpu.die, cpu.core];
    let unknown = [0xffff, u32::MAX];
    let all = cpus.iter().flat_map(labels).flatten();
    all.for_each(|label| assert!(!unknown.contains(&label), "{label} is no label"));
}

fn assert_dense(indexes: &BTreeSet<usize>) {
    assert!(indexes.iter().copied().eq(0..indexes.len()), "{indexes:?}");
}

const CPU: &str = "sys/devices/system/cpu";
const NAMES: [&str; 27] = [
    "sys/devices/system/cpu/cpu{}/topology/physical_package_id",
    "sys/devices/system/cpu/cpu{}/topology/die_id",
    "sys/devices/system/cpu/cpu{}/topology/core_id",
    "sys/devices/system/cpu/cpu{}/topology/package_cpus_list",
    "sys/devices/system/cpu/cpu{}/topology/core_siblings_list",
    "sys/devices/system/cpu/cpu{}/topology/package_cpus",
    "sys/devices/system/cpu/cpu{}/topology/core_siblings",
    "sys/devices/system/cpu/cpu{}/topology/core_cpus_list",
    "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list",
    "sys/devices/system/cpu/cpu{}/topology/core_cpus",
    "sys/devices/system/cpu/cpu{}/topology/thread_siblings",
    "sys/devices/system/cpu/cpu{}/online",
    "sys/devices/system/cpu/online",
    "sys/devices/system/node/node{}/cpulist",
    "sys/devices/system/node/node{}/cpumap",
    "proc/self/status",
    "proc/self/cpuset",
    "proc/self/cgroup",
    "proc/mounts",
    "sys/fs/cgroup/a/cpuset.cpus.effective",
    "sys/fs/cgroup/a/cpuset.mems.effective",
    "sys/fs/cgroup/cpuset.cpus.effective",
    "sys/fs/cgroup/a/cpuset.cpus",
    "sys/fs/cgroup/a/cpuset.mems",
    "sys/fs/cgroup/a/cpus",
    "sys/fs/cgroup/a/mems",
    "sys/devices/system/cpu/cpu{}/topology/id",
];
