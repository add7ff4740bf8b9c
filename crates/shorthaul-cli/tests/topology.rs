//! `shorthaul topology`, as a person and as a program would use it.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

fn shorthaul(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shorthaul"));
    command.arg("topology").args(arguments);
    command
}

fn text(arguments: &[&str]) -> String {
    let output = shorthaul(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn error(arguments: &[&str]) -> String {
    let output = shorthaul(arguments).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Unpacks one recorded machine and gives its folder.
fn recorded(into: &Path, machine: &str) -> PathBuf {
    let archive = "../shorthaul-platform/tests/data/topology/machines.tar.gz";
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(archive));
    tar.arg("-C").arg(into).args(["--no-same-owner", machine]);
    assert!(tar.status().unwrap().success());
    into.join(machine)
}

fn show(machine: &str, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let root = recorded(folder.path(), machine);
    text(&[&["--sysfs", root.to_str().unwrap()], arguments].concat())
}

#[test]
fn this_machine_has_a_cpu_and_a_placement() {
    let shown = text(&[]);
    let first = "\nall-same-core               S0C0T0  S0C0T0  S0C0T0  S0C0T0\n";
    assert!(shown.contains(first), "{shown}");
    let report: Value = serde_json::from_str(&text(&["--json"])).unwrap();
    assert!(report["counts"]["cpus"].as_u64().unwrap() >= 1);
    assert_eq!(report["placements"].as_array().unwrap().len(), 5);
}

#[test]
fn a_machine_is_shown_by_packages_and_runs_of_cores() {
    let expected = "\
20 CPUs, 14 cores, 1 package, 1 NUMA node

S0: package 0
  node 0, die 0, C0-C5, 2 threads each: CPUs 0-11
  node 0, die 0, C6-C13: CPUs 12-19

placement                   client  c-rx    s-rx    worker
all-same-core               S0C0T0  S0C0T0  S0C0T0  S0C0T0
client-server-cross-core    S0C0T0  S0C0T0  S0C1T0  S0C1T0
client-server-cross-socket  needs two packages; this machine has 1
every-hop-crosses-core      S0C0T0  S0C1T0  S0C2T0  S0C3T0
every-hop-crosses-socket    needs two packages of two cores or more; this machine has 1
";
    assert_eq!(show("20em64t-hybrid-1p6c2t+2ca4co1t", &[]), expected);
}

#[test]
fn threads_far_apart_are_listed_apart() {
    let shown = show("16em64t-4s2c2t", &[]);
    let package = "S3: package 3\n  node 0, C0-C1, 2 threads each: CPUs 3,7 (T0), 11,15 (T1)\n";
    assert!(shown.contains(package), "{shown}");
}

#[test]
fn cpus_that_may_not_be_used_are_said() {
    let shown = show("16amd64-8n2c-cpusets", &[]);
    assert!(shown.contains("\noffline: 4\nnot allowed for this process: 7-11\n"), "{shown}");
}

#[test]
fn a_large_machine_stays_short() {
    let shown = show("256ppc-8n8s4t", &[]);
    assert!(shown.lines().count() < 24, "{shown}");
    let run = "S0-S7: 8 packages alike, node 0, 1 core of 4 threads each: CPUs 0-31";
    assert!(shown.contains(run), "{shown}");
}

#[test]
fn json_leaves_out_what_is_not_named() {
    let report: Value = serde_json::from_str(&show("2ps3-2t", &["--json"])).unwrap();
    assert_eq!(report["counts"], json!({"cpus": 2, "cores": 1, "numa_nodes": 1}));
    assert_eq!(report["cpus"][1], json!({"id": 1, "place": "S0C0T1"}));
    assert_eq!((&report["offline"], &report["not_allowed"]), (&json!([]), &json!([])));
    let cpu = json!({"id": 0, "place": "S0C0T0"});
    let threads = json!({
        "client": cpu, "client_reactor": cpu, "server_reactor": cpu, "worker": cpu,
    });
    let possible = json!({"name": "all-same-core", "possible": true, "threads": threads});
    assert_eq!(report["placements"][0], possible);
    let why_not = "needs two packages; this machine names no packages";
    let name = "client-server-cross-socket";
    let impossible = json!({"name": name, "possible": false, "why_not": why_not});
    assert_eq!(report["placements"][2], impossible);
}

#[test]
fn a_wrong_directory_is_explained() {
    let missing = error(&["--sysfs", "/nowhere"]);
    assert!(missing.contains("/nowhere is not a directory; --sysfs takes one"), "{missing}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let empty = error(&["--sysfs", path]);
    assert!(empty.contains("holds no sys/devices/system/cpu; --sysfs takes one"), "{empty}");
    fs::create_dir_all(folder.path().join("devices/system/cpu")).unwrap();
    let inside = error(&["--sysfs", path]);
    assert!(inside.contains("give the directory above, which holds sys/"), "{inside}");
    fs::create_dir_all(folder.path().join("sys/devices/system/cpu")).unwrap();
    assert!(error(&["--sysfs", path]).contains("no CPU in "));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for arguments in [&[][..], &["--json"][..]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = shorthaul(arguments);
        let output = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}
