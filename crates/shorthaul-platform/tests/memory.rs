//! Every kind of descriptor that a peer may send, against the two ways of taking one.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{FallocateFlags, FileType, MemfdFlags, Mode, OFlags, SealFlags};
use shorthaul_platform::memory::{Memfd, PeerMemfd, Refusal, Refused, SealedMapping};
use shorthaul_platform::store::Store;

/// What became of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Taken,
    NotShmem,
    AccessMode,
    SealsMissing,
    NotWritable,
    Sparse,
    Kernel,
}

/// A descriptor, what it is to be filled, and what it is to be read.
struct Subject {
    name: &'static str,
    descriptor: OwnedFd,
    as_peer: Verdict,
    as_sealed: Verdict,
}

fn subject(
    name: &'static str,
    descriptor: impl Into<OwnedFd>,
    as_peer: Verdict,
    as_sealed: Verdict,
) -> Subject {
    Subject { name, descriptor: descriptor.into(), as_peer, as_sealed }
}

fn verdict<T>(parsed: Result<T, Refused>) -> Verdict {
    match parsed.map_err(|refused| refused.refusal) {
        Ok(_) => Verdict::Taken,
        Err(Refusal::NotShmem { .. }) => Verdict::NotShmem,
        Err(Refusal::AccessMode { .. }) => Verdict::AccessMode,
        Err(Refusal::SealsMissing { .. }) => Verdict::SealsMissing,
        Err(Refusal::NotWritable) => Verdict::NotWritable,
        Err(Refusal::Sparse { .. }) => Verdict::Sparse,
        Err(Refusal::Kernel(_)) => Verdict::Kernel,
        Err(other) => panic!("{other}"),
    }
}

/// A memory file of 8192 bytes with these seals, all of it backed.
fn memory_file(seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("peer", flags).unwrap();
    assert_eq!(rustix::io::pwrite(&file, &[0; 8192], 0), Ok(8192));
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

fn hugetlb_file(seals: SealFlags) -> Option<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let file = rustix::fs::memfd_create("peer", flags).ok()?;
    rustix::fs::ftruncate(&file, 1 << 30).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    Some(file)
}

fn reopened(file: &OwnedFd, options: &OpenOptions) -> File {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    options.open(path).unwrap()
}

fn read() -> OpenOptions {
    OpenOptions::new().read(true).clone()
}

fn open_rw(path: impl AsRef<Path>) -> Option<File> {
    read().write(true).open(path).ok()
}

/// What is no memory file at all.
fn other_files(folder: &Path) -> Vec<Subject> {
    use Verdict::{AccessMode, NotShmem, SealsMissing};
    let (read_end, write_end) = std::io::pipe().unwrap();
    let fifo = folder.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
    let regular = tempfile::tempfile_in(folder).unwrap();
    // A file on tmpfs has one seal, the one that forbids others.
    let regular_verdict = match rustix::fs::fcntl_get_seals(&regular) {
        Ok(_) => SealsMissing,
        Err(_) => NotShmem,
    };
    let mut subjects = vec![
        subject("pipe to read", read_end, AccessMode, NotShmem),
        subject("pipe to write", write_end, AccessMode, NotShmem),
        subject("FIFO", open_rw(&fifo).unwrap(), NotShmem, NotShmem),
        subject("epoll", epoll.unwrap(), NotShmem, NotShmem),
        subject("event counter", event.unwrap(), NotShmem, NotShmem),
        subject("socket", UnixStream::pair().unwrap().0, NotShmem, NotShmem),
        subject("regular file", regular, regular_verdict, regular_verdict),
    ];
    let folder = File::open(folder).unwrap();
    let as_sealed = match rustix::fs::fcntl_get_seals(&folder) {
        Ok(_) => SealsMissing,
        Err(_) => NotShmem,
    };
    subjects.push(subject("directory", folder, AccessMode, as_sealed));
    for (name, path) in [
        ("zeros", "/dev/zero"),
        ("null", "/dev/null"),
        ("own memory", "/proc/self/mem"),
        ("terminal", "/dev/ptmx"),
    ] {
        subjects.extend(open_rw(path).map(|file| subject(name, file, NotShmem, NotShmem)));
    }
    let shm = tempfile::tempfile_in("/dev/shm").ok();
    subjects.extend(shm.map(|file| subject("/dev/shm", file, SealsMissing, SealsMissing)));
    subjects
}

