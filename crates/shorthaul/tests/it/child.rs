//! Processes of this test binary's own: a test starts the binary again, with a role in the
//! environment.

use std::env;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::{
    descriptors, environment, hand_over, hostile, kill, load, relay, soak, socket_file, workload,
};

/// A child, which ends with this object or with this process.
pub(super) struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

/// A command that starts this binary as a child with `role`, about the socket at `path`.
pub(super) fn command(role: &str, path: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(arguments());
    prepare(&mut command, role, path);
    command
}

/// What makes this binary play its role.
pub(super) fn arguments() -> [&'static str; 4] {
    ["child::role", "--exact", "--nocapture", "--quiet"]
}

pub(super) fn prepare(command: &mut Command, role: &str, path: &Path) {
    command
        .env(ROLE, role)
        .env(SOCKET, path)
        .env(PARENT, std::process::id().to_string())
        .stdin(Stdio::null());
}

impl Process {
    pub(super) fn start(role: &str, path: &Path) -> Self {
        Self::spawn(command(role, path))
    }

    pub(super) fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next thing that the child says.
    pub(super) fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let bytes = self.stdout.read_line(&mut line).unwrap();
            assert!(bytes > 0, "the child has ended: {:?}", self.child.wait());
            if let Some(at) = line.find(MARK) {
                return line[at + MARK.len()..].trim_end().to_owned();
            }
        }
    }

    /// Closes what the child reads from, where that is a pipe.
    pub(super) fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
        let ended = self.child.wait().unwrap();
        assert_eq!(ended.signal(), Some(9), "it had ended before: {ended}");
    }

    pub(super) fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails for one that has ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Tells the parent something.
pub(super) fn say(what: impl std::fmt::Display) {
    println!("\n{MARK}{what}");
}

/// No test: what this binary does as a child. In the parent there is nothing to do.
#[test]
fn role() {
    let Ok(role) = env::var(ROLE) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let parent = getppid().map(|parent| parent.as_raw_nonzero().to_string());
    let told = env::var(PARENT).unwrap();
    assert!(told.is_empty() || parent == Some(told), "the parent is gone already");
    let path = env::var_os(SOCKET).unwrap();
    let path = Path::new(&path);
    match role.as_str() {
        "serves" => workload::serve_for_ever(path),
        "is killed" => kill::clients::call_for_ever(path),
        "server" => kill::half_way::serve_for_ever(path),
        "is noisy" => load::noisy::call_for_ever(path),
        "soaks" => soak::call_for_long(path),
        "relays" => descriptors::relay_to_nobody(path),
        "umask" => socket_file::bind_and_tell(path),
        "activated" => hand_over::serve_as_activated(),
        "inherited" => hand_over::serve_inherited(),
        "relaying" => relay::signals::relay_to_nobody(),
        "silent files" => hostile::fuse::offer_silent_files(path),
        "host" => hostile::neighbours::host_a_server(path),
        "calling parent" => hand_over::call_parent(),
        "environment server" => environment::serve(path),
        "environment client" => environment::call(path),
        other => panic!("no such role: {other}"),
    }
}

const ROLE: &str = "SHORTHAUL_TEST_ROLE";
const SOCKET: &str = "SHORTHAUL_TEST_SOCKET";
/// Whose child it is; empty where another process is between the two.
pub(super) const PARENT: &str = "SHORTHAUL_TEST_PARENT";
const MARK: &str = "@@ ";
