//! Kernels and sandboxes that refuse a system call, or a part of one.

use super::calls::{CLIENT_MEMORY, SERVER_MEMORY};
use super::world::World;
use super::{Outcomes, run, start, start_server};

fn client_without(what: &str) -> Outcomes {
    run(&World::whole(), &World::whole().without(what)).unwrap()
}

fn server_without(what: &str) -> Outcomes {
    run(&World::whole().without(what), &World::whole()).unwrap()
}

const AUTO: [&str; 2] = ["auto", "upload auto"];
const INLINE: [(&str, &str); 2] =
    [("auto", "inline, inline, inline"), ("upload auto", "inline, inline, inline")];

/// What names its lane fails, and so forbids falling back; what leaves it open travels inline.
#[test]
fn a_client_without_memory_files_sends_inline() {
    for what in ["memfd_create EPERM", "memfd_create ENOSYS", "add_seals EPERM"] {
        let outcomes = client_without(what);
        outcomes.work(&INLINE).else_work(&[&CLIENT_MEMORY[..], &AUTO].concat());
        outcomes.fail(&CLIENT_MEMORY, &["Io", "memory files are refused", "offer room inline"]);
    }
}

#[test]
fn a_server_without_memory_files_fills_its_clients() {
    for what in ["memfd_create EPERM", "memfd_create ENOSYS", "add_seals EPERM"] {
        let outcomes = server_without(what);
        outcomes.else_work(&SERVER_MEMORY).fail(&SERVER_MEMORY, &["Status", "refused"]);
        outcomes.fail(&["sealed", "slice"], &["FAILED_PRECONDITION", "offer a buffer"]);
    }
}

/// That flag alone is done without: the seals are set all the same, for without them no other side
/// takes a file.
#[test]
fn kernels_that_do_not_know_the_noexec_seal_are_served() {
    client_without("noexec_seal EINVAL").all_work();
    server_without("noexec_seal EINVAL").all_work();
}

#[test]
fn seals_that_can_not_be_asked_for_are_not_taken_on_trust() {
    let received = ["sealed", "object", "slice"];
    let outcomes = client_without("get_seals EPERM");
    outcomes.else_work(&received).fail(&received, &["PayloadLost", "kernel refuses"]);
    let outcomes = server_without("get_seals EPERM");
    outcomes.work(&INLINE).else_work(&[&CLIENT_MEMORY[..], &AUTO].concat());
    outcomes.fail(&CLIENT_MEMORY, &["INVALID_ARGUMENT", "kernel refuses"]);
}

#[test]
fn a_server_without_leases_lends_no_sealed_memory() {
    for what in ["lease EINVAL", "lease EPERM"] {
        client_without(what).all_work();
        let made_for_one = ["sealed", "slice"];
        let outcomes = server_without(what);
        outcomes.else_work(&made_for_one);
        outcomes.fail(&made_for_one, &["FAILED_PRECONDITION", "leases are refused"]);
    }
}

/// What is sealed must have no holes: pages that could not be populated are touched.
#[test]
fn pages_that_can_not_be_populated_are_touched() {
    client_without("populate_write EINVAL").all_work();
    let small = World::whole().inline_bytes_max(100_000).calls(&["slice", "object"]);
    let outcomes = run(&World::whole().without("populate_write EINVAL"), &small).unwrap();
    outcomes.work(&[("slice", "sealed"), ("object", "sealed")]);
}

/// What is large has small pages then, on either side.
#[test]
fn huge_pages_that_are_refused_are_done_without() {
    for what in [
        "collapse EINVAL",
        "collapse ENOMEM",
        "collapse EPERM",
        "hugepage EINVAL",
        "populate_write EINVAL",
        "madvise EPERM",
    ] {
        let large = World::whole().bytes(LARGE);
        run(&World::whole().without(what), &large).unwrap().all_work();
        run(&World::whole(), &large.without(what)).unwrap().all_work();
    }
}

#[test]
fn mappings_that_can_not_be_kept_from_children_are_made() {
    client_without("dontfork EINVAL").all_work();
    server_without("dontfork EINVAL").all_work();
    client_without("wipe_on_fork EINVAL").all_work();
}

#[test]
fn memory_that_is_used_up_is_an_error_where_it_is_made() {
    let backed = ["map", "write", "upload copied"];
    for (what, words) in [
        ("fallocate ENOSPC", "No space left"),
        ("fallocate ENOSYS", "memory files are refused"),
        ("fallocate ENOMEM", "Cannot allocate"),
    ] {
        let outcomes = client_without(what);
        outcomes.work(&INLINE).else_work(&[&backed[..], &AUTO].concat());
        outcomes.fail(&backed, &["Io", "no memory for a buffer of 300000 bytes", words]);
    }
    let server = World::whole().without("fallocate ENOSPC");
    let outcomes = run(&server, &World::whole()).unwrap();
    outcomes.else_work(&["slice", "object"]);
    outcomes.fail(&["slice", "object"], &["RESOURCE_EXHAUSTED", "No space left"]);
    let outcomes = server_without("mmap ENOMEM");
    let mapped = ["map", "fresh", "upload copied", "auto", "upload auto", "slice", "object"];
    outcomes.else_work(&mapped).fail(&mapped, &["RESOURCE_EXHAUSTED", "Cannot allocate"]);
}

/// Pinning is the caller's own, in a hook: it is told, and the server works.
#[test]
fn a_server_whose_threads_can_not_be_pinned_goes_on() {
    let world = World::whole().options("pins its threads").without("setaffinity EPERM");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut server = start("environment server", &path, &world).unwrap();
    // A reactor, workers and waiting workers, in any order with the server's own word.
    let threads = 1 + 2 + 2;
    let mut heard: Vec<_> = (0..=threads).map(|_| server.hear()).collect();
    heard.sort();
    assert_eq!(heard.pop().unwrap(), "serving");
    assert!(heard.iter().all(|told| told == "pinning: Err(PermissionDenied)"), "{heard:?}");
    super::call_from(&path, &World::whole()).unwrap().all_work();
    super::ends_clean(server);
    assert!(start_server(&path, &World::whole().without("setaffinity EPERM")).is_some());
}

/// A huge page and a rest, where those have 2 MiB.
const LARGE: usize = (4 << 20) - 5000;
