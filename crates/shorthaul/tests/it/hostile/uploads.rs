//! Bulk that comes in memory files: sealed ones that are not what they should be, and regions whose
//! owners can't keep still. Each hurts its own call and nothing else.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use shorthaul::ServerOptions;
use shorthaul::limits::UserLimits;

use super::descriptor::{
    Subject, check_bytes, memory_file, no_memory_files, registered, reopened, sealed, subject,
};
use super::framing::resident_bytes;
use super::raw::{self, Place, Raw, Upload};
use super::{Census, Stage, isolated, pattern, with_descriptors};

/// A memory file with these bytes, sealed as it should be.
pub(crate) fn sealed_file(bytes: &[u8]) -> OwnedFd {
    sparse_file(bytes.len() as u64, &[(0, bytes)], SEALED)
}

/// A memory file of `bytes` bytes, of which these are written.
fn sparse_file(bytes: u64, written: &[(u64, &[u8])], seals: SealFlags) -> OwnedFd {
    let file = memory_file(bytes, SealFlags::empty());
    for &(at, source) in written {
        assert_eq!(rustix::io::pwrite(&file, source, at).unwrap(), source.len());
    }
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

/// The answer to an echo of a sealed upload.
fn echo(raw: &mut Raw, file: &OwnedFd, offset: u64, bytes: u64) -> raw::Answer {
    let call = raw::echo(1, Place::inline(16 << 20), Upload::sealed(offset, bytes));
    raw.send_with(&call, &[file.as_fd()]);
    raw.reply()
}

fn alive(raw: &mut Raw) {
    raw.send(&raw::call(2, Place::NONE, b"echo", b"alive"));
    assert_eq!(raw.reply().response, b"alive");
}

/// Memory files whose bytes may not hold still, or are not there.
pub(crate) fn not_sealed() -> Vec<Subject> {
    let lacks = "lacks seals: SHRINK, GROW and WRITE";
    let content = pattern(4096, 1);
    let with = |seals| sparse_file(4096, &[(0, &content)], seals);
    let unsealable = rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealable, 4096).unwrap();
    let good = sealed_file(&content);
    let sparse = memory_file(4096, SEALED);
    let mut by_path = OpenOptions::new();
    by_path.read(true).custom_flags(OFlags::PATH.bits() as i32);
    let mut write = OpenOptions::new();
    write.write(true);
    let kernel = "the kernel refuses the memory file";
    let mut small = subject("too small", sealed_file(&content), "too small: 4097 bytes");
    small.bytes = 4097;
    let mut empty = subject("empty", memory_file(0, SEALED), "too small: 1 bytes");
    empty.bytes = 1;
    let mut sparse_small = subject("sparse, too small", memory_file(4096, SEALED), "too small");
    sparse_small.bytes = 4097;
    let mut subjects = vec![
        subject("no seals", with(SealFlags::empty()), lacks),
        subject("not sealable", unsealable, lacks),
        subject("a region", sealed(4096), lacks),
        subject("may be written", with(SealFlags::SHRINK | SealFlags::GROW), lacks),
        subject("may shrink", with(SealFlags::GROW | SealFlags::WRITE), lacks),
        subject("may grow", with(SealFlags::SHRINK | SealFlags::WRITE), lacks),
        subject("had writers", with(SEALED_BUT_FOR_WRITERS), lacks),
        subject("by path", reopened(&good, &by_path), kernel),
        subject("write only", reopened(&good, &write), kernel),
        subject("sparse, write only", reopened(&sparse, &write), kernel),
        small,
        empty,
        sparse_small,
    ];
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    match rustix::fs::memfd_create("hostile", flags) {
        Ok(huge) => {
            rustix::fs::ftruncate(&huge, 1 << 30).unwrap();
            rustix::fs::fcntl_add_seals(&huge, SEALED).unwrap();
            subjects.push(subject("huge pages", huge, "hugetlb"));
        }
        Err(error) => eprintln!("no memory files of huge pages here: {error}"),
    }
    subjects
}

