//! One client with much under way, and many with small calls.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use shorthaul::{Client, DirectClient};

use super::super::child::{Process, say};
use super::super::workload::{command, fail_at_once, is_long, start_server};
use super::PATIENCE;

/// The role of a client with 64 large calls in flight, always.
pub(crate) fn call_for_ever(path: &Path) {
    fail_at_once();
    let client = Client::connect(path).unwrap();
    let start = |buffer| Client::start(client.call("quick").into(buffer).deadline(PATIENCE * 4));
    let buffers = (0..LARGE_CALLS).map(|_| client.buffer(large_bytes()).unwrap());
    let mut calls: VecDeque<_> = buffers.map(|buffer| start(buffer).unwrap()).collect();
    for round in 0_u64.. {
        let reply = calls.pop_front().unwrap().wait().unwrap();
        assert_eq!(reply.len(), large_bytes());
        calls.push_back(start(reply.into_buffer().unwrap()).unwrap());
        if round == 0 {
            say("noisy");
        }
    }
}

/// The design's bound of a small call: it waits for the large calls that the workers are at, and
/// for one round, in which each other line is served a quantum (1 MiB) or one call more. At a
/// gigabyte a second that is two large calls, one more, and sixteen small ones.
fn bound() -> Duration {
    let bytes = (WORKERS + 1) * large_bytes() + SMALL_CLIENTS * SMALL_BYTES;
    Duration::from_nanos(bytes as u64)
}

#[test]
fn small_calls_beside_a_noisy_client_are_served_and_get_their_shares() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = start_server(&path, WORKERS);
    let mut noisy = Process::spawn(command("is noisy", &path));
    assert_eq!(noisy.hear(), "noisy");
    // So many calls in all: who is served faster makes more of them.
    let left = AtomicI64::new((SMALL_CLIENTS * calls_each()) as i64);
    let call_all = || {
        let mut client = DirectClient::connect(&path).unwrap();
        let mut took = Vec::new();
        while left.fetch_sub(1, Ordering::Relaxed) > 0 {
            let began = Instant::now();
            let call = client.call("quick").inline(SMALL_BYTES).deadline(PATIENCE * 4);
            assert_eq!(call.send().unwrap().to_vec(), [1; SMALL_BYTES]);
            took.push(began.elapsed());
        }
        took
    };
    let took: Vec<Vec<Duration>> = thread::scope(|scope| {
        let clients: Vec<_> = (0..SMALL_CLIENTS).map(|_| scope.spawn(call_all)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    noisy.kill();
    server.kill();
    let counts: Vec<usize> = took.iter().map(Vec::len).collect();
    let mut all: Vec<Duration> = took.into_iter().flatten().collect();
    all.sort();
    let at = |percent: usize| all[(all.len() - 1) * percent / 100];
    let (bound, longest) = (bound(), at(100));
    eprintln!(
        "small calls beside {LARGE_CALLS} of {} MiB: p50 {:?}, p99 {:?}, longest {longest:?}; the \
         design's bound {bound:?}; calls {counts:?}",
        large_bytes() >> 20,
        at(50),
        at(99),
    );
    assert!(longest < bound * 100 + PATIENCE / 2, "{longest:?}");
    let fewest = counts.iter().min().unwrap();
    assert!(*fewest >= calls_each() / 4, "{counts:?}");
}

fn large_bytes() -> usize {
    if is_long() { 64 << 20 } else { 8 << 20 }
}

fn calls_each() -> usize {
    if is_long() { 400 } else { 100 }
}

const WORKERS: usize = 2;
const LARGE_CALLS: usize = 64;
const SMALL_CLIENTS: usize = 15;
const SMALL_BYTES: usize = 4096;
