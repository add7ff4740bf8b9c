//! `shorthaul doctor`, where things are taken away from it: what must change does, and no more.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};
use std::thread;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};
use serde_json::Value;
use shorthaul_platform::topology::current_affinity;

/// Found and verdict of each id.
type Report = BTreeMap<String, (String, String)>;

const BINARY: &str = env!("CARGO_BIN_EXE_shorthaul");

fn doctor(before: &[&str]) -> Command {
    let mut words =
        before.iter().map(OsStr::new).chain([BINARY, "doctor", "--json"].map(OsStr::new));
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    command
}

/// Reads a report, and holds its exit code against what it says.
fn report(output: &Output) -> Report {
    let parsed: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("no JSON: {error}: {output:?}");
    });
    assert_eq!(parsed["version"], 1);
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let mut report = Report::new();
    for finding in parsed["findings"].as_array().unwrap() {
        let is_ok = finding["verdict"] == "ok";
        assert!(!is_ok || finding["remedy"].is_null(), "{finding}");
        assert!(!text(finding, "meaning").is_empty() && !text(finding, "what").is_empty());
        let entry = (text(finding, "verdict"), text(finding, "found"));
        assert!(report.insert(text(finding, "id"), entry).is_none(), "twice: {finding}");
    }
    let is_missing = report.values().any(|(verdict, _)| verdict == "missing");
    assert_eq!(output.status.code(), Some(i32::from(is_missing)), "{output:?}");
    let conclusion = parsed["conclusion"].as_str().unwrap();
    assert_eq!(conclusion.starts_with("Every lane works"), !is_missing, "{conclusion}");
    report
}

fn as_it_is() -> Report {
    report(&doctor(&[]).output().unwrap())
}

/// These have these verdicts, and all others the ones that they have without what was done.
fn assert_verdicts(got: &Report, expected: &[(&str, &str)]) {
    let mut wanted = as_it_is();
    for (id, verdict) in expected {
        wanted.get_mut(*id).unwrap().0 = (*verdict).to_owned();
    }
    let verdicts = |report: &Report| -> Vec<(String, String)> {
        report.iter().map(|(id, (verdict, _))| (id.clone(), verdict.clone())).collect()
    };
    assert_eq!(verdicts(got), verdicts(&wanted), "{got:#?}");
}

/// By a command that runs another one; none where that can't be done here.
fn below(before: &[&str]) -> Option<Report> {
    let can = Command::new(before[0]).args(&before[1..]).args([BINARY, "--version"]).output();
    if !can.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("passed over, for it can't be done here: {before:?}: {can:?}");
        return None;
    }
    Some(report(&doctor(before).output().unwrap()))
}

fn limited(limit: &str) -> Report {
    let script = format!("{limit}; exec \"$0\" \"$@\"");
    report(&doctor(&["bash", "-c", &script]).output().unwrap())
}

