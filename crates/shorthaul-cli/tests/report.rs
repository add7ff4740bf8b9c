//! `shorthaul bench report` and `--compare`, by the real binary: saved results in every form.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn shorthaul(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shorthaul")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A run that lies in the repository, from before some of the fields were there.
fn recorded(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn report(arguments: &[&str]) -> String {
    let saved = recorded("2026-11-30-default.json");
    let output = shorthaul(&[&["bench", "report", &saved], arguments].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn refused(arguments: &[&str]) -> String {
    let output = shorthaul(&[&["bench"], arguments].concat());
    assert!(!output.status.success(), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    text(&output.stderr)
}

#[test]
fn a_saved_result_is_written_in_every_form() {
    for (form, expected) in [
        ("table", "client-server-cross-core, 1 MiB: fd(s-mmap,c-reuse,s-reuse) (direct) wins"),
        ("seed", "Speed-limit (optimal) performance: 44226.5 MB/sec"),
        ("json", "\"kernel\": \"6.18.44-fc-v782\""),
        ("csv", ",speed_mb_per_s_median,"),
        ("markdown", "| **`fd(s-mmap,c-reuse,s-reuse)`** | direct | 19267"),
        ("html", "<!DOCTYPE html>"),
    ] {
        let written = report(&["--format", form]);
        assert!(written.contains(expected), "{form}: {written}");
    }
}

#[test]
fn what_is_read_is_what_is_written() {
    let saved = std::fs::read(recorded("2026-11-30-default.json")).unwrap();
    let saved: serde_json::Value = serde_json::from_slice(&saved).unwrap();
    let mut again: serde_json::Value =
        serde_json::from_str(&report(&["--format", "json"])).unwrap();
    assert_eq!(again["in_flight"], 1);
    keep_what_is_in(&saved, &mut again);
    assert_eq!(again, saved);
}

/// Takes out of `value` what `other` doesn't have: fields that are newer than it.
fn keep_what_is_in(other: &serde_json::Value, value: &mut serde_json::Value) {
    use serde_json::Value::{Array, Object};
    match (other, value) {
        (Object(other), Object(value)) => {
            value.retain(|key, _| other.contains_key(key));
            value.iter_mut().for_each(|(key, value)| keep_what_is_in(&other[key], value));
        }
        (Array(other), Array(value)) => {
            other.iter().zip(value).for_each(|(other, value)| keep_what_is_in(other, value));
        }
        _ => {}
    }
}

#[test]
fn the_ending_of_a_file_is_its_form() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let names = ["x.html", "x.csv", "x.md", "x.json", "x.txt"];
    let outputs: Vec<String> =
        names.iter().flat_map(|n| ["--output".to_owned(), path(n)]).collect();
    let printed = report(&outputs.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(printed, "");
    let begins =
        ["<!DOCTYPE html>", "date,version,", "## shorthaul bench", "{\n", "AMD EPYC, 2 CPUs"];
    for (name, begin) in names.iter().zip(begins) {
        let written = std::fs::read_to_string(path(name)).unwrap();
        assert!(written.starts_with(begin), "{name}: {written}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), names.len());
}

#[test]
fn the_page_needs_nothing_else() {
    let saved = recorded("2026-11-30-sizes.json");
    let output = shorthaul(&["bench", "report", &saved, "--format", "html", "--compare", &saved]);
    let page = text(&output.stdout);
    for foreign in ["http:", "https:", "url(", "@import", "<link", "src=", "<iframe"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    // Each name that something on the page refers to is there, once.
    for reference in page.split("aria-labelledby=\"").skip(1) {
        for id in reference.split('"').next().unwrap().split(' ') {
            assert_eq!(page.matches(&format!(" id=\"{id}\"")).count(), 1, "{id}");
        }
    }
}

#[test]
fn a_run_compared_with_itself_is_unchanged() {
    let saved = recorded("2026-11-30-default.json");
    for form in ["table", "markdown", "html"] {
        let written = report(&["--format", form, "--compare", &saved]);
        assert!(written.contains("0 faster, 0 slower, 48 unchanged"), "{form}: {written}");
        assert!(written.contains("Nothing changed beyond the noise."), "{form}");
    }
    let other = recorded("2026-11-30-sizes.json");
    let written = report(&["--compare", &other]);
    assert!(written.contains("0 faster, 0 slower, 48 new, 80 gone"), "{written}");
    let written = report(&["--format", "json", "--compare", &other]);
    let written: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!(written["comparison"]["changes"][0]["kind"], "new");
}

#[test]
fn files_that_are_no_results_are_refused_with_a_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = recorded("2026-11-30-default.json");
    let half = std::fs::read_to_string(&good).unwrap();
    let way_out = "shorthaul bench --output FILE.json";
    for (bad, expected) in [
        ("/no/such/file.json".to_owned(), "cannot read /no/such/file.json"),
        (folder.path().to_str().unwrap().to_owned(), "cannot read"),
        (path("text", "speed: much\n"), "is not whole JSON"),
        (path("half", &half[..half.len() / 2]), "is not whole JSON"),
        (path("other", "{\"results\": []}"), "missing field `machine`"),
        (path("list", "[1, 2]"), "is JSON, but no result"),
        (path("empty", ""), "is not whole JSON"),
        ("/dev/zero".to_owned(), "too large"),
    ] {
        for arguments in
            [&["report", &bad][..], &["report", &good, "--compare", &bad], &["--compare", &bad]]
        {
            let said = refused(arguments);
            assert!(said.contains(expected) && said.contains(way_out), "{arguments:?}: {said}");
        }
    }
}

#[test]
fn places_that_take_no_result_are_refused() {
    let good = recorded("2026-11-30-default.json");
    let said = refused(&["report", &good, "--output", "/no/such/folder/x.html"]);
    assert!(said.contains("/no/such/folder/x.html; give another --output"), "{said}");
    let said = refused(&["report", &good, "--format", "seed", "--compare", &good]);
    assert!(said.contains("leave out --compare"), "{said}");
}

#[test]
fn standard_output_may_be_named_as_a_file() {
    let good = recorded("2026-11-30-default.json");
    let written = report(&["--output", "/dev/stdout", "--format", "csv"]);
    assert!(written.starts_with("date,"), "{written}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(b"kept\n").unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_shorthaul"))
        .args(["bench", "report", &good, "--output", "/dev/stdout", "--format", "csv"])
        .stdout(file)
        .status();
    assert!(status.unwrap().success());
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("kept\ndate,"));
}

#[test]
fn a_file_survives_a_run_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.json");
    std::fs::write(&path, "kept").unwrap();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_shorthaul"))
        .args(["bench", "--seconds", "30", "--placements", "all-same-core", "--output"])
        .arg(&path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let children = format!("/proc/{0}/task/{0}/children", bench.id());
    wait_for(|| std::fs::read_to_string(&children).is_ok_and(|list| !list.is_empty()));
    bench.kill().unwrap();
    bench.wait().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
    assert_eq!(files(folder.path()), ["kept.json"]);
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn wait_for(mut look: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if look() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("it did not happen within 10 s");
}
