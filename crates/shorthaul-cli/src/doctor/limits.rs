//! The limits of this process, against what a server with the library's default limits can need.

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit};
use shorthaul::limits::{KEPT_MAPPINGS_MAX, Limits, UserLimits};
use shorthaul_platform::memory::page_bytes;

use super::cgroup::{self, Memory};
use super::finding::{About, FILL, Finding, Group, SEALED_ANSWERS, SEALED_UPLOADS};
use super::system;

pub(super) fn findings() -> Vec<Finding> {
    vec![
        open_files(getrlimit(Resource::Nofile)),
        file_size(getrlimit(Resource::Fsize).current),
        address_space(getrlimit(Resource::As).current),
        memory_lock(getrlimit(Resource::Memlock).current),
        mappings(system::number(MAPPINGS)),
        group_memory(cgroup::memory(Path::new("/"))),
    ]
}

pub(super) fn open_files(limit: Rlimit) -> Finding {
    let wanted = descriptors_wanted();
    let count = |limit: Option<u64>| limit.map_or("unlimited".into(), |count| count.to_string());
    let found = format!("soft {}, hard {}", count(limit.current), count(limit.maximum));
    let is_enough = |limit: Option<u64>| limit.is_none_or(|count| count >= wanted);
    if is_enough(limit.current) {
        return OPEN_FILES.ok(found);
    }
    let remedy = match is_enough(limit.maximum) {
        true => format!("`ulimit -n {wanted}` in the shell that starts it"),
        false => format!(
            "as root raise the hard limit: systemd `LimitNOFILE={wanted}`; Docker `--ulimit \
             nofile={wanted}`; a `nofile` line in /etc/security/limits.conf"
        ),
    };
    let cost = format!(
        "One user of a server with default limits may make it hold {wanted} (connections, buffers, \
         answers that are out). Past the limit calls fail, and new connections wait."
    );
    OPEN_FILES.degraded(found, cost, remedy)
}

fn descriptors_wanted() -> u64 {
    let UserLimits { connections_max, regions_max, lent_max, .. } = UserLimits::default();
    connections_max + regions_max + lent_max + OWN_DESCRIPTORS
}

pub(super) fn file_size(limit: Option<u64>) -> Finding {
    let remedy = "`ulimit -f unlimited` in the shell that starts it (systemd: \
                  `LimitFSIZE=infinity`)";
    let Some(limit) = limit else {
        return FILE_SIZE.ok("unlimited");
    };
    let found = system::bytes(limit);
    if limit < page_bytes() as u64 {
        let cost = "Memory files count as files: none can have a single page.";
        let lost = &[FILL, SEALED_ANSWERS, SEALED_UPLOADS];
        return FILE_SIZE.missing(found, lost, cost, remedy);
    }
    if limit >= Limits::default().region_bytes_max {
        return FILE_SIZE.ok(found);
    }
    let cost = "Memory files count as files: buffers, answers and relayed files larger than this \
                fail.";
    FILE_SIZE.degraded(found, cost, remedy)
}

pub(super) fn address_space(limit: Option<u64>) -> Finding {
    let Some(limit) = limit else {
        return ADDRESS_SPACE.ok("unlimited");
    };
    let found = system::bytes(limit);
    if limit >= UserLimits::default().region_bytes_max {
        return ADDRESS_SPACE.ok(found);
    }
    ADDRESS_SPACE.degraded(
        found,
        "Every mapped buffer counts, used or not: past the limit a server can't map its clients' \
         buffers, and those calls fail.",
        "`ulimit -v unlimited` in the shell that starts it (systemd: `LimitAS=infinity`); bound \
         its memory by a control group instead",
    )
}

/// Nothing is locked, so no limit costs anything.
fn memory_lock(limit: Option<u64>) -> Finding {
    MEMORY_LOCK.ok(limit.map_or_else(|| "unlimited".into(), system::bytes))
}

pub(super) fn mappings(limit: Result<u64, String>) -> Finding {
    let wanted = KEPT_MAPPINGS_MAX as u64 + OTHER_MAPPINGS;
    match limit {
        Err(why) => MAX_MAPPINGS.unknown(why),
        Ok(limit) if limit >= wanted => MAX_MAPPINGS.ok(limit.to_string()),
        Ok(limit) => MAX_MAPPINGS.degraded(
            limit.to_string(),
            format!(
                "A reactor keeps {KEPT_MAPPINGS_MAX} mapped buffers; past the limit mapping fails, \
                 and those calls with it."
            ),
            "`sysctl vm.max_map_count=65530` (as root); or a smaller \
             ServerOptions::kept_mappings_max",
        ),
    }
}

pub(super) fn group_memory(found: Result<Option<Memory>, String>) -> Finding {
    let memory = match found {
        Err(why) => return GROUP_MEMORY.unknown(why),
        Ok(None) => return GROUP_MEMORY.ok("no limit"),
        Ok(Some(memory)) => memory,
    };
    let [limit, left] = [memory.limit, memory.left()].map(system::bytes);
    let found = format!("{limit}, {left} left ({})", memory.folder.display());
    let UserLimits { lent_bytes_max, inline_bytes_max, .. } = UserLimits::default();
    let wanted = lent_bytes_max + inline_bytes_max;
    if memory.left() >= wanted {
        return GROUP_MEMORY.ok(found);
    }
    let cost = format!(
        "One user of a server with default limits may make it hold {} of payloads that travel \
         inline or sealed, buffers apart. At the limit the kernel ends a process of the container.",
        system::bytes(wanted)
    );
    let remedy = "give it more memory (Docker `--memory`, systemd `MemoryMax=`), or the server a \
                  smaller UserLimits::inline_bytes_max and lent_bytes_max";
    GROUP_MEMORY.degraded(found, cost, remedy)
}

const OPEN_FILES: About = About {
    id: "nofile",
    group: Group::Limits,
    what: "open files (RLIMIT_NOFILE)",
    use_of_it: "Each connection, buffer and sealed answer is an open file of the server.",
};
const FILE_SIZE: About = About {
    id: "file-size",
    group: Group::Limits,
    what: "largest file written (RLIMIT_FSIZE)",
    use_of_it: "Memory files count as files.",
};
const ADDRESS_SPACE: About = About {
    id: "address-space",
    group: Group::Limits,
    what: "memory mapped (RLIMIT_AS)",
    use_of_it: "Buffers of both sides are mapped.",
};
const MEMORY_LOCK: About = About {
    id: "memlock",
    group: Group::Limits,
    what: "memory locked (RLIMIT_MEMLOCK)",
    use_of_it: "Shorthaul locks nothing, so nothing is lost; it is for programs that keep their \
                buffers from being swapped out.",
};
const MAX_MAPPINGS: About = About {
    id: "max-map-count",
    group: Group::Limits,
    what: "number of mappings (vm.max_map_count)",
    use_of_it: "Servers keep clients' buffers mapped for the next call.",
};
const GROUP_MEMORY: About = About {
    id: "cgroup-memory",
    group: Group::Limits,
    what: "memory of the container (cgroup)",
    use_of_it: "Sealed answers, copies of uploads and pooled memory are the server's own.",
};
/// Of the library, its threads and the program around it.
const OWN_DESCRIPTORS: u64 = 64;
/// Of the program, its libraries, its threads' stacks, and calls under way.
const OTHER_MAPPINGS: u64 = 1024;
const MAPPINGS: &str = "/proc/sys/vm/max_map_count";
