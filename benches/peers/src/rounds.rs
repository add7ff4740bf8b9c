//! All cells in turn, round after round: what is compared is measured side by side.

use std::fs::{self, File};
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cell::{Outcome, this_program};
use crate::options::{Options, Placement};
use crate::report::{Report, Table};
use crate::variant::{self, Variant};
use crate::{machine, output};

/// Measures what was typed and gives the report out.
pub(crate) fn run(options: &Options) -> Result<()> {
    let variants = variant::chosen(&options.peers)?;
    if options.list {
        for variant in &variants {
            println!("{:32} {}", variant.name, variant.peer.about());
        }
        return Ok(());
    }
    let head = machine::head();
    let mut tables = Vec::new();
    for &placement in &options.placement {
        for &in_flight in &options.in_flight {
            tables.push(measure(options, &variants, placement, in_flight)?);
        }
    }
    output::write(&Report::new(head, &variants, tables)?, options)
}

/// One table: all variants at all sizes, each once a round.
fn measure(
    options: &Options,
    variants: &[Variant],
    placement: Placement,
    in_flight: usize,
) -> Result<Table> {
    let sizes = options.sizes_bytes()?;
    let mut table = Table::new(placement, in_flight, &sizes, variants);
    for round in 0..options.rounds {
        for (column, &bytes) in sizes.iter().enumerate() {
            for index in 0..variants.len() {
                // Nobody always comes after the same neighbour.
                let row = (index + round) % variants.len();
                let variant = &variants[row];
                let cell = table.cell(row, column);
                if let Some(why) = variant.refuses(bytes, placement, in_flight) {
                    cell.said = Some(why.to_owned());
                }
                // What has failed once is not waited for again.
                if cell.said.is_none() {
                    let place = format!("{}, {in_flight} in flight", placement.name());
                    progress(&format!("{place}: round {}: {}, {bytes} B", round + 1, variant.name));
                    let setup = Setup { options, placement, in_flight, bytes };
                    cell.add(setup.outcome(variant)?);
                }
            }
        }
    }
    progress("");
    Ok(table)
}

/// Where one cell is.
struct Setup<'a> {
    options: &'a Options,
    placement: Placement,
    in_flight: usize,
    bytes: usize,
}

impl Setup<'_> {
    /// Starts a client process and waits for its word. Nothing that it does fails the run.
    fn outcome(&self, variant: &Variant) -> Result<Outcome> {
        let folder = tempfile::Builder::new().prefix("peers-").tempdir()?;
        let complaints = folder.path().join("complaints");
        let mut client = self.start(variant, folder.path(), &complaints)?;
        let word = wait_for_word(&mut client, self.options.deadline());
        // Its server ends with it.
        client.kill().ok();
        client.wait()?;
        let outcome = match word {
            Ok(Some(text)) => serde_json::from_str(&text).unwrap_or_else(|_| died(&complaints)),
            Ok(None) => Outcome::Failed("hangs".to_owned()),
            Err(error) => Outcome::Failed(error.to_string()),
        };
        sweep(folder.path());
        Ok(outcome)
    }

    fn start(&self, variant: &Variant, folder: &Path, complaints: &Path) -> Result<Child> {
        let (client_cpu, server_cpu) = self.options.cpus(self.placement);
        let mut command = Command::new(this_program()?);
        command.arg("cell").args(["--peer", variant.peer.name()]).arg("--folder").arg(folder);
        command.args(["--bytes", &self.bytes.to_string()]);
        command.args(["--calls-in-flight", &self.in_flight.to_string()]);
        command.args(["--time", &self.options.seconds.to_string()]);
        command.args(["--client-cpu", &client_cpu.to_string()]);
        command.args(["--server-cpu", &server_cpu.to_string()]);
        command.envs(variant.environment().iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(complaints)?);
        command.spawn().context("can't start a client process")
    }
}

/// The line that a client prints; none if none has come in time.
fn wait_for_word(client: &mut Child, deadline: Duration) -> Result<Option<String>> {
    let stdout = client.stdout.as_mut().context("its output was piped")?;
    let by = Instant::now() + deadline;
    let mut text = Vec::new();
    while !text.ends_with(b"\n") {
        let left = Timespec::try_from(by.saturating_duration_since(Instant::now()))?;
        let mut ready = [PollFd::new(stdout, PollFlags::IN)];
        match poll(&mut ready, Some(&left)) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut part = [0; 4096];
        let count = stdout.read(&mut part)?;
        if count == 0 {
            break;
        }
        text.extend_from_slice(&part[..count]);
    }
    Ok(Some(String::from_utf8(text)?))
}

/// What a process has said last that ended without a word.
fn died(complaints: &Path) -> Outcome {
    let text = fs::read_to_string(complaints).unwrap_or_default();
    let last = text.lines().rfind(|line| !line.trim().is_empty() && !line.starts_with("note:"));
    Outcome::Failed(last.unwrap_or("ended without a word").to_owned())
}

/// Removes files in shared memory that a peer had no time to remove; they have its folder's name.
fn sweep(folder: &Path) {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().contains(&*name) {
            fs::remove_file(entry.path()).ok();
        }
    }
}

/// One line that is written over, where somebody looks at it.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn a_client_that_says_nothing_is_given_up() {
        let mut silent = shell("exec sleep 60");
        assert_eq!(wait_for_word(&mut silent, Duration::from_millis(20)).unwrap(), None);
        silent.kill().unwrap();
        silent.wait().unwrap();
    }

    #[test]
    fn a_word_is_taken_before_its_process_has_ended() {
        let mut client = shell("printf 'one '; sleep 0.02; echo word; exec sleep 60");
        let word = wait_for_word(&mut client, Duration::from_secs(20)).unwrap();
        assert_eq!(word.as_deref(), Some("one word\n"));
        client.kill().unwrap();
        client.wait().unwrap();
    }

    #[test]
    fn who_ends_without_a_word_is_known_by_what_it_complained_of() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "first\nlast\n\nnote: run with RUST_BACKTRACE=1\n").unwrap();
        assert_eq!(died(file.path()), Outcome::Failed("last".to_owned()));
        assert_eq!(died(Path::new("/nowhere")), Outcome::Failed("ended without a word".to_owned()));
    }
}
