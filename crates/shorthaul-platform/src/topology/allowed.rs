//! Which CPUs and memory nodes a recorded process was allowed to use.

use std::path::{Path, PathBuf};

use super::cpu_set::CpuSet;
use super::files;

/// What is allowed; `None` where the tree does not say, which means everything.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Allowed {
    pub(super) cpus: Option<CpuSet>,
    pub(super) nodes: Option<CpuSet>,
}

impl Allowed {
    /// What the process of this tree's `proc/self` was allowed: by its `status`, or else by the
    /// cpuset that it was in.
    ///
    /// # References
    /// proc_pid_status(5), proc_pid_cpuset(5), cpuset(7), cgroups(7).
    pub(super) fn recorded(root: &Path) -> Self {
        let status = Self::from_status(root);
        let cpuset = Self::from_cpuset(root).unwrap_or_default();
        Self { cpus: status.cpus.or(cpuset.cpus), nodes: status.nodes.or(cpuset.nodes) }
    }

    fn from_status(root: &Path) -> Self {
        let status = files::text(&root.join("proc/self/status")).unwrap_or_default();
        let set = |key: &str| {
            let list = status.lines().find_map(|line| line.strip_prefix(key))?;
            non_empty(list.trim().parse().ok()?)
        };
        Self { cpus: set("Cpus_allowed_list:"), nodes: set("Mems_allowed_list:") }
    }

    fn from_cpuset(root: &Path) -> Option<Self> {
        let mounts = files::text(&root.join("proc/mounts")).ok()?;
        let groups = mounts.lines().filter_map(|line| Group::from_mount(root, line));
        groups.map(|group| group.allowed(root)).find(|allowed| *allowed != Self::default())
    }
}

/// The control group of the process, in one of the three guises of cpusets.
struct Group {
    folder: PathBuf,
    cpus: &'static str,
    nodes: &'static str,
}

impl Group {
    /// A line is: device, mount point, type, options.
    fn from_mount(root: &Path, line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace().skip(1);
        let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let option = |name| options.split(',').any(|option| option == name);
        let (cpus, nodes) = match kind {
            "cgroup2" => ("cpuset.cpus.effective", "cpuset.mems.effective"),
            "cgroup" if option("cpuset") && !option("noprefix") => ("cpuset.cpus", "cpuset.mems"),
            "cgroup" if option("cpuset") => ("cpus", "mems"),
            "cpuset" => ("cpus", "mems"),
            _ => return None,
        };
        let name = if kind == "cgroup2" { unified_name(root) } else { cpuset_name(root) };
        let folder = files::below(&files::below(root, point)?, &name?)?;
        Some(Self { folder, cpus, nodes })
    }

    fn allowed(&self, root: &Path) -> Allowed {
        Allowed { cpus: self.set(root, self.cpus), nodes: self.set(root, self.nodes) }
    }

    /// A group without the file has the controller off, and what its parent has.
    fn set(&self, root: &Path, name: &str) -> Option<CpuSet> {
        let folders = self.folder.ancestors().take_while(|folder| folder.starts_with(root));
        let mut texts = folders.filter_map(|folder| files::text(&folder.join(name)).ok());
        texts.find_map(|text| non_empty(text.parse().ok()?))
    }
}

fn cpuset_name(root: &Path) -> Option<String> {
    files::text(&root.join("proc/self/cpuset")).ok()
}

fn unified_name(root: &Path) -> Option<String> {
    let groups = files::text(&root.join("proc/self/cgroup")).ok()?;
    groups.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// Nobody runs on no CPU: an empty set says that nothing was said.
fn non_empty(set: CpuSet) -> Option<CpuSet> {
    (!set.is_empty()).then_some(set)
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use std::fs;

    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn allowed(files: &[(&str, &str)]) -> (String, String) {
        let allowed = Allowed::recorded(tree(files).path());
        let list = |set: Option<CpuSet>| set.map_or("all".into(), |set| set.to_string());
        (list(allowed.cpus), list(allowed.nodes))
    }

    #[test]
    fn status_is_asked_first() {
        let status = "Name:\tx\nCpus_allowed_list:\t1-2\nMems_allowed_list:\t0\n";
        assert_eq!(allowed(&[("proc/self/status", status)]), ("1-2".into(), "0".into()));
        assert_eq!(allowed(&[]), ("all".into(), "all".into()));
        assert_eq!(allowed(&[("proc/self/status", "Cpus_allowed_list:\tx")]).0, "all");
    }

    #[test]
    fn a_unified_group_without_the_file_has_its_parents_cpus() {
        let found = allowed(&[
            ("proc/mounts", "none / ext4 rw 0 0\nc /sys/fs/cgroup cgroup2 rw 0 0\n"),
            ("proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n"),
            ("sys/fs/cgroup/a/cpuset.cpus.effective", "3,5\n"),
            ("sys/fs/cgroup/a/b/cpuset.mems.effective", "1\n"),
        ]);
        assert_eq!(found, ("3,5".into(), "1".into()));
    }

    #[test]
    fn a_group_that_climbs_out_of_the_tree_is_not_followed() {
        let found = allowed(&[
            ("proc/mounts", "none /dev/cpuset cpuset rw 0 0\n"),
            ("proc/self/cpuset", "/../../outside\n"),
            ("outside/cpus", "7"),
        ]);
        assert_eq!(found.0, "all");
    }
}
