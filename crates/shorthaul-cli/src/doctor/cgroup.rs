//! The memory of this process's control group, of version 1 or 2: the tightest of all above it.

use std::fs;
use std::path::{Path, PathBuf};

/// A limit and what is used of it, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) limit: u64,
    pub(super) used: u64,
    /// The folder of the group that has the limit.
    pub(super) folder: PathBuf,
}

impl Memory {
    pub(super) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// The group with the least left; none if there is no limit.
///
/// # Errors
/// A sentence, where no group can be seen.
pub(super) fn memory(root: &Path) -> Result<Option<Memory>, String> {
    let text = |name: &str| {
        let path = root.join(name);
        fs::read_to_string(&path)
            .map_err(|error| format!("/{name} can't be read: {}", super::system::words(&error)))
    };
    let (mounts, groups) = (text("proc/self/mounts")?, text("proc/self/cgroup")?);
    let folders: Vec<Hierarchy> =
        mounts.lines().filter_map(|line| Hierarchy::of_mount(root, line, &groups)).collect();
    let by_version_1 = groups.lines().any(|line| version_1_group(line).is_some());
    let is_seen = |hierarchy: &Hierarchy| !by_version_1 || hierarchy.files.limit == VERSION_1.limit;
    if !folders.iter().any(is_seen) {
        return Err("no control group with a memory controller is mounted".into());
    }
    let limits = folders.iter().flat_map(|hierarchy| hierarchy.limits());
    Ok(limits.min_by_key(Memory::left))
}

/// The groups of this process, from its own up to the highest that can be seen.
struct Hierarchy {
    mount: PathBuf,
    group: PathBuf,
    files: &'static Files,
}

struct Files {
    limit: &'static str,
    used: &'static str,
}

impl Hierarchy {
    /// A line is: device, mount point, type, options.
    fn of_mount(root: &Path, line: &str, groups: &str) -> Option<Self> {
        let mut fields = line.split_whitespace().skip(1);
        let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let (files, group) = match kind {
            "cgroup2" => (&VERSION_2, groups.lines().find_map(|line| line.strip_prefix("0::"))),
            "cgroup" if options.split(',').any(|option| option == "memory") => {
                (&VERSION_1, groups.lines().find_map(version_1_group))
            }
            _ => return None,
        };
        let mount = root.join(point.trim_start_matches('/'));
        let group = mount.join(group?.trim_start_matches('/'));
        Some(Self { mount, group, files })
    }

    /// What a container can't see of its own path is passed over.
    fn folders(&self) -> impl Iterator<Item = &Path> {
        self.group.ancestors().take_while(|folder| folder.starts_with(&self.mount))
    }

    fn limits(&self) -> impl Iterator<Item = Memory> {
        self.folders().filter_map(|folder| {
            let number = |name| fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok();
            let (limit, used) = (number(self.files.limit)?, number(self.files.used)?);
            let memory = Memory { limit, used, folder: folder.to_owned() };
            (limit < UNLIMITED).then_some(memory)
        })
    }
}

/// A line is: number, controllers, path.
fn version_1_group(line: &str) -> Option<&str> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    controllers.split(',').any(|name| name == "memory").then_some(path)
}

const VERSION_1: Files = Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes" };
const VERSION_2: Files = Files { limit: "memory.max", used: "memory.current" };
/// Version 1 has no word for it: it says the largest number of whole pages.
const UNLIMITED: u64 = 1 << 62;

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Result<Option<(u64, u64, String)>, String> {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let tightest = memory(root.path())?;
        Ok(tightest.map(|Memory { limit, used, folder }| {
            let folder = folder.strip_prefix(root.path()).unwrap();
            (limit, used, folder.display().to_string())
        }))
    }

    const MOUNT_1: (&str, &str) = ("proc/self/mounts", "c /cg/memory cgroup rw,memory 0 0\n");
    const MOUNT_2: (&str, &str) = ("proc/self/mounts", "c /cg cgroup2 rw 0 0\n");

    #[test]
    fn the_tightest_of_all_groups_above_counts() {
        let limits = [
            ("proc/self/cgroup", "0::/a/b\n"),
            ("cg/a/b/memory.max", "max\n"),
            ("cg/a/b/memory.current", "5\n"),
            ("cg/a/memory.max", "1000\n"),
            ("cg/a/memory.current", "400\n"),
        ];
        let files = [&[MOUNT_2], &limits[..]].concat();
        assert_eq!(found(&files), Ok(Some((1000, 400, "cg/a".into()))));
        assert_eq!(found(&files[..4]), Ok(None));
    }

    #[test]
    fn version_1_says_no_limit_by_a_large_number() {
        let files = |limit| {
            [
                MOUNT_1,
                ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/x\n0::/\n"),
                ("cg/memory/x/memory.limit_in_bytes", limit),
                ("cg/memory/x/memory.usage_in_bytes", "7\n"),
            ]
        };
        assert_eq!(found(&files("9223372036854771712\n")), Ok(None));
        assert_eq!(found(&files("4096\n")), Ok(Some((4096, 7, "cg/memory/x".into()))));
    }

    #[test]
    fn a_container_sees_its_limit_at_the_mount_and_not_under_its_hosts_path() {
        let files = [
            MOUNT_2,
            ("proc/self/cgroup", "0::/system.slice/of-the-host\n"),
            ("cg/memory.max", "10\n"),
            ("cg/memory.current", "20\n"),
        ];
        assert_eq!(found(&files), Ok(Some((10, 20, "cg".into()))));
    }

    #[test]
    fn where_nothing_can_be_seen_nothing_is_said() {
        assert!(found(&[]).unwrap_err().contains("proc/self/mounts can't be read"));
        let none = [("proc/self/mounts", "x / ext4 rw 0 0\n"), ("proc/self/cgroup", "0::/\n")];
        assert!(found(&none).unwrap_err().contains("no control group"));
    }
}
