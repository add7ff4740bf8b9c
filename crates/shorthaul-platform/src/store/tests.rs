//! Every kernel against a naive loop over bytes: all short lengths at all offsets in a cache line,
//! lengths around the sizes at which kernels change their ways, and guards on both sides.

mod kernels;

#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::arch::x86_64::CpuidResult;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread;

use proptest::prelude::*;

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::x86_64::caches::Caches;
use super::{Store, Streaming};
use kernels::{Kernels, all_kernels, naive_sum};

/// Bytes that repeat at no distance that a kernel could confuse.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|index| (index.wrapping_mul(0x9E37_79B1) >> 24) as u8).collect()
}

/// Two stretches of memory with a guard around whatever is worked on, and one page to shift it.
struct Arena {
    to: Vec<u8>,
    from: Vec<u8>,
}

impl Arena {
    fn new(bytes_max: usize) -> Self {
        let bytes = PAGE_BYTES + 2 * GUARD_BYTES + 2 * PAGE_BYTES + bytes_max;
        Self { to: vec![GUARD; bytes], from: pattern(bytes) }
    }

    /// Runs every job once at these page offsets and compares all memory around the range, too.
    fn check(&mut self, kernels: &Kernels, bytes: usize, to_offset: usize, from_offset: usize) {
        let what = format!("{}: {bytes} bytes to {to_offset} from {from_offset}", kernels.name);
        let to_start = page_start(&self.to) + GUARD_BYTES + to_offset;
        let from_start = page_start(&self.from) + GUARD_BYTES + from_offset;
        let span = to_start - GUARD_BYTES..to_start + bytes + GUARD_BYTES;
        let source = &mut self.from[from_start..from_start + bytes];
        let source_before = source.to_vec();
        let run = |to: &mut [u8], expected: &[u8], job: &mut dyn FnMut(&mut [u8])| {
            job(&mut to[to_start..to_start + bytes]);
            assert!(to[to_start..to_start + bytes] == *expected, "{what}");
            to[to_start..to_start + bytes].fill(GUARD);
            assert!(to[span.clone()].iter().all(|&byte| byte == GUARD), "guard, {what}");
        };
        let value = bytes as u8 ^ 0x3C;
        run(&mut self.to, &vec![value; bytes], &mut |dst| (kernels.fill)(dst, value));
        run(&mut self.to, &source_before, &mut |dst| (kernels.copy_in)(dst, source));
        run(&mut self.to, &source_before, &mut |dst| (kernels.copy_out)(dst, source));
        assert_eq!((kernels.sum)(source), naive_sum(&source_before, 1), "sum, {what}");
        assert!(*source == source_before, "source, {what}");
    }
}

fn page_start(memory: &[u8]) -> usize {
    memory.as_ptr().align_offset(PAGE_BYTES)
}

#[test]
fn short_lengths_at_every_offset() {
    let mut arena = Arena::new(LENGTH_MAX);
    for kernels in all_kernels() {
        for bytes in (0..=LENGTH_MAX).step_by(STEP) {
            for to_offset in (0..64).step_by(STEP) {
                for from_offset in [0, 1, 13, 56] {
                    arena.check(&kernels, bytes, to_offset, from_offset);
                }
            }
        }
    }
}

#[test]
fn lengths_around_powers_of_two() {
    let sizes: &[usize] = if cfg!(miri) { &[4096] } else { &[2048, 4096, 64 << 10, 2 << 20] };
    let mut arena = Arena::new((2 << 20) + 1);
    for kernels in all_kernels() {
        for bytes in sizes.iter().flat_map(|&size| size - 1..=size + 1) {
            for (to_offset, from_offset) in [(0, 0), (1, 0), (16, 0), (0, 9), (40, 24)] {
                arena.check(&kernels, bytes, to_offset, from_offset);
            }
        }
    }
}

/// Where one way of moving bytes gives way to another, whatever the caches of this CPU.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn lengths_around_the_sizes_of_caches() {
    let Caches { second, third } = Caches::get();
    assert!(second <= third && third <= 4 << 30, "{second} and {third} bytes of cache");
    let mut arena = Arena::new(second.max(third / 4) + 1);
    let chosen = |kernels: &Kernels| kernels.name == "ordinary";
    for kernels in all_kernels().into_iter().filter(chosen) {
        for bytes in [second, third / 4].into_iter().flat_map(|size| size - 1..=size + 1) {
            for (to_offset, from_offset) in [(0, 0), (17, 9), (9, 0)] {
                arena.check(&kernels, bytes, to_offset, from_offset);
            }
        }
    }
}

