//! Descriptors that are not what was agreed on: looked at before anything is done with them,
//! refused with the reason, closed.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{MemfdFlags, OFlags, SealFlags};

use super::raw::{self, Place, Raw, Upload};
use super::{Stage, eventually, isolated, pattern, rounds};

/// A descriptor, how large it is said to be, and what the server must say of it.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) descriptor: OwnedFd,
    pub(crate) bytes: u64,
    pub(crate) said: &'static str,
}

pub(crate) fn subject(
    name: &'static str,
    descriptor: impl Into<OwnedFd>,
    said: &'static str,
) -> Subject {
    let (descriptor, bytes) = (descriptor.into(), 4096);
    Subject { name, descriptor, bytes, said }
}

/// A memory file of `bytes` bytes with these seals.
pub(crate) fn memory_file(bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("hostile", flags).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

/// One that is in order.
pub(crate) fn sealed(bytes: u64) -> OwnedFd {
    memory_file(bytes, SEALS)
}

/// The same file, opened another way.
pub(crate) fn reopened(file: &OwnedFd, options: &OpenOptions) -> File {
    options.open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

fn open_rw(path: impl AsRef<Path>) -> Option<File> {
    OpenOptions::new().read(true).write(true).open(path).ok()
}

/// Everything that is no memory file. What this machine doesn't have is left out.
pub(crate) fn no_memory_files(folder: &Path) -> Vec<Subject> {
    let other = "is a file, pipe, socket or device";
    let (read_end, write_end) = std::io::pipe().unwrap();
    let fifo = folder.join("fifo");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
    let mut subjects = vec![
        subject("pipe to read", read_end, "reading only"),
        subject("pipe to write", write_end, "writing only"),
        subject("directory", File::open(folder).unwrap(), "reading only"),
        subject("socket", UnixStream::pair().unwrap().0, other),
        subject("epoll", epoll.unwrap(), other),
        subject("event counter", event.unwrap(), other),
        subject("FIFO", open_rw(&fifo).unwrap(), other),
        // On tmpfs a file has the seal that forbids seals, elsewhere none can be asked for.
        subject("regular file", tempfile::tempfile_in(folder).unwrap(), "the "),
    ];
    let by_path = [
        ("zeros", "/dev/zero", other),
        ("null", "/dev/null", other),
        ("own memory", "/proc/self/mem", other),
        ("terminal", "/dev/ptmx", other),
    ];
    let found = by_path.into_iter().filter_map(|(name, path, said)| {
        let file = open_rw(path)?;
        Some(subject(name, file, said))
    });
    subjects.extend(found);
    let shm = tempfile::tempfile_in("/dev/shm");
    subjects.extend(shm.ok().map(|file| subject("file in /dev/shm", file, "lacks seals")));
    subjects
}

/// Memory files that a server can't rely on.
fn unreliable_memory_files() -> Vec<Subject> {
    let lacks = "lacks seals: SHRINK, GROW and SEAL";
    let unsealable = rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealable, 4096).unwrap();
    let good = sealed(4096);
    let (read, write) = (OpenOptions::new().read(true).clone(), OpenOptions::new());
    let by_path = OpenOptions::new().read(true).custom_flags(OFlags::PATH.bits() as i32).clone();
    let write_sealed = memory_file(4096, SEALS.union(SealFlags::WRITE));
    let future_sealed = memory_file(4096, SEALS.union(SealFlags::FUTURE_WRITE));
    let mut small = subject("too small", sealed(4096), "size 4096 < 1048576");
    small.bytes = 1 << 20;
    let mut not_whole_pages = subject("a little too small", sealed(6144), "size 6144 < 8192");
    not_whole_pages.bytes = 8192;
    let mut subjects = vec![
        subject("no seals", memory_file(4096, SealFlags::empty()), lacks),
        subject("not sealable", unsealable, lacks),
        subject("may grow", memory_file(4096, SealFlags::SHRINK), lacks),
        subject("may be sealed", memory_file(4096, SealFlags::SHRINK | SealFlags::GROW), lacks),
        subject("sealed against writing", write_sealed, "sealed against writing"),
        subject("sealed against new writers", future_sealed, "sealed against writing"),
        subject("read only", reopened(&good, &read), "reading only"),
        subject("write only", reopened(&good, write.clone().write(true)), "writing only"),
        subject("by path", reopened(&good, &by_path), "O_PATH"),
        subject("appending", reopened(&good, write.clone().read(true).append(true)), "O_APPEND"),
        small,
        not_whole_pages,
    ];
    // Its pages can be taken away from under a mapping, whatever its seals.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    if let Ok(huge) = rustix::fs::memfd_create("hostile", flags) {
        rustix::fs::ftruncate(&huge, 1 << 30).unwrap();
        rustix::fs::fcntl_add_seals(&huge, SEALS).unwrap();
        subjects.push(subject("huge pages", huge, "hugetlb"));
    }
    subjects
}

