//! What the kernels of `store/` do here, in GB/s: fills, copies in and out, and sums, of memory
//! that two processes could share, at sizes from half a kilobyte to more than any cache.
//!
//! `cargo run --release -p shorthaul-platform --example kernels [CPU]`
//!
//! To compare two versions run both in turn a few times: the machine drifts.
#![allow(clippy::unwrap_used, reason = "a program for one terminal")]

use std::hint::black_box;
use std::time::Instant;

use shorthaul_platform::memory::{Memfd, PrivateMemory, SharedMapping};
use shorthaul_platform::store::Store;
use shorthaul_platform::topology::pin_current_thread;

struct Memory {
    shared: SharedMapping,
    private: PrivateMemory,
}

type Job = fn(&mut Memory, usize, u8);

fn main() {
    if let Some(cpu) = std::env::args().nth(1) {
        pin_current_thread(cpu.parse().unwrap()).unwrap();
    }
    let shared = Memfd::create_backed("kernels", BYTES_MAX).unwrap().map().unwrap();
    let mut memory = Memory { shared, private: PrivateMemory::new(BYTES_MAX).unwrap() };
    memory.shared.populate();
    memory.private.fill(0..BYTES_MAX, 1, Store::Ordinary);
    print!("{:16}", "GB/s");
    SIZES.iter().for_each(|bytes| print!("{:>9} KiB", bytes >> 10));
    println!();
    for (name, job) in JOBS {
        print!("{name:16}");
        for bytes in SIZES {
            print!("{:13.1}", median_speed(&mut memory, job, bytes));
        }
        println!();
    }
}

fn median_speed(memory: &mut Memory, job: Job, bytes: usize) -> f64 {
    let times = (ROUND_BYTES / bytes).max(1);
    let mut speeds: Vec<f64> = (0..ROUNDS)
        .map(|round| {
            job(memory, bytes, round);
            let start = Instant::now();
            (0..times).for_each(|_| job(memory, bytes, round));
            (bytes * times) as f64 / start.elapsed().as_nanos() as f64
        })
        .collect();
    speeds.sort_by(f64::total_cmp);
    speeds[speeds.len() / 2]
}

const JOBS: [(&str, Job); 6] = [
    ("fill", |memory, bytes, value| memory.shared.fill(0..bytes, value, Store::Ordinary)),
    ("fill, streaming", |memory, bytes, value| {
        memory.shared.fill(0..bytes, value, Store::streaming_or_ordinary());
    }),
    ("copy in", |memory, bytes, _| {
        memory.shared.copy_in(0, &memory.private[..bytes], Store::Ordinary);
    }),
    ("copy in, strm.", |memory, bytes, _| {
        memory.shared.copy_in(0, &memory.private[..bytes], Store::streaming_or_ordinary());
    }),
    ("copy out", |memory, bytes, _| memory.shared.copy_out(0, &mut memory.private[..bytes])),
    ("sum", |memory, bytes, _| {
        black_box(memory.shared.sum(0..bytes, 1));
    }),
];

const SIZES: [usize; 6] = [512, 4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20];
const BYTES_MAX: usize = 64 << 20;
const ROUND_BYTES: usize = 32 << 20;
const ROUNDS: u8 = 15;
