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
    assert_eq!(cells.len(), 36);
    for cell in cells {
        assert!(cell["megabytes_per_second"]["median"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(cell["of_hand_over_limit"]["median"].as_f64().unwrap() > 0.0, "{cell}");
        // A mapping can be used again where both sides keep theirs, and nowhere else.
        let method = cell["method"].as_str().unwrap();
        let may_reuse = method.contains("c-reuse,s-reuse") || method == "auto";
        let lane = cell["lane"].as_str().unwrap();
        let expected = match method {
            "auto" => "fill(map): a kept buffer has room for it",
            "put(auto)" => "copy-out: a kept buffer has room for it",
            "put(region)" => "copy-out",
            "sealed" | "put(sealed)" => "sealed",
            "sidecar" | "sidecar,nt" | "put(inline)" => "inline",
            fd if fd.contains("s-write") => "fill(write)",
            _ => "fill(map)",
        };
        assert_eq!(lane, expected, "{cell}");
        assert_eq!(cell["mappings_reused"].as_u64().unwrap() > 0, may_reuse, "{cell}");
    }
}

#[test]
fn every_cell_says_what_it_cost() {
    let one = ["--placements", "all-same-core", "--methods", "fd(s-mmap) sidecar"];
    let output = short(&[&one[..], &["--format", "json", "--payload", "64KiB"]].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["in_flight"], 1);
    assert!(report["warnings"].is_array());
    let section = &report["sections"][0];
    assert!(section["harness_ns"]["median"].as_f64().unwrap() > 0.0);
    let rounds = section["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 3);
    for round in rounds {
        assert!(round["spin_us"].as_f64().unwrap() > 0.0, "{round}");
        assert!(round["foreign_cpus"].as_f64().unwrap() >= 0.0, "{round}");
    }
    for cell in section["payloads"][0]["cells"].as_array().unwrap() {
        let (cost, latency) = (&cell["cost"], &cell["latency"]);
        assert!(cost["cpu_seconds_per_gb"]["median"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(cost["context_switches_per_call"].as_f64().unwrap() > 0.0, "{cell}");
        // Fresh pages are faulted in one by one; there are sixteen of 4 KiB, and fewer larger ones.
        let faults = cost["page_faults_per_call"].as_f64().unwrap();
        let is_fresh = cell["method"] == "fd(s-mmap)";
        assert_eq!(faults >= 1.0, is_fresh, "{cell}");
        let (p50, p99) = (latency["p50_us"].as_f64(), latency["p99_us"].as_f64());
        assert!(p50.unwrap() > 0.0 && p50 <= p99, "{cell}");
        assert_eq!(cell["lane"], if is_fresh { "fill(map)" } else { "inline" });
        assert!(cell["of_twin"].is_null(), "{cell}");
    }
}

#[test]
fn a_baseline_has_a_twin_for_every_method() {
    let arguments = ["bench", "--quick", "--payload", "4KiB", "--baseline", "--seconds", "1"];
    let json = ["--placements", "all-same-core", "--format", "json"];
    let output = shorthaul(&[&arguments[..], &json].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let payload = &report["sections"][0]["payloads"][0];
    let twins = payload["twins"].as_array().unwrap();
    let cells = payload["cells"].as_array().unwrap();
    // Where the library chooses there is none.
    assert_eq!((twins.len(), cells.len()), (16, 36));
    for twin in twins {
        assert!(twin["megabytes_per_second"]["median"].as_f64().unwrap() > 0.0, "{twin}");
    }
    for cell in cells {
        let is_auto = cell["method"].as_str().unwrap().contains("auto");
        assert_eq!(cell["of_twin"]["median"].as_f64().is_none_or(|share| share <= 0.0), is_auto);
    }
}

#[test]
fn several_calls_are_in_flight_in_both_modes() {
    let methods = "fd(s-write) fd(s-mmap,c-reuse,s-reuse) sidecar";
    let one = ["--placements", "all-same-core", "--methods", methods, "--in-flight", "5"];
    let output = short(&[&one[..], &["--payload", "4KiB", "--format", "json"]].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["in_flight"], 5);
    let cells = report["sections"][0]["payloads"][0]["cells"].as_array().unwrap().clone();
    let of = |mode| cells.iter().filter(|cell| cell["mode"] == mode).count();
    assert_eq!((of("threads"), of("direct")), (3, 3), "{cells:?}");
}

#[test]
fn the_table_has_the_costs_and_the_warnings() {
    let one = ["--placements", "all-same-core", "--methods", "sidecar", "--in-flight", "2"];
    let printed = text(&short(&[&one[..], &["--baseline"]].concat()).stdout);
    for expected in ["CPU-s/GB", "switches/call", "faults/call", "p50 µs", "p99 µs", "of twin"] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
    assert!(printed.contains("calls in flight: 2"), "{printed}");
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
        (&["--in-flight", "0"], "1..=64"),
        (&["--in-flight", "65"], "1..=64"),
        (&["--in-flight", "many"], "--in-flight"),
        (&["--in-flight", "64", "--payload", "64MiB"], "take fewer, or smaller"),
        (&["--baseline=sidecar"], "--baseline"),
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
        .args(["bench", "--seconds", "30", "--placements", "all-same-core", "--baseline"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let children = format!("/proc/{0}/task/{0}/children", bench.id());
    let found = wait_for(|| {
        let list = std::fs::read_to_string(&children).unwrap_or_default();
        let ids: Vec<u32> = list.split_whitespace().map(|id| id.parse().unwrap()).collect();
        // Two servers, a ping-pong and the twins.
        (ids.len() == 4).then_some(ids)
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
    for command in [
        "bench-server --reactor-cpu 0 --worker-cpu 0 --bytes-max 1 --wait block --huge-pages never",
        "bench-pong --cpu 0",
        "bench-twin --cpu 0 --bytes-max 1 --huge-pages never",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_shorthaul"))
            .args(command.split(' '))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(!output.status.success(), "{command}");
        let said = text(&output.stderr);
        assert!(said.contains("started by its parent"), "{command}: {said}");
    }
}
