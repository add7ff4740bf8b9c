//! Who is served when, and that nobody is forgotten.

mod model;

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Job {
    connection: u64,
    id: u64,
    bytes: u64,
    inline: u64,
}

impl Queued for Job {
    fn id(&self) -> u64 {
        self.id
    }

    fn bytes_max(&self) -> u64 {
        self.bytes
    }

    fn inline_bytes(&self) -> u64 {
        self.inline
    }
}

type Queue = ServiceQueue<Job>;

impl Queue {
    fn add(&self, connection: u64, id: u64, bytes: u64, inline: u64) {
        let job = Job { connection, id, bytes, inline };
        self.push(connection, job);
    }

    /// The next call, if one may run.
    fn pop_now(&self) -> Option<Popped<Job>> {
        self.lock().take()
    }

    /// A worker looks for a call in vain.
    fn find_nothing(&self) {
        let mut state = self.lock();
        assert!(state.take().is_none());
        state.clock.idle_spells += 1;
    }

    fn pop_id(&self) -> Option<(u64, u64)> {
        self.pop_now().map(|popped| (popped.call.connection, popped.call.id))
    }

    /// Pops a call and carries it out, all of its bytes.
    fn serve(&self) -> Job {
        let Popped { call, charged_bytes } = self.pop_now().expect("something may run");
        self.answered(call.connection, charged_bytes, call.bytes, 0, 0);
        call
    }
}

const MIB: u64 = 1 << 20;
const LARGE: u64 = 64 * MIB;
const SMALL: u64 = 4 << 10;

#[test]
fn a_small_call_waits_for_one_round_at_most() {
    let queue = Queue::new();
    (0..64).for_each(|id| queue.add(0, id, LARGE, 0));
    // Two workers are at large calls when the small ones come; neither has answered.
    assert_eq!(queue.pop_id(), Some((0, 0)));
    assert_eq!(queue.pop_id(), Some((0, 1)));
    (1..16).for_each(|connection| queue.add(connection, 0, SMALL, 0));
    let order: Vec<u64> = (0..16).map(|_| queue.serve().connection).collect();
    let large = order.iter().filter(|&&connection| connection == 0).count();
    assert_eq!(large, 1, "{order:?}");
    (1..16).for_each(|connection| assert!(order.contains(&connection)));
}

#[test]
fn bytes_are_shared_evenly_over_a_long_run() {
    let queue = Queue::new();
    let bytes = |connection: u64| if connection == 0 { LARGE } else { SMALL };
    let mut served = [0; 16];
    for connection in 0..16 {
        (0..64).for_each(|id| queue.add(connection, id, bytes(connection), 0));
    }
    for _ in 0..50_000 {
        let job = queue.serve();
        served[job.connection as usize] += job.bytes + CALL_COST_BYTES;
        queue.add(job.connection, job.id + 64, job.bytes, 0);
        for (one, one_served) in served.iter().enumerate() {
            for (other, other_served) in served.iter().enumerate() {
                let call = bytes(one as u64).max(bytes(other as u64)) + CALL_COST_BYTES;
                let apart = one_served.abs_diff(*other_served);
                assert!(apart <= QUANTUM_BYTES + call, "{one} {other}: {served:?}");
            }
        }
    }
    assert!(served[0] > 0);
}

#[test]
fn a_debt_is_paid_by_rounds() {
    let queue = Queue::new();
    queue.add(1, 0, 10 * MIB, 0);
    assert_eq!(queue.serve().connection, 1);
    queue.add(1, 1, SMALL, 0);
    (0..30).for_each(|id| queue.add(2, id, MIB, 0));
    let others = (0..30).take_while(|_| queue.serve().connection == 2);
    let others = others.count();
    assert!((8..=11).contains(&others), "{others} MiB for 10 MiB");
}

#[test]
fn who_is_alone_pays_at_once() {
    let queue = Queue::new();
    (0..100).for_each(|id| queue.add(1, id, LARGE, 0));
    (0..100).for_each(|id| assert_eq!(queue.serve().id, id));
    assert!(queue.pop_now().is_none());
}

