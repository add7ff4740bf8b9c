//! What a process has to do without: what unshare(1) and a shell prepare, and what it takes away
//! from itself.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use super::calls::{BYTES, INLINE_BYTES_MAX};
use super::{CALLS, OPTIONS};
use crate::child;

/// The world of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct World {
    namespaces: Vec<&'static str>,
    script: String,
    before: Vec<String>,
    after: Vec<String>,
    options: &'static str,
    environment: Vec<(&'static str, String)>,
}

impl World {
    /// One where nothing is missing.
    pub(super) fn whole() -> Self {
        Self::default()
    }

    /// In namespaces of its own, by options of unshare(1).
    pub(super) fn in_namespaces(mut self, options: &[&'static str]) -> Self {
        self.namespaces.extend(options);
        self
    }

    /// After a line of shell.
    pub(super) fn after_running(mut self, line: &str) -> Self {
        self.script.push_str(line);
        self.script.push('\n');
        self
    }

    /// Without something from the start on: see [`take_away`].
    pub(super) fn without(mut self, what: &str) -> Self {
        self.before.push(what.to_owned());
        self
    }

    /// Without something from when a server has started.
    pub(super) fn later_without(mut self, what: &str) -> Self {
        self.after.push(what.to_owned());
        self
    }

    pub(super) fn options(self, options: &'static str) -> Self {
        Self { options, ..self }
    }

    /// With payloads of so many bytes.
    pub(super) fn bytes(self, bytes: usize) -> Self {
        self.with(BYTES, bytes.to_string())
    }

    /// A client that takes so many bytes inline.
    pub(super) fn inline_bytes_max(self, bytes: usize) -> Self {
        self.with(INLINE_BYTES_MAX, bytes.to_string())
    }

    /// A client that makes these calls only.
    pub(super) fn calls(self, calls: &[&str]) -> Self {
        self.with(CALLS, calls.join(","))
    }

    fn with(mut self, name: &'static str, value: String) -> Self {
        self.environment.push((name, value));
        self
    }

    /// Whether this machine can make it; says so if not.
    pub(super) fn is_possible(&self) -> bool {
        if self.namespaces.is_empty() && self.script.is_empty() {
            return true;
        }
        let tried = self.shell().arg("true").stdin(Stdio::null()).output();
        let trouble = match tried {
            Ok(tried) if tried.status.success() => return true,
            Ok(tried) => String::from_utf8_lossy(&tried.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        eprintln!("passed over: {:?} {:?}: {trouble}", self.namespaces, self.script);
        false
    }

    /// A command that starts this binary in it.
    pub(super) fn command(&self, role: &str, path: &Path) -> Command {
        let mut command = if self.namespaces.is_empty() && self.script.is_empty() {
            Command::new(env::current_exe().unwrap())
        } else {
            let mut shell = self.shell();
            shell.arg(env::current_exe().unwrap());
            shell
        };
        command.args(child::arguments());
        child::prepare(&mut command, role, path);
        command
            .stdin(Stdio::piped())
            .env(BEFORE, self.before.join(","))
            .env(AFTER, self.after.join(","))
            .env(OPTIONS, self.options);
        command.envs(self.environment.iter().map(|(name, value)| (*name, value)));
        if self.namespaces.contains(&"--fork") {
            // Its parent is unshare(1), which ends it too, and has no number in there.
            command.env(child::PARENT, "");
        }
        command
    }

    /// A shell in there, which becomes what its arguments say.
    fn shell(&self) -> Command {
        let script = format!("set -e\n{}exec \"$@\"", self.script);
        let mut command = match self.namespaces.is_empty() {
            true => Command::new("sh"),
            false => {
                let mut command = Command::new("unshare");
                command.args(&self.namespaces).args(["--", "sh"]);
                command
            }
        };
        command.args(["-c", &script, "sh"]);
        command
    }
}

/// Takes away from this process what its parent says that it must do without: "nofile 5" leaves
/// five more descriptors, "as N" so many more bytes of addresses, "fsize N" and "memlock N" bytes;
/// "NAME ERROR" refuses a system call.
pub(super) fn take_away(when: &str) {
    let name = if when == "before" { BEFORE } else { AFTER };
    let things = env::var(name).unwrap_or_default();
    for thing in things.split(',').filter(|thing| !thing.is_empty()) {
        let (name, value) = thing.split_once(' ').unwrap();
        let number = || value.parse::<u64>().unwrap();
        match name {
            "nofile" => limit(Resource::Nofile, number_with_free_ones_below(number())),
            "as" => limit(Resource::As, settled_address_bytes() + number()),
            "fsize" => limit(Resource::Fsize, number()),
            "memlock" => limit(Resource::Memlock, number()),
            name => refuse(name, value),
        }
    }
}

fn limit(resource: Resource, value: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(value), maximum }).unwrap();
}

/// Descriptors may be inherited with any numbers, and the limit is one of their numbers.
fn number_with_free_ones_below(free: u64) -> u64 {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    // Looking at each when all are listed leaves out the one of the listing.
    let open: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    let open = open.iter().filter(|path| path.symlink_metadata().is_ok());
    let numbers = open.map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap());
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    let mut limit = free;
    for number in numbers {
        limit += u64::from(number <= limit);
    }
    limit
}

