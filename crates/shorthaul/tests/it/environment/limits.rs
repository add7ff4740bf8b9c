//! Processes with little of what setrlimit(2) bounds.

use super::calls::{CLIENT_MEMORY, SERVER_MEMORY};
use super::run;
use super::world::World;

/// A file over the limit would be a signal, whose default is the end of the process.
#[test]
fn files_over_the_limit_are_errors_and_no_signals() {
    let said = ["File too large", "raise RLIMIT_FSIZE"];
    let outcomes = run(&World::whole(), &World::whole().without("fsize 100000")).unwrap();
    outcomes.else_work(&[&CLIENT_MEMORY[..], &["auto", "upload auto"]].concat());
    outcomes.fail(&CLIENT_MEMORY, &said);
    outcomes.work(&[("auto", "inline, inline, inline")]);
    let server = World::whole().without("fsize 100000");
    let outcomes = run(&server, &World::whole()).unwrap();
    let written = [&SERVER_MEMORY[..], &["write"]].concat();
    outcomes.else_work(&written).fail(&written, &said);
    outcomes.fail(&["write"], &["RESOURCE_EXHAUSTED"]);
}

#[test]
fn nothing_is_locked_in_memory() {
    let world = World::whole().without("memlock 0");
    run(&world, &world).unwrap().all_work();
}

/// What does not fit the addresses that are left is refused by name, and costs its call at most.
#[test]
fn addresses_that_are_used_up() {
    let calls = ["inline", "map", "write", "fresh", "slice", "upload inline", "upload copied"];
    let client = World::whole().bytes(64 << 20).calls(&calls);
    let server = World::whole().later_without("as 50000000");
    // The last is what pthread_create(3) says where there is no room for a stack.
    let said = ["Cannot allocate memory", "no memory for", "can't start the client's thread"];
    let failed = run(&server, &client).unwrap().work_or_fail(&said);
    assert!(failed > 0, "there was room for all");
    // Uploads are the test's own memory first.
    let calls = ["inline", "map", "write", "fresh", "sealed", "slice"];
    let client = client.without("as 50000000").calls(&calls);
    let failed = run(&World::whole(), &client).unwrap().work_or_fail(&said);
    assert!(failed > 0, "there was room for all");
}

#[test]
fn descriptors_that_are_used_up() {
    // With none at all a server lets nobody in, and a client waits for a hello.
    let said = ["Too many open files", "is out of descriptors"];
    // A ring takes one more on each side while it is offered, whenever looking first pays.
    for (count, may_fail) in [(1, true), (2, true), (3, true), (8, false)] {
        let server = World::whole().later_without(&format!("nofile {count}"));
        let failed = run(&server, &World::whole()).unwrap().work_or_fail(&said);
        assert_eq!(failed > 0, may_fail, "{failed} of {count}");
    }
    for (count, may_fail) in [(0, true), (1, true), (2, true), (4, true), (14, false)] {
        let client = World::whole().without(&format!("nofile {count}"));
        let failed = run(&World::whole(), &client).unwrap().work_or_fail(&said);
        assert_eq!(failed > 0, may_fail, "{failed} of {count}");
    }
}