#[test]
fn credit_is_not_saved() {
    let queue = Queue::new();
    // Calls that could have moved much and have not: what was charged is given back...
    (0..100).for_each(|id| queue.add(1, id, MIB, 0));
    let popped: Vec<_> = std::iter::from_fn(|| queue.pop_now()).collect();
    assert_eq!(popped.len(), 100);
    (100..200).for_each(|id| queue.add(1, id, MIB, 0));
    for Popped { charged_bytes, .. } in popped {
        queue.answered(1, charged_bytes, 10, 0, 0);
    }
    // ... but not as the right to keep everybody else waiting.
    queue.add(2, 0, SMALL, 0);
    let before = (0..100).take_while(|_| queue.serve().connection == 1);
    assert!(before.count() <= 2);
}

#[test]
fn idleness_earns_nothing() {
    let queue = Queue::new();
    queue.add(1, 0, 0, 0);
    queue.serve();
    assert_eq!(queue.lock().lines[&1].deficit, 0);
    queue.add(1, 1, MIB, 0);
    let popped = queue.pop_now().unwrap();
    queue.answered(1, popped.charged_bytes, 0, 0, 0);
    assert_eq!(queue.lock().lines[&1].deficit, 0);
}

#[test]
fn inline_answers_under_way_are_bounded() {
    let queue = Queue::new();
    (0..3).for_each(|id| queue.add(1, id, 40 * MIB, 40 * MIB));
    queue.add(2, 0, 0, 0);
    let first = queue.pop_now().unwrap();
    assert_eq!((first.call.connection, first.call.id), (1, 0));
    assert_eq!(queue.pop_id(), Some((2, 0)), "others are not held up");
    assert_eq!(queue.pop_id(), None);
    // 30 MiB of the answer turn out not to be needed: 10 and 40 are under way then.
    queue.answered(1, first.charged_bytes, 10 * MIB, 40 * MIB, 10 * MIB);
    assert_eq!(queue.pop_id(), Some((1, 1)));
    assert_eq!(queue.pop_id(), None);
    queue.written(1, 10 * MIB);
    assert_eq!(queue.pop_id(), None);
    queue.written(1, 40 * MIB);
    assert_eq!(queue.pop_id(), Some((1, 2)));
}

#[test]
fn what_answers_a_call_that_could_wait_counts_in_both_queues_until_it_is_written() {
    let [queue, waiting] = [Queue::new(), Queue::new()];
    (0..3).for_each(|id| waiting.add(1, id, 40 * MIB, 40 * MIB));
    queue.add(1, 3, 40 * MIB, 40 * MIB);
    let answer = |popped: &Popped<Job>, inline_bytes| {
        let (bytes, may_wait) = (popped.charged_bytes, true);
        let charge = Charge { bytes, inline_bytes: 40 * MIB, may_wait };
        settle([&queue, &waiting], 1, charge, inline_bytes, inline_bytes);
    };
    let first = waiting.pop_now().unwrap();
    assert!(waiting.pop_now().is_none(), "no room while it is made");
    answer(&first, 30 * MIB);
    assert!(waiting.pop_now().is_none(), "it waits to be written");
    assert_eq!(queue.pop_id(), None, "it waits to be written");
    let written = |bytes| [&queue, &waiting].map(|queue| queue.written(1, bytes));
    written(10 * MIB);
    assert_eq!(queue.pop_id(), Some((1, 3)));
    let second = waiting.pop_now().expect("there is room for it");
    written(20 * MIB);
    answer(&second, 0);
    assert!(waiting.pop_now().is_some());
    let under_way = |queue: &Queue| queue.lock().lines[&1].inline_bytes;
    assert_eq!((under_way(&queue), under_way(&waiting)), (40 * MIB, 40 * MIB));
}

#[test]
fn one_inline_answer_of_any_size_has_room() {
    let queue = Queue::new();
    (0..2).for_each(|id| queue.add(1, id, 0, u64::from(u32::MAX)));
    assert_eq!(queue.pop_id(), Some((1, 0)));
    assert_eq!(queue.pop_id(), None);
    queue.written(1, u64::from(u32::MAX));
    assert_eq!(queue.pop_id(), Some((1, 1)));
}

#[test]
fn removing_the_call_that_had_no_room_lets_the_next_one_run() {
    let queue = Queue::new();
    queue.add(1, 0, 0, 40 * MIB);
    queue.add(1, 1, 0, 40 * MIB);
    queue.add(1, 2, 0, 0);
    assert_eq!(queue.pop_id(), Some((1, 0)));
    assert_eq!(queue.pop_id(), None);
    assert_eq!(queue.remove(1, 1).unwrap().id, 1);
    assert_eq!(queue.pop_id(), Some((1, 2)));
}

