//! What the machine allows: measured beside every round, so that shares compare like with like.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shorthaul_platform::memory::{Memfd, PrivateMemory, SharedMapping};
use shorthaul_platform::store::Store;
use shorthaul_platform::topology::pin_current_thread;

use super::work::{Consume, Source, warm_fill, warm_source};

/// The **speed limit** in MB/s: one thread on `cpu` that stores into a warm buffer of `bytes` bytes
/// (or copies into it, from a warm source), by the better kind of store.
pub(crate) fn speed(cpu: u32, bytes: usize, source: Source, time: Duration) -> Result<f64> {
    // Before the memory is touched: its pages come from the node where that is done.
    pin_current_thread(cpu).with_context(|| format!("can't pin to CPU {cpu}"))?;
    let ([memory, _], warm) = buffers(bytes, source)?;
    let mut best: f64 = 0.0;
    for store in [Store::Ordinary, Store::streaming_or_ordinary()] {
        let mut sequence = 0;
        let seconds_each = repeat(time / 2, || {
            sequence += 1;
            match &warm {
                None => memory.fill(0..bytes, sequence as u8, store),
                Some(warm) => warm_fill(&memory, warm, sequence, store),
            }
            Ok(())
        })?;
        best = best.max(megabytes_per_second(bytes, seconds_each));
    }
    Ok(best)
}

/// The **hand-over limit** in MB/s: two pinned threads pass one warm shared buffer, filled by the
/// one on `producer` and read as `consume` says by the one on `consumer`, by the better kind of
/// store. No RPC: a flag each way, spun on, or slept on by futex where both share a CPU.
pub(crate) fn hand_over(
    consumer: u32,
    producer: u32,
    bytes: usize,
    source: Source,
    consume: Consume,
    time: Duration,
) -> Result<f64> {
    // Where a client's buffer has its pages.
    pin_current_thread(consumer).with_context(|| format!("can't pin to CPU {consumer}"))?;
    let ([consumers, producers], warm) = buffers(bytes, source)?;
    let flags = Memfd::create_backed("shorthaul-bench-flags", FLAGS_BYTES)?.map()?;
    let mut best: f64 = 0.0;
    for store in [Store::Ordinary, Store::streaming_or_ordinary()] {
        for word in [ASKED, MADE] {
            flags.word(word).store(0);
        }
        let stop = &AtomicBool::new(false);
        let flags = &Flags { flags: &flags, sleeps: consumer == producer, stop };
        let (producers, warm) = (&producers, warm.as_deref());
        let seconds_each = thread::scope(|scope| {
            let producing = scope.spawn(move || {
                pin_current_thread(producer)?;
                flags.produce(producers, warm, store)
            });
            let consumed = flags.consume(&consumers, source, consume, time / 2);
            flags.stop.store(true, Ordering::Relaxed);
            flags.wake_both();
            let produced = producing.join();
            ensure!(matches!(produced, Ok(Ok(()))), "the producer of the hand-over limit failed");
            consumed
        })?;
        best = best.max(megabytes_per_second(bytes, seconds_each));
    }
    Ok(best)
}

/// Two words that say whose turn it is, on cache lines of their own.
struct Flags<'a> {
    flags: &'a SharedMapping,
    /// Whether the threads share a CPU: then spinning would keep the other one from running.
    sleeps: bool,
    stop: &'a AtomicBool,
}

impl Flags<'_> {
    fn produce(
        &self,
        memory: &SharedMapping,
        warm: Option<&[u8]>,
        store: Store,
    ) -> std::io::Result<()> {
        let mut turn = 0;
        while self.wait(ASKED, turn, None) {
            turn = self.flags.word(ASKED).load();
            match warm {
                None => memory.fill(0..memory.len(), turn as u8, store),
                Some(warm) => warm_fill(memory, warm, u64::from(turn), store),
            }
            self.set(MADE, turn)?;
        }
        Ok(())
    }

    /// Seconds per hand-over.
    fn consume(
        &self,
        memory: &SharedMapping,
        source: Source,
        consume: Consume,
        time: Duration,
    ) -> Result<f64> {
        let mut turn = 0_u32;
        let by = Instant::now() + time * 2 + PATIENCE;
        repeat(time, || {
            turn = turn.wrapping_add(1);
            self.set(ASKED, turn)?;
            ensure!(self.wait(MADE, turn.wrapping_sub(1), Some(by)), "no hand-over in time");
            if let Some(stride) = consume.stride() {
                let sum = memory.sum(0..memory.len(), stride);
                let count = memory.len().div_ceil(stride) as u64;
                let is_right = source == Source::Warm || sum == count * u64::from(turn as u8);
                ensure!(is_right, "the hand-over brought other bytes");
            }
            Ok(())
        })
    }

    fn set(&self, word: usize, value: u32) -> std::io::Result<()> {
        self.flags.word(word).store(value);
        if self.sleeps { self.flags.word(word).wake_one() } else { Ok(()) }
    }

    /// Waits until the word is not `old` any more; false when it is over.
    fn wait(&self, word: usize, old: u32, by: Option<Instant>) -> bool {
        let word = self.flags.word(word);
        let mut looks = 0_u32;
        while word.load() == old {
            looks = looks.wrapping_add(1);
            let is_time_to_look = self.sleeps || looks.is_multiple_of(LOOKS_PER_CLOCK);
            if self.stop.load(Ordering::Relaxed)
                || (is_time_to_look && by.is_some_and(|by| Instant::now() >= by))
            {
                return false;
            }
            if self.sleeps {
                // Errors show as a wait that ends at once, and in the end as no hand-over in time.
                word.wait(old, NAP).ok();
            } else {
                std::hint::spin_loop();
            }
        }
        true
    }

    fn wake_both(&self) {
        for word in [ASKED, MADE] {
            self.flags.word(word).wake_one().ok();
        }
    }
}

/// A warm buffer, mapped twice: as between processes, each side has its own page tables to walk.
fn buffers(bytes: usize, source: Source) -> Result<([SharedMapping; 2], Option<PrivateMemory>)> {
    let file = Memfd::create_backed("shorthaul-bench-limit", bytes)?;
    let memory = [file.map()?, file.map()?];
    memory.iter().for_each(SharedMapping::populate);
    let warm = match source {
        Source::Fill => None,
        Source::Warm => Some(warm_source(bytes)?),
    };
    Ok((memory, warm))
}

/// Does something again and again for `time`, after one that is not counted; seconds for each.
pub(crate) fn repeat(time: Duration, mut act: impl FnMut() -> Result<()>) -> Result<f64> {
    act()?;
    let start = Instant::now();
    let mut count = 0_u64;
    loop {
        act()?;
        count += 1;
        let elapsed = start.elapsed();
        if elapsed >= time && count >= COUNT_MIN {
            return Ok(elapsed.as_secs_f64() / count as f64);
        }
    }
}

/// MB are 10^6 bytes, as in the original.
pub(crate) fn megabytes_per_second(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e6
}

const ASKED: usize = 0;
/// Beyond the cache line that the CPU may fetch along.
const MADE: usize = 256;
const FLAGS_BYTES: usize = 4096;
const COUNT_MIN: u64 = 2;
const LOOKS_PER_CLOCK: u32 = 4096;
const NAP: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(20);
