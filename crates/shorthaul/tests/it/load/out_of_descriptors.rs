//! A server that can open nothing more.

use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use shorthaul::{Code, DirectClient};
use shorthaul_platform::usage::process_cpu_time;

use super::super::census::Census;
use super::super::child::Process;
use super::super::hostile::raw::{self, Raw};
use super::super::service::eventually;
use super::super::workload::{Caller, Way, start_server};
use super::PATIENCE;

/// A limit of a server's, that is given back when this is dropped.
struct Full {
    server: Pid,
    before: Rlimit,
}

impl Full {
    /// Lets a server open nothing more.
    fn new(server: &Process) -> Self {
        settle(server.id());
        let numbers = std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap();
        let mut numbers: Vec<u64> = numbers
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
            .collect();
        numbers.sort_unstable();
        let free = (0_u64..).find(|number| numbers.binary_search(number).is_err()).unwrap();
        let server = Pid::from_raw(server.id() as i32).unwrap();
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let full = Rlimit { current: Some(free), maximum };
        let before = prlimit(Some(server), Resource::Nofile, full).unwrap();
        Self { server, before }
    }
}

/// Waits until the server has closed what it has done with.
fn settle(server: u32) {
    let (mut census, mut same) = (Census::of(server), 0);
    eventually("the server settles", PATIENCE, || {
        thread::sleep(Duration::from_millis(10));
        let now = Census::of(server);
        same = if now == census { same + 1 } else { 0 };
        census = now;
        same == 3
    });
}

impl Drop for Full {
    fn drop(&mut self) {
        prlimit(Some(self.server), Resource::Nofile, self.before).unwrap();
    }
}

fn accepts_put_off(client: &mut DirectClient) -> u64 {
    let reply = client.call("stats").deadline(PATIENCE).send().unwrap();
    u64::from_le_bytes(reply.response().try_into().unwrap())
}

#[test]
fn who_connects_meanwhile_waits_and_is_served_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = start_server(&path, 2);
    let mut honest = DirectClient::connect(&path).unwrap();
    assert_eq!(accepts_put_off(&mut honest), 0);
    let full = Full::new(&server);
    let mut waiting: Vec<Raw> = (0..10).map(|_| Raw::connect(&path)).collect();
    for raw in &mut waiting {
        raw.send(&raw::hello());
    }
    let cpu_before = process_cpu_time(server.id()).unwrap();
    thread::sleep(WATCHED);
    let spent = process_cpu_time(server.id()).unwrap() - cpu_before;
    eprintln!("accepting without descriptors: {spent:?} of CPU time in {WATCHED:?}");
    assert!(spent < WATCHED / 10, "it spins: {spent:?}");
    let put_off = accepts_put_off(&mut honest);
    assert!((1..1000).contains(&put_off), "{put_off}");
    drop(full);
    for raw in &mut waiting {
        raw.expect(raw::HELLO);
    }
    server.kill();
}

#[test]
fn a_memory_file_that_can_not_be_received_fails_its_call_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = start_server(&path, 2);
    for way in [Way::OneShot, Way::SealedUpload, Way::FillMap, Way::Pipe] {
        let mut honest = DirectClient::connect(&path).unwrap();
        Way::Inline.call(Caller::Direct(&mut honest), (BYTES, 1), PATIENCE).unwrap();
        for seed in 0..20 {
            // What was dropped is given up now, and not just when descriptors are short.
            honest.poll(Duration::ZERO).unwrap();
            let full = Full::new(&server);
            let failed = way.call(Caller::Direct(&mut honest), (BYTES, seed), PATIENCE);
            let failed = failed.unwrap_err();
            assert_eq!(failed.error().code(), Code::ResourceExhausted, "{way:?}: {failed:?}");
            Way::Inline.call(Caller::Direct(&mut honest), (BYTES, seed), PATIENCE).unwrap();
            drop(full);
            way.call(Caller::Direct(&mut honest), (BYTES, seed), PATIENCE).unwrap();
        }
    }
    server.kill();
}

const WATCHED: Duration = Duration::from_secs(2);
const BYTES: usize = 100_000;
