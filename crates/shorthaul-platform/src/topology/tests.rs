//! Made-up trees: sizes that no recorded machine has, and files that no kernel should write.

use std::fs;
use std::path::PathBuf;

use super::*;

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        // Tens of thousands of small files are slow on some disks.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let tree = Self(folder.unwrap());
        fs::create_dir_all(tree.cpus()).unwrap();
        tree
    }

    /// CPUs 0 to count - 1: so many threads per core, so many cores per package, without labels of
    /// dies; one node per package.
    fn of(count: u32, threads: u32, cores: u32) -> Self {
        let tree = Self::new();
        let range = |first: u32, size: u32| format!("{first}-{}\n", (first + size).min(count) - 1);
        for id in 0..count {
            let core = id / threads;
            tree.shared(id, "physical_package_id", &(core / cores).to_string());
            tree.shared(id, "core_id", &(core % cores).to_string());
            tree.shared(id, "thread_siblings_list", &range(core * threads, threads));
        }
        for (node, first) in (0..count).step_by((threads * cores) as usize).enumerate() {
            tree.file(&format!("node/node{node}/cpulist"), &range(first, threads * cores));
        }
        tree.file("cpu/online", &range(0, count));
        tree
    }

    /// A file of a CPU that is one file with all those of the same text.
    fn shared(&self, id: u32, name: &str, text: &str) {
        let original = self.0.path().join(format!("{name}={}", text.trim()));
        if !original.exists() {
            fs::write(&original, text).unwrap();
        }
        let folder = self.cpus().join(format!("cpu{id}/topology"));
        fs::create_dir_all(&folder).unwrap();
        fs::hard_link(original, folder.join(name)).unwrap();
    }

    fn cpus(&self) -> PathBuf {
        self.0.path().join("sys/devices/system/cpu")
    }

    fn cpu(&self, id: u32, name: &str, text: &str) {
        self.file(&format!("cpu/cpu{id}/topology/{name}"), text);
    }

    fn file(&self, name: &str, text: &str) {
        let path = self.0.path().join("sys/devices/system").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Not written over: it may be shared.
        let _ = fs::remove_file(&path);
        fs::write(path, text).unwrap();
    }

    fn read(&self) -> Topology {
        Topology::read_from(self.0.path()).unwrap()
    }

    fn ids(&self) -> String {
        ids(&self.read())
    }
}

fn ids(topology: &Topology) -> String {
    CpuSet::from_ids(topology.cpus().iter().map(|cpu| cpu.id)).unwrap().to_string()
}

fn counts(cpus: usize, cores: usize, packages: usize, numa_nodes: usize) -> Counts {
    Counts { cpus, cores: Some(cores), packages: Some(packages), numa_nodes }
}

#[test]
fn machines_of_any_size_are_read() {
    assert_eq!(Tree::of(513, 1, 171).read().counts(), counts(513, 513, 3, 3));
    assert_eq!(Tree::of(1025, 2, 128).read().counts(), counts(1025, 513, 5, 5));
    assert_eq!(Tree::of(1920, 2, 60).read().counts(), counts(1920, 960, 16, 16));
    let huge = Tree::of(8192, 4, 256).read();
    assert_eq!(huge.counts(), counts(8192, 2048, 8, 8));
    assert_eq!(huge.cpus()[8191].place().to_string(), "S7C255T3");
}

#[test]
fn this_machine_has_the_cpus_of_this_thread() {
    let topology = Topology::read().unwrap();
    let affinity = current_affinity().unwrap();
    assert!(topology.cpus().iter().all(|cpu| affinity.contains(cpu.id)));
    assert!(topology.counts().cpus >= 1);
}

#[test]
fn cpu_0_may_be_offline() {
    let tree = Tree::of(4, 2, 2);
    tree.file("cpu/cpu0/online", "0\n");
    tree.file("cpu/online", "1-3\n");
    fs::remove_dir_all(tree.cpus().join("cpu0/topology")).unwrap();
    let topology = tree.read();
    assert_eq!((ids(&topology).as_str(), topology.offline().to_string().as_str()), ("1-3", "0"));
    assert_eq!(topology.cpus()[0].place().to_string(), "S0C0T0");
}

