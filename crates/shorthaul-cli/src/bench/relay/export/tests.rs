//! The forms of a report of relays, with invented figures: what is printed is what lies in
//! `golden/`. After a change that is meant, run the tests once with UPDATE_GOLDEN=1 and read the
//! difference.

use std::io;
use std::path::Path;

use super::{csv, html, invented, json, markdown, seed, table, wrapped};
use crate::bench::relay::report::RelayReport;

type Form = fn(&mut Vec<u8>, &RelayReport) -> io::Result<()>;

const FORMS: [(&str, Form); 6] = [
    ("table.txt", table::write),
    ("seed.txt", seed::write),
    ("json.txt", json::write),
    ("csv.csv", csv::write),
    ("markdown.md", markdown::write),
    ("html.html", html::write),
];

#[test]
fn every_form_is_golden() {
    for (name, write) in FORMS {
        check(name, &written(write, &invented::report()));
    }
}

#[test]
fn scaling_is_golden() {
    for (name, write) in FORMS.into_iter().filter(|(name, _)| *name != "json.txt") {
        check(&format!("scaling-{name}"), &written(write, &invented::scaling()));
    }
}

#[test]
fn a_report_is_read_back() {
    for report in [invented::report(), invented::scaling(), invented::empty()] {
        let text = written(json::write, &report);
        let read: RelayReport = serde_json::from_str(&text).unwrap();
        assert_eq!(written(json::write, &read), text);
    }
}

#[test]
fn the_lines_are_those_of_the_mail() {
    let printed = written(seed::write, &invented::report());
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], "Waiting for clients");
    assert_eq!(lines[1], "Client1 (splice): 18517 MiB/sec (10240MiB in 553 msecs)");
    assert_eq!(lines[2], "Client0 (splice): 18517 MiB/sec (10240MiB in 553 msecs)");
    assert!(lines[6].starts_with("Client0 (rw): 1651 MiB/sec (10240MiB in 6202 msecs)"));
}

#[test]
fn nothing_in_no_time_is_printed_as_nothing() {
    for (name, write) in FORMS {
        let printed = written(write, &invented::empty());
        // A page's script asks what is no number.
        let printed = printed.split("<script>").next().unwrap_or_default().to_owned();
        assert!(!printed.contains("NaN") && !printed.contains(" inf"), "{name}: {printed}");
    }
    let printed = written(seed::write, &invented::empty());
    assert!(printed.contains("Client1 (splice): 0 MiB/sec (0MiB in 0 msecs)"), "{printed}");
}

/// Whatever a file says, a page or an issue shows it as text.
#[test]
fn nothing_in_a_report_becomes_markup() {
    let evil = "<img src=x onerror=alert(1)>\"'&|`*\n";
    let mut report = invented::scaling();
    report.machine.cpu = evil.into();
    report.command_line = evil.into();
    report.date = evil.into();
    report.version = evil.into();
    report.warnings = vec![evil.into()];
    report.settings.files[0].name = evil.into();
    for cell in report.groups.iter_mut().flat_map(|group| &mut group.cells) {
        cell.method += evil;
        cell.meaning += evil;
        cell.why_not = cell.why_not.as_ref().map(|_| evil.into());
    }
    let page = written(html::write, &report);
    assert!(page.contains("&lt;img") && !page.contains("<img"));
    let page = written(markdown::write, &report);
    let is_code = |line: &&str| line.starts_with("    ");
    let outside = page.lines().filter(|line| !is_code(line)).collect::<String>();
    // Between backticks everything is text; what is left must be escaped.
    let prose = outside.replace("\\`", "").split('`').step_by(2).collect::<String>();
    assert!(outside.contains("&lt;img") && !prose.contains("<img"), "{prose}");
}

#[test]
fn long_lines_are_broken_between_words() {
    let text = "word ".repeat(50);
    let broken = wrapped(text.trim(), "  ");
    assert!(broken.lines().all(|line| line.chars().count() <= 100));
    assert_eq!(broken.lines().skip(1).filter(|line| line.starts_with("  word")).count(), 2);
    assert_eq!(broken.replace("\n ", ""), text.trim());
    assert_eq!(wrapped("", "  "), "");
}

fn written(write: Form, report: &RelayReport) -> String {
    let mut written = Vec::new();
    write(&mut written, report).unwrap();
    String::from_utf8(written).unwrap()
}

fn check(name: &str, written: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bench/relay/export/golden");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(folder.join(name), written).unwrap();
    }
    let golden = std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(written == golden, "{name} is written otherwise:\n{written}");
}
