//! Everything at once for long: what both processes hold stays what it is.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use shorthaul::{Client, Code, Error};

use super::census::{Census, resident_bytes};
use super::child::{Process, say};
use super::service::{AnyClient, PATIENCE, eventually, request};
use super::workload::{Caller, Random, Way, command, fail_at_once, is_long, start_server};

/// The role of a process whose clients come, call in every way, and go.
pub(super) fn call_for_long(path: &Path) {
    fail_at_once();
    let mut random = Random::new("soak");
    let (calls, failures) = (AtomicU64::new(0), AtomicU64::new(0));
    let until = Instant::now() + length();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let mut random = random.fork();
            let (calls, failures) = (&calls, &failures);
            scope.spawn(move || {
                while Instant::now() < until {
                    let mut client = AnyClient::connect(path, random.below(2) == 0).unwrap();
                    for _ in 0..=random.below(60) {
                        calls.fetch_add(1, Ordering::Relaxed);
                        failures.fetch_add(call_somehow(&mut client, &mut random), RELAXED);
                    }
                }
            });
        }
    });
    say(format!("{} calls, {} of them failed as they were to", calls.into_inner(), {
        failures.into_inner()
    }));
    // Its memory is looked at until its parent has seen enough.
    thread::park();
}

/// One call, of some way, that ends in some way; gives how many have failed.
fn call_somehow(client: &mut AnyClient, random: &mut Random) -> u64 {
    let way = Way::ALL[random.below(Way::ALL.len() as u64) as usize];
    let sizes = (random.below(BYTES_MAX) as usize + 1, random.below(256) as u8);
    match random.below(12) {
        0 => {
            // Some are in time.
            let timeout = Duration::from_micros(random.below(1000));
            match way.call(client.caller(), sizes, timeout) {
                Ok(()) => 0,
                Err(failed) => {
                    let error = failed.error();
                    assert_eq!(error.code(), Code::DeadlineExceeded, "{way:?}: {error}");
                    1
                }
            }
        }
        1 => fail(client, sizes.0),
        2 => take_back(client, random),
        _ => {
            way.call(client.caller(), sizes, PATIENCE * 6).unwrap();
            0
        }
    }
}

fn fail(client: &mut AnyClient, bytes: usize) -> u64 {
    let asked = request(bytes, 0);
    let outcome = match client.caller() {
        Caller::Direct(client) => client.call("fail").request(&asked).inline(bytes).send(),
        Caller::Threaded(client) => {
            let buffer = client.buffer(bytes).unwrap();
            client.call("fail").request(&asked).into(buffer).send()
        }
    };
    let failed = outcome.unwrap_err();
    assert!(matches!(failed.error(), Error::Status(_)), "{failed}");
    assert_eq!(failed.error().code(), Code::NotFound, "{failed}");
    1
}

/// A call that is cancelled by its caller, or by its time.
fn take_back(client: &mut AnyClient, random: &mut Random) -> u64 {
    match client.caller() {
        Caller::Direct(client) => {
            let call = client.call("never").inline(64).deadline(Duration::from_millis(1));
            drop(call.send().unwrap_err());
        }
        Caller::Threaded(client) => {
            let buffer = client.buffer(4096).unwrap();
            let pending = Client::start(client.call("never").into(buffer)).unwrap();
            thread::sleep(Duration::from_micros(random.below(500)));
            pending.cancel();
        }
    }
    1
}

/// What a process holds at a moment.
#[derive(Clone, Copy, Default)]
struct Sample {
    bytes: u64,
    descriptors: u64,
    maps: u64,
    threads: u64,
}

impl Sample {
    fn take(process: u32) -> Self {
        let count = |name| fs::read_dir(format!("/proc/{process}/{name}")).unwrap().count() as u64;
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        Self {
            bytes: resident_bytes(process),
            descriptors: count("fd"),
            maps: maps.lines().count() as u64,
            threads: count("task"),
        }
    }

    /// Of each number the one in the middle.
    fn median(samples: &[Self]) -> Self {
        let middle = |number: fn(&Self) -> u64| {
            let mut all: Vec<u64> = samples.iter().map(number).collect();
            all.sort_unstable();
            all[all.len() / 2]
        };
        Self {
            bytes: middle(|sample| sample.bytes),
            descriptors: middle(|sample| sample.descriptors),
            maps: middle(|sample| sample.maps),
            threads: middle(|sample| sample.threads),
        }
    }

    /// Whether `later` is no more, but for what goes up and down anyway.
    fn is_kept_by(&self, later: &Self) -> bool {
        later.bytes <= self.bytes + self.bytes / 10 + (8 << 20)
            && later.descriptors <= self.descriptors + SWING
            && later.maps <= self.maps + self.maps / 10 + SWING
            && later.threads <= self.threads + SWING
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, descriptors, maps, threads } = self;
        let mebibytes = *bytes as f64 / f64::from(1 << 20);
        write!(f, "{mebibytes:.1} MiB, {descriptors} descriptors, {maps} maps, {threads} threads")
    }
}

#[test]
fn clients_that_come_and_go_for_long_leave_memory_and_descriptors_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = start_server(&path, 2);
    let mut before = Census::of(server.id());
    let pipes = before.count("pipe");
    before.descriptors.retain(|name| name != "pipe");
    let mut clients = Process::spawn(command("soaks", &path));
    let processes = [server.id(), clients.id()];
    // The first fifth of the time is to warm up in.
    thread::sleep(length() / 5);
    let mut samples = [Vec::new(), Vec::new()];
    for round in 0..SAMPLES {
        thread::sleep(length() * 3 / 4 / SAMPLES);
        let taken = processes.map(Sample::take);
        if round % (SAMPLES / 10) == 0 {
            eprintln!("server {}; clients {}", taken[0], taken[1]);
        }
        (0..2).for_each(|process| samples[process].push(taken[process]));
    }
    eprintln!("{}", clients.hear());
    clients.kill();
    // But for relays that it keeps, each with a pipe.
    eventually("the clients are gone", PATIENCE * 3, || {
        let mut now = Census::of(server.id());
        let kept = now.count("pipe") - pipes;
        now.descriptors.retain(|name| name != "pipe");
        now == before && kept <= 4
    });
    server.kill();
    for (name, samples) in ["server", "clients"].into_iter().zip(&samples) {
        let part = samples.len() / 4;
        let first = Sample::median(&samples[..part]);
        let last = Sample::median(&samples[samples.len() - part..]);
        eprintln!("{name}: first quarter {first}; last quarter {last}");
        assert!(first.is_kept_by(&last), "{name}: {first}, later {last}");
    }
}

fn length() -> Duration {
    Duration::from_secs(if is_long() { 600 } else { 10 })
}

const RELAXED: Ordering = Ordering::Relaxed;
const CLIENTS: usize = 6;
const BYTES_MAX: u64 = 400_000;
const SAMPLES: u32 = 40;
/// Clients come and go, each with some of everything.
const SWING: u64 = 24;
