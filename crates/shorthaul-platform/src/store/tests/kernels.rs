//! What is under test: every implementation behind one safe face, and the oracle for sums.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use crate::store::x86_64::{
    loops::{self, BLOCK_BYTES},
    sums,
    wide::{self, WIDE_BLOCK_BYTES},
};
use crate::store::{self, Store, portable};

/// The four jobs as one implementation does them, on memory that nobody shares. The shared side
/// is mutable even where it is only read, as shared memory is.
pub(super) struct Kernels {
    pub(super) name: &'static str,
    pub(super) fill: fn(&mut [u8], u8),
    pub(super) copy_in: fn(&mut [u8], &[u8]),
    pub(super) copy_out: fn(&mut [u8], &mut [u8]),
    pub(super) sum: fn(&mut [u8]) -> u64,
}

macro_rules! kernels {
    ($name:literal, $fill:expr, $copy_in:expr, $copy_out:expr, $sum:expr) => {
        Kernels {
            name: $name,
            fill: |dst, value| {
                let (start, bytes) = (dst.as_mut_ptr(), dst.len());
                // SAFETY: the range is a slice that is borrowed for writing.
                unsafe { $fill(start, bytes, value) }
            },
            copy_in: |dst, src| {
                assert_eq!(dst.len(), src.len());
                let (to, from, bytes) = (dst.as_mut_ptr(), src.as_ptr(), src.len());
                // SAFETY: the ranges are slices of equal length, the first borrowed for writing.
                unsafe { $copy_in(to, from, bytes) }
            },
            copy_out: |dst, src| {
                assert_eq!(dst.len(), src.len());
                let (to, from, bytes) = (dst.as_mut_ptr(), src.as_mut_ptr(), src.len());
                // SAFETY: the ranges are slices of equal length, both borrowed for writing.
                unsafe { $copy_out(to, from.cast_const(), bytes) }
            },
            sum: |src| {
                let (start, bytes) = (src.as_mut_ptr(), src.len());
                // SAFETY: the range is a slice that is borrowed for writing.
                unsafe { $sum(start.cast_const(), bytes) }
            },
        }
    };
}

pub(super) fn all_kernels() -> Vec<Kernels> {
    let mut all = vec![
        kernels!("portable", portable::fill, portable::copy_in, portable::copy_out, portable::sum),
        kernels!(
            "ordinary",
            |dst, bytes, value| store::fill(dst, bytes, value, Store::Ordinary),
            |dst, src, bytes| store::copy_in(dst, src, bytes, Store::Ordinary),
            store::copy_out,
            |src, bytes| store::sum(src, bytes, 1)
        ),
        kernels!(
            "streaming, or ordinary",
            |dst, bytes, value| store::fill(dst, bytes, value, Store::streaming_or_ordinary()),
            |dst, src, bytes| store::copy_in(dst, src, bytes, Store::streaming_or_ordinary()),
            store::copy_out,
            |src, bytes| store::sum(src, bytes, 1)
        ),
    ];
    add_loops(&mut all);
    all
}

/// The loops on their own, for the lengths and CPUs at which they would not be chosen.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn add_loops(all: &mut Vec<Kernels>) {
    all.push(kernels!(
        "string",
        loops::fill_string,
        loops::copy_string,
        loops::copy_string,
        portable::sum
    ));
    all.push(Kernels {
        name: "blocks",
        fill: |dst, value| {
            let (blocks, rest) = dst.split_at_mut(dst.len() / BLOCK_BYTES * BLOCK_BYTES);
            // SAFETY: the range is a slice of whole blocks that is borrowed for writing.
            unsafe { loops::fill_blocks(blocks.as_mut_ptr(), blocks.len(), value) };
            rest.fill(value);
        },
        copy_in: |dst, src| copy_by_blocks(dst, src),
        copy_out: |dst, src| copy_by_blocks(dst, src),
        sum: |src| {
            let (blocks, rest) = src.split_at_mut(src.len() / BLOCK_BYTES * BLOCK_BYTES);
            // SAFETY: the range is a slice of whole blocks that is borrowed for writing.
            let sum = unsafe { sums::sum_blocks_sse2(blocks.as_ptr(), blocks.len()) };
            sum + naive_sum(rest, 1)
        },
    });
    if is_x86_feature_detected!("avx2") {
        all.push(wide_blocks());
    } else {
        eprintln!("passed over: this CPU has no AVX2");
    }
}

/// Only for a CPU that has AVX2.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn wide_blocks() -> Kernels {
    Kernels {
        name: "wide blocks",
        fill: |dst, value| {
            let (blocks, rest) = dst.split_at_mut(dst.len() / WIDE_BLOCK_BYTES * WIDE_BLOCK_BYTES);
            // SAFETY: a slice of whole blocks that is borrowed for writing; the CPU has AVX2.
            unsafe { wide::fill_wide_blocks(blocks.as_mut_ptr(), blocks.len(), value) };
            rest.fill(value);
        },
        copy_in: |dst, src| copy_by_wide_blocks(dst, src),
        copy_out: |dst, src| copy_by_wide_blocks(dst, src),
        sum: |src| {
            let (blocks, rest) = src.split_at_mut(src.len() / WIDE_BLOCK_BYTES * WIDE_BLOCK_BYTES);
            // SAFETY: a slice of whole blocks that is borrowed for writing; the CPU has AVX2.
            let sum = unsafe { sums::sum_blocks_avx2(blocks.as_ptr(), blocks.len()) };
            sum + naive_sum(rest, 1)
        },
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn copy_by_wide_blocks(dst: &mut [u8], src: &[u8]) {
    let (blocks, rest) = dst.split_at_mut(src.len() / WIDE_BLOCK_BYTES * WIDE_BLOCK_BYTES);
    // SAFETY: slices of whole blocks, the first borrowed for writing; the CPU has AVX2.
    unsafe { wide::copy_wide_blocks(blocks.as_mut_ptr(), src.as_ptr(), blocks.len()) };
    rest.copy_from_slice(&src[blocks.len()..]);
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn add_loops(_: &mut Vec<Kernels>) {}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn copy_by_blocks(dst: &mut [u8], src: &[u8]) {
    let (blocks, rest) = dst.split_at_mut(src.len() / BLOCK_BYTES * BLOCK_BYTES);
    // SAFETY: the ranges are slices of whole blocks, the first borrowed for writing.
    unsafe { loops::copy_blocks(blocks.as_mut_ptr(), src.as_ptr(), blocks.len()) };
    rest.copy_from_slice(&src[blocks.len()..]);
}

pub(super) fn naive_sum(src: &[u8], stride: usize) -> u64 {
    src.iter().step_by(stride).map(|&byte| u64::from(byte)).sum()
}
