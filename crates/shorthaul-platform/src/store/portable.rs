//! The kernels in relaxed atomics: the twin for every CPU, and the edges of the fast kernels.
//!
//! The shared side is cut into single bytes up to the first aligned word, aligned words, and
//! single bytes again; the private side follows, unaligned. A word is a `usize`: every target that
//! has threads has an atomic of that width, and its relaxed load never writes, so that a read-only
//! mapping will do. The pieces are independent and are not visited in the order of addresses.
//!
//! Two threads that race on one range, cut differently, make atomic accesses of different sizes
//! overlap: a peer against this process, or two threads of this process that a hostile client sets
//! on one part of its region by two calls at a time. CPUs define that (bytes tear); the language
//! leaves it open. Nothing that is read that way is relied on, and nothing can be torn but payload.
//!
//! # References
//!
//! - `std::sync::atomic`, "Atomic accesses to read-only memory"

use std::iter::Chain;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

#[cfg(any(not(target_arch = "x86_64"), miri))]
use super::Streaming;

/// No instruction is chosen here.
#[cfg(any(not(target_arch = "x86_64"), miri))]
pub(super) fn has_fast_strings() -> bool {
    false
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
pub(super) fn has_wide_loads() -> bool {
    false
}

/// # Safety
///
/// Those of [`super::fill`].
pub(super) unsafe fn fill(dst: *mut u8, bytes: usize, value: u8) {
    let words = aligned_part(dst, bytes, WORD_BYTES);
    for index in edges(&words, bytes) {
        // SAFETY: `index` is below `bytes`, for which the caller vouches.
        unsafe { store_byte(dst.wrapping_add(index), value) };
    }
    let word = usize::from_ne_bytes([value; WORD_BYTES]);
    for index in words.step_by(WORD_BYTES) {
        // SAFETY: the word at `index` is aligned and ends within the caller's range.
        unsafe { store_word(dst.wrapping_add(index), word) };
    }
}

/// # Safety
///
/// Those of [`super::copy_in`].
pub(super) unsafe fn copy_in(dst: *mut u8, src: *const u8, bytes: usize) {
    let words = aligned_part(dst, bytes, WORD_BYTES);
    for index in edges(&words, bytes) {
        // SAFETY: `index` is below `bytes`, and nobody writes the private source.
        let byte = unsafe { src.wrapping_add(index).read() };
        // SAFETY: `index` is below `bytes`, for which the caller vouches.
        unsafe { store_byte(dst.wrapping_add(index), byte) };
    }
    for index in words.step_by(WORD_BYTES) {
        let word = src.wrapping_add(index).cast::<usize>();
        // SAFETY: the word ends within the caller's range, and nobody writes the private source.
        let word = unsafe { word.read_unaligned() };
        // SAFETY: the word at `index` is aligned in `dst` and ends within the caller's range.
        unsafe { store_word(dst.wrapping_add(index), word) };
    }
}

/// # Safety
///
/// Those of [`super::copy_out`].
pub(super) unsafe fn copy_out(dst: *mut u8, src: *const u8, bytes: usize) {
    let words = aligned_part(src, bytes, WORD_BYTES);
    for index in edges(&words, bytes) {
        // SAFETY: `index` is below `bytes`, for which the caller vouches.
        let byte = unsafe { load_byte(src.wrapping_add(index)) };
        // SAFETY: `index` is below `bytes`, and the private destination is the caller's alone.
        unsafe { dst.wrapping_add(index).write(byte) };
    }
    for index in words.step_by(WORD_BYTES) {
        // SAFETY: the word at `index` is aligned in `src` and ends within the caller's range.
        let word = unsafe { load_word(src.wrapping_add(index)) };
        let private = dst.wrapping_add(index).cast::<usize>();
        // SAFETY: the word ends within the private destination, which is the caller's alone.
        unsafe { private.write_unaligned(word) };
    }
}

/// # Safety
///
/// Those of [`super::sum`].
pub(super) unsafe fn sum(src: *const u8, bytes: usize) -> u64 {
    let words = aligned_part(src, bytes, WORD_BYTES);
    let mut total = 0;
    for index in edges(&words, bytes) {
        // SAFETY: `index` is below `bytes`, for which the caller vouches.
        total += u64::from(unsafe { load_byte(src.wrapping_add(index)) });
    }
    for start in words.clone().step_by(LANE_WORDS_MAX * WORD_BYTES) {
        let end = words.end.min(start + LANE_WORDS_MAX * WORD_BYTES);
        let mut lanes = 0;
        for index in (start..end).step_by(WORD_BYTES) {
            // SAFETY: the word at `index` is aligned and ends within the caller's range.
            let word = unsafe { load_word(src.wrapping_add(index)) };
            lanes += (word & EVEN_BYTES) + ((word >> 8) & EVEN_BYTES);
        }
        total += sum_of_lanes(lanes);
    }
    total
}

/// # Panics
///
/// When `stride` is 0.
///
/// # Safety
///
/// Those of [`super::sum`].
pub(super) unsafe fn sum_strided(src: *const u8, bytes: usize, stride: usize) -> u64 {
    let mut total = 0;
    for index in (0..bytes).step_by(stride) {
        // SAFETY: `index` is below `bytes`, for which the caller vouches.
        total += u64::from(unsafe { load_byte(src.wrapping_add(index)) });
    }
    total
}

/// Never called, since no [`Streaming`] exists here; ordinary stores would do the same job.
///
/// # Safety
///
/// Those of [`super::fill`].
#[cfg(any(not(target_arch = "x86_64"), miri))]
pub(super) unsafe fn fill_streaming(dst: *mut u8, bytes: usize, value: u8, _: Streaming) {
    // SAFETY: the duties are the same.
    unsafe { fill(dst, bytes, value) }
}

/// Never called, since no [`Streaming`] exists here; ordinary stores would do the same job.
///
/// # Safety
///
/// Those of [`super::copy_in`].
#[cfg(any(not(target_arch = "x86_64"), miri))]
pub(super) unsafe fn copy_in_streaming(dst: *mut u8, src: *const u8, bytes: usize, _: Streaming) {
    // SAFETY: the duties are the same.
    unsafe { copy_in(dst, src, bytes) }
}

/// The indices of the whole `unit`s, each at an address that is a multiple of `unit`, among
/// `bytes` bytes at `start`. `unit` is a power of two.
pub(super) fn aligned_part(start: *const u8, bytes: usize, unit: usize) -> Range<usize> {
    let head_bytes = bytes.min(start.addr().wrapping_neg() % unit);
    let body_bytes = (bytes - head_bytes) / unit * unit;
    head_bytes..head_bytes + body_bytes
}

/// The indices below `bytes` on either side of `middle`.
fn edges(middle: &Range<usize>, bytes: usize) -> Chain<Range<usize>, Range<usize>> {
    (0..middle.start).chain(middle.end..bytes)
}

fn sum_of_lanes(lanes: usize) -> u64 {
    (0..usize::BITS).step_by(16).map(|shift| (lanes >> shift) as u64 & 0xFFFF).sum()
}

/// # Safety
///
/// - `dst` is valid for writes of one byte.
/// - Whatever in this process touches it meanwhile does so atomically.
unsafe fn store_byte(dst: *mut u8, value: u8) {
    // SAFETY: the caller vouches for the byte, and a byte is always aligned.
    let cell = unsafe { AtomicU8::from_ptr(dst) };
    cell.store(value, Ordering::Relaxed);
}

/// # Safety
///
/// - `dst` is valid for writes of one word and aligned to it.
/// - Whatever in this process touches it meanwhile does so atomically.
unsafe fn store_word(dst: *mut u8, value: usize) {
    // SAFETY: the caller vouches for the word and for its alignment.
    let cell = unsafe { AtomicUsize::from_ptr(dst.cast()) };
    cell.store(value, Ordering::Relaxed);
}

/// # Safety
///
/// - `src` is valid for reads of one byte.
/// - Whatever in this process writes it meanwhile does so atomically.
unsafe fn load_byte(src: *const u8) -> u8 {
    // SAFETY: the caller vouches for the byte; `AtomicU8` has the layout of `u8`, and only a
    // relaxed load goes through the reference, for which readable memory is enough.
    let cell = unsafe { &*src.cast::<AtomicU8>() };
    cell.load(Ordering::Relaxed)
}

/// # Safety
///
/// - `src` is valid for reads of one word and aligned to it.
/// - Whatever in this process writes it meanwhile does so atomically.
unsafe fn load_word(src: *const u8) -> usize {
    // SAFETY: the caller vouches for the word and its alignment; `AtomicUsize` has the layout of
    // `usize`, and only a relaxed load goes through the reference: readable memory is enough.
    let cell = unsafe { &*src.cast::<AtomicUsize>() };
    cell.load(Ordering::Relaxed)
}

const WORD_BYTES: usize = size_of::<usize>();

/// Every second byte of a word: the lower half of each 16-bit lane.
const EVEN_BYTES: usize = usize::MAX / 0xFFFF * 0xFF;

/// How many words fit 16-bit lanes: each adds two bytes to a lane.
const LANE_WORDS_MAX: usize = 0xFFFF / (2 * 0xFF);
