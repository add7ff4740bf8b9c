//! The loops in assembly that store.
//!
//! Each block touches memory only within the ranges that it is given, each byte once; it leaves
//! the stack and the direction flag alone, and does nothing for a length of 0. The compiler, which
//! cannot look inside, takes each for code that may do anything to memory, and so moves no access
//! of the program across it.
//!
//! Streaming stores are weakly ordered, in contrast to all other stores of this architecture and
//! to what the compiler assumes. Hence the fence stands in the same block as they do and runs
//! whatever the length: no way leads out of the block but past it.

use std::arch::asm;
use std::arch::x86_64::{__m128i, _mm_set1_epi8};

/// Fills `bytes` bytes with `rep stosb`.
///
/// # Safety
///
/// - Those of [`crate::store::fill`].
pub(in crate::store) unsafe fn fill_string(dst: *mut u8, bytes: usize, value: u8) {
    // SAFETY: writes exactly the range for which the caller vouches; Rust keeps the direction
    // flag clear, so that the instruction counts upwards.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") bytes => _, inout("rdi") dst => _, in("al") value,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies `bytes` bytes with `rep movsb`.
///
/// # Safety
///
/// - Those of [`crate::store::copy_in`] or those of [`crate::store::copy_out`].
pub(in crate::store) unsafe fn copy_string(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: reads and writes exactly the ranges for which the caller vouches; Rust keeps the
    // direction flag clear, so that the instruction counts upwards.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") bytes => _, inout("rdi") dst => _, inout("rsi") src => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Fills whole blocks, at any alignment.
///
/// # Safety
///
/// - Those of [`crate::store::fill`].
/// - `bytes` is a multiple of [`BLOCK_BYTES`].
pub(in crate::store) unsafe fn fill_blocks(dst: *mut u8, bytes: usize, value: u8) {
    let value = splat(value);
    // SAFETY: the loop ends after `bytes` bytes, since they are whole blocks, and writes nothing
    // but the range for which the caller vouches.
    unsafe {
        asm!(
            "test {bytes}, {bytes}",
            "jz 3f",
            "2:",
            "movdqu [{dst}], {value}",
            "movdqu [{dst} + 16], {value}",
            "movdqu [{dst} + 32], {value}",
            "movdqu [{dst} + 48], {value}",
            "add {dst}, 64",
            "sub {bytes}, 64",
            "jnz 2b",
            "3:",
            dst = inout(reg) dst => _, bytes = inout(reg) bytes => _,
            value = in(xmm_reg) value,
            options(nostack),
        );
    }
}

/// Copies whole blocks, at any alignment.
///
/// # Safety
///
/// - Those of [`crate::store::copy_in`] or those of [`crate::store::copy_out`].
/// - `bytes` is a multiple of [`BLOCK_BYTES`].
pub(in crate::store) unsafe fn copy_blocks(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the loop ends after `bytes` bytes, since they are whole blocks, and touches nothing
    // but the ranges for which the caller vouches.
    unsafe {
        asm!(
            "test {bytes}, {bytes}",
            "jz 3f",
            "2:",
            "movdqu {a}, [{src}]",
            "movdqu {b}, [{src} + 16]",
            "movdqu {c}, [{src} + 32]",
            "movdqu {d}, [{src} + 48]",
            "movdqu [{dst}], {a}",
            "movdqu [{dst} + 16], {b}",
            "movdqu [{dst} + 32], {c}",
            "movdqu [{dst} + 48], {d}",
            "add {src}, 64",
            "add {dst}, 64",
            "sub {bytes}, 64",
            "jnz 2b",
            "3:",
            dst = inout(reg) dst => _, src = inout(reg) src => _, bytes = inout(reg) bytes => _,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Fills whole cache lines with streaming stores and fences them.
///
/// # Safety
///
/// - Those of [`crate::store::fill`].
/// - `bytes` is a multiple of [`BLOCK_BYTES`], and so is the address `dst` unless `bytes` is 0.
pub(in crate::store) unsafe fn stream_fill_and_fence(dst: *mut u8, bytes: usize, value: u8) {
    let value = splat(value);
    // SAFETY: the loop ends after `bytes` bytes, since they are whole blocks, and writes nothing
    // but the range for which the caller vouches; `movntdq` finds the alignment that it demands.
    unsafe {
        asm!(
            "test {bytes}, {bytes}",
            "jz 3f",
            "2:",
            "movntdq [{dst}], {value}",
            "movntdq [{dst} + 16], {value}",
            "movntdq [{dst} + 32], {value}",
            "movntdq [{dst} + 48], {value}",
            "add {dst}, 64",
            "sub {bytes}, 64",
            "jnz 2b",
            "3:",
            "sfence",
            dst = inout(reg) dst => _, bytes = inout(reg) bytes => _,
            value = in(xmm_reg) value,
            options(nostack),
        );
    }
}

/// Copies whole cache lines with streaming stores and fences them.
///
/// # Safety
///
/// - Those of [`crate::store::copy_in`].
/// - `bytes` is a multiple of [`BLOCK_BYTES`], and so is the address `dst` unless `bytes` is 0.
pub(in crate::store) unsafe fn stream_copy_and_fence(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the loop ends after `bytes` bytes, since they are whole blocks, and touches nothing
    // but the ranges for which the caller vouches; `movntdq` finds the alignment that it demands.
    unsafe {
        asm!(
            "test {bytes}, {bytes}",
            "jz 3f",
            "2:",
            "movdqu {a}, [{src}]",
            "movdqu {b}, [{src} + 16]",
            "movdqu {c}, [{src} + 32]",
            "movdqu {d}, [{src} + 48]",
            "movntdq [{dst}], {a}",
            "movntdq [{dst} + 16], {b}",
            "movntdq [{dst} + 32], {c}",
            "movntdq [{dst} + 48], {d}",
            "add {src}, 64",
            "add {dst}, 64",
            "sub {bytes}, 64",
            "jnz 2b",
            "3:",
            "sfence",
            dst = inout(reg) dst => _, src = inout(reg) src => _, bytes = inout(reg) bytes => _,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// `value` in each byte.
fn splat(value: u8) -> __m128i {
    // SAFETY: SSE2 is a part of x86-64.
    unsafe { _mm_set1_epi8(value.cast_signed()) }
}

/// What the loops move per turn: a cache line.
pub(in crate::store) const BLOCK_BYTES: usize = 64;