#[test]
fn what_is_not_sealed_memory_is_refused() {
    isolated("hostile::uploads::what_is_not_sealed_memory_is_refused", || {
        let mut stage = Stage::new();
        let mut subjects = not_sealed();
        subjects.extend(no_memory_files(stage.folder.path()).into_iter().map(|mut found| {
            found.said = "the ";
            found
        }));
        for Subject { name, descriptor, bytes, said } in subjects {
            let before = rustix::fs::fstat(&descriptor).unwrap();
            let mut raw = Raw::open(&stage.path);
            let refused = echo(&mut raw, &descriptor, 0, bytes);
            assert_eq!(refused.code, raw::INVALID_ARGUMENT, "{name}: {refused:?}");
            assert!(refused.message.contains(said), "{name}: {refused:?}");
            // A service that doesn't ask for it needs not mind.
            let upload = Upload::sealed(0, bytes);
            let call = raw::upload_to(b"no bytes in two parts", 3, Place::NONE, upload, &[]);
            raw.send_with(&call, &[descriptor.as_fd()]);
            assert_eq!(raw.reply().code, raw::OK, "{name}");
            alive(&mut raw);
            let after = rustix::fs::fstat(&descriptor).unwrap();
            assert_eq!((before.st_size, before.st_blocks), (after.st_size, after.st_blocks));
            drop((raw, descriptor));
            stage.honest_calls();
        }
        stage.ends_clean();
    });
}

#[test]
fn sealed_memory_is_read_as_it_is() {
    isolated("hostile::uploads::sealed_memory_is_read_as_it_is", || {
        let mut stage = Stage::new();
        let content = pattern(100_000, 3);
        let file = sealed_file(&content);
        let mut read_only = OpenOptions::new();
        read_only.read(true);
        let read_only = OwnedFd::from(reopened(&file, &read_only));
        let mut raw = Raw::open(&stage.path);
        for (offset, bytes) in
            [(0, 100_000), (64, 99_936), (99_968, 32), (4096, 1), (0, 0), (99_968, 0)]
        {
            for file in [&file, &read_only] {
                let reply = echo(&mut raw, file, offset as u64, bytes as u64);
                assert_eq!(reply.code, raw::OK, "{bytes} at {offset}: {}", reply.message);
                assert!(reply.payload == content[offset..offset + bytes], "{bytes} at {offset}");
            }
        }
        let call = raw::echo_parts(1, Place::inline(1 << 20), Upload::sealed(64, 200), &[100, 72]);
        raw.send_with(&call, &[file.as_fd()]);
        let reply = raw.reply();
        assert_eq!((reply.code, &reply.parts[..]), (raw::OK, &[100, 72][..]));
        assert_eq!(reply.payload[..100], content[64..164]);
        assert_eq!(reply.payload[100..128], [0; 28], "between the parts");
        assert_eq!(reply.payload[128..], content[192..264]);
        drop((raw, file, read_only));
        stage.ends_clean();
    });
}

#[test]
fn sizes_and_offsets_of_sealed_uploads_that_make_no_sense_are_refused() {
    let mut stage = Stage::new();
    let file = sealed_file(&pattern(4096, 1));
    let mut raw = Raw::open(&stage.path);
    let max = u64::MAX;
    for (offset, bytes) in [
        (1, 8),
        (63, 8),
        (4095, 1),
        (4096, 1),
        (64, 4096),
        (1 << 40, 0),
        (0, (16 << 30) + 1),
        (0, max),
        (max - 63, 64),
        (max - 63, max),
        (1 << 63, 1 << 63),
        (max, max),
        (max, 0),
    ] {
        let refused = echo(&mut raw, &file, offset, bytes);
        assert_eq!(refused.code, raw::INVALID_ARGUMENT, "{bytes} at {offset}: {refused:?}");
    }
    alive(&mut raw);
    stage.honest_calls();
}