pub(crate) fn check_refused(stage: &mut Stage, subjects: Vec<Subject>) {
    for subject in subjects {
        let Subject { name, descriptor, bytes, said } = subject;
        let before = rustix::fs::fstat(&descriptor).unwrap();
        let mut raw = Raw::open(&stage.path);
        raw.send_with(&raw::register(1, bytes), &[descriptor.as_fd()]);
        let registered = raw.registered();
        raw.send(&raw::fill(1, Place::region(1, 0, 16), 16, 1));
        let unknown = raw.reply();
        raw.send_with(&raw::fill(2, Place::one_shot(bytes), 16, 1), &[descriptor.as_fd()]);
        let one_shot = raw.reply();
        for refused in [&registered, &one_shot] {
            assert_eq!(refused.code, raw::INVALID_ARGUMENT, "{name}: {refused:?}");
            assert!(refused.message.contains(said), "{name}: {refused:?}");
        }
        assert_eq!(unknown.code, raw::NOT_FOUND, "{name}: {unknown:?}");
        raw.send(&raw::call(3, Place::NONE, b"echo", b"alive"));
        assert_eq!(raw.reply().response, b"alive", "{name}");
        let after = rustix::fs::fstat(&descriptor).unwrap();
        assert_eq!((before.st_size, before.st_blocks), (after.st_size, after.st_blocks), "{name}");
        drop((raw, descriptor));
        stage.honest_calls();
    }
}

#[test]
fn what_is_no_memory_file_is_refused() {
    isolated("hostile::descriptor::what_is_no_memory_file_is_refused", || {
        let mut stage = Stage::new();
        let subjects = no_memory_files(stage.folder.path());
        assert!(subjects.len() > 8);
        check_refused(&mut stage, subjects);
        stage.ends_clean();
    });
}

#[test]
fn memory_files_that_cannot_be_relied_on_are_refused() {
    isolated("hostile::descriptor::memory_files_that_cannot_be_relied_on_are_refused", || {
        let mut stage = Stage::new();
        check_refused(&mut stage, unreliable_memory_files());
        stage.ends_clean();
    });
}

/// Once it is registered, its owner can't take anything back.
#[test]
fn a_registered_file_can_be_neither_sealed_nor_cut() {
    let mut stage = Stage::new();
    let file = sealed(8192);
    let mut raw = Raw::open(&stage.path);
    raw.send_with(&raw::register(1, 8192), &[file.as_fd()]);
    assert_eq!(raw.registered().code, raw::OK);
    for seal in [SealFlags::SHRINK, SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::SEAL] {
        let refused = rustix::fs::fcntl_add_seals(&file, seal);
        assert_eq!(refused, Err(rustix::io::Errno::PERM), "{seal:?}");
    }
    assert!(
        rustix::fs::ftruncate(&file, 0).is_err() && rustix::fs::ftruncate(&file, 9000).is_err()
    );
    for round in 0..3 {
        // A hole where the server's mapping is: the next store gets a new page.
        let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, mode, 0, 8192).unwrap();
        raw.send(&raw::fill(round, Place::region(1, 0, 8192), 8192, round as u8));
        let reply = raw.reply();
        assert_eq!((reply.code, reply.payload_bytes), (raw::OK, 8192));
        check_bytes(&file, 0, &pattern(8192, round as u8));
    }
    stage.honest_calls();
}

