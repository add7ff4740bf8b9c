//! Memory files by the thousand, whose numbers the kernel gives again: none is taken for another,
//! and neither side keeps one.

use std::os::fd::AsFd;

use shorthaul::{Client, ClientOptions, DirectClient, SealedObject, Wait};

use super::descriptor::{check_bytes, sealed};
use super::raw::{self, Place, Raw};
use super::{HONEST_BYTES, Stage, isolated, pattern, rounds};

#[test]
fn a_file_that_was_closed_is_never_taken_for_the_next() {
    isolated("hostile::churn::a_file_that_was_closed_is_never_taken_for_the_next", || {
        let mut stage = Stage::new();
        let mut raw = Raw::open(&stage.path);
        for round in 0..rounds(2000, 100_000) {
            let seed = (round * 7) as u8;
            let bytes = 4096 + round % 3 * 4096;
            let file = sealed(bytes as u64);
            if round % 2 == 0 {
                let call = raw::fill(1, Place::one_shot(bytes as u64), bytes as u64, seed);
                raw.send_with(&call, &[file.as_fd()]);
            } else {
                // The same id each time, as the number of the file may be.
                raw.send_with(&raw::register(1, bytes as u64), &[file.as_fd()]);
                let place = Place::region(1, 0, bytes as u64);
                raw.send(&raw::fill(1, place, bytes as u64, seed));
                assert_eq!(raw.registered().code, raw::OK);
            }
            let reply = raw.reply();
            assert_eq!((reply.code, reply.payload_bytes), (raw::OK, bytes as u64), "{reply:?}");
            check_bytes(&file, 0, &pattern(bytes, seed));
            if round % 2 == 1 {
                raw.send(&raw::of_id(raw::RELEASE, 1));
            }
        }
        drop(raw);
        stage.ends_clean();
    });
}

/// Whatever a client sends, its own copy is closed.
#[test]
fn a_client_keeps_nothing_that_it_sent() {
    isolated("hostile::churn::a_client_keeps_nothing_that_it_sent", || {
        let mut stage = Stage::new();
        // Rings would be made at any time, and are kept.
        let options = ClientOptions { wait: Wait::Block, ..ClientOptions::default() };
        let mut direct = DirectClient::connect_with(&stage.path, &options).unwrap();
        let threaded = Client::connect_with(&stage.path, &options).unwrap();
        stage.census = super::Census::take();
        let object = SealedObject::copy_of(&pattern(HONEST_BYTES, 1)).unwrap();
        let mut request = 5000_u64.to_le_bytes().to_vec();
        request.push(7);
        for round in 0..rounds(1000, 5000) {
            let fresh = direct.call("fill").request(&request).into_fresh(5000).send().unwrap();
            assert_eq!(fresh.len(), 5000);
            let fresh = threaded.call("fill").request(&request).into_fresh(5000).send().unwrap();
            assert_eq!(fresh.len(), 5000);
            let upload = direct.call("echo").payload_sealed(&object, 64..640);
            assert!(
                upload.inline(576).send().unwrap().to_vec() == pattern(HONEST_BYTES, 1)[64..640]
            );
            let answer = threaded.call("fill").request(&request).sealed(5000).send().unwrap();
            assert_eq!(answer.len(), 5000);
            if round % 10 == 0 {
                let buffer = direct.buffer(5000).unwrap();
                let reply = direct.call("fill").request(&request).into(buffer).send().unwrap();
                assert!(reply.to_vec() == pattern(5000, 7));
                drop(threaded.buffer(5000).unwrap());
            }
        }
        drop(object);
        // A direct client says what it let go of with its next call.
        direct.call("echo").request(b"").send().unwrap();
        stage.census.returns();
        drop((direct, threaded));
        stage.honest_calls();
    });
}
