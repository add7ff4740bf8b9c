//! Models of workers at the queue.

use std::sync::Arc;

use super::*;
use crate::sync::{explore, thread};

/// A call by its number, and the bytes of its inline answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Call(u64, u64);

impl Queued for Call {
    fn id(&self) -> u64 {
        self.0
    }

    fn bytes_max(&self) -> u64 {
        self.1
    }

    fn inline_bytes(&self) -> u64 {
        self.1
    }
}

type Queue = Arc<ServiceQueue<Call>>;

fn queue() -> Queue {
    Arc::new(ServiceQueue::new())
}

fn workers<T: 'static, const N: usize>(
    queue: &Queue,
    work: impl Fn(&ServiceQueue<Call>) -> T + Copy + Send + 'static,
) -> [thread::JoinHandle<T>; N] {
    [(); N].map(|()| {
        let queue = Arc::clone(queue);
        thread::spawn(move || work(&queue))
    })
}

fn joined<T, const N: usize>(threads: [thread::JoinHandle<T>; N]) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn one(queue: &ServiceQueue<Call>) -> Call {
    queue.pop().unwrap().call
}

fn until_closed(queue: &ServiceQueue<Call>) -> Vec<Call> {
    std::iter::from_fn(|| queue.pop()).map(|popped| popped.call).collect()
}

fn assert_is_each_once(mut calls: Vec<Call>, wanted: &[Call]) {
    calls.sort_unstable();
    assert_eq!(calls, wanted, "lost or doubled");
}

// Nobody closes the queue in those where a worker takes a certain number of calls: closing would
// wake whom a push forgot.

#[test]
fn each_push_wakes_a_worker_that_sleeps() {
    explore(|| {
        let queue = queue();
        let workers = workers::<_, 2>(&queue, one);
        queue.push(1, Call(1, 0));
        queue.push(1, Call(2, 0));
        assert_is_each_once(joined(workers), &[Call(1, 0), Call(2, 0)]);
    });
}

#[test]
fn pushes_of_two_reactors_wake_two_workers() {
    explore(|| {
        let queue = queue();
        let workers = workers::<_, 2>(&queue, one);
        let other = Arc::clone(&queue);
        let other = thread::spawn(move || other.push(2, Call(2, 0)));
        queue.push(1, Call(1, 0));
        other.join().unwrap();
        assert_is_each_once(joined(workers), &[Call(1, 0), Call(2, 0)]);
    });
}

#[test]
fn room_for_several_wakes_as_many_workers() {
    explore(|| {
        let queue = queue();
        let all = [Call(1, FULL), Call(2, 1), Call(3, 1)];
        all.iter().for_each(|call| queue.push(1, *call));
        let large = queue.pop().unwrap();
        let workers = workers::<_, 2>(&queue, one);
        queue.answered(1, large.charged_bytes, 0, FULL, 0);
        assert_is_each_once(joined(workers), &all[1..]);
    });
}

#[test]
fn what_is_written_makes_room_for_a_worker_that_sleeps() {
    explore(|| {
        let queue = queue();
        [Call(1, FULL), Call(2, 1)].iter().for_each(|call| queue.push(1, *call));
        let large = queue.pop().unwrap();
        let workers = workers::<_, 1>(&queue, one);
        queue.answered(1, large.charged_bytes, FULL, FULL, FULL);
        queue.written(1, FULL);
        assert_is_each_once(joined(workers), &[Call(2, 1)]);
    });
}

#[test]
fn a_removed_call_lets_those_behind_it_go() {
    explore(|| {
        let queue = queue();
        let all = [Call(1, FULL), Call(2, 1), Call(3, 0)];
        all.iter().for_each(|call| queue.push(1, *call));
        queue.pop().unwrap();
        let workers = workers::<_, 1>(&queue, one);
        assert_eq!(queue.remove(1, 2), Some(Call(2, 1)));
        assert_is_each_once(joined(workers), &[Call(3, 0)]);
    });
}

#[test]
fn a_call_that_is_taken_back_is_had_by_one_side() {
    explore(|| {
        let queue = queue();
        let workers = workers::<_, 2>(&queue, until_closed);
        queue.push(1, Call(1, 0));
        queue.push(1, Call(2, 0));
        let removed = queue.remove(1, 1);
        assert!(removed.is_none_or(|call| call == Call(1, 0)), "another: {removed:?}");
        let mut all = Vec::from_iter(removed);
        queue.close();
        all.extend(joined(workers).into_iter().flatten());
        assert_is_each_once(all, &[Call(1, 0), Call(2, 0)]);
    });
}

#[test]
fn calls_of_a_connection_that_ends_are_done_or_given_back() {
    explore(|| {
        let queue = queue();
        let workers = workers::<_, 2>(&queue, until_closed);
        queue.push(1, Call(1, 0));
        queue.push(1, Call(2, 0));
        queue.push(2, Call(3, 0));
        let mut all = Vec::from_iter(queue.forget(1));
        queue.close();
        all.extend(joined(workers).into_iter().flatten());
        assert_is_each_once(all, &[Call(1, 0), Call(2, 0), Call(3, 0)]);
    });
}

#[test]
fn closing_wakes_all_workers() {
    explore(|| {
        let queue = queue();
        let workers = workers::<_, 3>(&queue, until_closed);
        queue.close();
        assert!(joined(workers).iter().all(Vec::is_empty));
    });
}

const FULL: u64 = INLINE_BYTES_UNDER_WAY_MAX;