pub(crate) fn check_bytes(file: &OwnedFd, offset: u64, expected: &[u8]) {
    let mut found = vec![0; expected.len()];
    assert_eq!(rustix::io::pread(file, &mut found, offset).unwrap(), expected.len());
    assert!(found == expected, "{} bytes at {offset}", expected.len());
}

/// A region of 1 MiB, registered as number 1.
pub(crate) fn registered(stage: &Stage) -> (Raw, OwnedFd) {
    let file = sealed(1 << 20);
    let mut raw = Raw::open(&stage.path);
    raw.send_with(&raw::register(1, 1 << 20), &[file.as_fd()]);
    assert_eq!(raw.registered().code, raw::OK);
    (raw, file)
}

#[test]
fn sizes_and_offsets_that_make_no_sense_are_refused() {
    isolated("hostile::descriptor::sizes_and_offsets_that_make_no_sense_are_refused", || {
        let mut stage = Stage::new();
        let (mut raw, file) = registered(&stage);
        let max = u64::MAX;
        for (offset, bytes) in [
            (0, max),
            (0, 1 << 63),
            (0, (1 << 20) + 1),
            (64, 1 << 20),
            (1 << 20, 1),
            (max - 0x3f, 80),
            (max - 0x1f, 16),
            (max - 0x3f, max),
            (1 << 63, 1 << 63),
            (max, max),
        ] {
            raw.send(&raw::fill(1, Place::region(1, offset, bytes), 16, 1));
            let reply = raw.reply();
            assert_eq!(reply.code, raw::INVALID_ARGUMENT, "{bytes} at {offset}: {reply:?}");
        }
        for bytes in [max, 1 << 63, (16 << 30) + 1] {
            raw.send_with(&raw::register(2, bytes), &[file.as_fd()]);
            assert_eq!(raw.registered().code, raw::INVALID_ARGUMENT, "{bytes}");
            let call = raw::fill(1, Place::one_shot(bytes), 16, 1);
            raw.send_with(&call, &[file.as_fd()]);
            assert_eq!(raw.reply().code, raw::INVALID_ARGUMENT, "{bytes}");
        }
        raw.send(&raw::fill(1, Place::inline(max), 16, 9));
        let reply = raw.reply();
        assert_eq!((reply.code, reply.lane), (raw::OK, raw::LANE_INLINE));
        assert_eq!(reply.payload, pattern(16, 9));
        drop((raw, file));
        stage.ends_clean();
    });
}

#[test]
fn an_offset_is_a_multiple_of_64_and_then_exact() {
    let mut stage = Stage::new();
    let (mut raw, file) = registered(&stage);
    for offset in [1, 32, 63, 65, 100, 4095] {
        raw.send(&raw::fill(1, Place::region(1, offset, 100), 100, 1));
        let reply = raw.reply();
        assert_eq!(reply.code, raw::INVALID_ARGUMENT);
        assert!(reply.message.contains("multiple of 64"), "{}", reply.message);
    }
    for (seed, offset) in [(1, 64), (2, 4096), (3, 4096 + 128), (4, (1 << 20) - 192)] {
        raw.send(&raw::fill(1, Place::region(1, offset, 192), 100, seed));
        let reply = raw.reply();
        assert_eq!((reply.code, reply.lane), (raw::OK, raw::LANE_FILL_MAP));
        assert_eq!(reply.payload_bytes, 100);
        check_bytes(&file, offset, &pattern(100, seed));
        // What lies before and behind was not offered, or not needed.
        check_bytes(&file, offset - 64, &[0; 64]);
        check_bytes(&file, offset + 100, &[0; 92]);
        let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, mode, 0, 1 << 20).unwrap();
    }
    raw.send(&raw::fill(1, Place::region(1, 0, 64), 65, 1));
    let reply = raw.reply();
    assert_eq!((reply.code, reply.payload_bytes), (raw::OUT_OF_RANGE, 65), "bytes needed");
    stage.honest_calls();
}