/// Descriptors that only a system call by number gives. What this kernel doesn't give is left out.
fn rare_files() -> Vec<Subject> {
    use Verdict::NotShmem;
    let mut found = Vec::new();
    let mut add = |name, number: libc::c_long, is_writable: bool| {
        match u32::try_from(number) {
            Ok(number) => {
                // SAFETY: just made by the kernel for us, and nobody else knows its number.
                let descriptor = unsafe { OwnedFd::from_raw_fd(number as i32) };
                let as_peer = if is_writable { NotShmem } else { Verdict::AccessMode };
                found.push(subject(name, descriptor, as_peer, NotShmem));
            }
            Err(_) => eprintln!("no {name} here: {}", std::io::Error::last_os_error()),
        }
    };
    let no_signals = 0_u64;
    let mut ring = [0_u64; 15];
    let cloexec = libc::O_CLOEXEC;
    // SAFETY: reads eight bytes, which are there.
    let signal =
        unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const no_signals, 8, cloexec) };
    add("signals", signal, true);
    // SAFETY: touches no memory of ours.
    let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, cloexec) };
    add("page faults", faults, false);
    // SAFETY: reads and writes the 120 bytes of io_uring_params, which are there.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, ring.as_mut_ptr()) };
    add("ring", ring, true);
    // SAFETY: touches no memory of ours.
    let secret = unsafe { libc::syscall(libc::SYS_memfd_secret, cloexec) };
    add("secret memory", secret, true);
    // SAFETY: touches no memory of ours.
    let notify = unsafe { libc::syscall(libc::SYS_fanotify_init, 1, libc::O_RDWR) };
    add("fanotify", notify, true);
    // SAFETY: touches no memory of ours.
    let timer = unsafe { libc::syscall(libc::SYS_timerfd_create, libc::CLOCK_MONOTONIC, cloexec) };
    add("timer", timer, true);
    // SAFETY: touches no memory of ours.
    let inotify = unsafe { libc::syscall(libc::SYS_inotify_init1, cloexec) };
    add("inotify", inotify, false);
    // SAFETY: touches no memory of ours.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) };
    add("process", process, true);
    found
}

fn memory_files() -> Vec<Subject> {
    use Verdict::{AccessMode, Kernel, NotShmem, NotWritable, SealsMissing, Taken};
    let unsealable = rustix::fs::memfd_create("peer", MemfdFlags::CLOEXEC).unwrap();
    let shrink = memory_file(SealFlags::SHRINK);
    let unfinal = memory_file(SealFlags::SHRINK | SealFlags::GROW);
    let future = memory_file(FILL.union(SealFlags::FUTURE_WRITE));
    let (fill, sealed) = (memory_file(FILL), memory_file(FILL.union(SealFlags::WRITE)));
    let by_path = read().custom_flags(OFlags::PATH.bits() as i32).clone();
    let read_fill = reopened(&fill, &read());
    let write_fill = reopened(&fill, OpenOptions::new().write(true));
    let append_fill = reopened(&fill, read().append(true));
    let mut subjects = vec![
        subject("no seals", memory_file(SealFlags::empty()), SealsMissing, SealsMissing),
        subject("not sealable", unsealable, SealsMissing, SealsMissing),
        subject("SHRINK", shrink, SealsMissing, SealsMissing),
        subject("SHRINK, GROW", unfinal, SealsMissing, SealsMissing),
        subject("and FUTURE_WRITE", future, NotWritable, SealsMissing),
        subject("read only", read_fill, AccessMode, SealsMissing),
        subject("write only", write_fill, AccessMode, SealsMissing),
        subject("appending", append_fill, AccessMode, SealsMissing),
        subject("by path", reopened(&fill, &by_path), AccessMode, Kernel),
        subject("sealed, read only", reopened(&sealed, &read()), AccessMode, Taken),
        subject("sealed, by path", reopened(&sealed, &by_path), AccessMode, Kernel),
        subject("to be filled", fill, Taken, SealsMissing),
        subject("sealed", sealed, NotWritable, Taken),
    ];
    // Sealed or not: its pages can be taken away from under a mapping.
    for seals in [FILL, FILL.union(SealFlags::WRITE)] {
        let huge = hugetlb_file(seals);
        subjects.extend(huge.map(|file| subject("huge pages", file, NotShmem, NotShmem)));
    }
    subjects
}

#[test]
fn every_kind_of_descriptor_is_looked_at_before_use() {
    let folder = tempfile::tempdir().unwrap();
    let subjects = other_files(folder.path()).into_iter().chain(rare_files()).chain(memory_files());
    for subject in subjects {
        let Subject { name, descriptor, .. } = subject;
        let copy = descriptor.try_clone().unwrap();
        // No size can be too large here: what decides is the kind.
        let as_peer = PeerMemfd::parse(copy, 0);
        assert_eq!(verdict(as_peer), subject.as_peer, "{name} to be filled");
        let as_sealed = SealedMapping::parse(descriptor, u64::MAX);
        assert_eq!(verdict(as_sealed), subject.as_sealed, "{name} to be read");
    }
}

