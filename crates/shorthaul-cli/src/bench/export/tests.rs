//! The forms of a report, with invented figures: what is printed is what lies in `golden/`. After a
//! change that is meant, run the tests once with UPDATE_GOLDEN=1 and read the difference.

use std::io;
use std::path::Path;

use super::{Results, csv, html, invented, json, markdown, seed, table};
use crate::bench::compare::Comparison;
use crate::bench::report::Report;

#[test]
fn table_is_golden() {
    check("table.txt", &alone(table::write));
}

#[test]
fn seed_is_golden() {
    check("seed.txt", &alone(|output, results| seed::write(output, results.report)));
}

#[test]
fn json_is_golden() {
    let written = alone(json::write);
    check("json.txt", &written);
    let read: Report = serde_json::from_str(&written).unwrap();
    let again = with(json::write, &read, None);
    assert_eq!(again, written, "what is read back is what was written");
}

#[test]
fn csv_is_golden() {
    check("csv.csv", &alone(csv::write));
}

#[test]
fn markdown_is_golden() {
    check("markdown.md", &alone(markdown::write));
}

#[test]
fn html_is_golden() {
    check("html.html", &alone(html::write));
}

#[test]
fn comparisons_are_golden() {
    check("compare-table.txt", &tail(&compared(table::write), "\n# Compared"));
    check("compare-json.txt", &tail(&compared(json::write), "\n  \"comparison\""));
    check("compare-markdown.md", &compared(markdown::write));
    check("compare-csv.csv", &compared(csv::write));
    check("compare-html.html", &compared(html::write));
}

#[test]
fn a_report_with_a_comparison_is_read_back() {
    serde_json::from_str::<Report>(&compared(json::write)).unwrap();
}

/// Whatever a file says, a page or an issue shows it as text.
#[test]
fn nothing_in_a_report_becomes_markup() {
    let evil = "<img src=x onerror=alert(1)>\"'&|`*\n";
    let mut report = invented::report();
    report.machine.cpu = evil.into();
    report.command_line = evil.into();
    report.date = evil.into();
    report.version = evil.into();
    report.warnings = vec![evil.into()];
    for section in &mut report.sections {
        section.placement += evil;
        section.why_not = section.why_not.as_ref().map(|_| evil.into());
        for thread in section.threads.iter_mut() {
            thread.client.place = evil.into();
        }
        for round in &mut section.rounds {
            round.dropped = Some(evil.into());
        }
        for payload in &mut section.payloads {
            for cell in &mut payload.cells {
                cell.method += evil;
                cell.lane = Some(evil.into());
            }
        }
    }
    let comparison = Comparison::new(&invented::report(), &report);
    let page = with(html::write, &report, Some(&comparison));
    assert!(page.contains("&lt;img") && !page.contains("<img"));
    let page = with(markdown::write, &report, Some(&comparison));
    let is_code = |line: &&str| line.starts_with("    ");
    let outside = page.lines().filter(|line| !is_code(line)).collect::<String>();
    // Between backticks everything is text; what is left must be escaped.
    let prose = outside.replace("\\`", "").split('`').step_by(2).collect::<String>();
    assert!(outside.contains("&lt;img") && !prose.contains("<img"), "{prose}");
}

fn alone(write: impl Fn(&mut Vec<u8>, &Results<'_>) -> io::Result<()>) -> String {
    with(write, &invented::report(), None)
}

fn compared(write: impl Fn(&mut Vec<u8>, &Results<'_>) -> io::Result<()>) -> String {
    let (old, new) = (invented::report(), invented::later());
    with(write, &new, Some(&Comparison::new(&old, &new)))
}

fn with(
    write: impl Fn(&mut Vec<u8>, &Results<'_>) -> io::Result<()>,
    report: &Report,
    comparison: Option<&Comparison>,
) -> String {
    let mut written = Vec::new();
    write(&mut written, &Results { report, comparison }).unwrap();
    String::from_utf8(written).unwrap()
}

/// From `begin` on: what is before it lies in another golden file.
fn tail(written: &str, begin: &str) -> String {
    written[written.find(begin).unwrap()..].trim_start().to_owned()
}

fn check(name: &str, written: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bench/export/golden");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(folder.join(name), written).unwrap();
    }
    let golden = std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(written == golden, "{name} is written otherwise:\n{written}");
}
