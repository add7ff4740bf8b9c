//! The CPU trees of recorded machines, counted against hwloc's own counts.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod any_tree;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use shorthaul_platform::topology::{Counts, Topology};

/// The recorded machines by their folders. They are thousands of small files, which are unpacked
/// into memory where that is possible.
static MACHINES: LazyLock<HashMap<String, Topology>> = LazyLock::new(|| {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(data().join("machines.tar.gz"));
    tar.arg("-C").arg(folder.path()).arg("--no-same-owner");
    assert!(tar.status().unwrap().success());
    let machines = expected().into_iter().map(|(machine, _)| machine);
    let read = |name: &String| Topology::read_from(&folder.path().join(name)).unwrap();
    machines.map(|name| (name.clone(), read(&name))).collect()
});

/// The rows of `expected.tsv`: folder and counts.
fn expected() -> Vec<(String, Counts)> {
    let table = fs::read_to_string(data().join("expected.tsv")).unwrap();
    table.lines().skip(1).map(row).collect()
}

fn row(line: &str) -> (String, Counts) {
    let fields: Vec<_> = line.split('\t').collect();
    let count = |index: usize| fields[index].parse().ok();
    let counts = Counts {
        cpus: count(1).unwrap(),
        cores: count(2),
        packages: count(3),
        numa_nodes: count(4).unwrap(),
    };
    (fields[5].trim_end_matches('/').to_owned(), counts)
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/topology")
}

#[test]
fn every_machine_is_counted_as_hwloc_counts_it() {
    let expected = expected();
    assert_eq!(expected.len(), 14);
    for (machine, counts) in expected {
        assert_eq!(MACHINES[&machine].counts(), counts, "{machine}");
    }
}

#[test]
fn cpus_are_left_out_for_the_reason_that_the_machine_gives() {
    let left_out = |machine: &str| {
        let topology = &MACHINES[machine];
        (topology.offline().to_string(), topology.disallowed().to_string())
    };
    assert_eq!(left_out("16amd64-8n2c-cpusets"), ("4".into(), "7-11".into()));
    assert_eq!(left_out("16em64t-4s2ca2c-cpusetreorder"), (String::new(), "0-1,12,14-15".into()));
    assert_eq!(left_out("4fake-4gr1nu1pu"), (String::new(), "2-3".into()));
    assert_eq!(left_out("offline-cpu0-node0"), ("0-3,21-23".into(), String::new()));
}

#[test]
fn labels_are_the_machines_and_places_are_dense() {
    let arm = &MACHINES["128arm-2pa2n8cluster4co"];
    let last = &arm.cpus()[127];
    assert_eq!((last.package, last.die, last.node), (Some(8442), None, Some(3)));
    assert_eq!(last.place().to_string(), "S1C63T0");
    let hybrid = &MACHINES["20em64t-hybrid-1p6c2t+2ca4co1t"];
    let places: Vec<_> = hybrid.cpus()[11..13].iter().map(|cpu| cpu.place().to_string()).collect();
    assert_eq!(places, ["S0C5T1", "S0C6T0"]);
    let split = &MACHINES["16em64t-4s2c2t"];
    assert_eq!(split.cpus()[13].place().to_string(), "S1C1T1");
}

#[test]
fn whatever_was_once_of_interest_holds() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/topology");
    let files: Vec<_> = fs::read_dir(corpus).unwrap().collect();
    assert!(files.len() > 10);
    for file in files {
        any_tree::check(&fs::read(file.unwrap().path()).unwrap());
    }
}
