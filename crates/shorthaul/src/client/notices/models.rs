//! Models of threads that wait for notices.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::sync::{explore, thread};

/// Waits on a thread of its own; gives the topic.
fn wait(notices: &Arc<NoticeBoard>, by: Instant) -> thread::JoinHandle<Option<u32>> {
    let notices = Arc::clone(notices);
    thread::spawn(move || notices.wait(by).map(|notice| notice.topic))
}

#[test]
fn each_notice_wakes_one_who_waits() {
    explore(|| {
        let notices = Arc::<NoticeBoard>::default();
        let never = now() + PATIENCE;
        let waiting = [wait(&notices, never), wait(&notices, never)];
        notices.push(1, MessageBytes::new());
        notices.push(2, MessageBytes::new());
        let mut topics = waiting.map(|one| one.join().unwrap());
        topics.sort_unstable();
        assert_eq!(topics, [Some(1), Some(2)]);
    });
}

#[test]
fn the_end_lets_all_go_and_leaves_what_has_come() {
    explore(|| {
        let notices = Arc::<NoticeBoard>::default();
        let never = now() + PATIENCE;
        let waiting = [wait(&notices, never), wait(&notices, never)];
        notices.push(1, MessageBytes::new());
        notices.close();
        let mut topics = waiting.map(|one| one.join().unwrap());
        topics.sort_unstable();
        assert_eq!(topics, [None, Some(1)]);
    });
}

#[test]
fn the_end_wakes_all_who_wait() {
    explore(|| {
        let notices = Arc::<NoticeBoard>::default();
        let never = now() + PATIENCE;
        let waiting = [wait(&notices, never), wait(&notices, never)];
        notices.close();
        assert_eq!(waiting.map(|one| one.join().unwrap()), [None, None]);
    });
}

// A second notice would wake whom the first one should have.
#[test]
fn one_whose_time_is_over_takes_no_wake_up_along() {
    explore(|| {
        let notices = Arc::<NoticeBoard>::default();
        let by = now() + PATIENCE;
        let waiting = [wait(&notices, by), wait(&notices, by + PATIENCE)];
        let late = Arc::clone(&notices);
        let clock = thread::spawn(move || late.changed.pass(PATIENCE, &late.state));
        notices.push(1, MessageBytes::new());
        let [impatient, patient] = waiting;
        let impatient = impatient.join().unwrap();
        if impatient.is_some() {
            notices.push(2, MessageBytes::new());
        }
        let patient = patient.join().unwrap();
        assert_eq!(patient, Some(if impatient.is_some() { 2 } else { 1 }));
        clock.join().unwrap();
    });
}

const PATIENCE: Duration = Duration::from_secs(10);
