//! Clients that are killed in the middle of whatever they do leave nothing behind.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::child::{Process, say};
use super::service::{AnyClient, PATIENCE, Way, check, eventually, request};

/// What a child does that is there to be killed: calls by one lane, which the environment names,
/// over both kinds of client at once.
pub(super) fn call_for_ever(path: &Path) {
    let way = std::env::var(WAY).unwrap();
    let way = Way::ALL[way.parse::<usize>().unwrap()];
    thread::scope(|scope| {
        for is_direct in [true, false] {
            scope.spawn(move || {
                let mut client = AnyClient::connect(path, is_direct).unwrap();
                for round in 0_u8.. {
                    let asked = request(BYTES, round);
                    let reply = client.send(way, "", &asked, BYTES, PATIENCE);
                    let Ok(reply) = reply else { return };
                    check(&reply, BYTES, round);
                    if round == 0 {
                        say("under way");
                    }
                    if round == u8::MAX {
                        return;
                    }
                }
            });
        }
        // Outlives its calls.
        thread::sleep(PATIENCE * 2);
    });
}

/// What the kernel says that a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    buffers: usize,
}

impl Holdings {
    fn of(process: u32) -> Self {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        Self {
            descriptors: fs::read_dir(format!("/proc/{process}/fd")).unwrap().count(),
            buffers: maps.lines().filter(|l| l.contains("shorthaul-buffer")).count(),
        }
    }
}

fn kill_clients(way: Way) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut server = Process::start("server", &path);
    assert_eq!(server.hear(), "serving");
    let before = Holdings::of(server.id());
    assert_eq!(before.buffers, 0);
    let index = Way::ALL.iter().position(|&other| other == way).unwrap();
    for round in 0..ROUNDS {
        let mut command = super::child::command("calls", &path);
        command.env(WAY, index.to_string());
        let mut client = Process::spawn(command);
        assert_eq!(client.hear(), "under way");
        // Anywhere in its calls: a few microseconds to a few milliseconds from their start.
        thread::sleep(Duration::from_micros(round * round * 7 % 4_000));
        client.kill();
    }
    let mut after = before;
    eventually("everything is let go of", Duration::from_secs(2), || {
        after = Holdings::of(server.id());
        after == before
    });
    for is_direct in [true, false] {
        let mut client = AnyClient::connect(&path, is_direct).unwrap();
        let asked = request(BYTES, 77);
        let reply = client.send(way, "", &asked, BYTES, PATIENCE).unwrap();
        assert_eq!(reply.lane(), way.lane());
        check(&reply, BYTES, 77);
    }
    server.kill();
}

#[test]
fn killed_in_inline_calls() {
    kill_clients(Way::Inline);
}

#[test]
fn killed_in_fills_by_mapping() {
    kill_clients(Way::FillMap);
}

#[test]
fn killed_in_fills_by_writing() {
    kill_clients(Way::FillWrite);
}

#[test]
fn killed_in_one_shot_calls() {
    kill_clients(Way::OneShot);
}

const WAY: &str = "SHORTHAUL_TEST_WAY";
const BYTES: usize = 300_000;
const ROUNDS: u64 = 40;