#[test]
fn payloads_of_no_bytes_are_in_order() {
    let mut stage = Stage::new();
    let mut raw = Raw::open(&stage.path);
    for (region, file_bytes) in [(1, 0), (2, 4096)] {
        let file = sealed(file_bytes);
        raw.send_with(&raw::register(region, 0), &[file.as_fd()]);
        assert_eq!(raw.registered().code, raw::OK, "{file_bytes}");
        raw.send(&raw::fill(1, Place::region(region, 0, 0), 0, 1));
        let reply = raw.reply();
        assert_eq!((reply.code, reply.lane), (raw::OK, raw::LANE_FILL_MAP));
        raw.send_with(&raw::fill(1, Place::one_shot(0), 0, 1), &[file.as_fd()]);
        assert_eq!(raw.reply().code, raw::OK, "{file_bytes}");
    }
    // Of no bytes inline is no offer, but it needs none.
    for (place, lane) in [
        (Place::NONE, raw::LANE_NONE),
        (Place::inline(0), raw::LANE_NONE),
        (Place::inline(1), raw::LANE_INLINE),
    ] {
        raw.send(&raw::fill(1, place, 0, 1));
        let reply = raw.reply();
        assert_eq!((reply.code, reply.lane, reply.payload_bytes), (raw::OK, lane, 0));
    }
    stage.honest_calls();
}

#[test]
fn more_descriptors_than_a_frame_may_carry_end_the_connection() {
    isolated(
        "hostile::descriptor::more_descriptors_than_a_frame_may_carry_end_the_connection",
        || {
            let mut stage = Stage::new();
            let file = sealed(4096);
            for round in 0..rounds(1000, 10_000) {
                let count = [10, 2, 5, 16][round % 4];
                let said = match count {
                    2 => "the 1 descriptors that a frame announces",
                    _ => "more descriptors than a frame may carry",
                };
                let mut raw = Raw::open(&stage.path);
                let many = vec![file.as_fd(); count];
                raw.send_with(&raw::register(1, 4096), &many);
                let goodbye = raw.goodbye();
                assert_eq!(goodbye.code, raw::INVALID_ARGUMENT);
                assert!(goodbye.message.contains(said), "{count}: {}", goodbye.message);
            }
            drop(file);
            stage.ends_clean();
        },
    );
}

/// Descriptors that come where none is due, or not where one is.
#[test]
fn a_misplaced_descriptor_ends_the_connection() {
    isolated("hostile::descriptor::a_misplaced_descriptor_ends_the_connection", || {
        let mut stage = Stage::new();
        let file = sealed(4096);
        let cancel = raw::of_id(raw::CANCEL, 1);
        let register = raw::register(1, 4096);
        let mut raw = Raw::open(&stage.path);
        raw.send_with(&cancel, &[file.as_fd()]);
        assert!(raw.goodbye().message.contains("no frame claims"));
        let upload = Upload::sealed(0, 64);
        let two_files = raw::echo(1, Place::one_shot(64), upload);
        for (frame, due) in
            [(&register, 1), (&raw::echo(1, Place::NONE, upload), 1), (&two_files, 2)]
        {
            for count in (0..=3).filter(|&count| count != due) {
                raw = Raw::open(&stage.path);
                raw.send_with(frame, &vec![file.as_fd(); count]);
                let said = format!("the {due} descriptors that a frame announces");
                assert!(raw.goodbye().message.contains(&said));
            }
        }
        // A second one, in mid-frame. Whether the server reads once or twice is up to the
        // kernel: it is refused in both.
        for _ in 0..100 {
            let mut raw = Raw::open(&stage.path);
            raw.send_with(&register[..7], &[file.as_fd()]);
            raw.send_with(&register[7..], &[file.as_fd()]);
            assert!(raw.goodbye().message.contains("descriptors"));
        }
        drop((raw, file));
        stage.ends_clean();
    });
}

