//! Models of two sides that take turns by words in shared memory.

use std::sync::Arc;

use loom::thread;

use super::*;

/// Two words, and memory that belongs to whose turn it is.
#[derive(Debug)]
struct Shared {
    asked: AtomicU32,
    done: AtomicU32,
    memory: AtomicU32,
}

fn shared() -> Arc<Shared> {
    let zero = || AtomicU32::new(0);
    Arc::new(Shared { asked: zero(), done: zero(), memory: zero() })
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let executions = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&executions);
    loom::model::Builder::new().check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let executions = executions.load(Ordering::Relaxed);
    println!("{executions} executions");
    assert!(executions > 1, "nothing was tried");
}

fn word(word: &AtomicU32) -> SharedWord<'_> {
    SharedWord { word }
}

/// Adds one to the memory.
fn take_turn(shared: &Shared) {
    let before = shared.memory.load(Ordering::Relaxed);
    shared.memory.store(before + 1, Ordering::Relaxed);
}

fn spin_while(word: SharedWord<'_>, old: u32) {
    while word.load() == old {
        thread::yield_now();
    }
}

fn sleep_while(word: SharedWord<'_>, old: u32) {
    while word.load() == old {
        word.wait(old, Duration::MAX).unwrap();
    }
}

fn set(word: SharedWord<'_>, value: u32) {
    word.store(value);
    word.wake_one().unwrap();
}

#[test]
fn what_was_stored_before_a_word_is_seen_after_it() {
    explore(|| {
        let shared = shared();
        let other = Arc::clone(&shared);
        let other = thread::spawn(move || {
            spin_while(word(&other.asked), 0);
            take_turn(&other);
            word(&other.done).store(1);
        });
        take_turn(&shared);
        word(&shared.asked).store(1);
        spin_while(word(&shared.done), 0);
        assert_eq!(shared.memory.load(Ordering::Relaxed), 2);
        other.join().unwrap();
    });
}

#[test]
fn who_sleeps_on_a_word_is_woken_for_each_turn() {
    explore(|| {
        let shared = shared();
        let other = Arc::clone(&shared);
        let other = thread::spawn(move || {
            for turn in 0..2 {
                sleep_while(word(&other.asked), turn);
                take_turn(&other);
                set(word(&other.done), turn + 1);
            }
        });
        for turn in 0..2 {
            take_turn(&shared);
            set(word(&shared.asked), turn + 1);
            sleep_while(word(&shared.done), turn);
            assert_eq!(shared.memory.load(Ordering::Relaxed), 2 * (turn + 1));
        }
        other.join().unwrap();
    });
}
