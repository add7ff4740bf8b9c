//! What a process has open and mapped.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a process has open and mapped.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    /// What its descriptors lead to, sorted.
    pub(super) descriptors: Vec<String>,
    /// Mappings of memory files.
    pub(super) mappings: usize,
}

impl Census {
    /// This process's.
    pub(super) fn take() -> Self {
        Self::look("self")
    }

    /// Another process's, which may close and open a pipe or socket of its own anew: so what kind
    /// each is counts, and not which one.
    pub(super) fn of(process: u32) -> Self {
        let mut census = Self::look(&process.to_string());
        for name in &mut census.descriptors {
            name.truncate(name.find(":[").unwrap_or(name.len()));
        }
        census.descriptors.sort();
        census
    }

    fn look(process: &str) -> Self {
        let folder = PathBuf::from("/proc").join(process);
        let links = fs::read_dir(folder.join("fd")).unwrap();
        let mut descriptors: Vec<String> = links
            .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
            .map(|target| target.to_string_lossy().into_owned())
            .collect();
        descriptors.sort();
        let maps = fs::read_to_string(folder.join("maps")).unwrap();
        let mappings = maps.lines().filter(|line| line.contains("memfd:")).count();
        Self { descriptors, mappings }
    }

    pub(super) fn count(&self, kind: &str) -> usize {
        self.descriptors.iter().filter(|name| name.as_str() == kind).count()
    }

    /// Waits until this process is as it was: closing and unmapping happen on other threads, after
    /// the answer.
    pub(super) fn returns(&self) {
        self.comes_back(Self::take);
    }

    /// Waits until another process is as it was.
    pub(super) fn returns_in(&self, process: u32) {
        self.comes_back(|| Self::of(process));
    }

    fn comes_back(&self, look: impl Fn() -> Self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let now = look();
            if now == *self {
                return;
            }
            assert!(Instant::now() < until, "left behind: {now:#?}\nbefore: {self:#?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Memory of a process that is in RAM now.
pub(super) fn resident_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Longer than anything takes; only to end a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);
