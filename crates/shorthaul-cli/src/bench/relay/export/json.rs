//! Everything, for programs.

use std::io::{self, Write};

use crate::bench::relay::report::RelayReport;

pub(in crate::bench) fn write(output: &mut impl Write, report: &RelayReport) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *output, report)?;
    writeln!(output)
}
