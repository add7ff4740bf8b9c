//! `shorthaul doctor`: what this machine, user, container and their limits allow.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

mod cgroup;
mod finding;
mod json;
mod limits;
mod machine;
mod memory;
mod moving;
mod pages;
mod surroundings;
mod system;
#[cfg(test)]
mod tests;
mod text;

use finding::Findings;

/// Show what this machine, this user, this container and these limits allow.
///
/// Everything that can be tried without harm is tried; the rest is read and shown. Each finding is
/// "ok"; "degraded": it works, but slower or not for everything; "missing": a lane does not work;
/// or "unknown": it could not be found out. A thing that Shorthaul does not use is "ok" whatever
/// it is. docs/DOCTOR.md has a line for each.
///
/// Exit code: 0 if every lane works (ok, degraded, unknown), 1 if something is missing.
#[derive(Clone, Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON: {version, shorthaul, conclusion, findings: [{id, group, what, verdict, found,
    /// meaning, remedy}]}; remedy is null where there is none. Ids stay.
    #[arg(long)]
    json: bool,
}

/// Tries and reads everything and writes it to standard output. A reader that goes away (`| head`)
/// is no error.
///
/// # Errors
/// If the output cannot be written.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let findings = examine();
    let mut output = BufWriter::new(io::stdout().lock());
    let written = match args.json {
        true => json::write(&mut output, &findings),
        false => text::write(&mut output, &findings, width()),
    };
    match written.and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ if findings.has_missing() => Ok(ExitCode::FAILURE),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn examine() -> Findings {
    let mut all = machine::findings();
    all.extend(memory::findings());
    all.extend(pages::findings());
    all.extend(limits::findings());
    all.extend(moving::findings());
    all.extend(surroundings::findings());
    Findings(all)
}

/// Columns of the terminal; a pipe or file gets as many as are read well.
fn width() -> usize {
    let columns = io::stdout().is_terminal().then(|| comfy_table::Table::new().width()).flatten();
    columns.map_or(WIDTH, |columns| usize::from(columns).max(WIDTH_MIN))
}

const WIDTH: usize = 100;
const WIDTH_MIN: usize = 60;