/// Calls that fail for reasons of their own, each with a descriptor.
#[test]
fn the_descriptor_of_a_failed_call_is_closed() {
    isolated("hostile::descriptor::the_descriptor_of_a_failed_call_is_closed", || {
        let mut stage = Stage::new();
        let file = sealed(4096);
        let mut raw = Raw::open(&stage.path);
        for id in 0..rounds(200, 10_000) as u64 {
            let place = Place::one_shot(4096);
            raw.send_with(&raw::call(id, place, b"no such method", b""), &[file.as_fd()]);
            assert_eq!(raw.reply().code, raw::UNIMPLEMENTED);
            raw.send_with(&raw::call(id, place, b"echo", &[0; 65_537]), &[file.as_fd()]);
            assert_eq!(raw.reply().code, raw::RESOURCE_EXHAUSTED);
            let too_large = Place::one_shot(17 << 30);
            raw.send_with(&raw::call(id, too_large, b"echo", b""), &[file.as_fd()]);
            assert_eq!(raw.reply().code, raw::INVALID_ARGUMENT);
            // One that never looks at its place.
            raw.send_with(&raw::call(id, place, b"echo", b"r"), &[file.as_fd()]);
            assert_eq!(raw.reply().response, b"r");
        }
        drop((raw, file));
        stage.ends_clean();
    });
}

/// A service manager may have switched credentials on: they come before the descriptors.
#[test]
fn credentials_do_not_crowd_descriptors_out() {
    let mut stage = Stage::new();
    let (ours, theirs) = UnixStream::pair().unwrap();
    rustix::net::sockopt::set_socket_passcred(&theirs, true).unwrap();
    stage.server.adopt(theirs);
    let mut raw = Raw::over(ours);
    raw.send(&raw::hello());
    raw.expect(raw::HELLO);
    let file = sealed(4096);
    raw.send_with(&raw::register(1, 4096), &[file.as_fd()]);
    let registered = raw.registered();
    assert_eq!(registered.code, raw::OK, "{}", registered.message);
    raw.send(&raw::fill(1, Place::region(1, 0, 4096), 4096, 5));
    assert_eq!(raw.reply().payload_bytes, 4096);
    check_bytes(&file, 0, &pattern(4096, 5));
    stage.honest_calls();
}

/// A region that is given up while a call fills it lives until the answer, and not longer.
#[test]
fn a_region_released_in_mid_call_is_not_kept() {
    isolated("hostile::descriptor::a_region_released_in_mid_call_is_not_kept", || {
        let mut stage = Stage::new();
        let file = sealed(4096);
        let mut raw = Raw::open(&stage.path);
        raw.send_with(&raw::register(1, 4096), &[file.as_fd()]);
        raw.send(&raw::call(1, Place::region(1, 0, 4096), b"gate", b""));
        assert_eq!(raw.registered().code, raw::OK);
        stage.arrived.recv().unwrap();
        raw.send(&raw::of_id(raw::RELEASE, 1));
        // Answered after the release was acted on, for frames are taken in order.
        raw.send(&raw::call(2, Place::region(1, 0, 64), b"echo", b""));
        assert_eq!(raw.reply().code, raw::NOT_FOUND);
        stage.gate.send(()).unwrap();
        let reply = raw.reply();
        assert_eq!((reply.code, reply.payload_bytes), (raw::OK, 64));
        check_bytes(&file, 0, &[7; 64]);
        drop(file);
        eventually("the mapping goes, though the connection lives", || {
            !std::fs::read_to_string("/proc/self/maps").unwrap().contains("memfd:hostile")
        });
        drop(raw);
        stage.ends_clean();
    });
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
