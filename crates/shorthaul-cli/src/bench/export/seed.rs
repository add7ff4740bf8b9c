//! The layout of the measurement that this bench reproduces: four threads, one figure a row.

use std::io::{self, Write};

use crate::bench::method::LEGEND;
use crate::bench::report::{Payload, Report, Section};
use crate::bench::session::Mode;

pub(in crate::bench) fn write(output: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(output, "{}\n\n{LEGEND}", report.machine)?;
    let sizes: Vec<usize> = first_payloads(report).iter().map(|payload| payload.bytes).collect();
    for (index, bytes) in sizes.iter().enumerate() {
        if sizes.len() > 1 {
            writeln!(output, "{}Payload: {bytes} bytes", if index > 0 { "\n" } else { "" })?;
        }
        write_payload(output, report, *bytes)?;
    }
    if sizes.is_empty() {
        for section in &report.sections {
            write_section(output, section, 0)?;
        }
    }
    Ok(())
}

fn write_payload(output: &mut impl Write, report: &Report, bytes: usize) -> io::Result<()> {
    let of_size = |payload: &&Payload| payload.bytes == bytes;
    if let Some(payload) = first_payloads(report).iter().find(of_size) {
        let limit = payload.speed_limit.median;
        writeln!(output, "Speed-limit (optimal) performance: {limit:.1} MB/sec")?;
    }
    writeln!(output, "{:>30} client   c-rx   s-rx worker\tMB/sec", "method")?;
    for section in &report.sections {
        write_section(output, section, bytes)?;
    }
    Ok(())
}

fn write_section(output: &mut impl Write, section: &Section, bytes: usize) -> io::Result<()> {
    let name = &section.placement;
    writeln!(output, "# {name}")?;
    let Some(threads) = &section.threads else {
        return writeln!(
            output,
            "Local system doesn't have appropriate CPU topology to execute test scenario {name}"
        );
    };
    let payload = section.payloads.iter().find(|payload| payload.bytes == bytes);
    let cells = payload.map_or(&[][..], |payload| &payload.cells);
    for cell in cells.iter().filter(|cell| cell.mode == Mode::Threads) {
        writeln!(
            output,
            "{:>30} {} {} {} {}\t{:.1}",
            cell.method,
            threads.client.place,
            threads.client_reactor.place,
            threads.server_reactor.place,
            threads.worker.place,
            cell.megabytes_per_second.median,
        )?;
    }
    Ok(())
}

fn first_payloads(report: &Report) -> &[Payload] {
    report
        .sections
        .iter()
        .map(|section| &section.payloads[..])
        .find(|p| !p.is_empty())
        .unwrap_or(&[])
}