/// Holes read as zeros, and cost no pages: neither of the file nor of the server.
#[test]
fn sparse_files_are_read_without_a_mapping() {
    isolated("hostile::uploads::sparse_files_are_read_without_a_mapping", || {
        let mut stage = Stage::new();
        let (bytes, some) = (256 << 10, pattern(20_000, 5));
        let mut raw = Raw::open(&stage.path);
        for at in [None, Some(0), Some(100_000), Some(bytes - some.len())] {
            let written: Vec<(u64, &[u8])> =
                at.into_iter().map(|at| (at as u64, &some[..])).collect();
            let file = sparse_file(bytes as u64, &written, SEALED);
            let mut expected = vec![0; bytes];
            if let Some(at) = at {
                expected[at..at + some.len()].copy_from_slice(&some);
            }
            let before = rustix::fs::fstat(&file).unwrap().st_blocks;
            for (offset, count) in [(0, bytes), (99_968, 30_000), (bytes - 64, 64)] {
                let reply = echo(&mut raw, &file, offset as u64, count as u64);
                assert_eq!(reply.code, raw::OK, "{at:?}: {}", reply.message);
                assert!(reply.payload == expected[offset..offset + count], "{at:?} at {offset}");
            }
            assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, before, "{at:?}");
        }
        // The first allocation of each kind is behind; one of gigabytes would show.
        let before = resident_bytes();
        let file = memory_file(8 << 30, SEALED);
        for offset in [0, 4 << 30, (8 << 30) - 4096] {
            let reply = echo(&mut raw, &file, offset, 4096);
            assert_eq!((reply.code, &reply.payload[..]), (raw::OK, &[0; 4096][..]));
        }
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0);
        assert!(resident_bytes().saturating_sub(before) < 4 << 20);
        drop((raw, file));
        stage.ends_clean();
    });
}

#[test]
fn sparse_files_over_the_limit_of_inline_payloads_are_refused() {
    let mut options = ServerOptions::default();
    options.limits.inline_bytes_max = 64 << 10;
    let mut stage = Stage::with(options);
    let (limit, bytes) = (64 << 10, 1 << 20);
    let mut raw = Raw::open(&stage.path);
    let (content, byte) = (pattern(bytes as usize, 1), [1]);
    let sparse = sparse_file(bytes, &[(bytes - 1, &byte)], SEALED);
    assert_eq!(echo(&mut raw, &sparse, bytes - limit, limit).payload.last(), Some(&1));
    let refused = echo(&mut raw, &sparse, 0, limit + 1);
    assert_eq!(refused.code, raw::INVALID_ARGUMENT);
    assert!(refused.message.contains("sparse"), "{}", refused.message);
    // What has no holes may be as large as a region.
    let whole = sealed_file(&content);
    assert!(echo(&mut raw, &whole, 0, bytes).payload == content);
    alive(&mut raw);
    stage.honest_calls();
}

#[test]
fn files_over_the_limit_of_regions_are_refused() {
    let mut options = ServerOptions::default();
    options.limits.region_bytes_max = 64 << 10;
    let mut stage = Stage::with(options);
    let mut raw = Raw::open(&stage.path);
    let file = sealed_file(&pattern((64 << 10) + 1, 1));
    let refused = echo(&mut raw, &file, 0, 100);
    assert_eq!(refused.code, raw::INVALID_ARGUMENT);
    assert!(refused.message.contains("too large"), "{}", refused.message);
    let refused = echo(&mut raw, &file, 64, 64 << 10);
    assert_eq!(refused.code, raw::INVALID_ARGUMENT);
    alive(&mut raw);
    stage.honest_calls();
}

