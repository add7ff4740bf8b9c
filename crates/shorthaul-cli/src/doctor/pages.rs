//! Huge pages, by each of the three ways to them.

use std::io;

use shorthaul_platform::memory::{self, page_bytes};

use super::cgroup;
use super::finding::{About, Finding, Group};
use super::system::{self, refused, untried};

pub(super) fn findings() -> Vec<Finding> {
    if let Some(why) = why_not() {
        return [SHMEM, COLLAPSE, HUGETLB].map(|about| about.unknown(untried(&why))).into();
    }
    let collapsed = memory::shmem_bytes_after_collapse();
    let is_had = collapsed.as_ref().is_ok_and(|&bytes| bytes > page_bytes());
    vec![
        shmem(memory::shmem_bytes_at_first_touch(), is_had),
        collapse(collapsed),
        hugetlb(memory::hugetlb_page_bytes()),
    ]
}

/// Trying takes memory, of which a container must not run out by it.
fn why_not() -> Option<String> {
    let bytes = memory::huge_page_bytes() as u64;
    if bytes > TRIED_BYTES_MAX {
        return Some(format!("huge pages have {} here", system::bytes(bytes)));
    }
    let group = cgroup::memory("/".as_ref()).ok().flatten()?;
    let is_short = group.left() < ROOM_FACTOR * bytes;
    is_short.then(|| format!("only {} are left to this container", system::bytes(group.left())))
}

/// What MADV_COLLAPSE makes is as good.
pub(super) fn shmem(tried: io::Result<usize>, can_collapse: bool) -> Finding {
    let switch = system::read(SHMEM_SWITCH).map_or_else(
        |_| "shmem_enabled can't be read".to_owned(),
        |choices| format!("shmem_enabled is {}", system::chosen(&choices)),
    );
    match tried {
        Err(error) => SHMEM.unknown(format!("{} ({switch})", untried(system::words(&error)))),
        Ok(bytes) if bytes > page_bytes() => {
            let came = system::bytes(bytes as u64);
            SHMEM.ok(format!("a first touch brought {came} ({switch})"))
        }
        Ok(_) if can_collapse => SHMEM.ok(format!("not needed: they are made ({switch})")),
        Ok(bytes) => SHMEM.degraded(
            format!("a first touch brought {} ({switch})", system::bytes(bytes as u64)),
            "Memory that is used for the first time, or mapped anew, costs a fault for each small \
             page; buffers that are used again don't.",
            format!(
                "`echo within_size > {SHMEM_SWITCH}` (as root, until the next boot; at boot: \
                 transparent_hugepage_shmem=within_size); it takes memory in larger pieces"
            ),
        ),
    }
}

/// Where it is refused, shmem may still have them by itself: that finding says what is lost.
fn collapse(tried: io::Result<usize>) -> Finding {
    match tried {
        Ok(bytes) if bytes > page_bytes() => COLLAPSE
            .ok(format!("a sealed file was put into a page of {}", system::bytes(bytes as u64))),
        Ok(_) => COLLAPSE.ok("accepted, but the pages stayed small"),
        Err(error) => COLLAPSE.ok(refused(error)),
    }
}

/// Peers' memory files of this kind are refused whatever the machine has.
fn hugetlb(tried: io::Result<usize>) -> Finding {
    let reserved = system::shown("/proc/sys/vm/nr_hugepages");
    match tried {
        Ok(bytes) => HUGETLB.ok(format!("had one of {} ({reserved})", system::bytes(bytes as u64))),
        Err(error) => HUGETLB.ok(format!("had none: {} ({reserved})", system::words(&error))),
    }
}

const SHMEM: About = About {
    id: "huge-shmem",
    group: Group::HugePages,
    what: "huge pages by the administrator's word (shmem)",
    use_of_it: "One fault for each 2 MiB of fresh memory, where there were 512.",
};
const COLLAPSE: About = About {
    id: "huge-collapse",
    group: Group::HugePages,
    what: "huge pages on request (MADV_COLLAPSE)",
    use_of_it: "One fault for each 2 MiB of fresh memory, where there were 512; needs Linux 6.1 \
                and no privilege.",
};
const HUGETLB: About = About {
    id: "huge-hugetlb",
    group: Group::HugePages,
    what: "huge pages set aside (MFD_HUGETLB)",
    use_of_it: "For a program's private memory; files of this kind are refused as shared buffers, \
                since a store into one can be fatal.",
};
const SHMEM_SWITCH: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// Where pages have 64 KiB, a huge one has 512 MiB: too much to try.
const TRIED_BYTES_MAX: u64 = 32 << 20;
/// What must be left for each byte tried.
const ROOM_FACTOR: u64 = 8;
