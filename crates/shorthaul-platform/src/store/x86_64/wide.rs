//! The loops in assembly over 32 bytes at a time, for CPUs that have AVX2.
//!
//! Each block reads and writes memory only within the ranges that it is given, each byte once, and
//! does nothing for a length of 0.

use std::arch::asm;
use std::arch::x86_64::{_mm256_set1_epi8, _mm256_zeroupper};

/// Fills whole wide blocks, at any alignment.
///
/// # Safety
///
/// - Those of [`crate::store::fill`].
/// - `bytes` is a multiple of [`WIDE_BLOCK_BYTES`].
/// - The CPU has AVX2.
#[target_feature(enable = "avx2")]
pub(in crate::store) unsafe fn fill_wide_blocks(dst: *mut u8, bytes: usize, value: u8) {
    let value = _mm256_set1_epi8(value.cast_signed());
    // SAFETY: the loop ends after `bytes` bytes, since they are whole blocks, and writes nothing
    // but the range for which the caller vouches, as for the instructions.
    unsafe {
        asm!(
            "test {bytes}, {bytes}",
            "jz 3f",
            "2:",
            "vmovdqu [{dst}], {value}",
            "vmovdqu [{dst} + 32], {value}",
            "vmovdqu [{dst} + 64], {value}",
            "vmovdqu [{dst} + 96], {value}",
            "sub {dst}, -128",
            "add {bytes}, -128",
            "jnz 2b",
            "3:",
            dst = inout(reg) dst => _, bytes = inout(reg) bytes => _,
            value = in(ymm_reg) value,
            options(nostack),
        );
    }
    // Dirty upper halves would slow down every SSE instruction that follows on some CPUs.
    _mm256_zeroupper();
}

/// Copies whole wide blocks, at any alignment.
///
/// # Safety
///
/// - Those of [`crate::store::copy_in`] or those of [`crate::store::copy_out`].
/// - `bytes` is a multiple of [`WIDE_BLOCK_BYTES`].
/// - The CPU has AVX2.
#[target_feature(enable = "avx2")]
pub(in crate::store) unsafe fn copy_wide_blocks(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the loop ends after `bytes` bytes, since they are whole blocks, and touches nothing
    // but the ranges for which the caller vouches, as for the instructions.
    unsafe {
        asm!(
            "test {bytes}, {bytes}",
            "jz 3f",
            "2:",
            "vmovdqu {a}, [{src}]",
            "vmovdqu {b}, [{src} + 32]",
            "vmovdqu {c}, [{src} + 64]",
            "vmovdqu {d}, [{src} + 96]",
            "vmovdqu [{dst}], {a}",
            "vmovdqu [{dst} + 32], {b}",
            "vmovdqu [{dst} + 64], {c}",
            "vmovdqu [{dst} + 96], {d}",
            "sub {src}, -128",
            "sub {dst}, -128",
            "add {bytes}, -128",
            "jnz 2b",
            "3:",
            dst = inout(reg) dst => _, src = inout(reg) src => _, bytes = inout(reg) bytes => _,
            a = out(ymm_reg) _, b = out(ymm_reg) _, c = out(ymm_reg) _, d = out(ymm_reg) _,
            options(nostack),
        );
    }
    // A compiler that knows of no wide value here does not do it by itself, and dirty upper halves
    // would slow down every SSE instruction that follows on some CPUs.
    _mm256_zeroupper();
}

/// What the loops with AVX2 move per turn.
pub(in crate::store) const WIDE_BLOCK_BYTES: usize = 128;
