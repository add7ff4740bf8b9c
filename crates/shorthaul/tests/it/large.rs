//! A buffer larger than what one system call moves: read(2) and write(2) end at 0x7ffff000 bytes.

use std::sync::Arc;
use std::time::Duration;

use shorthaul::{Buffer, DirectClient, InboundCall, Lane, ServerOptions, Status};

use super::service::{start, write_payload};
use super::workload::is_long;

#[test]
fn a_buffer_over_two_gibibytes_is_filled_to_its_end() {
    if !is_long() {
        return eprintln!("passed over: takes 5 GB of memory, and comes with long-tests");
    }
    if available_bytes() < NEEDED {
        return eprintln!("passed over: less than {NEEDED} bytes of memory are available");
    }
    let source = Arc::new(words());
    let served = Arc::clone(&source);
    let serve = move |call: &mut InboundCall| -> Result<(), Status> {
        write_payload(call, &served)?;
        call.reply(b"")
    };
    let running = start(ServerOptions::default(), serve);
    let mut client = DirectClient::connect(&running.path).unwrap();
    let mut buffer = client.buffer(BYTES).unwrap();
    for (method, lane) in [("write", Lane::FillWrite), ("map", Lane::FillMap)] {
        buffer.fill(0..BYTES, 0xee);
        let request = (BYTES as u64).to_le_bytes();
        let call = client.call(method).request(&request).deadline(Duration::from_secs(300));
        let reply = call.into(buffer).send().unwrap();
        assert_eq!((reply.lane(), reply.len()), (lane, BYTES));
        buffer = reply.into_buffer().unwrap();
        check(&buffer, &source, method);
    }
}

/// Both ends, and where the first system call of the kernel's largest size ends.
fn check(buffer: &Buffer, source: &[u8], method: &str) {
    let mut found = vec![0; WINDOW];
    for at in [0, ONE_CALL - WINDOW / 2, (2 << 30) - WINDOW / 2, BYTES - WINDOW] {
        buffer.copy_to(at, &mut found);
        assert!(found == source[at..at + WINDOW], "{method}: other bytes at {at:#x}");
    }
    // Nothing between was left out.
    let mut piece = vec![0; 64 << 20];
    for at in (0..BYTES).step_by(piece.len()) {
        let bytes = piece.len().min(BYTES - at);
        buffer.copy_to(at, &mut piece[..bytes]);
        assert!(piece[..bytes] == source[at..at + bytes], "{method}: other bytes after {at:#x}");
    }
}

/// Each says where it is.
fn words() -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    }
    bytes
}

fn available_bytes() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

const BYTES: usize = (2 << 30) + 4096;
const NEEDED: u64 = 6 << 30;
/// The kernel's `MAX_RW_COUNT` with pages of 4 KiB.
const ONE_CALL: usize = 0x7fff_f000;
const WINDOW: usize = 8192;