#[test]
fn the_list_of_the_online_may_name_more_or_fewer_than_there_are() {
    let tree = Tree::of(16, 1, 16);
    tree.file("cpu/online", "0-3\n");
    assert_eq!(tree.ids(), "0-3");
    assert_eq!(tree.read().offline().to_string(), "4-15");
    tree.file("cpu/online", "0-63\n");
    assert_eq!(tree.ids(), "0-15");
    for unreadable in ["", "\n", "many", "0-4294967295", "7-3"] {
        tree.file("cpu/online", unreadable);
        assert_eq!(tree.ids(), "0-15", "{unreadable}");
    }
    fs::remove_file(tree.cpus().join("online")).unwrap();
    tree.file("cpu/cpu5/online", "0\n");
    assert_eq!(tree.ids(), "0-4,6-15");
}

#[test]
fn a_list_without_folders_names_cpus_and_nothing_else() {
    let tree = Tree::new();
    let error = Topology::read_from(tree.0.path()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    tree.file("cpu/online", "0-1\n");
    let unnamed = Counts { cpus: 2, cores: None, packages: None, numa_nodes: 1 };
    assert_eq!(tree.read().counts(), unnamed);
}

#[test]
fn packages_without_a_label_are_known_by_their_siblings() {
    for label in ["-1", "65535", "4294967295", "", "none"] {
        let tree = Tree::of(4, 1, 2);
        for id in 0..4 {
            tree.cpu(id, "physical_package_id", label);
            tree.cpu(id, "core_siblings", if id < 2 { "00000000,00000003" } else { "c" });
        }
        assert_eq!(tree.read().counts(), counts(4, 4, 2, 2), "{label}");
        assert_eq!(tree.read().cpus()[2].package, None);
    }
}

#[test]
fn a_die_may_have_the_same_label_in_each_package() {
    let tree = Tree::of(8, 1, 4);
    for id in 0..8 {
        tree.cpu(id, "die_id", &(id % 2).to_string());
        tree.cpu(id, "core_id", "0");
        fs::remove_file(tree.cpus().join(format!("cpu{id}/topology/thread_siblings_list")))
            .unwrap();
    }
    assert_eq!(tree.read().counts(), counts(8, 4, 2, 2));
}

#[test]
fn what_vanishes_or_is_garbage_is_not_named() {
    let tree = Tree::of(4, 1, 2);
    for (id, text) in [(0, ""), (1, "\0\0"), (2, "core"), (3, "3-1")] {
        tree.cpu(id, "thread_siblings_list", text);
        tree.cpu(id, "core_id", text);
        tree.cpu(id, "physical_package_id", text);
    }
    tree.file("node/node0/cpulist", "x");
    fs::remove_dir_all(tree.cpus().join("cpu2/topology")).unwrap();
    let found = tree.read().counts();
    assert_eq!(found, Counts { cpus: 4, cores: None, packages: None, numa_nodes: 1 });
}

#[test]
fn folders_and_pipes_in_the_place_of_files_are_not_read() {
    let tree = Tree::of(2, 1, 2);
    fs::create_dir(tree.cpus().join("cpu0/topology/die_id")).unwrap();
    let pipe = tree.cpus().join("cpu1/topology/die_id");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    assert!(tree.read().cpus().iter().all(|cpu| cpu.die.is_none()));
}

#[test]
fn nodes_that_share_cpus_are_ignored_but_for_the_first() {
    let tree = Tree::of(4, 1, 4);
    tree.file("node/node1/cpulist", "0-3\n");
    tree.file("node/node2/cpulist", "\n");
    assert_eq!(tree.read().counts(), counts(4, 4, 1, 1));
    assert!(tree.read().cpus().iter().all(|cpu| cpu.node == Some(0)));
}

#[test]
fn a_made_up_sys_is_overruled_by_the_kernel() {
    let tree = Tree::of(4, 1, 2);
    tree.file("cpu/online", "0-1\n");
    let overruled_by = |affinity: &str| {
        let found = sysfs::read(tree.0.path()).unwrap();
        found.overruled_by(affinity.parse().unwrap())
    };
    assert_eq!(overruled_by("1-9").online.to_string(), "0-1");
    assert_eq!(overruled_by("3-9").online.to_string(), "3");
    assert_eq!(overruled_by("8-9").online.to_string(), "8-9");
    assert_eq!(overruled_by("8-9").descriptions.len(), 2);
}