/// Those that are used when nothing changes any more: threads that were started a moment ago take
/// theirs with their first allocations.
fn settled_address_bytes() -> u64 {
    let (mut bytes, mut same) = (address_bytes(), 0);
    while same < 20 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        let now = address_bytes();
        same = if now == bytes { same + 1 } else { 0 };
        bytes = now;
    }
    bytes
}

fn address_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Refuses a system call in this thread and those that it starts.
fn refuse(name: &str, error: &str) {
    let errno = match error {
        "EPERM" => libc::EPERM,
        "EACCES" => libc::EACCES,
        "EINVAL" => libc::EINVAL,
        "ENOSYS" => libc::ENOSYS,
        "ENOMEM" => libc::ENOMEM,
        "ENOSPC" => libc::ENOSPC,
        other => unreachable!("{other}"),
    };
    let equals = |index, value| {
        let is = SeccompCmpOp::Eq;
        vec![SeccompCondition::new(index, SeccompCmpArgLen::Dword, is, value).unwrap()]
    };
    let (number, conditions) = match name {
        "memfd_create" => (libc::SYS_memfd_create, vec![]),
        "noexec_seal" => {
            let noexec = u64::from(libc::MFD_NOEXEC_SEAL);
            let op = SeccompCmpOp::MaskedEq(noexec);
            let dword = SeccompCmpArgLen::Dword;
            let has_flag = SeccompCondition::new(1, dword, op, noexec).unwrap();
            (libc::SYS_memfd_create, vec![has_flag])
        }
        "add_seals" => (libc::SYS_fcntl, equals(1, libc::F_ADD_SEALS as u64)),
        "get_seals" => (libc::SYS_fcntl, equals(1, libc::F_GET_SEALS as u64)),
        "lease" => (libc::SYS_fcntl, equals(1, libc::F_SETLEASE as u64)),
        "populate_write" => (libc::SYS_madvise, equals(2, libc::MADV_POPULATE_WRITE as u64)),
        "collapse" => (libc::SYS_madvise, equals(2, libc::MADV_COLLAPSE as u64)),
        "hugepage" => (libc::SYS_madvise, equals(2, libc::MADV_HUGEPAGE as u64)),
        "madvise" => (libc::SYS_madvise, vec![]),
        "wipe_on_fork" => (libc::SYS_madvise, equals(2, libc::MADV_WIPEONFORK as u64)),
        "dontfork" => (libc::SYS_madvise, equals(2, libc::MADV_DONTFORK as u64)),
        "fallocate" => (libc::SYS_fallocate, vec![]),
        "mmap" => (libc::SYS_mmap, equals(3, libc::MAP_SHARED as u64)),
        "setaffinity" => (libc::SYS_sched_setaffinity, vec![]),
        other => unreachable!("{other}"),
    };
    let rules = match conditions.is_empty() {
        true => vec![],
        false => vec![SeccompRule::new(conditions).unwrap()],
    };
    let filter = SeccompFilter::new(
        BTreeMap::from([(number, rules)]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    apply_filter(&program).unwrap();
}

const BEFORE: &str = "SHORTHAUL_TEST_WITHOUT";
const AFTER: &str = "SHORTHAUL_TEST_LATER_WITHOUT";
