//! What the machine allows: measured beside every round, so that shares compare like with like.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shorthaul_platform::memory::{Memfd, PrivateMemory, SharedMapping};
use shorthaul_platform::store::Store;
use shorthaul_platform::topology::pin_current_thread;

use super::flags::{TakeTurn, take_turns};
use super::stats::median;
use super::work::{Consume, Pages, Source, warm_fill, warm_source};

/// The **speed limit** in MB/s: one thread on `cpu` that stores into a warm buffer of `bytes` bytes
/// (or copies into it, from a warm source), by the better kind of store.
pub(crate) fn speed(
    cpu: u32,
    bytes: usize,
    source: Source,
    pages: Pages,
    time: Duration,
) -> Result<f64> {
    // Before the memory is touched: its pages come from the node where that is done.
    pin_current_thread(cpu).with_context(|| format!("can't pin to CPU {cpu}"))?;
    let ([memory, _], warm) = buffers(bytes, source, pages)?;
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
    pages: Pages,
    time: Duration,
) -> Result<f64> {
    // Where a client's buffer has its pages.
    pin_current_thread(consumer).with_context(|| format!("can't pin to CPU {consumer}"))?;
    let ([consumers, producers], warm) = buffers(bytes, source, pages)?;
    let mut best: f64 = 0.0;
    for store in [Store::Ordinary, Store::streaming_or_ordinary()] {
        let produce = |turn: u32| match &warm {
            None => producers.fill(0..bytes, turn as u8, store),
            Some(warm) => warm_fill(&producers, warm, turn.into(), store),
        };
        let seconds_each = take_turns(consumer, producer, time, produce, |turn| {
            repeat(time / 2, || {
                let turn = turn()?;
                if let Some(stride) = consume.stride() {
                    let sum = consumers.sum(0..bytes, stride);
                    let count = bytes.div_ceil(stride) as u64;
                    let is_right = source == Source::Warm || sum == count * u64::from(turn as u8);
                    ensure!(is_right, "the hand-over brought other bytes");
                }
                Ok(())
            })
        })?;
        best = best.max(megabytes_per_second(bytes, seconds_each));
    }
    Ok(best)
}

/// The round trip between two CPUs by words that both spin on (a futex where both are one), in
/// seconds: the machine's own, of which every call's is made. Of some batches the middle one, so
/// that one interruption is not taken for a slower machine.
pub(crate) fn spin(here: u32, there: u32) -> Result<f64> {
    let batch = |turn: TakeTurn<'_>| {
        let start = Instant::now();
        (0..SPINS).try_for_each(|_| turn().map(drop))?;
        Ok(start.elapsed().as_secs_f64() / f64::from(SPINS))
    };
    take_turns(
        here,
        there,
        Duration::ZERO,
        |_| {},
        |turn| {
            // The first one wakes the CPUs up.
            batch(turn)?;
            let batches: Vec<f64> =
                (0..SPIN_BATCHES).map(|_| batch(turn)).collect::<Result<_>>()?;
            Ok(median(&batches))
        },
    )
}

/// A warm buffer, mapped twice: as between processes, each side has its own page tables to walk.
fn buffers(
    bytes: usize,
    source: Source,
    pages: Pages,
) -> Result<([SharedMapping; 2], Option<PrivateMemory>)> {
    let (file, first) = Memfd::create_mapped("shorthaul-bench-limit", bytes, pages.into())?;
    let memory = [first, file.map()?];
    memory.iter().for_each(SharedMapping::populate);
    let warm = match source {
        Source::Fill => None,
        Source::Warm => Some(warm_source(bytes, pages)?),
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

const COUNT_MIN: u64 = 2;
/// Round trips of one batch: about a quarter of a millisecond with a futex.
const SPINS: u32 = 64;
const SPIN_BATCHES: usize = 15;