/// What counts is what the file is when the server looks.
#[test]
fn seals_may_come_until_the_server_looks() {
    let mut stage = Stage::new();
    let content = pattern(10_000, 9);
    let mut raw = Raw::open(&stage.path);
    for is_sealed in [true, false] {
        let file = sparse_file(10_000, &[(0, &content)], SealFlags::SHRINK | SealFlags::GROW);
        let upload = Upload::sealed(0, 10_000);
        let call = raw::upload_to(b"gate echo", 1, Place::inline(1 << 20), upload, &[]);
        raw.send_with(&call, &[file.as_fd()]);
        stage.arrived.recv().unwrap();
        if is_sealed {
            rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
        }
        stage.gate.send(()).unwrap();
        let reply = raw.reply();
        let code = if is_sealed { raw::OK } else { raw::INVALID_ARGUMENT };
        assert_eq!(reply.code, code, "{}", reply.message);
        assert!(!is_sealed || reply.payload == content);
    }
    // In the same moment.
    for _ in 0..200 {
        let file = sparse_file(10_000, &[(0, &content)], SealFlags::SHRINK | SealFlags::GROW);
        let call = raw::echo(1, Place::inline(1 << 20), Upload::sealed(0, 10_000));
        raw.send_with(&call, &[file.as_fd()]);
        rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
        let reply = raw.reply();
        match reply.code {
            raw::OK => assert!(reply.payload == content),
            code => assert_eq!(code, raw::INVALID_ARGUMENT, "{}", reply.message),
        }
    }
    stage.honest_calls();
}

/// Pages that go while they are copied are zeros, or what their owner writes next.
#[test]
fn holes_punched_while_an_upload_is_copied_are_zeros() {
    let mut stage = Stage::new();
    let (mut raw, file) = registered(&stage);
    let bytes = 1 << 20;
    let content = pattern(bytes, 1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            while !is_over.load(Ordering::Relaxed) {
                for start in (0..bytes as u64).step_by(128 << 10) {
                    rustix::fs::fallocate(&file, mode, start, 64 << 10).unwrap();
                }
                rustix::io::pwrite(&file, &content, 0).unwrap();
            }
        });
        for round in 0..100 {
            let place = if round % 2 == 0 {
                Place::inline(2 << 20)
            } else {
                // Into the very bytes that it is copied out of.
                Place::region(1, 0, bytes as u64)
            };
            raw.send(&raw::echo(1, place, Upload::region(1, 0, bytes as u64)));
            let reply = raw.reply();
            assert_eq!((reply.code, reply.payload_bytes), (raw::OK, bytes as u64));
            let pairs = reply.payload.iter().zip(&content);
            assert!(pairs.into_iter().all(|(found, written)| *found == 0 || found == written));
            stage.honest_calls();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    alive(&mut raw);
}

#[test]
fn uploads_from_a_region_are_exact() {
    for inline_handlers in [false, true] {
        let options = ServerOptions { inline_handlers, ..ServerOptions::default() };
        check_uploads_from_a_region(Stage::with(options));
    }
}

fn check_uploads_from_a_region(mut stage: Stage) {
    let (mut raw, file) = registered(&stage);
    let content = pattern(1 << 20, 2);
    rustix::io::pwrite(&file, &content, 0).unwrap();
    for (offset, bytes) in [(0, 1 << 20), (64, 1), ((1 << 20) - 64, 64), (4096, 5000), (1 << 20, 0)]
    {
        let upload = Upload::region(1, offset, bytes);
        raw.send(&raw::echo(1, Place::inline(1 << 20), upload));
        let reply = raw.reply();
        assert_eq!(reply.code, raw::OK, "{bytes} at {offset}: {}", reply.message);
        let (offset, bytes) = (offset as usize, bytes as usize);
        assert!(reply.payload == content[offset..offset + bytes], "{bytes} at {offset}");
    }
    // From one place to another.
    let upload = Upload::region(1, 0, 10_000);
    raw.send(&raw::echo_parts(1, Place::region(1, 1 << 19, 10_000), upload, &[4000, 5968]));
    let reply = raw.reply();
    assert_eq!((reply.code, reply.lane), (raw::OK, raw::LANE_FILL_MAP));
    assert_eq!(reply.parts, [4000, 5968]);
    check_bytes(&file, 1 << 19, &content[..4000]);
    check_bytes(&file, (1 << 19) + 4000, &content[(1 << 19) + 4000..(1 << 19) + 4032]);
    check_bytes(&file, (1 << 19) + 4032, &content[4032..10_000]);
    stage.honest_calls();
}

