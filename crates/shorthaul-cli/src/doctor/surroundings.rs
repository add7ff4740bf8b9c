//! What is around this process: /proc, who its peers are to it, namespaces, filters.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use shorthaul_platform::socket::{Credentials, overflow_uid, peer_credentials};

use super::finding::{About, CONNECTIONS, Finding, GIVEN_FILES, Group};
use super::system::{self, refused};

pub(super) fn findings() -> Vec<Finding> {
    let mut all = vec![proc_files(), credentials(), user_namespace()];
    all.extend([process_namespace(), mount_namespace()]);
    all.extend([(NETWORK, NETWORK_KIND), (TIME, TIME_KIND)].map(|(about, kind)| {
        match namespace(&kind) {
            Ok(which) => about.ok(which.words()),
            Err(why) => about.unknown(why),
        }
    }));
    all.extend([seccomp(system::read("/proc/self/status")), ptrace_scope()]);
    all
}

fn proc_files() -> Finding {
    let files = ["/proc/self/status", "/proc/self/mountinfo"];
    let unread = files.iter().find_map(|path| system::read(path).err());
    let unread = unread.or_else(|| {
        let folder = fs::read_dir("/proc/self/fd");
        folder.err().map(|error| format!("/proc/self/fd can't be read: {}", system::words(&error)))
    });
    match unread {
        None => PROC.ok("mounted and readable"),
        Some(why) => PROC.missing(
            why,
            &[GIVEN_FILES],
            "Shorthaul finds out there what a handed-over file lies on, and opens its own memory \
             files a second time to watch who holds them.",
            "`mount -t proc proc /proc` in this root",
        ),
    }
}

fn credentials() -> Finding {
    let asked = UnixStream::pair().and_then(|(ours, _theirs)| peer_credentials(ours.as_fd()));
    match asked {
        Ok(peer) => peer_is(&peer, overflow_uid()),
        Err(error) => CREDENTIALS.missing(
            refused(error),
            &[CONNECTIONS],
            "Who is on the other side can't be asked, so nobody is let in.",
            "let the filter of system calls allow socketpair(2) and getsockopt(2) SO_PEERCRED",
        ),
    }
}

pub(super) fn peer_is(peer: &Credentials, nobody: u32) -> Finding {
    let uid = peer.uid;
    if uid != nobody {
        return CREDENTIALS.ok(format!("asked the kernel: user {uid}"));
    }
    CREDENTIALS.missing(
        format!("user {uid}, the stand-in for users without a name here"),
        &[CONNECTIONS],
        "This process's own user can't be told from everybody else who has no name here, so that \
         servers and clients refuse each other.",
        "run it as another user than nobody; in a user namespace map the user (`unshare -Ur`); or \
         give the server a policy of your own (ServerOptions::policy)",
    )
}

fn user_namespace() -> Finding {
    let map = system::read("/proc/self/uid_map").unwrap_or_default();
    let map = map.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let map = map.collect::<Vec<_>>().join("; ");
    let map = if map.is_empty() { "no user has a name here".into() } else { map };
    match namespace(&USER_KIND) {
        Err(why) => USER.unknown(why),
        Ok(Which::First) => USER.ok(Which::First.words()),
        Ok(which) => USER.degraded(
            format!("{} (uid_map: {map})", which.words()),
            format!(
                "Peers outside of it look like user {}, whom nobody lets in by default.",
                overflow_uid()
            ),
            "run both sides in one user namespace, or map both users into it (uid_map, \
             `--userns=host`)",
        ),
    }
}

fn process_namespace() -> Finding {
    match namespace(&PROCESS_KIND) {
        Err(why) => PROCESS.unknown(why),
        Ok(Which::First) => PROCESS.ok(Which::First.words()),
        Ok(which) => PROCESS.degraded(
            which.words(),
            "Peers outside of it have no process id here: a policy can go by their user only.",
            "run both sides in one, if your policy asks for process ids (`--pid=host`)",
        ),
    }
}

fn mount_namespace() -> Finding {
    match namespace(&MOUNT_KIND) {
        Err(why) => MOUNT.unknown(why),
        Ok(Which::First) => MOUNT.ok(Which::First.words()),
        Ok(which) => MOUNT.degraded(
            which.words(),
            "A server's socket is found by its path only by who sees the same folder.",
            "put the socket into a folder that both sides have mounted (`--volume`, \
             `BindPaths=`)",
        ),
    }
}

/// Whether a namespace is the one that the machine booted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    First,
    Another,
}

impl Which {
    fn words(self) -> &'static str {
        match self {
            Self::First => "the machine's own",
            Self::Another => "another than the machine's own",
        }
    }
}

