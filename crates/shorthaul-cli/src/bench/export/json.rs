//! Everything, for programs.

use std::io::{self, Write};

use serde::Serialize;

use super::Results;
use crate::bench::compare::Comparison;
use crate::bench::report::Report;

pub(in crate::bench) fn write(output: &mut impl Write, results: &Results<'_>) -> io::Result<()> {
    let &Results { report, comparison } = results;
    serde_json::to_writer_pretty(&mut *output, &Everything { report, comparison })?;
    writeln!(output)
}

/// The report's own fields, so that it can be read back with a comparison in it or without.
#[derive(Serialize)]
struct Everything<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<&'a Comparison>,
}
