//! The lines of the original: one for each client and method, of the round in the middle.

use std::io::{self, Write};

use super::heading;
use crate::bench::relay::report::{Cell, Client, RelayReport};

pub(in crate::bench) fn write(output: &mut impl Write, report: &RelayReport) -> io::Result<()> {
    writeln!(output, "Waiting for clients")?;
    for group in &report.groups {
        // The original ran one of these.
        if report.groups.len() > 1 {
            writeln!(output, "# {}", heading(group))?;
        }
        group.cells.iter().try_for_each(|cell| write_cell(output, cell))?;
    }
    writeln!(output, "{NOTE}")
}

fn write_cell(output: &mut impl Write, cell: &Cell) -> io::Result<()> {
    let method = &cell.method;
    if let Some(why) = &cell.why_not {
        return writeln!(output, "# {method} can't do it: {why}");
    }
    let clients = cell.figures.iter().flat_map(|figures| &figures.clients);
    for client in clients {
        let Client { client: index, bytes, nanoseconds, .. } = *client;
        writeln!(
            output,
            "Client{index} ({method}): {:.0} MiB/sec ({}MiB in {} msecs)",
            super::mib(client.bytes_per_second()),
            bytes >> 20,
            (nanoseconds + 500_000) / 1_000_000,
        )?;
    }
    Ok(())
}

const NOTE: &str = "\
# MiB/sec are 2^20 bytes a second. The original divided KiB by milliseconds and called that MiB/sec:
# its figures are 2.4 % above these. A time ends when the receiver has got the last byte.";
