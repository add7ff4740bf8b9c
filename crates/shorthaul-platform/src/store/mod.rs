//! Kernels that move bytes to and from memory that another process may be writing.
//!
//! Such memory never meets a plain Rust read, write or `memcpy`: that would be a data race, which
//! is undefined behaviour, and the compiler could read a byte twice and act on two answers. Every
//! access here is one of two kinds:
//!
//! - inline assembly, which the compiler cannot look into. To it each block is a loop of relaxed
//!   atomic byte accesses, and the machine code does nothing that such a loop could not do;
//! - relaxed atomics: single bytes at the edges, naturally aligned words between them.
//!
//! A peer that writes during a call can tear what is read: any mixture of old and new bytes may
//! come out, in any order. It cannot make a call misbehave. Each byte of shared memory is loaded
//! exactly once per call, so whoever copies out first and checks the copy has nothing to fear.
//!
//! # What it does not do
//!
//! No kernel makes a system call, allocates, or synchronises: publishing is the caller's message
//! or release store, to which the streaming kernels' fence adds what the CPU needs. No kernel
//! protects against a mapping that shrinks: the caller keeps the memory there.
//!
//! # References
//!
//! - Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3, "Memory Ordering":
//!   "Fast-String Operation and Out-of-Order Stores"
//! - AMD64 Architecture Programmer's Manual, volume 1, "Memory Optimization"; volume 2, "Memory
//!   System"; volume 3, `REP`, `SFENCE`

mod portable;
#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;

#[cfg(any(not(target_arch = "x86_64"), miri))]
use portable as native;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use x86_64 as native;

/// How bytes are stored to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Through the caches: right when the reader comes soon and the bytes fit a cache.
    Ordinary,
    /// Past the caches: right when they would not fit, or evict what others need.
    Streaming(Streaming),
}

impl Store {
    /// Streaming stores where the CPU has them, ordinary ones elsewhere.
    #[must_use]
    pub fn streaming_or_ordinary() -> Self {
        Streaming::detect().map_or(Self::Ordinary, Self::Streaming)
    }
}

/// Owning one means that this CPU has streaming (non-temporal) stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming(());

impl Streaming {
    /// The permission to use streaming stores, where there are any: on x86-64, of which the
    /// instructions (SSE2) are a part.
    #[must_use]
    pub fn detect() -> Option<Self> {
        cfg!(all(target_arch = "x86_64", not(miri))).then_some(Self(()))
    }
}

/// Which instructions the kernels take on this CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instructions {
    /// String instructions for what fits no cache (without wide loads: for more than a few
    /// kilobytes); loops elsewhere.
    pub strings: bool,
    /// Loads of 32 bytes for sums, and such loads and stores for what fits a cache.
    pub wide_sums: bool,
    /// Stores past the caches, where they are asked for.
    pub streaming: bool,
}

impl Instructions {
    /// Those of this CPU.
    #[must_use]
    pub fn detect() -> Self {
        Self {
            strings: native::has_fast_strings(),
            wide_sums: native::has_wide_loads(),
            streaming: Streaming::detect().is_some(),
        }
    }
}

/// Stores `value` to each of `bytes` bytes of shared memory at `dst`.
///
/// # Safety
///
/// - `dst` is valid for writes of `bytes` bytes during the whole call.
/// - Whatever in this process touches these bytes meanwhile does so by this module or by atomics.
pub(crate) unsafe fn fill(dst: *mut u8, bytes: usize, value: u8, store: Store) {
    match store {
        // SAFETY: the caller vouches for `dst`, in the words that the kernel asks for.
        Store::Ordinary => unsafe { native::fill(dst, bytes, value) },
        // SAFETY: the caller vouches for `dst`, in the words that the kernel asks for.
        Store::Streaming(able) => unsafe { native::fill_streaming(dst, bytes, value, able) },
    }
}

/// Copies `bytes` bytes from private memory at `src` to shared memory at `dst`.
///
/// # Safety
///
/// - `dst` is valid for writes of `bytes` bytes during the whole call.
/// - `src` is valid for reads of `bytes` bytes, all initialised, and nobody writes them meanwhile.
/// - The two ranges do not overlap.
/// - Whatever in this process touches the bytes at `dst` meanwhile does so by this module or by
///   atomics.
pub(crate) unsafe fn copy_in(dst: *mut u8, src: *const u8, bytes: usize, store: Store) {
    match store {
        // SAFETY: the caller vouches for both ranges, in the words that the kernel asks for.
        Store::Ordinary => unsafe { native::copy_in(dst, src, bytes) },
        // SAFETY: the caller vouches for both ranges, in the words that the kernel asks for.
        Store::Streaming(able) => unsafe { native::copy_in_streaming(dst, src, bytes, able) },
    }
}

/// Copies `bytes` bytes from shared memory at `src` to private memory at `dst`, which may be
/// uninitialised before and is initialised afterwards.
///
/// # Safety
///
/// - `dst` is valid for writes of `bytes` bytes, and nobody else touches them meanwhile.
/// - `src` is valid for reads of `bytes` bytes during the whole call.
/// - The two ranges do not overlap.
/// - Whatever in this process writes the bytes at `src` meanwhile does so by this module or by
///   atomics.
pub(crate) unsafe fn copy_out(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller vouches for both ranges, in the words that the kernel asks for.
    unsafe { native::copy_out(dst, src, bytes) }
}

/// Adds up the first byte of every `stride` bytes of `bytes`, as
/// [`SharedMapping::sum`](crate::memory::SharedMapping::sum) does of memory that others write.
///
/// # Panics
///
/// When `stride` is 0.
#[must_use]
pub fn sum_slice(bytes: &[u8], stride: usize) -> u64 {
    // SAFETY: the pointer and length are those of a slice, which nobody writes while it lives.
    unsafe { sum(bytes.as_ptr(), bytes.len(), stride) }
}

/// Adds up one byte of every `stride` bytes of shared memory at `src`: bytes 0, `stride`,
/// 2 × `stride` and so on, below `bytes`. A stride of 1 adds up every byte.
///
/// # Panics
///
/// When `stride` is 0.
///
/// # Safety
///
/// - `src` is valid for reads of `bytes` bytes during the whole call.
/// - Whatever in this process writes these bytes meanwhile does so by this module or by atomics.
pub(crate) unsafe fn sum(src: *const u8, bytes: usize, stride: usize) -> u64 {
    if stride == 1 {
        // SAFETY: the caller vouches for `src`, in the words that the kernel asks for.
        unsafe { native::sum(src, bytes) }
    } else {
        // SAFETY: the caller vouches for `src`, in the words that the kernel asks for.
        unsafe { portable::sum_strided(src, bytes, stride) }
    }
}
