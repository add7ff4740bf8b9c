//! Everything, for programs.

use std::io::{self, Write};

use crate::bench::report::Report;

pub(in crate::bench) fn write(output: &mut impl Write, report: &Report) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *output, report)?;
    writeln!(output)
}