#[test]
fn uploads_from_outside_a_region_are_refused() {
    isolated("hostile::uploads::uploads_from_outside_a_region_are_refused", || {
        let mut stage = Stage::new();
        let (mut raw, file) = registered(&stage);
        let max = u64::MAX;
        for (region, offset, bytes, code) in [
            (2, 0, 1, raw::NOT_FOUND),
            (0, 0, 0, raw::NOT_FOUND),
            (max, 0, 1, raw::NOT_FOUND),
            (1, 1, 1, raw::INVALID_ARGUMENT),
            (1, 32, 64, raw::INVALID_ARGUMENT),
            (1, 0, max, raw::INVALID_ARGUMENT),
            (1, 0, 1 << 63, raw::INVALID_ARGUMENT),
            (1, 0, (1 << 20) + 1, raw::INVALID_ARGUMENT),
            (1, 64, 1 << 20, raw::INVALID_ARGUMENT),
            (1, 1 << 20, 1, raw::INVALID_ARGUMENT),
            (1, max - 0x3f, 80, raw::INVALID_ARGUMENT),
            (1, max - 0x3f, max, raw::INVALID_ARGUMENT),
            (1, 1 << 63, 1 << 63, raw::INVALID_ARGUMENT),
            (1, max, max, raw::INVALID_ARGUMENT),
        ] {
            let upload = Upload::region(region, offset, bytes);
            for place in [Place::inline(1 << 20), Place::region(1, 0, 1 << 20)] {
                raw.send(&raw::echo(1, place, upload));
                assert_eq!(raw.reply().code, code, "{upload:?}");
            }
            // The place's own file is closed with the call.
            raw.send_with(&raw::echo(1, Place::one_shot(64), upload), &[file.as_fd()]);
            assert_eq!(raw.reply().code, code, "{upload:?}");
        }
        raw.send(&raw::of_id(raw::RELEASE, 1));
        raw.send(&raw::echo(1, Place::NONE, Upload::region(1, 0, 64)));
        assert_eq!(raw.reply().code, raw::NOT_FOUND, "it was released");
        drop((raw, file));
        stage.ends_clean();
    });
}

#[test]
fn a_file_to_fill_and_a_file_to_read_go_together_in_their_order() {
    isolated(
        "hostile::uploads::a_file_to_fill_and_a_file_to_read_go_together_in_their_order",
        || {
            let options = ServerOptions { inline_handlers: true, ..ServerOptions::default() };
            let mut stage = Stage::with(options);
            let content = pattern(10_000, 4);
            let (target, source) = (sealed(16_384), sealed_file(&content));
            let mut raw = Raw::open(&stage.path);
            let upload = Upload::sealed(0, 10_000);
            for id in 0..50 {
                let call = raw::echo(id, Place::one_shot(10_000), upload);
                raw.send_with(&call, &[target.as_fd(), source.as_fd()]);
                let reply = raw.reply();
                assert_eq!((reply.code, reply.payload_bytes), (raw::OK, 10_000));
                check_bytes(&target, 0, &content);
                raw.send_with(&call, &[source.as_fd(), target.as_fd()]);
                assert_eq!(raw.reply().code, raw::INVALID_ARGUMENT, "swapped");
                let unknown =
                    raw::upload_to(b"no such method", id, Place::one_shot(64), upload, &[]);
                raw.send_with(&unknown, &[target.as_fd(), source.as_fd()]);
                assert_eq!(raw.reply().code, raw::UNIMPLEMENTED);
            }
            drop((raw, target, source));
            stage.ends_clean();
        },
    );
}

