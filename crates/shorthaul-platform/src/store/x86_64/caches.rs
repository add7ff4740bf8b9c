//! How large the caches are, by the CPU's own word: the wide loops win only within them.

use std::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of the caches that one core uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Caches {
    /// The core's own.
    pub(in crate::store) second: usize,
    /// The one it shares with others, if there is one.
    pub(in crate::store) third: usize,
}

impl Caches {
    /// Those of this CPU. It is asked once: in a virtual machine its answers take long.
    #[inline]
    pub(in crate::store) fn get() -> Self {
        static SECOND: AtomicUsize = AtomicUsize::new(0);
        static THIRD: AtomicUsize = AtomicUsize::new(0);
        // The third is stored first, so whoever finds the second has both.
        let second = SECOND.load(Ordering::Acquire);
        if second > 0 {
            return Self { second, third: THIRD.load(Ordering::Relaxed) };
        }
        let found = Self::ask();
        THIRD.store(found.third, Ordering::Relaxed);
        SECOND.store(found.second, Ordering::Release);
        found
    }

    #[cold]
    fn ask() -> Self {
        let leaves_max = __cpuid(0).eax;
        let extended_max = __cpuid(EXTENDED).eax;
        let describes = |leaf, max| leaf <= max && kind(__cpuid_count(leaf, 0)) != 0;
        let leaf = [(INTELS, leaves_max), (AMDS, extended_max)]
            .into_iter()
            .find(|&(leaf, max)| describes(leaf, max));
        let answers = leaf
            .into_iter()
            .flat_map(|(leaf, _)| (0..CACHES_MAX).map(move |index| __cpuid_count(leaf, index)));
        Self::parse(answers)
    }

    /// What an enumeration of caches says; what it leaves out is taken to be small.
    pub(in crate::store) fn parse(answers: impl Iterator<Item = CpuidResult>) -> Self {
        let (mut second, mut third) = (0, 0);
        for answer in answers.take_while(|&answer| kind(answer) != 0) {
            match (answer.eax >> 5) & 7 {
                2 => second = bytes(answer),
                3 => third = bytes(answer),
                _ => {}
            }
        }
        let second = if second == 0 { SECOND_BYTES_DEFAULT } else { second };
        Self { second, third: third.max(second) }
    }
}

/// 0 stands for no more caches.
fn kind(answer: CpuidResult) -> u32 {
    answer.eax & 31
}

fn bytes(answer: CpuidResult) -> usize {
    let lines = (answer.ebx & 0xFFF) as usize + 1;
    let partitions = ((answer.ebx >> 12) & 0x3FF) as usize + 1;
    let ways = ((answer.ebx >> 22) & 0x3FF) as usize + 1;
    let sets = answer.ecx as usize + 1;
    [lines, partitions, ways, sets].into_iter().fold(1, usize::saturating_mul)
}

/// Deterministic cache parameters: where Intel's CPUs have them, and where AMD's.
const INTELS: u32 = 4;
const AMDS: u32 = 0x8000_001D;
const EXTENDED: u32 = 0x8000_0000;
/// No CPU has so many.
const CACHES_MAX: u32 = 16;
const SECOND_BYTES_DEFAULT: usize = 256 << 10;
