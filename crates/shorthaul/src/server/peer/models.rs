//! Models of handlers that look whether they are wanted still.

use super::*;
use crate::sync::{explore, thread};

fn peer() -> Peer {
    let credentials = Credentials { pid: Some(1), uid: 7, gid: 7 };
    Peer::new(16, credentials, Arc::new(Inbox::modelled(Vec::new())))
}

/// Ends when the call is seen to be taken back; one that never is goes on for ever.
fn handle(peer: &Peer, call: u64) {
    while !peer.is_cancelled(call) {
        thread::yield_now();
    }
}

#[test]
fn a_handler_sees_that_its_call_is_taken_back() {
    explore(|| {
        let peer = peer();
        let seen = peer.clone();
        let handler = thread::spawn(move || handle(&seen, 1));
        peer.cancel(1);
        handler.join().unwrap();
        peer.end(1);
        assert!(!peer.is_cancelled(1));
    });
}

#[test]
fn what_becomes_of_other_calls_hides_no_cancel() {
    explore(|| {
        let peer = peer();
        peer.cancel(2);
        let seen = peer.clone();
        let handler = thread::spawn(move || {
            assert!(!seen.is_cancelled(3));
            handle(&seen, 1);
            assert!(seen.is_cancelled(1), "seen, and then not");
        });
        peer.cancel(1);
        peer.end(2);
        handler.join().unwrap();
        assert!(!peer.is_cancelled(2) && peer.is_cancelled(1));
    });
}

#[test]
fn handlers_see_that_the_client_has_gone() {
    explore(|| {
        let peer = peer();
        let seen = peer.clone();
        let handler = thread::spawn(move || handle(&seen, 1));
        peer.close();
        handler.join().unwrap();
        assert!(!peer.notify(1, &[]), "a notice to nobody");
    });
}
