//! The kernels for x86-64, in inline assembly.
//!
//! This file chooses between the loops of [`wide`], [`loops`] and [`sums`], and sends edges
//! shorter than a block through the portable twin.
//!
//! There are four ways to move bytes, chosen by measurement on Zen 3 (docs/BENCHMARKS.md):
//!
//! - loops of 32-byte loads and stores, where the CPU has AVX2 and as long as the bytes fit a
//!   cache: in the core's own for a fill, in a quarter of the shared one for a copy;
//! - `rep stosb` and `rep movsb` above: they win once the data is in no cache, because the CPU,
//!   which knows the length, need not read the lines that it is about to overwrite;
//! - without AVX2 loops over 64-byte blocks up to a few kilobytes, for the string instructions
//!   take longer to start than such a loop takes to finish;
//! - a loop at any length where `rep movsb` would alias: see [`aliases`].

pub(super) mod caches;
pub(super) mod loops;
pub(super) mod sums;
pub(super) mod wide;

use std::arch::is_x86_feature_detected;

use super::{Streaming, portable};
use caches::Caches;
use loops::BLOCK_BYTES;
use wide::WIDE_BLOCK_BYTES;

/// Whether `rep` moves long ranges fast.
#[inline]
pub(super) fn has_fast_strings() -> bool {
    is_x86_feature_detected!("ermsb")
}

/// Whether there is AVX2.
#[inline]
pub(super) fn has_wide_loads() -> bool {
    is_x86_feature_detected!("avx2")
}

/// # Safety
///
/// Those of [`super::fill`].
pub(super) unsafe fn fill(dst: *mut u8, bytes: usize, value: u8) {
    // SAFETY: the caller vouches for `dst`.
    let done_bytes = unsafe { fill_bulk(dst, bytes, value) };
    let rest = dst.wrapping_add(done_bytes);
    // SAFETY: the rest of a range for which the caller vouches.
    unsafe { portable::fill(rest, bytes - done_bytes, value) };
}

/// # Safety
///
/// Those of [`super::copy_in`].
pub(super) unsafe fn copy_in(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller vouches for both ranges.
    let done_bytes = unsafe { copy_bulk(dst, src, bytes) };
    let (dst, src) = (dst.wrapping_add(done_bytes), src.wrapping_add(done_bytes));
    // SAFETY: the rest of two ranges for which the caller vouches.
    unsafe { portable::copy_in(dst, src, bytes - done_bytes) };
}

/// # Safety
///
/// Those of [`super::copy_out`].
pub(super) unsafe fn copy_out(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller vouches for both ranges.
    let done_bytes = unsafe { copy_bulk(dst, src, bytes) };
    let (dst, src) = (dst.wrapping_add(done_bytes), src.wrapping_add(done_bytes));
    // SAFETY: the rest of two ranges for which the caller vouches.
    unsafe { portable::copy_out(dst, src, bytes - done_bytes) };
}

/// # Safety
///
/// Those of [`super::sum`].
pub(super) unsafe fn sum(src: *const u8, bytes: usize) -> u64 {
    let (bulk_bytes, bulk_sum) = if has_wide_loads() {
        let bulk_bytes = bytes / WIDE_BLOCK_BYTES * WIDE_BLOCK_BYTES;
        // SAFETY: the CPU has AVX2; whole blocks of a range for which the caller vouches.
        (bulk_bytes, unsafe { sums::sum_blocks_avx2(src, bulk_bytes) })
    } else {
        let bulk_bytes = bytes / BLOCK_BYTES * BLOCK_BYTES;
        // SAFETY: whole blocks of a range for which the caller vouches.
        (bulk_bytes, unsafe { sums::sum_blocks_sse2(src, bulk_bytes) })
    };
    let rest = src.wrapping_add(bulk_bytes);
    // SAFETY: the rest of a range for which the caller vouches.
    bulk_sum + unsafe { portable::sum(rest, bytes - bulk_bytes) }
}

/// Streams the whole cache lines and stores the edges ordinarily; what was stored is visible to
/// whoever sees the caller's next store, message or system call.
///
/// # Safety
///
/// Those of [`super::fill`].
pub(super) unsafe fn fill_streaming(dst: *mut u8, bytes: usize, value: u8, _: Streaming) {
    let lines = portable::aligned_part(dst, bytes, BLOCK_BYTES);
    let tail = dst.wrapping_add(lines.end);
    // SAFETY: the head of a range for which the caller vouches.
    unsafe { portable::fill(dst, lines.start, value) };
    // SAFETY: its tail.
    unsafe { portable::fill(tail, bytes - lines.end, value) };
    // SAFETY: what is between, which is whole and aligned blocks.
    unsafe { loops::stream_fill_and_fence(dst.wrapping_add(lines.start), lines.len(), value) };
}