/// With calls of `number` refused, or those that have this second argument.
fn refused(number: i64, second: Option<u64>) -> Report {
    let is_it = |value| {
        let length = SeccompCmpArgLen::Dword;
        SeccompRule::new(vec![SeccompCondition::new(1, length, SeccompCmpOp::Eq, value).unwrap()])
    };
    let rules = second.map(|value| is_it(value).unwrap()).into_iter().collect();
    let filter = SeccompFilter::new(
        BTreeMap::from([(number, rules)]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    // A filter is the thread's, and its children's.
    let thread = thread::spawn(move || {
        apply_filter(&program).unwrap();
        doctor(&[]).output().unwrap()
    });
    report(&thread.join().unwrap())
}

#[test]
fn every_finding_is_there_once_and_documented() {
    let report = as_it_is();
    assert!(report.keys().map(String::as_str).eq(IDS), "{:?}", report.keys());
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/DOCTOR.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    for id in IDS {
        assert!(docs.contains(&format!("`{id}`")), "docs/DOCTOR.md doesn't tell of {id}");
    }
}

#[test]
fn people_see_every_group_and_a_conclusion_at_the_end() {
    let output = Command::new(BINARY).arg("doctor").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for title in ["Machine", "Memory files", "Huge pages", "Limits", "Moving", "Surroundings"] {
        assert!(text.lines().any(|line| line.starts_with(title)), "{text}");
    }
    let last = text.lines().last().unwrap();
    let works = last.starts_with("Every lane works");
    assert!(works || last.starts_with("No "), "{text}");
    assert_eq!(output.status.success(), works);
    assert!(!text.contains('\u{1b}'), "no colours where nobody asked for them");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for arguments in [&["doctor"][..], &["doctor", "--json"][..]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(BINARY);
        let output = command.args(arguments).stdout(writer).stderr(Stdio::piped()).output();
        let output = output.unwrap();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn in_a_user_namespace_without_a_name_nobody_is_let_in() {
    if let Some(got) = below(&["unshare", "-U"]) {
        let changed = [("namespace-user", "degraded"), ("peer-credentials", "missing")];
        assert_verdicts(&got, &changed);
    }
}

#[test]
fn other_namespaces_are_noticed_each() {
    if let Some(got) = below(&["unshare", "-Ur", "-m", "-p", "-f"]) {
        let kinds = ["namespace-user", "namespace-pid", "namespace-mount"];
        assert_verdicts(&got, &kinds.map(|kind| (kind, "degraded")));
    }
    if let Some(got) = below(&["unshare", "-Ur", "-n", "-T"]) {
        assert_verdicts(&got, &[("namespace-user", "degraded")]);
        for kind in ["namespace-network", "namespace-time"] {
            assert!(got[kind].1.starts_with("another"), "{:?}", got[kind]);
        }
    }
}

#[test]
fn limits_that_are_too_low_are_named() {
    let got = limited("ulimit -n 64");
    assert_eq!(got["nofile"].1, "soft 64, hard 64");
    assert_verdicts(&got, &[("nofile", "degraded")]);
    assert_verdicts(&limited("ulimit -v 200000"), &[("address-space", "degraded")]);
    // Nothing of ours is locked.
    let got = limited("ulimit -l 0");
    assert_eq!(got["memlock"].1, "0 B");
    assert_verdicts(&got, &[]);
}

/// Too few to try everything: what can't be tried is unknown, and nothing is said to be fine.
#[test]
fn a_handful_of_descriptors_is_survived() {
    for count in 4..=12 {
        let got = limited(&format!("ulimit -n {count}"));
        assert_eq!(got["nofile"].0, "degraded", "{count}: {got:?}");
    }
}

#[test]
fn files_that_may_have_no_bytes_are_missing_lanes_and_no_signal() {
    let got = limited("ulimit -f 0");
    let untried = ["huge-shmem", "copy-file-range"].map(|id| (id, "unknown"));
    assert_verdicts(&got, &[&untried[..], &[("file-size", "missing")]].concat());
}

#[test]
fn one_cpu_is_degraded() {
    let first = current_affinity().unwrap().iter().next().unwrap().to_string();
    if let Some(got) = below(&["taskset", "-c", &first]) {
        assert_verdicts(&got, &[("cpus-allowed", "degraded")]);
    }
}

#[test]
fn nobody_is_let_in_as_nobody() {
    let nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    if let Some(got) = below(&nobody) {
        assert_verdicts(&got, &[("peer-credentials", "missing")]);
    }
}

#[test]
fn refused_memory_files_are_missing_and_what_needs_them_is_unknown() {
    let got = refused(libc::SYS_memfd_create, None);
    let untried = ["seals", "memfd-noexec", "leases", "huge-shmem", "sendfile", "copy-file-range"];
    let changed = untried.map(|id| (id, "unknown"));
    assert_verdicts(&got, &[&changed[..], &[("memfd", "missing")]].concat());
    assert_eq!(got["memfd"].1, "refused: Operation not permitted");
    assert!(got["seccomp"].1.contains("1 in force"), "{:?}", got["seccomp"]);
}

#[test]
fn refused_seals_and_leases_are_missing() {
    let got = refused(libc::SYS_fcntl, Some(libc::F_SETLEASE as u64));
    assert_verdicts(&got, &[("leases", "missing")]);
    let got = refused(libc::SYS_fcntl, Some(libc::F_ADD_SEALS as u64));
    let changed = [("seals", "missing"), ("leases", "missing"), ("huge-shmem", "unknown")];
    assert_verdicts(&got, &changed);
}

#[test]
fn refused_calls_that_move_bytes_are_degraded_each() {
    assert_verdicts(&refused(libc::SYS_splice, None), &[("splice", "degraded")]);
    assert_verdicts(&refused(libc::SYS_sendfile, None), &[("sendfile", "degraded")]);
    let got = refused(libc::SYS_copy_file_range, None);
    assert_verdicts(&got, &[("copy-file-range", "degraded")]);
}

#[test]
fn a_refused_ring_is_said_and_costs_nothing() {
    let got = refused(libc::SYS_io_uring_setup, None);
    assert!(got["io-uring"].1.starts_with("refused: Operation not permitted"), "{got:?}");
    assert_verdicts(&got, &[]);
}

#[test]
fn where_peers_cannot_be_asked_for_nobody_is_let_in() {
    let got = refused(libc::SYS_getsockopt, None);
    assert_verdicts(&got, &[("peer-credentials", "missing")]);
}

#[test]
fn without_proc_and_sys_what_is_only_read_is_unknown() {
    let script = "umount -l /sys && umount -l /proc && exec \"$0\" \"$@\"";
    let Some(got) = below(&["unshare", "-m", "sh", "-c", script]) else {
        return;
    };
    let unknown = [
        "cgroup-memory",
        "clock-source",
        "cpus-allowed",
        "max-map-count",
        "namespace-mount",
        "namespace-network",
        "namespace-pid",
        "namespace-time",
        "namespace-user",
        "ptrace-scope",
        "seccomp",
    ];
    let unknown = unknown.map(|id| (id, "unknown"));
    let lost = [("leases", "missing"), ("proc", "missing"), ("overcommit", "degraded")];
    assert_verdicts(&got, &[&unknown[..], &lost].concat());
}

const IDS: [&str; 33] = [
    "address-space",
    "cgroup-memory",
    "clock-source",
    "copy-file-range",
    "cpu-stores",
    "cpus-allowed",
    "dev-shm",
    "file-size",
    "huge-collapse",
    "huge-hugetlb",
    "huge-shmem",
    "io-uring",
    "kernel",
    "leases",
    "max-map-count",
    "memfd",
    "memfd-noexec",
    "memlock",
    "namespace-mount",
    "namespace-network",
    "namespace-pid",
    "namespace-time",
    "namespace-user",
    "nofile",
    "overcommit",
    "peer-credentials",
    "pipe-size",
    "proc",
    "ptrace-scope",
    "seals",
    "seccomp",
    "sendfile",
    "splice",
];