/// A server without descriptors keeps none of what comes to calls that it must refuse.
#[test]
fn one_of_two_files_is_none() {
    isolated("hostile::uploads::one_of_two_files_is_none", || {
        let mut stage = Stage::new();
        let content = pattern(10_000, 4);
        let (target, source) = (sealed(16_384), sealed_file(&content));
        let mut raw = Raw::open(&stage.path);
        alive(&mut raw);
        let before = Census::take();
        let call = raw::echo(1, Place::one_shot(10_000), Upload::sealed(0, 10_000));
        for count in [0, 1] {
            for _ in 0..50 {
                with_descriptors(count, || {
                    raw.send_with(&call, &[target.as_fd(), source.as_fd()]);
                    let refused = raw.reply();
                    assert_eq!(refused.code, raw::RESOURCE_EXHAUSTED);
                    let said = &refused.message;
                    assert!(said.contains("no descriptor arrived"), "{said}");
                });
                // While the connection lives.
                before.returns();
            }
            raw.send_with(&call, &[target.as_fd(), source.as_fd()]);
            assert_eq!(raw.reply().code, raw::OK);
            before.returns();
        }
        drop((raw, target, source));
        stage.ends_clean();
    });
}

/// Files under way count as regions of their user do, until their calls are answered.
#[test]
fn a_users_files_under_way_are_bounded() {
    let mut options = ServerOptions::default();
    options.user_limits =
        UserLimits { regions_max: 3, region_bytes_max: 100_000, ..options.user_limits };
    options.workers = 4;
    let mut stage = Stage::with(options);
    let mut raw = Raw::open(&stage.path);
    let file = sealed_file(&pattern(100_000, 1));
    for id in 5..7 {
        let place = Place::inline(1 << 20);
        let call = raw::upload_to(b"gate echo", id, place, Upload::sealed(0, 10), &[]);
        raw.send_with(&call, &[file.as_fd()]);
        stage.arrived.recv().unwrap();
    }
    let refused = echo(&mut raw, &file, 0, 10);
    assert_eq!(refused.code, raw::RESOURCE_EXHAUSTED, "{}", refused.message);
    (0..2).for_each(|_| stage.gate.send(()).unwrap());
    (0..2).for_each(|_| assert_eq!(raw.reply().code, raw::OK));
    // What a call held is given back behind its answer.
    super::eventually("what they held is given back", || {
        echo(&mut raw, &file, 0, 70_000).code == raw::OK
    });
    super::eventually("what it held is given back", || {
        echo(&mut raw, &file, 0, 70_000).code == raw::OK
    });
    let refused = echo(&mut raw, &file, 0, 90_000);
    assert_eq!(refused.code, raw::RESOURCE_EXHAUSTED, "{}", refused.message);
    stage.honest_calls();
}

/// Calls whose client goes while they wait leave neither file nor mapping.
#[test]
fn uploads_of_a_client_that_is_gone_are_let_go_of() {
    isolated("hostile::uploads::uploads_of_a_client_that_is_gone_are_let_go_of", || {
        let mut stage = Stage::with(ServerOptions { workers: 1, ..ServerOptions::default() });
        let content = pattern(10_000, 4);
        let source = sealed_file(&content);
        let (mut raw, file) = registered(&stage);
        for id in 0..10 {
            let call = raw::upload_to(
                b"gate echo",
                id,
                Place::inline(1 << 20),
                [Upload::sealed(0, 10_000), Upload::region(1, 0, 10_000)][id as usize % 2],
                &[],
            );
            let files = [source.as_fd()];
            raw.send_with(&call, if id % 2 == 0 { &files } else { &[] });
        }
        stage.arrived.recv().unwrap();
        drop((raw, file, source));
        super::eventually("the connection ends", || stage.server.stats().connections == 1);
        // Those that had not begun never do.
        stage.gate.send(()).unwrap();
        stage.ends_clean();
    });
}

const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);
const SEALED_BUT_FOR_WRITERS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);