/// Streams the whole cache lines and stores the edges ordinarily; what was stored is visible to
/// whoever sees the caller's next store, message or system call.
///
/// # Safety
///
/// Those of [`super::copy_in`].
pub(super) unsafe fn copy_in_streaming(dst: *mut u8, src: *const u8, bytes: usize, _: Streaming) {
    let lines = portable::aligned_part(dst, bytes, BLOCK_BYTES);
    let (dst_tail, src_tail) = (dst.wrapping_add(lines.end), src.wrapping_add(lines.end));
    let (dst_body, src_body) = (dst.wrapping_add(lines.start), src.wrapping_add(lines.start));
    // SAFETY: the heads of two ranges for which the caller vouches.
    unsafe { portable::copy_in(dst, src, lines.start) };
    // SAFETY: their tails.
    unsafe { portable::copy_in(dst_tail, src_tail, bytes - lines.end) };
    // SAFETY: what is between, which is whole blocks, aligned in `dst`.
    unsafe { loops::stream_copy_and_fence(dst_body, src_body, lines.len()) };
}

/// Fills from the start and returns how many bytes it filled: all but less than a block.
///
/// # Safety
///
/// Those of [`super::fill`].
unsafe fn fill_bulk(dst: *mut u8, bytes: usize, value: u8) -> usize {
    let is_wide = has_wide_loads();
    if is_long(bytes, is_wide, |caches| caches.second) {
        // SAFETY: the caller vouches for `dst`.
        unsafe { loops::fill_string(dst, bytes, value) };
        return bytes;
    }
    let wide_bytes = if is_wide { bytes / WIDE_BLOCK_BYTES * WIDE_BLOCK_BYTES } else { 0 };
    if is_wide {
        // SAFETY: the CPU has AVX2; whole blocks of a range for which the caller vouches.
        unsafe { wide::fill_wide_blocks(dst, wide_bytes, value) };
    }
    let bulk_bytes = bytes / BLOCK_BYTES * BLOCK_BYTES;
    let rest = dst.wrapping_add(wide_bytes);
    // SAFETY: whole blocks of a range for which the caller vouches.
    unsafe { loops::fill_blocks(rest, bulk_bytes - wide_bytes, value) };
    bulk_bytes
}

/// Copies from the start and returns how many bytes it copied: all but less than a block.
///
/// # Safety
///
/// Those of [`super::copy_in`] or those of [`super::copy_out`].
unsafe fn copy_bulk(dst: *mut u8, src: *const u8, bytes: usize) -> usize {
    let is_wide = has_wide_loads();
    if is_long(bytes, is_wide, |caches| caches.third / 4) && !aliases(dst, src) {
        // SAFETY: the caller vouches for both ranges.
        unsafe { loops::copy_string(dst, src, bytes) };
        return bytes;
    }
    let wide_bytes = if is_wide { bytes / WIDE_BLOCK_BYTES * WIDE_BLOCK_BYTES } else { 0 };
    if is_wide {
        // SAFETY: the CPU has AVX2; whole blocks of two ranges for which the caller vouches.
        unsafe { wide::copy_wide_blocks(dst, src, wide_bytes) };
    }
    let bulk_bytes = bytes / BLOCK_BYTES * BLOCK_BYTES;
    let (dst, src) = (dst.wrapping_add(wide_bytes), src.wrapping_add(wide_bytes));
    // SAFETY: whole blocks of two ranges for which the caller vouches.
    unsafe { loops::copy_blocks(dst, src, bulk_bytes - wide_bytes) };
    bulk_bytes
}

/// Whether the string instructions are faster than the loops.
fn is_long(bytes: usize, is_wide: bool, wide_bytes_max: fn(Caches) -> usize) -> bool {
    bytes >= STRING_BYTES_MIN
        && has_fast_strings()
        && (!is_wide || bytes > wide_bytes_max(Caches::get()))
}

/// Whether `rep movsb` would crawl: on Zen 3 it does, by an order of magnitude, when the
/// destination is less than half a cache line ahead of the source modulo 4 KiB, wherever the two
/// are in their pages. The whole line is left to the block loop, which loses nothing by it.
fn aliases(dst: *const u8, src: *const u8) -> bool {
    let ahead_bytes = dst.addr().wrapping_sub(src.addr()) % 4096;
    (1..64).contains(&ahead_bytes)
}

/// From here on the string instructions earn back what they cost to start, beside loops of 16-byte
/// loads and stores.
const STRING_BYTES_MIN: usize = 2048;
