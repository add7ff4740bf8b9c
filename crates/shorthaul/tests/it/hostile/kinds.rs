//! Every other kind of descriptor that a process can come by: refused in each place where one can
//! be sent, without a byte read or written, and without waiting for anybody.

use std::fs::{File, OpenOptions};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;

use rustix::fs::{OFlags, inotify};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use shorthaul::{Descriptors, ServerOptions};

use super::descriptor::{Subject, check_refused, no_memory_files, subject};
use super::raw::{self, Place, Raw, Upload};
use super::{Stage, isolated};

/// Every refusal begins so.
const SAID: &str = "the ";

fn add(found: &mut Vec<Subject>, name: &'static str, descriptor: Option<impl Into<OwnedFd>>) {
    match descriptor {
        Some(descriptor) => found.push(subject(name, descriptor, SAID)),
        None => eprintln!("there is no {name} here"),
    }
}

fn sockets(folder: &Path) -> Vec<Subject> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (near, far) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    drop(far);
    let of = |family, kind| rustix::net::socket(family, kind, None).ok();
    let mut found = Vec::new();
    add(&mut found, "netlink socket", of(AddressFamily::NETLINK, SocketType::RAW));
    add(&mut found, "packet socket", of(AddressFamily::PACKET, SocketType::RAW));
    add(&mut found, "unconnected TCP socket", of(AddressFamily::INET, SocketType::STREAM));
    add(&mut found, "unconnected Unix socket", of(AddressFamily::UNIX, SocketType::STREAM));
    add(&mut found, "UDP socket", UdpSocket::bind("127.0.0.1:0").ok());
    add(&mut found, "Unix datagram socket", UnixDatagram::unbound().ok());
    add(&mut found, "Unix listener", UnixListener::bind(folder.join("listener")).ok());
    add(&mut found, "sequenced packets", Some(near));
    add(&mut found, "TCP listener", Some(listener));
    found
}

/// Files that are no data: of the kernel, devices, by path only.
fn files(folder: &Path) -> Vec<Subject> {
    let mut found = Vec::new();
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC);
    add(&mut found, "timer", timer.ok());
    add(&mut found, "inotify", inotify::init(inotify::CreateFlags::CLOEXEC).ok());
    add(&mut found, "process", pidfd_open(getpid(), PidfdFlags::empty()).ok());
    for name in ["user", "mnt", "net", "pid", "ipc", "uts", "cgroup", "time"] {
        add(&mut found, "namespace", File::open(format!("/proc/self/ns/{name}")).ok());
    }
    for path in [
        "/proc/self/status",
        "/proc/self/maps",
        "/proc/self/exe",
        "/proc/self/pagemap",
        "/proc/self/attr",
        "/proc/self/task",
        "/proc/mounts",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/fs/cgroup",
        "/dev",
    ] {
        add(&mut found, "file to be read", File::open(path).ok());
    }
    let mut write = OpenOptions::new();
    write.read(true).write(true);
    for path in [
        "/proc/self/mem",
        "/proc/self/oom_score_adj",
        "/proc/self/comm",
        "/proc/self/clear_refs",
        "/dev/full",
        "/dev/random",
        "/dev/urandom",
        "/dev/fuse",
        "/dev/kvm",
        "/dev/net/tun",
        "/dev/userfaultfd",
        "/dev/loop-control",
    ] {
        add(&mut found, "file to be written", write.open(path).ok());
    }
    let mut by_path = OpenOptions::new();
    by_path.read(true).custom_flags((OFlags::PATH | OFlags::NOFOLLOW).bits() as i32);
    std::os::unix::fs::symlink("nowhere", folder.join("link")).unwrap();
    for path in [folder.join("link"), folder.join("s"), folder.to_owned(), "/dev/null".into()] {
        add(&mut found, "path", by_path.open(path).ok());
    }
    let mut half = OpenOptions::new();
    half.custom_flags(OFlags::NONBLOCK.bits() as i32);
    let fifo = folder.join("another fifo");
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, rustix::fs::Mode::RWXU, 0).unwrap();
    add(&mut found, "FIFO to be read", half.clone().read(true).open(&fifo).ok());
    add(&mut found, "FIFO to be written", half.write(true).open(&fifo).ok());
    found
}

#[test]
fn nothing_but_memory_files_is_filled() {
    isolated("hostile::kinds::nothing_but_memory_files_is_filled", || {
        let mut stage = Stage::new();
        let mut subjects = sockets(stage.folder.path());
        subjects.extend(files(stage.folder.path()));
        assert!(subjects.len() > 30, "{}", subjects.len());
        check_refused(&mut stage, subjects);
        stage.ends_clean();
    });
}

#[test]
fn nothing_but_memory_files_is_read() {
    isolated("hostile::kinds::nothing_but_memory_files_is_read", || {
        let mut stage = Stage::new();
        let mut subjects = sockets(stage.folder.path());
        subjects.extend(files(stage.folder.path()));
        let mut raw = Raw::open(&stage.path);
        for Subject { name, descriptor, .. } in subjects {
            let call = raw::echo(1, Place::inline(4096), Upload::sealed(0, 4096));
            raw.send_with(&call, &[descriptor.as_fd()]);
            let refused = raw.reply();
            assert_eq!(refused.code, raw::INVALID_ARGUMENT, "{name}: {refused:?}");
            assert!(refused.message.starts_with(SAID), "{name}: {refused:?}");
        }
        drop(raw);
        stage.ends_clean();
    });
}

/// Where a service takes pipes, sockets and files: of these kinds none is any.
#[test]
fn nothing_but_streams_and_files_is_relayed_into() {
    isolated("hostile::kinds::nothing_but_streams_and_files_is_relayed_into", || {
        let options = ServerOptions { descriptors: Descriptors::Any, ..ServerOptions::default() };
        let mut stage = Stage::with(options);
        let mut subjects = sockets(stage.folder.path());
        subjects.extend(files(stage.folder.path()));
        let usable = ["pipe to write", "socket", "FIFO", "regular file", "file in /dev/shm"];
        let others = no_memory_files(stage.folder.path());
        subjects.extend(others.into_iter().filter(|other| !usable.contains(&other.name)));
        let mut raw = Raw::open(&stage.path);
        for Subject { name, descriptor, .. } in subjects {
            // The one pipe among them; nobody reads it.
            if name == "FIFO to be written" {
                continue;
            }
            raw.send_with(&raw::fill(1, Place::given(100), 100, 1), &[descriptor.as_fd()]);
            let refused = raw.reply();
            assert_eq!(refused.code, raw::INVALID_ARGUMENT, "{name}: {refused:?}");
            assert_eq!((refused.lane, refused.payload_bytes), (raw::LANE_NONE, 0), "{name}");
        }
        drop(raw);
        stage.ends_clean();
    });
}

/// What is in order where a call has it, hurts nobody where it has not.
#[test]
fn a_connected_socket_is_no_memory() {
    let mut stage = Stage::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    check_refused(&mut stage, vec![subject("TCP socket", near, SAID)]);
}
