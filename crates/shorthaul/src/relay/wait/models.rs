//! Models of relays that are cancelled.

use rustix::pipe::pipe;

use super::*;
use crate::sync::{AtomicUsize, explore, thread};

fn waits_until_cancelled(cancel: &Cancel) -> bool {
    let (source, _writer) = pipe().unwrap();
    let patience = Patience { until: None, cancel: Some(cancel), is_unwanted: None };
    matches!(patience.wait_for_source(source.as_fd(), None), Err(Fault::Cancelled))
}

#[test]
fn all_relays_that_wait_are_ended_by_one_cancel() {
    explore(|| {
        let cancel = Cancel::new().unwrap();
        let other = cancel.clone();
        let other = thread::spawn(move || other.cancel());
        assert!(waits_until_cancelled(&cancel));
        assert!(waits_until_cancelled(&cancel), "a later one");
        other.join().unwrap();
    });
}

#[test]
fn who_sees_a_cancel_sees_what_was_done_before_it() {
    explore(|| {
        let done = Arc::new(AtomicUsize::new(0));
        let cancel = Cancel::new().unwrap();
        let (other, before) = (cancel.clone(), Arc::clone(&done));
        let other = thread::spawn(move || {
            before.store(1, Ordering::Relaxed);
            other.cancel();
        });
        let is_cancelled = cancel.is_cancelled();
        assert!(!is_cancelled || done.load(Ordering::Relaxed) == 1);
        other.join().unwrap();
        assert!(cancel.is_cancelled());
    });
}