/// What two CPUs answered, and one that tells nothing.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn caches_are_as_large_as_the_cpu_says() {
    let answers = |list: &[[u32; 3]]| {
        let all = list.iter().map(|&[eax, ebx, ecx]| CpuidResult { eax, ebx, ecx, edx: 0 });
        Caches::parse(all.collect::<Vec<_>>().into_iter())
    };
    // Eight ways of 1024 sets, and sixteen of 32768, of 64 bytes.
    let zen = [
        [0x121, 0x01C0_003F, 0x3F],
        [0x122, 0x01C0_003F, 0x3F],
        [0x143, 0x01C0_003F, 0x3FF],
        [0x163, 0x03C0_003F, 0x7FFF],
        [0, 0, 0],
        [0x163, 0x03C0_003F, 0xFFFF],
    ];
    assert_eq!(answers(&zen), Caches { second: 512 << 10, third: 32 << 20 });
    assert_eq!(answers(&zen[..3]), Caches { second: 512 << 10, third: 512 << 10 });
    assert_eq!(answers(&[]), Caches { second: 256 << 10, third: 256 << 10 });
}

#[test]
fn offsets_that_alias_modulo_a_page() {
    let mut arena = Arena::new(12_345);
    for kernels in all_kernels() {
        for ahead in [0, 1, 15, 16, 31, 32, 33, 63, 64, 65, 2048, 4032, 4065, 4095] {
            for from_offset in [0, 24] {
                arena.check(&kernels, 12_345, from_offset + ahead, from_offset);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
    #[test]
    fn any_length_at_any_offset(
        bytes in 0..20_000_usize,
        to in 0..4096_usize,
        from in 0..4096_usize,
    ) {
        let mut arena = Arena::new(20_000);
        for kernels in all_kernels() {
            arena.check(&kernels, bytes, to, from);
        }
    }
}

#[test]
fn sums_by_stride() {
    let mut bytes = pattern(3 * 4096 + 65);
    for length in [0, 1, 63, 64, 65, 128, 4095, 4096, 4097, 2 * 4096, 3 * 4096 + 65] {
        for stride in [1, 2, 64, 4096, usize::MAX] {
            let range = &mut bytes[..length];
            // SAFETY: the range is a slice that is borrowed for writing.
            let sum = unsafe { super::sum(range.as_mut_ptr().cast_const(), length, stride) };
            assert_eq!(sum, naive_sum(range, stride), "{length} bytes by {stride}");
        }
    }
}

#[test]
fn sums_of_the_largest_bytes_do_not_overflow_their_lanes() {
    let mut bytes = vec![0xFF; 100_003];
    for kernels in all_kernels() {
        assert_eq!((kernels.sum)(&mut bytes), 100_003 * 0xFF, "{}", kernels.name);
    }
}

/// What is released right after a streaming fill is whole for whoever acquires it.
#[test]
fn streamed_bytes_are_there_when_the_flag_is() {
    let rounds = match (cfg!(miri), cfg!(feature = "long-tests")) {
        (true, _) => 20,
        (_, true) => 1_000_000,
        (_, false) => 10_000,
    };
    let memory: Vec<AtomicU8> = (0..1024).map(|_| AtomicU8::new(0)).collect();
    let (written, read) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start_and_bytes = |round: usize| (round * 7 % 64, round * 31 % 900);
    let start_of = |round| memory.as_ptr().cast::<u8>().wrapping_add(start_and_bytes(round).0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                wait_for(&read, round - 1);
                let (dst, bytes) = (start_of(round).cast_mut(), start_and_bytes(round).1);
                let store = Store::streaming_or_ordinary();
                // SAFETY: the range lies within `memory`, which is atomics.
                unsafe { super::fill(dst, bytes, round as u8, store) };
                written.store(round, Ordering::Release);
            }
        });
        // A reader that panicked at once would leave the writer waiting: count first.
        let mut torn_rounds = 0;
        for round in 1..=rounds {
            wait_for(&written, round);
            let bytes = start_and_bytes(round).1;
            // SAFETY: the range lies within `memory`, which is atomics.
            let sum = unsafe { super::sum(start_of(round), bytes, 1) };
            torn_rounds += usize::from(sum != bytes as u64 * (round as u64 & 0xFF));
            read.store(round, Ordering::Release);
        }
        assert_eq!(torn_rounds, 0, "of {rounds}");
    });
}

fn wait_for(counter: &AtomicUsize, value: usize) {
    for spin in 1..SPINS_MAX {
        if counter.load(Ordering::Acquire) == value {
            return;
        }
        std::hint::spin_loop();
        if spin.is_multiple_of(1000) {
            thread::yield_now();
        }
    }
    panic!("the other thread never came to {value}");
}

#[test]
fn streaming_is_detected_where_it_is_baseline() {
    let expected = cfg!(all(target_arch = "x86_64", not(miri)));
    assert_eq!(Streaming::detect().is_some(), expected);
}

const PAGE_BYTES: usize = 4096;
const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xA5;
const SPINS_MAX: u64 = 1_000_000_000;
const LENGTH_MAX: usize = 300;
const STEP: usize = if cfg!(miri) { 13 } else { 1 };
