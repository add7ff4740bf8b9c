//! Models of the buffers that are kept.

use std::sync::Mutex as Plain;

use shorthaul_platform::memory::HugePages;

use super::*;
use crate::client::buffer::Home;
use crate::client::direct::registrable;
use crate::sync::{explore, thread};

/// A connection that notes which buffers were let go of.
#[derive(Debug, Default)]
struct Released(Plain<Vec<u64>>);

impl Released {
    /// Also while a failure unwinds: another there would end the process.
    fn noted(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Home for Released {
    fn release(&self, region: u64) {
        self.noted().push(region);
    }
}

fn auto(kept_bytes_max: usize) -> Arc<Auto> {
    Auto::new(AutoPolicy { kept_bytes_max, ..AutoPolicy::default() })
}

fn buffer(home: &Arc<Released>, region: u64) -> Buffer {
    let home: Arc<dyn Home> = Arc::clone(home) as _;
    Buffer::registered(registrable(BYTES, HugePages::Never).unwrap().0, region, home)
}

fn assert_is_each_once(home: &Released, wanted: &[u64]) {
    let mut released = home.noted().clone();
    released.sort_unstable();
    assert_eq!(released, wanted, "kept for ever, or let go of twice");
}

#[test]
fn nothing_is_kept_past_the_end_of_the_connection() {
    explore(|| {
        let (auto, home) = (auto(usize::MAX), Arc::<Released>::default());
        auto.give_back(buffer(&home, 1));
        let (user, back) = (Arc::clone(&auto), buffer(&home, 2));
        let user = thread::spawn(move || {
            // Either is there, or neither any more.
            let taken = user.take(BYTES);
            user.give_back(back);
            taken.into_iter().for_each(|buffer| user.give_back(buffer));
        });
        auto.close();
        user.join().unwrap();
        assert_is_each_once(&home, &[1, 2]);
        assert!(auto.take(0).is_none());
    });
}

#[test]
fn no_more_is_kept_than_may_be() {
    explore(|| {
        let (auto, home) = (auto(BYTES), Arc::<Released>::default());
        let users = [1, 2].map(|region| {
            let (auto, buffer) = (Arc::clone(&auto), buffer(&home, region));
            thread::spawn(move || auto.give_back(buffer))
        });
        users.into_iter().for_each(|user| user.join().unwrap());
        let released = home.noted().len();
        assert_eq!(released, 1);
        assert_eq!(auto.lock().spare_bytes, BYTES);
        assert!(auto.let_go() && !auto.let_go());
        assert_is_each_once(&home, &[1, 2]);
    });
}

#[test]
fn a_kept_buffer_is_had_by_one() {
    explore(|| {
        let (auto, home) = (auto(usize::MAX), Arc::<Released>::default());
        auto.give_back(buffer(&home, 1));
        let users = [(); 2].map(|()| {
            let auto = Arc::clone(&auto);
            thread::spawn(move || auto.take(BYTES))
        });
        let taken = users.into_iter().filter_map(|user| user.join().unwrap());
        assert_eq!(taken.count(), 1);
        assert_is_each_once(&home, &[1]);
    });
}

const BYTES: usize = 64;
