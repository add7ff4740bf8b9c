//! `shorthaul bench relay`, by the real binary: every way there is moves every byte, what can't be
//! done is said, and whatever fails shows in the exit code.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shorthaul"));
    command.args(["bench", "relay"]).args(arguments);
    command
}

fn relay(arguments: &[&str]) -> Output {
    bench(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn succeeded(arguments: &[&str]) -> String {
    let output = relay(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn failed(arguments: &[&str]) -> String {
    let output = relay(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

/// A folder of its own with files of 1 MiB and a bit.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for index in 0..count {
            let byte = |at: usize| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ index as u8;
            let bytes: Vec<u8> = (0..BYTES).map(byte).collect();
            fs::write(folder.path().join(format!("file{index}")), bytes).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn name(&self) -> String {
        self.path("file").to_str().unwrap().to_owned()
    }

    fn count(&self) -> usize {
        fs::read_dir(self.folder.path()).unwrap().count()
    }
}

/// Below those that the kernel gives out; apart from those of other tests.
fn port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..100 {
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (std::process::id() % 1000) as u16 * 20 + nth % 200 * 4;
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if (0..4).all(|offset| is_free(port + offset)) {
            return port.to_string();
        }
    }
    panic!("no port is free");
}

fn json(arguments: &[&str]) -> Value {
    let printed = succeeded(&[arguments, &["--format", "json"]].concat());
    serde_json::from_str(&printed).unwrap()
}

#[test]
fn every_method_moves_every_byte_to_every_sink() {
    let files = Files::new(2);
    for (sink, receives) in [
        ("null", &[""][..]),
        ("tcp", &["trunc", "read", "splice"]),
        ("unix", &["read", "splice"]),
        ("pipe", &["read", "splice"]),
        ("file", &[""]),
    ] {
        for receive in receives {
            let (name, port) = (files.name(), port());
            let mut arguments =
                vec!["-n2", "-l2", "-call", "--rounds=1", "-p", &port, "--sink", sink, &name];
            if !receive.is_empty() {
                arguments.extend(["--receive", receive]);
            }
            if sink == "file" || *receive == "read" {
                arguments.push("--verify");
            }
            check(&json(&arguments), sink);
        }
    }
    assert_eq!(files.count(), 2, "what was written is gone");
}

fn check(report: &Value, sink: &str) {
    assert_eq!(report["kind"], "relay");
    let cells = report["groups"][0]["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 6);
    for cell in cells {
        let can_not = cell["method"] == "copy_file_range" && sink != "file";
        assert_eq!(cell["why_not"].is_string(), can_not, "{sink}: {cell}");
        assert!(!cell["meaning"].as_str().unwrap().is_empty());
        if can_not {
            assert!(cell["figures"].is_null());
            continue;
        }
        let figures = &cell["figures"];
        assert!(figures["bytes_per_second"]["median"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(figures["of_copy_limit"]["median"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(figures["cpu_seconds_per_gb"]["median"].as_f64().unwrap() > 0.0, "{cell}");
        let clients = figures["clients"].as_array().unwrap();
        assert_eq!(clients.len(), 2);
        for client in clients {
            assert_eq!((&client["bytes"], &client["loops"]), (&(2 * BYTES).into(), &2.into()));
        }
    }
}

#[test]
fn the_line_of_the_mail_prints_its_lines() {
    let files = Files::new(1);
    let name = files.name();
    let printed = succeeded(&["-n2", "-l10", "-a", "-s", "-z", &name, "--format", "seed"]);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], "Waiting for clients");
    for (index, method) in ["splice", "mmap", "rw"].into_iter().enumerate() {
        let mut two = lines[1 + 2 * index..][..2].to_vec();
        two.sort_unstable();
        for (client, line) in two.into_iter().enumerate() {
            assert!(line.starts_with(&format!("Client{client} ({method}): ")), "{line}");
            assert!(line.contains(" MiB/sec (10MiB in ") && line.ends_with(" msecs)"), "{line}");
        }
    }
    assert!(printed.contains("2.4 %"), "{printed}");
}

#[test]
fn scaling_is_held_against_one_client() {
    let files = Files::new(2);
    let name = files.name();
    let scale = ["-l2", "--rounds=2", "--scale", "2", "-c", "splice", "-z", &name];
    let report = json(&scale);
    let groups = report["groups"].as_array().unwrap();
    let found: Vec<_> = groups.iter().map(|group| (&group["clients"], &group["files"])).collect();
    let expected = [(1, "shared"), (2, "shared"), (2, "own")];
    for (found, (clients, files)) in found.iter().zip(expected) {
        assert_eq!(*found, (&Value::from(clients), &Value::from(files)));
    }
    assert_eq!(found.len(), 3);
    let efficiency = |group: &Value| group["cells"][0]["figures"]["efficiency"].clone();
    assert_eq!(efficiency(&groups[0])["median"], 1.0);
    assert!(efficiency(&groups[1])["median"].as_f64().unwrap() > 0.0);
    let printed = succeeded(&scale);
    assert!(printed.contains("# Scaling, chunks of 64 KiB"), "{printed}");
    assert!(printed.contains("a file each"), "{printed}");
}

#[test]
fn each_form_is_written_and_made_again_from_a_saved_result() {
    let files = Files::new(1);
    let (name, saved) = (files.name(), files.path("result.json"));
    let saved = saved.to_str().unwrap();
    let one = ["-n1", "-l1", "--rounds=1", "-z", &name, "--output", saved];
    assert_eq!(succeeded(&one), "");
    for (form, expected) in [
        ("table", "what it measures"),
        ("seed", "Client0 (splice): "),
        ("json", "\"kind\": \"relay\""),
        ("csv", ",bytes_per_s_median,"),
        ("markdown", "| `splice` |"),
        ("html", "<!DOCTYPE html>"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shorthaul"));
        let output = command.args(["bench", "report", saved, "--format", form]).output().unwrap();
        assert!(text(&output.stdout).contains(expected), "{form}: {}", text(&output.stderr));
    }
    let said = failed(&["-n1", "-z", &name, "--compare", saved]);
    assert!(said.contains("only results of calls can be compared"), "{said}");
    let calls = format!("{}/tests/data/2026-11-30-default.json", env!("CARGO_MANIFEST_DIR"));
    let said = failed(&["-n1", "-z", &name, "--compare", &calls]);
    assert!(said.contains("leave it out for relays"), "{said}");
}

#[test]
fn missing_files_are_named_and_made_on_request() {
    let files = Files::new(0);
    let name = files.name();
    let said = failed(&["-n2", "-z", &name]);
    assert!(said.contains("file0") && said.contains("file1"), "{said}");
    assert!(said.contains("--make 1GiB"), "{said}");
    let make = ["-n2", "-l1", "--rounds=1", "-z", &name, "--make", "100KiB"];
    let output = relay(&make);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("file1: 100.0 KiB"), "{}", text(&output.stderr));
    let made = fs::read(files.path("file1")).unwrap();
    assert_eq!((made.len(), files.count()), (100 << 10, 2));
    assert_ne!(made[..4096], made[4096..8192]);
    // What is there is left alone, whatever its size.
    fs::write(files.path("file0"), "short").unwrap();
    let said = text(&relay(&make).stderr);
    assert!(!said.contains("made"), "{said}");
    assert_eq!(fs::read(files.path("file0")).unwrap(), b"short");
}

#[test]
fn a_file_that_finds_no_room_is_not_left_in_part() {
    let files = Files::new(0);
    let script = format!(
        "ulimit -f 100; exec {} bench relay -n1 -z {} --make 4MiB",
        env!("CARGO_BIN_EXE_shorthaul"),
        files.name()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("cannot make"), "{said}");
    assert_eq!(files.count(), 0);
}

#[test]
fn what_cannot_begin_is_an_error() {
    let files = Files::new(1);
    let name = files.name();
    fs::create_dir(files.path("folder0")).unwrap();
    let folder = files.path("folder");
    let said = failed(&["-n1", "-z", folder.to_str().unwrap()]);
    assert!(said.contains("folder0 is a directory"), "{said}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = failed(&["-n1", "-p", &port, &name]);
    assert!(said.contains(&port) && said.contains("taken"), "{said}");
    let said = failed(&["-n1", "--sink", "unix", "--receive", "trunc", &name]);
    assert!(said.contains("only TCP"), "{said}");
    let said = failed(&["-n1", "-z", "--verify", &name]);
    assert!(said.contains("--receive read"), "{said}");
    let said = failed(&["-n8", "-p", "65530", &name]);
    assert!(said.contains("lower -p"), "{said}");
}

#[test]
fn a_file_that_may_not_be_read_is_an_error() {
    use std::os::unix::fs::PermissionsExt;
    if rustix::process::geteuid().is_root() {
        eprintln!("passed over: root reads everything");
        return;
    }
    let files = Files::new(1);
    fs::set_permissions(files.path("file0"), fs::Permissions::from_mode(0o000)).unwrap();
    let said = failed(&["-n1", "-z", &files.name()]);
    assert!(said.contains("cannot read"), "{said}");
}

#[test]
fn what_a_method_cannot_do_is_a_row_and_alone_a_failure() {
    let files = Files::new(1);
    std::os::unix::fs::symlink("/proc/version", files.path("told0")).unwrap();
    let told = files.path("told");
    let told = told.to_str().unwrap();
    let one = ["-n1", "-l2", "--rounds=1", "--sink", "pipe", told];
    let printed = succeeded(&[&one[..], &["-c", "mmap,rw"]].concat());
    let line = |method: &str| printed.lines().find(|line| line.starts_with(method)).unwrap();
    assert!(line("mmap").contains("—") && line("mmap").contains("mapped"), "{printed}");
    assert!(!line("rw").contains("—"), "{printed}");
    let said = failed(&[&one[..], &["-c", "mmap"]].concat());
    assert!(said.contains("none of the methods"), "{said}");
    let said = failed(&[&one[..], &["-c", "rw", "--verify"]].concat());
    assert!(said.contains("leave out --verify"), "{said}");
}

#[test]
fn an_empty_file_divides_nothing_by_zero() {
    let files = Files::new(0);
    fs::write(files.path("file0"), "").unwrap();
    let name = files.name();
    for sink in ["null", "unix", "file"] {
        for form in ["table", "seed", "csv", "html", "markdown"] {
            let one = ["-n1", "-l2", "--rounds=1", "-call", "--sink", sink, "--format", form];
            let printed = succeeded(&[&one[..], &[&name]].concat());
            let printed = printed.split("<script>").next().unwrap();
            assert!(!printed.contains("NaN") && !printed.contains(" inf"), "{printed}");
        }
    }
}

#[test]
fn a_name_need_not_be_text() {
    let folder = tempfile::tempdir().unwrap();
    let name = |ending: &[u8]| folder.path().join(OsStr::from_bytes(&[b"\xff", ending].concat()));
    std::fs::write(name(b"0"), [1; 1000]).unwrap();
    let mut command = bench(&["-z", "-s", "-n1", "-l1", "--rounds=1", "-crw"]);
    let output = command.arg(name(b"")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn time_ends_the_loops_but_not_a_loop() {
    let files = Files::new(1);
    let name = files.name();
    let report = json(&["-n1", "-l1000", "-t0", "--rounds=1", "-z", "-c", "rw", &name]);
    let client = &report["groups"][0]["cells"][0]["figures"]["clients"][0];
    assert_eq!((&client["loops"], &client["bytes"]), (&1.into(), &BYTES.into()));
    assert!(report["warnings"].to_string().contains("1 of 1000 loops"), "{report}");
}

/// A run that takes long, and the processes of its two clients and receivers.
fn long_run(files: &Files) -> (Child, Vec<u32>) {
    let long = ["-n2", "-s", "-l1000000", "-t30", "--sink", "unix", &files.name()];
    let bench = bench(&long).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", bench.id());
    let found = wait_for(|| {
        let list = fs::read_to_string(&children).unwrap_or_default();
        let ids: Vec<u32> = list.split_whitespace().map(|id| id.parse().unwrap()).collect();
        (ids.len() == 4).then_some(ids)
    });
    (bench, found)
}

#[test]
fn a_killed_client_or_receiver_fails_the_run_and_leaves_no_process() {
    let files = Files::new(1);
    for (nth, name) in [(0, "receiver 0"), (3, "client 1")] {
        let (bench, found) = long_run(&files);
        let victim = Pid::from_raw(found[nth].cast_signed()).unwrap();
        kill_process(victim, Signal::KILL).unwrap();
        let output = bench.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success(), "{said}");
        let partner = name.replace("receiver", "client");
        assert!(said.contains(name) || said.contains(&partner), "{said}");
        for id in found {
            wait_for(|| has_ended(id).then_some(()));
        }
    }
}

#[test]
fn no_process_outlives_a_killed_bench() {
    let files = Files::new(1);
    let (mut bench, found) = long_run(&files);
    bench.kill().unwrap();
    bench.wait().unwrap();
    for id in found {
        wait_for(|| has_ended(id).then_some(()));
    }
}

/// Gone, or dead and not yet reaped by whoever inherited it.
fn has_ended(id: u32) -> bool {
    match fs::read_to_string(format!("/proc/{id}/stat")) {
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim().starts_with('Z')),
        Err(_) => true,
    }
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..1000 {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("it did not happen within 10 s");
}

#[test]
fn the_hidden_commands_say_whose_they_are() {
    for command in ["bench-relay-client", "bench-relay-receiver"] {
        let output = Command::new(env!("CARGO_BIN_EXE_shorthaul"))
            .args([command, "--cpu", "0"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("started by its parent"), "{said}");
    }
}

/// No whole number of chunks, nor of pages.
const BYTES: usize = (1 << 20) + 12_345;
