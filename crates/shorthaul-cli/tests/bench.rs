//! `shorthaul bench`, by the real binary: it measures, says what it can't do, and refuses nonsense.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::{Command, Output, Stdio};

fn shorthaul(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shorthaul")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A short run by every method.
fn short(arguments: &[&str]) -> Output {
    let mut all = vec!["bench", "--quick", "--seconds", "0.2"];
    all.extend(arguments);
    let output = shorthaul(&all);
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

#[test]
fn json_holds_every_method_in_both_modes() {
    let output =
        short(&["--placements", "all-same-core", "--format", "json", "--payload", "64KiB"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let section = &report["sections"][0];
    assert_eq!(section["placement"], "all-same-core");
    let cells = section["payloads"][0]["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 24);
    for cell in cells {
        assert!(cell["megabytes_per_second"]["median"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(cell["of_hand_over_limit"]["median"].as_f64().unwrap() > 0.0, "{cell}");
        // A mapping can be used again where both sides keep theirs, and nowhere else.
        let may_reuse = cell["method"].as_str().unwrap().contains("c-reuse,s-reuse");
        assert_eq!(cell["mappings_reused"].as_u64().unwrap() > 0, may_reuse, "{cell}");
    }
}

#[test]
fn odd_payloads_are_moved_and_checked() {
    for source in ["fill", "warm"] {
        let output = short(&[
            "--placements",
            "all-same-core",
            "--payload",
            "0,1,4095,4096,65537",
            "--consume",
            "all",
            "--source",
            source,
            "--format",
            "seed",
        ]);
        let printed = text(&output.stdout);
        assert_eq!(printed.matches("fd(s-mmap,c-reuse,s-reuse,nt) ").count(), 5, "{printed}");
        assert!(printed.contains("Payload: 4095 bytes"), "{printed}");
    }
}

#[test]
fn the_seed_layout_is_the_original_one() {
    let methods = "fd(s-mmap,c-reuse,s-reuse) sidecar";
    let output = short(&["--methods", methods, "--format", "seed"]);
    let printed = text(&output.stdout);
    assert!(printed.contains("\nLegend\n===================\nMethods:\n"), "{printed}");
    assert!(printed.contains("\nSpeed-limit (optimal) performance: "), "{printed}");
    let header = "\n                        method client   c-rx   s-rx worker\tMB/sec\n";
    assert!(printed.contains(header), "{printed}");
    let row = "\n    fd(s-mmap,c-reuse,s-reuse) S0C0T0 S0C0T0 S0C0T0 S0C0T0\t";
    assert!(printed.contains(row), "{printed}");
    for placement in ["all-same-core", "client-server-cross-socket", "every-hop-crosses-socket"] {
        assert!(printed.contains(&format!("# {placement}\n")), "{printed}");
    }
}

#[test]
fn a_file_takes_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("result.json");
    let path = path.to_str().unwrap();
    let one = ["--methods", "sidecar", "--placements", "all-same-core", "--format", "json"];
    let output = short(&[&one[..], &["--output", path]].concat());
    assert!(output.stdout.is_empty());
    let written = std::fs::read(path).unwrap();
    assert!(serde_json::from_slice::<serde_json::Value>(&written).is_ok());
}

#[test]
fn nonsense_is_refused_with_a_way_out() {
    for (arguments, expected) in [
        (&["--payload", "a lot"][..], "4KiB"),
        (&["--payload", "1TiB"], "128"),
        (&["--methods", "fd(x)"], "fd(s-mmap,c-reuse,s-reuse)"),
        (&["--placements", "nowhere"], "all-same-core"),
        (&["--seconds", "-1"], "seconds"),
        (&["--seconds", "NaN"], "seconds"),
        (&["--output", "/nowhere/at/all"], "/nowhere/at/all"),
        (&["--consume", "some"], "sample"),
    ] {
        let output = shorthaul(&[&["bench"], arguments].concat());
        let said = text(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn no_server_process_outlives_a_killed_bench() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_shorthaul"))
        .args(["bench", "--seconds", "30", "--placements", "all-same-core"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let children = format!("/proc/{0}/task/{0}/children", bench.id());
    let found = wait_for(|| {
        let list = std::fs::read_to_string(&children).unwrap_or_default();
        let ids: Vec<u32> = list.split_whitespace().map(|id| id.parse().unwrap()).collect();
        // Two servers and a ping-pong.
        (ids.len() == 3).then_some(ids)
    });
    bench.kill().unwrap();
    bench.wait().unwrap();
    for id in found {
        wait_for(|| has_ended(id).then_some(()));
    }
}

/// Gone, or dead and not yet reaped by whoever inherited it.
fn has_ended(id: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{id}/stat")) {
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
    let arguments = ["bench-server", "--reactor-cpu", "0", "--worker-cpu", "0", "--bytes-max", "1"];
    let output = Command::new(env!("CARGO_BIN_EXE_shorthaul"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("started by its parent"), "{}", text(&output.stderr));
}
