//! Models of the way to a reactor.

use std::sync::Arc;

use super::*;
use crate::sync::{explore, thread};

impl<C> Inbox<C> {
    /// One whose bell is no event of a poll.
    pub(crate) fn modelled(commands: Vec<C>) -> Self {
        let state = State { commands, is_asleep: false, is_closed: false };
        Self { state: Mutex::new(state), bell: Waker::default() }
    }

    /// Takes what waits, or sleeps as a reactor does until something may.
    pub(crate) fn take_or_sleep(&self, taken: &mut Vec<C>) {
        self.take(taken);
        if taken.is_empty() && self.fall_asleep() {
            self.bell.poll();
            self.wake_up();
        }
    }
}

fn inbox(commands: Vec<usize>) -> Arc<Inbox<usize>> {
    Arc::new(Inbox::modelled(commands))
}

/// Takes what comes as reactors do, and falls asleep whenever it can.
fn take_all(inbox: &Inbox<usize>, wanted: usize) -> Vec<usize> {
    let (mut taken, mut all) = (Vec::new(), Vec::new());
    while all.len() < wanted {
        inbox.take_or_sleep(&mut taken);
        all.append(&mut taken);
    }
    all
}

#[test]
fn every_command_wakes_the_reactor_and_is_taken_once() {
    explore(|| {
        let inbox = inbox(Vec::new());
        let pushers = [[1, 2], [3, 4]].map(|numbers| {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || numbers.map(|number| inbox.push(number).unwrap()))
        });
        let mut all = take_all(&inbox, 4);
        assert!(all.iter().filter(|&&number| number < 3).is_sorted(), "not in order: {all:?}");
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4], "lost or doubled");
        pushers.into_iter().for_each(|pusher| assert_eq!(pusher.join().unwrap(), [(); 2]));
    });
}

#[test]
fn a_reactor_that_something_else_wakes_misses_no_command() {
    explore(|| {
        let inbox = inbox(Vec::new());
        let [pusher, socket] = [Arc::clone(&inbox), Arc::clone(&inbox)];
        let pusher = thread::spawn(move || {
            pusher.push(1).unwrap();
            assert!(pusher.offer(2));
        });
        // To a poll, a socket that can be read is as good as the bell.
        let socket = thread::spawn(move || socket.bell.wake());
        assert_eq!(take_all(&inbox, 2), [1, 2]);
        pusher.join().unwrap();
        socket.join().unwrap().unwrap();
    });
}

#[test]
fn a_command_is_obeyed_or_left_over_or_given_back() {
    explore(|| {
        let inbox = inbox(Vec::new());
        let pushers = [1, 2].map(|number| {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || inbox.push(number).err())
        });
        let mut all = Vec::new();
        inbox.take(&mut all);
        all.extend(inbox.close());
        all.extend(pushers.into_iter().filter_map(|pusher| pusher.join().unwrap()));
        all.sort_unstable();
        assert_eq!(all, [1, 2], "lost or doubled");
        assert!(inbox.close().is_empty(), "taken though it was closed");
    });
}

#[test]
fn the_last_room_is_given_once() {
    explore(|| {
        let inbox = inbox(vec![0; INBOX_MAX - 1]);
        let offers = [1, 2].map(|number| {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || inbox.offer(number))
        });
        let taken = offers.into_iter().filter_map(|offer| offer.join().unwrap().then_some(()));
        assert_eq!(taken.count(), 1);
        assert_eq!(inbox.close().len(), INBOX_MAX);
    });
}
