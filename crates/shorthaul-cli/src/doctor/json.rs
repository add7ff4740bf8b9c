//! The findings for programs. Ids and names stay; a change of meaning is a new version.

use std::io::{self, Write};

use serde::Serialize;

use super::finding::{Finding, Findings};

pub(super) fn write(output: &mut dyn Write, findings: &Findings) -> io::Result<()> {
    let report = Report {
        version: VERSION,
        shorthaul: env!("CARGO_PKG_VERSION"),
        conclusion: findings.conclusion(),
        findings: &findings.0,
    };
    serde_json::to_writer_pretty(&mut *output, &report)?;
    writeln!(output)
}

#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    shorthaul: &'static str,
    conclusion: String,
    findings: &'a [Finding],
}

/// Of the structure.
const VERSION: u32 = 1;
