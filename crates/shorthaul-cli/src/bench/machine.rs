//! Where a bench ran: what a reader of its figures must know about the machine.

use std::fmt;
use std::fs;

use serde::{Deserialize, Serialize};
use shorthaul_platform::topology::Topology;

/// The facts that move figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) kernel: String,
    /// The frequency governor; none where the kernel doesn't govern.
    pub(crate) governor: Option<String>,
    /// Whether shmem may have huge pages by itself.
    pub(crate) shmem_huge_pages: Option<String>,
    /// Mitigations of CPU faults that are in force, by the kernel's names.
    pub(crate) mitigations: Vec<String>,
}

impl Machine {
    pub(crate) fn read(topology: &Topology) -> Self {
        let uname = rustix::system::uname();
        Self {
            cpu: cpu_name().unwrap_or_else(|| "CPU of unknown name".into()),
            cpus: topology.counts().cpus,
            kernel: uname.release().to_string_lossy().into_owned(),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            shmem_huge_pages: read("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
                .and_then(|choices| chosen(&choices)),
            mitigations: mitigations(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} CPUs, Linux {}", self.cpu, self.cpus, self.kernel)?;
        let governor = self.governor.as_deref().unwrap_or("none");
        let huge = self.shmem_huge_pages.as_deref().unwrap_or("unknown");
        let count = self.mitigations.len();
        write!(f, ", governor {governor}, shmem huge pages {huge}, {count} mitigations")
    }
}

fn cpu_name() -> Option<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok()?;
    let value = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    value("model name").or_else(|| value("CPU part").map(|part| format!("CPU part {part}")))
}

fn mitigations() -> Vec<String> {
    let Ok(folder) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else {
        return Vec::new();
    };
    let mut names: Vec<String> = folder
        .flatten()
        .filter(|file| {
            fs::read_to_string(file.path()).is_ok_and(|text| text.starts_with("Mitigation"))
        })
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The word in brackets.
fn chosen(choices: &str) -> Option<String> {
    let (_, rest) = choices.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_in_brackets() {
        assert_eq!(chosen("always [never] deny"), Some("never".into()));
        assert_eq!(chosen("always"), None);
    }
}