/// A hugetlb file holds what it is sealed for in size alone: a page that its owner punches out goes
/// back to the pool, where another takes it, and then a store into the mapping is fatal.
#[test]
fn a_hugetlb_file_is_refused_whatever_its_seals() {
    let Some(huge) = hugetlb_file(FILL) else {
        return;
    };
    let refused = PeerMemfd::parse(huge, 1 << 30).unwrap_err();
    assert!(refused.to_string().contains("hugetlb"), "{refused}");
    assert!(refused.to_string().contains("memfd_create"), "what to send instead: {refused}");
    let huge = hugetlb_file(FILL.union(SealFlags::WRITE)).unwrap();
    let refused = SealedMapping::parse(huge, u64::MAX).unwrap_err();
    assert!(refused.to_string().contains("hugetlb"), "{refused}");
}

/// Reading the holes of a sparse file through a mapping would allocate them at the reader's charge.
#[test]
fn a_sparse_sealed_file_is_refused() {
    let page_bytes = rustix::param::page_size() as u64;
    let bytes = 1024 * page_bytes;
    for backed in [0, page_bytes, bytes - page_bytes] {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("peer", flags).unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        rustix::io::pwrite(&file, &vec![1; backed as usize], 0).unwrap();
        // Blocks behind the end count as the file's own, but no hole is filled by them.
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, bytes, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)
            .unwrap();
        let blocks = rustix::fs::fstat(&file).unwrap().st_blocks;
        let copy = file.try_clone().unwrap();
        let refused = SealedMapping::parse(copy, u64::MAX).unwrap_err().refusal;
        assert_eq!(refused, Refusal::Sparse { backed, bytes });
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, blocks, "nothing was allocated");
    }
    let whole = memory_file(FILL.union(SealFlags::WRITE));
    assert_eq!(SealedMapping::parse(whole, 8192).unwrap()[..], [0; 8192]);
}

#[test]
fn a_size_is_held_against_the_promise() {
    let too_small = |promised| Refusal::TooSmall { found: 8192, promised };
    for promised in [8193, 1 << 20, i64::MAX as u64, 1 << 63, u64::MAX] {
        let refused = PeerMemfd::parse(memory_file(FILL), promised).unwrap_err().refusal;
        assert_eq!(refused, too_small(promised));
    }
    for promised in [0, 1, 4095, 4097, 8192] {
        let file = PeerMemfd::parse(memory_file(FILL), promised).unwrap();
        assert_eq!(file.len() as u64, promised);
        assert_eq!(file.map().unwrap().len() as u64, promised);
        assert_eq!(file.is_empty(), promised == 0);
    }
    let sealed = memory_file(FILL.union(SealFlags::WRITE));
    let refused = SealedMapping::parse(sealed, 8191).unwrap_err().refusal;
    assert_eq!(refused, Refusal::TooLarge { found: 8192, limit: 8191 });
}

#[test]
fn writing_stays_within_the_promise() {
    let descriptor = memory_file(FILL);
    let file = PeerMemfd::parse(descriptor.try_clone().unwrap(), 6144).unwrap();
    file.write_all_at(0, &[1; 6144]).unwrap();
    file.write_all_at(6144, &[]).unwrap();
    for (offset, bytes) in [(6144, 1), (6143, 2), (0, 6145), (usize::MAX, 1), (usize::MAX, 6144)] {
        let refused = file.write_all_at(offset, &vec![2; bytes]).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput, "{bytes} at {offset}");
    }
    let mut found = [9; 8192];
    assert_eq!(rustix::io::pread(&descriptor, &mut found, 0).unwrap(), 8192);
    assert_eq!(found[..6144], [1; 6144]);
    assert_eq!(found[6144..], [0; 2048]);
}

/// Its owner can punch holes into it at any moment: a store gets a new page, and never a signal.
#[test]
fn a_hole_under_a_mapping_is_filled_again() {
    let descriptor = memory_file(FILL);
    let mapping = PeerMemfd::parse(descriptor.try_clone().unwrap(), 8192).unwrap().map().unwrap();
    for value in 1..4 {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&descriptor, mode, 0, 8192).unwrap();
        mapping.fill(0..8192, value, Store::Ordinary);
        assert_eq!(mapping.sum(0..8192, 1), 8192 * u64::from(value));
    }
    assert!(rustix::fs::ftruncate(&descriptor, 0).is_err(), "it can't be cut");
}

#[test]
fn a_memory_file_of_ours_is_what_peers_take() {
    for bytes in [0, 1, 4096, 100_000] {
        let memfd = Memfd::create_backed("ours", bytes).unwrap();
        let seals = rustix::fs::fcntl_get_seals(memfd.as_fd()).unwrap();
        assert!(seals.contains(FILL));
        assert!(rustix::fs::fcntl_add_seals(memfd.as_fd(), SealFlags::WRITE).is_err());
        let peer = PeerMemfd::parse(memfd.into_descriptor(), bytes as u64).unwrap();
        assert_eq!(peer.len(), bytes);
    }
}

const FILL: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
