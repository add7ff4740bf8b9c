//! Memory files: making, sealing and watching them, and mapping those of others.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use shorthaul_platform::memory::LentFile;

use super::finding::{About, FILL, Finding, Group, SEALED_ANSWERS, SEALED_UPLOADS};
use super::system::{self, refused, untried};

pub(super) fn findings() -> Vec<Finding> {
    let is_refused = new_file().is_err();
    vec![
        memfd(),
        seals(),
        memfd_noexec(is_refused),
        leases(is_refused),
        overcommit(system::read(OVERCOMMIT)),
        dev_shm(),
    ]
}

pub(super) fn new_file() -> Result<OwnedFd, Errno> {
    memfd_create("shorthaul-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
}

fn memfd() -> Finding {
    match new_file() {
        Ok(_) => MEMFD.ok("made one"),
        Err(error) => MEMFD.missing(
            refused(error),
            &[FILL, SEALED_ANSWERS, SEALED_UPLOADS],
            "Without memory files no memory is shared: every payload is copied through the socket.",
            match error {
                Errno::MFILE | Errno::NFILE => "let it open more files: `ulimit -n 20000`",
                Errno::NOSYS | Errno::PERM | Errno::ACCESS => {
                    "a filter of system calls refuses memfd_create: allow it in the container's \
                     seccomp profile (Docker: `--security-opt seccomp=PROFILE.json`; systemd: \
                     `SystemCallFilter=memfd_create`)"
                }
                _ => "see memfd_create(2) for what the kernel says here",
            },
        ),
    }
}

/// Each on a file of its own, so that one that doesn't work is named.
fn seals() -> Finding {
    let mut refusals = Vec::new();
    for (seal, name) in ALL_SEALS {
        let file = match new_file() {
            Ok(file) => file,
            Err(error) => {
                return SEALS.unknown(untried(format!("memory files are {}", refused(error))));
            }
        };
        if let Err(error) = fcntl_add_seals(&file, seal) {
            refusals.push((name, error));
        }
    }
    let Some((_, error)) = refusals.first() else {
        return SEALS.ok(ALL_SEALS.map(|(_, name)| name).join(", ") + ": all work");
    };
    let names: Vec<&str> = refusals.iter().map(|(name, _)| *name).collect();
    let found = format!("{} {}", names.join(", "), refused(*error));
    if names == ["FUTURE_WRITE"] {
        // No lane sets it.
        return SEALS.ok(format!("all that are used work; {found}"));
    }
    SEALS.missing(
        found,
        &[FILL, SEALED_ANSWERS, SEALED_UPLOADS],
        "Nobody takes a memory file from a stranger who could still cut it short: reading past its \
         end is the end of the reader.",
        "allow fcntl(2) F_ADD_SEALS in the filter of system calls, or boot Linux 3.17 or newer",
    )
}

fn memfd_noexec(is_refused: bool) -> Finding {
    let sysctl = system::shown("/proc/sys/vm/memfd_noexec");
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
    match memfd_create("shorthaul-doctor", flags) {
        Ok(_) => NOEXEC.ok(format!("works ({sysctl})")),
        Err(Errno::INVAL) => NOEXEC.degraded(
            format!("the kernel doesn't know MFD_NOEXEC_SEAL ({sysctl})"),
            "Who is given a memory file could run it as a program. Lanes work as ever.",
            "boot Linux 6.3 or newer",
        ),
        Err(error) if is_refused => {
            NOEXEC.unknown(untried(format!("memory files are {}", refused(error))))
        }
        Err(error) => NOEXEC.missing(
            format!("{} ({sysctl})", refused(error)),
            &[FILL, SEALED_ANSWERS, SEALED_UPLOADS],
            "Shorthaul marks every memory file so, and only a kernel that doesn't know the mark is \
             passed over: it can make none here.",
            "let the filter of system calls allow memfd_create(2) with MFD_NOEXEC_SEAL",
        ),
    }
}

fn leases(is_refused: bool) -> Finding {
    match LentFile::ensure_possible() {
        Ok(()) => LEASES.ok("tells open files from closed ones"),
        Err(error) if is_refused => {
            LEASES.unknown(untried(format!("memory files are {}", refused(error))))
        }
        Err(error) => {
            let switch = system::shown("/proc/sys/fs/leases-enable");
            LEASES.missing(
                format!("{} ({switch})", system::words(&error)),
                &[SEALED_ANSWERS],
                "A server that can't tell whether a client still holds an answer's memory can't \
                 bound how much it has lent: it answers inline instead.",
                "mount /proc (`mount -t proc proc /proc`); `sysctl fs.leases-enable=1`; let the \
                 filter of system calls allow fcntl(2) F_SETLEASE and F_SETSIG",
            )
        }
    }
}

pub(super) fn overcommit(mode: Result<String, String>) -> Finding {
    match mode.as_deref() {
        Ok(mode @ ("0" | "1")) => {
            OVERCOMMIT_POLICY.ok(format!("yes (vm.overcommit_memory {mode})"))
        }
        Ok(mode) => OVERCOMMIT_POLICY.degraded(
            format!("no (vm.overcommit_memory {mode})"),
            "Where the kernel promises no more memory than there is, a store into a client's \
             memory can end the server. So servers fill it by pwrite(2): one more copy, and no \
             slices for handlers.",
            "`sysctl vm.overcommit_memory=0` (as root, for the whole machine)",
        ),
        Err(why) => OVERCOMMIT_POLICY.degraded(
            why,
            "What can't be read is taken for strict: servers fill clients' memory by pwrite(2), \
             not by storing into it.",
            "mount /proc: `mount -t proc proc /proc`",
        ),
    }
}

/// Nothing of Shorthaul lies there, but people look there first.
fn dev_shm() -> Finding {
    match rustix::fs::statvfs("/dev/shm") {
        Ok(found) => {
            let all = system::bytes(found.f_blocks.saturating_mul(found.f_frsize));
            let free = system::bytes(found.f_bavail.saturating_mul(found.f_frsize));
            DEV_SHM.ok(format!("{all}, {free} free"))
        }
        Err(error) => DEV_SHM.ok(format!("not there: {}", system::words(&error.into()))),
    }
}

const MEMFD: About = About {
    id: "memfd",
    group: Group::MemoryFiles,
    what: "memory files: made (memfd_create)",
    use_of_it: "Memory that can be sent to another process over a socket: every shared byte is in \
                one.",
};
const SEALS: About = About {
    id: "seals",
    group: Group::MemoryFiles,
    what: "memory files: size and bytes fixed for good (seals)",
    use_of_it: "A sealed file can't be cut short or changed under who reads it.",
};
const NOEXEC: About = About {
    id: "memfd-noexec",
    group: Group::MemoryFiles,
    what: "memory files: never run as programs (MFD_NOEXEC_SEAL)",
    use_of_it: "Memory that is sent away is data and never a program.",
};
const LEASES: About = About {
    id: "leases",
    group: Group::MemoryFiles,
    what: "memory files: whether somebody still holds one (leases)",
    use_of_it: "So a server knows how much of its memory is still out in sealed answers.",
};
const OVERCOMMIT_POLICY: About = About {
    id: "overcommit",
    group: Group::MemoryFiles,
    what: "memory files: a peer's can be stored into (overcommit)",
    use_of_it: "So servers may store straight into clients' memory.",
};
const DEV_SHM: About = About {
    id: "dev-shm",
    group: Group::MemoryFiles,
    what: "size of /dev/shm",
    use_of_it: "Shorthaul's memory files are not there and not bound by its size; only files that \
                you put there are.",
};
const ALL_SEALS: [(SealFlags, &str); 5] = [
    (SealFlags::SHRINK, "SHRINK"),
    (SealFlags::GROW, "GROW"),
    (SealFlags::SEAL, "SEAL"),
    (SealFlags::WRITE, "WRITE"),
    (SealFlags::FUTURE_WRITE, "FUTURE_WRITE"),
];
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";
