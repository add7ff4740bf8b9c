//! Who is charged for a payload's memory: control groups with little of it.

use std::fs;
use std::path::{Path, PathBuf};

use super::calls::LANES;
use super::world::World;
use super::{Outcomes, call_from, ends_clean, start_server};

/// A control group of its own with 64 MiB, inside this process's; removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let group = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let root = match controllers {
                "memory" => "/sys/fs/cgroup/memory",
                "" => "/sys/fs/cgroup",
                _ => return None,
            };
            let name = format!("shorthaul-test-{name}-{}", std::process::id());
            // What is above may not be seen from here.
            let inside = Path::new(root).join(path.trim_start_matches('/')).join(&name);
            [inside, Path::new(root).join(&name)].into_iter().find_map(Self::make)
        });
        if group.is_none() {
            eprintln!("passed over: no control group for memory can be made");
        }
        group
    }

    fn make(path: PathBuf) -> Option<Self> {
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        let limits = ["memory.limit_in_bytes", "memory.max"];
        let is_set = |name: &str| fs::write(group.0.join(name), LIMIT.to_string()).is_ok();
        limits.iter().any(|name| is_set(name)).then_some(group)
    }

    fn world(&self) -> World {
        World::whole().after_running(&format!("echo $$ > {}/cgroup.procs", self.0.display()))
    }

    fn most_bytes(&self) -> u64 {
        let names = ["memory.max_usage_in_bytes", "memory.peak"];
        let told = names.iter().find_map(|name| fs::read_to_string(self.0.join(name)).ok());
        told.map_or(0, |told| told.trim().parse().unwrap())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its last process may still be on its way out.
        for _ in 0..1000 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

fn call(path: &Path, call: &str, bytes: usize) -> Outcomes {
    call_from(path, &World::whole().bytes(bytes).calls(&[call])).unwrap()
}

/// Pages are charged to who touches them first. A buffer's are its client's, who has allocated them
/// all when it was made: the server fills it at no charge, however large it is.
#[test]
fn a_buffer_is_charged_to_its_client() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let Some(group) = Group::new("buffer") else { return };
    let Some(server) = start_server(&path, &group.world()) else { return };
    call(&path, "map", LARGE).work(&[("map", "fill(map)")]);
    call(&path, "write", 4 << 20).work(&[("write", "fill(write)")]);
    assert!(group.most_bytes() < LIMIT / 4, "{}", group.most_bytes());
    ends_clean(server);
}

/// With the default options one client can: a one-shot place is touched by the server first, and so
/// is a buffer that its client has made with holes; what travels inline or sealed, and copies of
/// uploads, are the server's own. Each of these has an option that bounds it.
#[test]
fn a_server_within_its_options_is_not_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let Some(group) = Group::new("bounded") else { return };
    let Some(server) = start_server(&path, &group.world().options("bounded")) else { return };
    let mut refused = 0;
    for (lane, _) in LANES {
        // An object is the service's own memory, which only the service can bound.
        if lane != "object" {
            let refusals = ["RESOURCE_EXHAUSTED", "OUT_OF_RANGE", "LimitReached"];
            refused += call(&path, lane, OVER).work_or_fail(&refusals);
        }
    }
    assert!(refused > 2 * 8, "{refused} calls were refused");
    call_from(&path, &World::whole()).unwrap().all_work();
    assert!(group.most_bytes() <= LIMIT);
    ends_clean(server);
}

const LIMIT: u64 = 64 << 20;
const LARGE: usize = 200 << 20;
const OVER: usize = 80 << 20;