/// `kind` has the number of the machine's own, where the kernel has fixed it. Where it has not,
/// process 1 of the machine is asked.
fn namespace(kind: &Kind) -> Result<Which, String> {
    let own = number("self", kind.name)?;
    if own == kind.first {
        return Ok(Which::First);
    }
    if kind.is_fixed_since.is_none_or(|version| system::kernel_version() >= Some(version)) {
        return Ok(Which::Another);
    }
    if number("self", PROCESS_KIND.name)? != PROCESS_KIND.first {
        return Err("process 1 of the machine can't be compared with from in here".into());
    }
    number("1", kind.name).map(|first| if own == first { Which::First } else { Which::Another })
}

/// A link reads "user:[4026531837]".
fn number(process: &str, name: &str) -> Result<u64, String> {
    let path = format!("/proc/{process}/ns/{name}");
    let link = fs::read_link(&path);
    let link = link.map_err(|error| format!("{path} can't be read: {}", system::words(&error)))?;
    let link = link.to_string_lossy();
    let inside = link.split_once('[').and_then(|(_, rest)| rest.trim_end_matches(']').parse().ok());
    inside.ok_or_else(|| format!("{path} holds no number but {link:?}"))
}

pub(super) fn seccomp(status: Result<String, String>) -> Finding {
    let status = match status {
        Ok(status) => status,
        Err(why) => return SECCOMP.unknown(why),
    };
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    match value("Seccomp:") {
        None => SECCOMP.unknown("/proc/self/status doesn't say"),
        Some("0") => SECCOMP.ok("none"),
        Some(_) => {
            let count = value("Seccomp_filters:").unwrap_or("some");
            SECCOMP.ok(format!("{count} in force: what is refused is refused above"))
        }
    }
}

fn ptrace_scope() -> Finding {
    match system::read("/proc/sys/kernel/yama/ptrace_scope") {
        Ok(scope) => PTRACE.ok(format!("{scope} (kernel.yama.ptrace_scope)")),
        Err(why) if system::read("/proc/self/status").is_err() => PTRACE.unknown(why),
        Err(_) => PTRACE.ok("this kernel has no Yama"),
    }
}

const PROC: About = About {
    id: "proc",
    group: Group::Surroundings,
    what: "/proc can be read",
    use_of_it: "Where a process asks the kernel about itself.",
};
const CREDENTIALS: About = About {
    id: "peer-credentials",
    group: Group::Surroundings,
    what: "who a peer is (SO_PEERCRED)",
    use_of_it: "By default each side talks to its own user and to root only.",
};
const USER: About = About {
    id: "namespace-user",
    group: Group::Surroundings,
    what: "user namespace (users' names)",
    use_of_it: "Users have the names that they have everywhere on the machine.",
};
const PROCESS: About = About {
    id: "namespace-pid",
    group: Group::Surroundings,
    what: "PID namespace (processes seen)",
    use_of_it: "Every peer has a process id.",
};
const MOUNT: About = About {
    id: "namespace-mount",
    group: Group::Surroundings,
    what: "mount namespace (folders seen)",
    use_of_it: "A server's socket is a file that clients find by its path.",
};
const NETWORK: About = About {
    id: "namespace-network",
    group: Group::Surroundings,
    what: "network namespace",
    use_of_it: "Sockets that are files are reached from every one; relays into TCP see the \
                addresses of theirs.",
};
const TIME: About = About {
    id: "namespace-time",
    group: Group::Surroundings,
    what: "time namespace",
    use_of_it: "No time of day and no clock travels, so each side may have its own.",
};
const SECCOMP: About = About {
    id: "seccomp",
    group: Group::Surroundings,
    what: "filters of system calls (seccomp)",
    use_of_it: "What they refuse shows where it was tried.",
};
const PTRACE: About = About {
    id: "ptrace-scope",
    group: Group::Surroundings,
    what: "looking into other processes (Yama)",
    use_of_it: "No lane looks into another process's memory, so any value will do.",
};
struct Kind {
    name: &'static str,
    /// The number of the machine's own; see the kernel's include/uapi/linux/nsfs.h.
    first: u64,
    /// The version that fixed it; none if it was always so.
    is_fixed_since: Option<(u32, u32)>,
}

const USER_KIND: Kind = Kind { name: "user", first: 0xefff_fffd, is_fixed_since: None };
const PROCESS_KIND: Kind = Kind { name: "pid", first: 0xefff_fffc, is_fixed_since: None };
const TIME_KIND: Kind = Kind { name: "time", first: 0xefff_fffa, is_fixed_since: None };
const NETWORK_KIND: Kind = Kind { name: "net", first: 0xefff_fff9, is_fixed_since: Some((6, 18)) };
const MOUNT_KIND: Kind = Kind { name: "mnt", first: 0xefff_fff8, is_fixed_since: Some((6, 18)) };
