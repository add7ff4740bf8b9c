//! Clients that ask for much and read little of it.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use shorthaul::DirectClient;

use super::super::census::{Census, resident_bytes};
use super::super::hostile::raw::{self, Place, Raw};
use super::super::service::{AnyClient, pattern, request};
use super::super::workload::{Caller, Way, start_server_with};
use super::PATIENCE;

#[test]
fn a_client_that_asks_a_thousand_times_and_never_reads_costs_a_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = start_server_with(&path, 2, 1024);
    let mut honest = AnyClient::connect_asleep(&path).unwrap();
    for way in [Way::Inline, Way::FillMap] {
        way.call(honest.caller(), (1 << 20, 0), PATIENCE).unwrap();
    }
    let (before, bytes_before) = (Census::of(server.id()), resident_bytes(server.id()));
    let mut greedy = Raw::open(&path);
    for id in 1..=1000 {
        greedy.send(&raw::call(id, Place::inline(1 << 20), b"map", &request(1 << 20, id as u8)));
    }
    let (mut seed, mut most, began) = (0_u8, 0, Instant::now());
    while began.elapsed() < Duration::from_secs(2) {
        seed = seed.wrapping_add(1);
        for way in [Way::Inline, Way::FillMap] {
            way.call(honest.caller(), (1 << 20, seed), PATIENCE).unwrap();
        }
        most = most.max(resident_bytes(server.id()));
    }
    let grown = most.saturating_sub(bytes_before);
    eprintln!("a thousand answers of 1 MiB that nobody reads: {} KiB", grown >> 10);
    assert!(grown > UNDER_WAY_MAX / 2, "it was not loaded: {grown}");
    assert!(grown < UNDER_WAY_MAX + SLACK, "{grown}");
    drop(greedy);
    before.returns_in(server.id());
    server.kill();
}

#[test]
fn a_client_that_stops_reading_in_the_middle_of_a_reply_holds_up_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = start_server_with(&path, 1, 128);
    let mut honest = DirectClient::connect(&path).unwrap();
    let mut slow = Raw::open(&path);
    slow.send(&raw::call(1, Place::inline(BYTES as u64), b"map", &request(BYTES, 7)));
    let mut beginning = vec![0; BYTES / 8];
    slow.socket.read_exact(&mut beginning).unwrap();
    for seed in 0..50 {
        for way in [Way::Inline, Way::FillMap] {
            way.call(Caller::Direct(&mut honest), (300_000, seed), PATIENCE).unwrap();
        }
    }
    thread::sleep(Duration::from_millis(300));
    // The frame's head and body come before its payload.
    let mut rest = Vec::new();
    let behind = 16 + u32::from_le_bytes(beginning[4..8].try_into().unwrap()) as usize;
    let left = (behind + BYTES - beginning.len()) as u64;
    (&slow.socket).take(left).read_to_end(&mut rest).unwrap();
    let payload = [&beginning[behind..], &rest[..]].concat();
    assert!(payload == pattern(BYTES, 7), "{} bytes", payload.len());
    slow.send(&raw::call(2, Place::inline(64), b"map", &request(64, 9)));
    assert_eq!(slow.reply().payload, pattern(64, 9));
    server.kill();
}

const BYTES: usize = 8 << 20;
/// Inline bytes of answers that one connection may have under way.
const UNDER_WAY_MAX: u64 = 64 << 20;
/// Patterns being made, the honest client's own answers, what allocating rounds up.
const SLACK: u64 = 32 << 20;
