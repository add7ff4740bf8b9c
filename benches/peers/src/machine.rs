//! On what it was measured.

use std::fs;
use std::process::Command;

/// Lines that say where, by what and how a report was made.
pub(crate) fn head() -> Vec<String> {
    let uname = rustix::system::uname();
    let command: Vec<String> = std::env::args().collect();
    let pages = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    vec![
        format!("commit {}", commit().unwrap_or_else(|| "unknown".to_owned())),
        format!(
            "{} {} {}",
            uname.sysname().to_string_lossy(),
            uname.release().to_string_lossy(),
            uname.machine().to_string_lossy()
        ),
        cpu(&read("/proc/cpuinfo")),
        format!("huge pages of shared memory: {}", chosen(&pages).unwrap_or("unknown")),
        format!("load before: {}", read("/proc/loadavg")),
        format!("command: {}", command[1..].join(" ")),
    ]
}

fn commit() -> Option<String> {
    let here = env!("CARGO_MANIFEST_DIR");
    let arguments = ["-C", here, "describe", "--always", "--dirty"];
    let described = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(described.stdout).ok()?;
    described.status.success().then(|| text.trim().to_owned())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Model, and how many.
fn cpu(cpuinfo: &str) -> String {
    let value = |line: &str| line.split_once(':').map(|(_, value)| value.trim().to_owned());
    let models = cpuinfo.lines().filter(|line| line.starts_with("model name"));
    let count = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let model = models.filter_map(value).next().unwrap_or_else(|| "unknown CPU".to_owned());
    format!("{model}, {count} CPUs")
}

/// The word in brackets.
fn chosen(choices: &str) -> Option<&str> {
    choices.split_once('[')?.1.split(']').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_told_with_its_number_of_cpus() {
        let text = "processor\t: 0\nmodel name\t: A: B\nprocessor\t: 1\nmodel name\t: A: B\n";
        assert_eq!(cpu(text), "A: B, 2 CPUs");
        assert_eq!(cpu(""), "unknown CPU, 0 CPUs");
    }

    #[test]
    fn what_is_chosen_is_in_brackets() {
        assert_eq!(chosen("always within_size [never] deny"), Some("never"));
        assert_eq!(chosen("never"), None);
    }
}