#[test]
fn what_is_removed_or_forgotten_is_not_served() {
    let queue = Queue::new();
    (0..4).for_each(|id| queue.add(1, id, 0, 0));
    queue.add(2, 9, 0, 0);
    assert_eq!(queue.remove(1, 2).unwrap().id, 2);
    assert!(queue.remove(1, 2).is_none());
    assert!(queue.remove(3, 0).is_none());
    assert_eq!(queue.pop_id(), Some((1, 0)));
    let forgotten: Vec<u64> = queue.forget(1).iter().map(|job| job.id).collect();
    assert_eq!(forgotten, [1, 3]);
    queue.answered(1, MIB, 0, 0, 0);
    queue.written(1, 10);
    assert_eq!(queue.pop_id(), Some((2, 9)));
    assert_eq!(queue.pop_id(), None);
}

#[test]
fn a_closed_queue_is_drained_and_then_lets_workers_go() {
    let queue = Queue::new();
    thread::scope(|scope| {
        let workers: Vec<_> =
            (0..4).map(|_| scope.spawn(|| std::iter::from_fn(|| queue.pop()).count())).collect();
        (0..100).for_each(|id| queue.add(id % 7, id, SMALL, 0));
        queue.close();
        let done: usize = workers.into_iter().map(|w| w.join().unwrap()).sum();
        assert_eq!(done, 100);
    });
}

#[test]
fn room_made_wakes_a_worker_for_each_call_that_it_frees() {
    let queue = Queue::new();
    queue.add(1, 0, 0, LARGE);
    let first = queue.pop_now().unwrap();
    queue.add(1, 1, 0, LARGE);
    queue.add(1, 2, 0, 0);
    let (sender, receiver) = channel();
    let both_hold_one = Barrier::new(2);
    thread::scope(|scope| {
        for _ in 0..2 {
            let sender = sender.clone();
            let (queue, both_hold_one) = (&queue, &both_hold_one);
            scope.spawn(move || {
                let popped = queue.pop();
                sender.send(popped.is_some()).unwrap();
                // Like a handler that waits for another call's.
                both_hold_one.wait();
            });
        }
        while queue.lock().idle_workers < 2 {
            thread::yield_now();
        }
        queue.answered(1, first.charged_bytes, 0, LARGE, 0);
        let woken = (0..2).map(|_| receiver.recv_timeout(Duration::from_secs(5)));
        let woken: Vec<_> = woken.collect();
        queue.close();
        assert_eq!(woken, [Ok(true), Ok(true)]);
    });
}

#[test]
fn workers_and_pushers_lose_nothing() {
    let queue = Queue::new();
    let started = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut sum = 0;
                    while let Some(Popped { call, charged_bytes }) = queue.pop() {
                        sum += call.id;
                        let inline = call.inline;
                        queue.answered(call.connection, charged_bytes, call.bytes, inline, inline);
                        queue.written(call.connection, inline);
                    }
                    sum
                })
            })
            .collect();
        let pushers: Vec<_> = (0..4)
            .map(|connection| {
                let queue = &queue;
                scope.spawn(move || {
                    (1..=PUSHES).for_each(|id| queue.add(connection, id, id * 999, id * 9_999));
                })
            })
            .collect();
        pushers.into_iter().for_each(|p| p.join().unwrap());
        while !queue.lock().lines.values().all(|line| line.calls.is_empty()) {
            assert!(started.elapsed() < Duration::from_secs(20), "stuck");
            thread::yield_now();
        }
        queue.close();
        let sum: u64 = workers.into_iter().map(|w| w.join().unwrap()).sum();
        assert_eq!(sum, 4 * PUSHES * (PUSHES + 1) / 2);
    });
}

const PUSHES: u64 = 5_000;

#[test]
fn a_debt_is_forgotten_once_a_worker_had_nothing_to_do() {
    let queue = Queue::new();
    queue.add(1, 0, 10 * MIB, 0);
    assert_eq!(queue.serve().connection, 1);
    queue.find_nothing();
    (0..3).for_each(|id| queue.add(2, id, MIB, 0));
    queue.add(1, 1, SMALL, 0);
    let order: Vec<u64> = (0..4).map(|_| queue.serve().connection).collect();
    assert!(order[..2].contains(&1), "{order:?}");
}
