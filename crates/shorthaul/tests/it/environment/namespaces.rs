//! Peers in other namespaces than one's own, and what the kernel sets for all of one.

use super::run;
use super::world::World;

fn both_ways(other: &World) {
    let whole = World::whole();
    for (server, client) in [(&whole, other), (other, &whole), (other, other)] {
        if let Some(outcomes) = run(server, client) {
            outcomes.all_work();
        }
    }
}

const PID: [&str; 4] = ["--pid", "--fork", "--kill-child", "--mount-proc"];

/// A client that looks at its server from in there is told of process 0, and knows none.
#[test]
fn other_process_ids() {
    both_ways(&World::whole().in_namespaces(&PID));
}

/// Memory files that may not be run are what is made anyway.
#[test]
fn memory_files_that_may_not_be_run() {
    for mode in 0..3 {
        let line = format!("echo {mode} > /proc/sys/vm/memfd_noexec");
        let world = World::whole().in_namespaces(&PID).after_running(&line);
        if let Some(outcomes) = run(&world, &world) {
            outcomes.all_work();
        }
    }
}

#[test]
fn other_users_with_names_here() {
    both_ways(&World::whole().in_namespaces(&["--user", "--map-root-user"]));
}

/// Someone without a name shows as nobody, and so do all others: not somebody to be known by.
#[test]
fn users_without_a_name_are_refused_on_either_side() {
    let nobody = World::whole().in_namespaces(&["--user"]);
    let said = ["PeerRefused", "user 65534", "stand-in", "a policy of your own"];
    if let Some(outcomes) = run(&World::whole(), &nobody) {
        outcomes.all_fail(&said);
        outcomes.all_fail(&["the server is not trusted"]);
    }
    if let Some(outcomes) = run(&nobody, &World::whole()) {
        outcomes.all_fail(&said);
        outcomes.all_fail(&["the server says PERMISSION_DENIED"]);
    }
}

/// Deadlines travel as the time that is left: what the clocks say is nobody else's.
#[test]
fn other_clocks() {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: u64 = uptime.split('.').next().unwrap().parse().unwrap();
    // No clock can be set to before its start.
    let back: &'static str = format!("--monotonic=-{}", seconds.min(100_000) - 2).leak();
    for shift in ["--monotonic=100000", back] {
        let flags = ["--time", "--fork", "--kill-child", shift];
        both_ways(&World::whole().in_namespaces(&flags));
    }
}

/// A path is found from any network; a name without a file would not be.
#[test]
fn other_networks() {
    both_ways(&World::whole().in_namespaces(&["--net"]));
}
