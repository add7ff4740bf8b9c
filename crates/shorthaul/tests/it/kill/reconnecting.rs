//! A server that comes back: who asks for a client again gets a new one, once.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use shorthaul::{ClientOptions, DirectPool, Error, Reconnecting};

use super::super::census::Census;
use super::super::service::{eventually, request};
use super::super::workload::{Caller, Way, start_server};
use super::PATIENCE;

#[test]
fn an_idle_client_connects_once_after_its_server_came_back_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let shared = Reconnecting::new(&path, ClientOptions::default());
    let pool = DirectPool::new(&path, ClientOptions::default(), 4);
    let server = start_server(&path, 1);
    let first = shared.client().unwrap();
    assert!(Arc::ptr_eq(&first, &shared.client().unwrap()), "it lives: no other is made");
    drop(pool.take(PATIENCE).unwrap());
    server.kill();
    start_server(&path, 1).kill();
    let server = start_server(&path, 1);
    let idle = Census::of(server.id()).count("socket");
    eventually("its end is noticed", PATIENCE, || !first.is_alive());
    for _ in 0..3 {
        let client = shared.client().unwrap();
        assert!(!Arc::ptr_eq(&first, &client));
        Way::FillMap.call(Caller::Threaded(&client), (5000, 1), PATIENCE).unwrap();
        let mut direct = pool.take(PATIENCE).unwrap();
        Way::FillMap.call(Caller::Direct(&mut direct), (5000, 1), PATIENCE).unwrap();
    }
    assert_eq!(Census::of(server.id()).count("socket"), idle + 2, "one each");
    server.kill();
}

#[test]
fn what_was_made_with_a_dead_server_is_of_no_use_with_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let shared = Reconnecting::new(&path, ClientOptions::default());
    let server = start_server(&path, 1);
    let first = shared.client().unwrap();
    let old = first.buffer(5000).unwrap();
    server.kill();
    eventually("its end is noticed", PATIENCE, || !first.is_alive());
    let server = start_server(&path, 1);
    let second = shared.client().unwrap();
    // It has the number that the old one had.
    let new = second.buffer(5000).unwrap();
    let asked = request(5000, 3);
    let refused = second.call("map").request(&asked).into(old).send().unwrap_err();
    assert!(matches!(refused.error(), Error::Misuse(_)), "{refused}");
    let old = refused.into_buffer().expect("nothing was sent");
    let reply = second.call("map").request(&asked).into(new).send().unwrap();
    super::super::service::check(&reply, 5000, 3);
    assert_eq!(old.sum(0..5000, 1), 0, "filled by a server that never had it");
    drop(old);
    // Giving the old one back takes nothing from the new connection.
    let new = reply.into_buffer().unwrap();
    second.call("map").request(&asked).into(new).send().unwrap();
    server.kill();
}

#[test]
fn all_who_ask_while_nobody_listens_are_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let shared = Reconnecting::new(&path, ClientOptions::default());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let refused = shared.client().unwrap_err();
                assert!(matches!(refused, Error::Io { .. }), "{refused}");
                assert!(refused.to_string().contains("nobody listens"), "{refused}");
            });
        }
    });
    let server = start_server(&path, 1);
    assert!(shared.client().unwrap().is_alive());
    server.kill();
}

#[test]
fn an_attempt_that_panics_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = start_server(&path, 1);
    let policy: shorthaul::PeerPolicy = Arc::new(|_| {
        thread::sleep(Duration::from_millis(50));
        panic!("a policy that fails")
    });
    let options = ClientOptions { policy: Some(policy), ..ClientOptions::default() };
    let shared = Reconnecting::new(&path, options);
    thread::scope(|scope| {
        let asking: Vec<_> = (0..4).map(|_| scope.spawn(|| shared.client())).collect();
        let ended: Vec<_> = asking.into_iter().map(|asking| asking.join()).collect();
        assert!(ended.iter().any(Result::is_err), "one at least panicked");
        assert!(ended.into_iter().flatten().all(|told| told.is_err()));
    });
    server.kill();
}
