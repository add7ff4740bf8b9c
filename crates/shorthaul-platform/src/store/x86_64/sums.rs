//! The loops in assembly that only read.
//!
//! Each block reads memory only within the range that it is given, each byte once, and returns 0
//! for a length of 0. `psadbw` against zero adds up eight bytes into a 64-bit lane; two lanes'
//! worth of accumulators keep the additions from waiting for one another.

use std::arch::asm;
use std::arch::x86_64::_mm256_zeroupper;

/// Adds up every byte of whole blocks, at any alignment.
///
/// # Safety
///
/// - Those of [`crate::store::sum`].
/// - `bytes` is a multiple of [`super::BLOCK_BYTES`].
pub(in crate::store) unsafe fn sum_blocks_sse2(src: *const u8, bytes: usize) -> u64 {
    let sum: u64;
    // SAFETY: the loop ends after `bytes` bytes, since they are whole blocks, and reads nothing
    // but the range for which the caller vouches.
    unsafe {
        asm!(
            "pxor {zero}, {zero}",
            "pxor {even}, {even}",
            "pxor {odd}, {odd}",
            "test {bytes}, {bytes}",
            "jz 3f",
            "2:",
            "movdqu {a}, [{src}]",
            "movdqu {b}, [{src} + 16]",
            "movdqu {c}, [{src} + 32]",
            "movdqu {d}, [{src} + 48]",
            "psadbw {a}, {zero}",
            "psadbw {b}, {zero}",
            "psadbw {c}, {zero}",
            "psadbw {d}, {zero}",
            "paddq {even}, {a}",
            "paddq {odd}, {b}",
            "paddq {even}, {c}",
            "paddq {odd}, {d}",
            "add {src}, 64",
            "sub {bytes}, 64",
            "jnz 2b",
            "3:",
            "paddq {even}, {odd}",
            "movdqa {odd}, {even}",
            "psrldq {odd}, 8",
            "paddq {even}, {odd}",
            "movq {sum}, {even}",
            src = inout(reg) src => _, bytes = inout(reg) bytes => _, sum = out(reg) sum,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            zero = out(xmm_reg) _, even = out(xmm_reg) _, odd = out(xmm_reg) _,
            options(nostack, readonly),
        );
    }
    sum
}

/// Adds up every byte of whole wide blocks, at any alignment.
///
/// # Safety
///
/// - Those of [`crate::store::sum`].
/// - `bytes` is a multiple of [`super::wide::WIDE_BLOCK_BYTES`].
/// - The CPU has AVX2.
#[target_feature(enable = "avx2")]
pub(in crate::store) unsafe fn sum_blocks_avx2(src: *const u8, bytes: usize) -> u64 {
    let sum: u64;
    // SAFETY: the loop ends after `bytes` bytes, since they are whole blocks, and reads nothing
    // but the range for which the caller vouches, as for the instructions.
    unsafe {
        asm!(
            "vpxor {zero:x}, {zero:x}, {zero:x}",
            "vpxor {even:x}, {even:x}, {even:x}",
            "vpxor {odd:x}, {odd:x}, {odd:x}",
            "test {bytes}, {bytes}",
            "jz 3f",
            "2:",
            "vpsadbw {a}, {zero}, [{src}]",
            "vpsadbw {b}, {zero}, [{src} + 32]",
            "vpsadbw {c}, {zero}, [{src} + 64]",
            "vpsadbw {d}, {zero}, [{src} + 96]",
            "vpaddq {even}, {even}, {a}",
            "vpaddq {odd}, {odd}, {b}",
            "vpaddq {even}, {even}, {c}",
            "vpaddq {odd}, {odd}, {d}",
            "sub {src}, -128",
            "add {bytes}, -128",
            "jnz 2b",
            "3:",
            "vpaddq {even}, {even}, {odd}",
            "vextracti128 {odd:x}, {even}, 1",
            "vpaddq {even:x}, {even:x}, {odd:x}",
            "vpsrldq {odd:x}, {even:x}, 8",
            "vpaddq {even:x}, {even:x}, {odd:x}",
            "vmovq {sum}, {even:x}",
            src = inout(reg) src => _, bytes = inout(reg) bytes => _, sum = out(reg) sum,
            a = out(ymm_reg) _, b = out(ymm_reg) _, c = out(ymm_reg) _, d = out(ymm_reg) _,
            zero = out(ymm_reg) _, even = out(ymm_reg) _, odd = out(ymm_reg) _,
            options(nostack, readonly),
        );
    }
    // A compiler that knows of no wide value here does not do it by itself, and dirty upper halves
    // would slow down every SSE instruction that follows on some CPUs.
    _mm256_zeroupper();
    sum
}
