//! Two pinned threads that take turns by two words in shared memory: no RPC, and no kernel where
//! each has a CPU of its own.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use shorthaul_platform::memory::{Memfd, SharedMapping};
use shorthaul_platform::topology::pin_current_thread;

/// Lets the other thread have its turn, and waits for its end; gives the turn's number.
pub(crate) type TakeTurn<'a> = &'a mut dyn FnMut() -> Result<u32>;

/// Runs `turn` on the CPU `there` each time that `run`, which runs here, on the CPU `here`, asks
/// for it. Both spin while they wait; they sleep on a futex where both share a CPU, for there a
/// spinner would keep the other one from running.
pub(crate) fn take_turns<T>(
    here: u32,
    there: u32,
    time: Duration,
    mut turn: impl FnMut(u32) + Send,
    run: impl FnOnce(TakeTurn<'_>) -> Result<T>,
) -> Result<T> {
    pin_current_thread(here).with_context(|| format!("can't pin to CPU {here}"))?;
    let memory = Memfd::create_backed("shorthaul-bench-flags", FLAGS_BYTES)?.map()?;
    let stop = &AtomicBool::new(false);
    let flags = &Flags { memory: &memory, sleeps: here == there, stop };
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            pin_current_thread(there)?;
            flags.serve(&mut turn)
        });
        let by = Instant::now() + time * 2 + PATIENCE;
        let mut number = 0_u32;
        let outcome = run(&mut || {
            number = number.wrapping_add(1);
            flags.set(ASKED, number)?;
            let is_done = flags.wait(DONE, number.wrapping_sub(1), Some(by));
            ensure!(is_done, "the other thread's turn did not end in time");
            Ok(number)
        });
        flags.stop();
        let served = other.join();
        ensure!(matches!(served, Ok(Ok(()))), "the thread on CPU {there} failed");
        outcome
    })
}

/// Two words that say whose turn it is, on cache lines of their own.
struct Flags<'a> {
    memory: &'a SharedMapping,
    /// Whether the threads share a CPU.
    sleeps: bool,
    stop: &'a AtomicBool,
}

impl Flags<'_> {
    fn serve(&self, turn: &mut impl FnMut(u32)) -> io::Result<()> {
        let mut number = 0;
        // Ends when it is told to stop.
        while self.wait(ASKED, number, None) {
            number = self.memory.word(ASKED).load();
            turn(number);
            self.set(DONE, number)?;
        }
        Ok(())
    }

    fn set(&self, word: usize, value: u32) -> io::Result<()> {
        self.memory.word(word).store(value);
        if self.sleeps { self.memory.word(word).wake_one() } else { Ok(()) }
    }

    /// Waits until the word is not `old` any more; false when it is over.
    fn wait(&self, word: usize, old: u32, by: Option<Instant>) -> bool {
        let word = self.memory.word(word);
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
                // Errors show as a wait that ends at once, and in the end as one that is too long.
                word.wait(old, NAP).ok();
            } else {
                std::hint::spin_loop();
            }
        }
        true
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        for word in [ASKED, DONE] {
            self.memory.word(word).wake_one().ok();
        }
    }
}

const ASKED: usize = 0;
/// Beyond the cache line that the CPU may fetch along.
const DONE: usize = 256;
const FLAGS_BYTES: usize = 4096;
const LOOKS_PER_CLOCK: u32 = 4096;
const NAP: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_is_taken_once_and_in_order() {
        let mut taken = Vec::new();
        let asked = take_turns(
            0,
            0,
            Duration::ZERO,
            |number| taken.push(number),
            |turn| (0..100).map(|_| turn()).collect::<Result<Vec<_>>>(),
        );
        assert_eq!(asked.unwrap(), (1..=100).collect::<Vec<_>>());
        assert_eq!(taken, (1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn an_error_of_the_asking_side_ends_both() {
        let outcome: Result<()> =
            take_turns(0, 0, Duration::ZERO, |_| {}, |_| anyhow::bail!("enough"));
        assert_eq!(outcome.unwrap_err().to_string(), "enough");
    }
}
