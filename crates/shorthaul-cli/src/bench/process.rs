//! The other processes of a bench: started by the first one, and gone with it.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Signal, set_parent_process_death_signal};
use shorthaul_platform::topology::pin_current_thread;

/// A process of ours. It would end by itself when its client is gone; dropping it is sooner.
pub(crate) struct ServerProcess(Child);

impl ServerProcess {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// How it ended, once it has let go of its socket; if it hasn't ended within a moment, that.
    pub(crate) fn how_it_ended(&mut self) -> String {
        for _ in 0..LOOKS_MAX {
            match self.0.try_wait() {
                Ok(Some(status)) => return status.to_string(),
                Ok(None) => std::thread::sleep(LOOK_AGAIN),
                Err(error) => return error.to_string(),
            }
        }
        "but it still runs".to_owned()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts this program again, as `command`, with one end of a socketpair as its standard input.
pub(crate) fn spawn(command: &str, arguments: &[String]) -> Result<(UnixStream, ServerProcess)> {
    let (ours, theirs) = UnixStream::pair().context("can't make a socketpair")?;
    let program = std::env::current_exe().context("can't find this program itself")?;
    let server = Command::new(&program)
        .arg(command)
        .args(arguments)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("can't start {}", program.display()))?;
    Ok((ours, ServerProcess(server)))
}

/// For such a process, first of all: an orphan that spins would falsify every later figure.
/// It keeps to `cpu`, if there is one that it must keep to.
pub(crate) fn die_with_parent(cpu: impl Into<Option<u32>>) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("prctl(PR_SET_PDEATHSIG)")?;
    match cpu.into() {
        Some(cpu) => pin_current_thread(cpu).with_context(|| format!("can't pin to CPU {cpu}")),
        None => Ok(()),
    }
}

/// How long such a process may keep its client waiting.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const LOOKS_MAX: u32 = 100;
const LOOK_AGAIN: Duration = Duration::from_millis(10);
