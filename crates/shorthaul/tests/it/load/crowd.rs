//! Thousands of connections, most of them idle, some of them silent.

use std::thread;
use std::time::Duration;

use shorthaul::{DirectClient, raise_descriptor_limit};

use super::super::census::{Census, resident_bytes};
use super::super::hostile::isolated;
use super::super::hostile::raw::Raw;
use super::super::service::eventually;
use super::super::workload::{Caller, Way, start_server};
use super::PATIENCE;

#[test]
fn two_thousand_clients_of_which_some_never_say_hello() {
    isolated("load::crowd::two_thousand_clients_of_which_some_never_say_hello", || {
        let descriptors = raise_descriptor_limit().unwrap();
        if descriptors < 2500 {
            return eprintln!("passed over: {descriptors} descriptors are all there can be");
        }
        be_crowded();
    });
}

fn be_crowded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = start_server(&path, 2);
    let mut honest = DirectClient::connect(&path).unwrap();
    Way::FillMap.call(Caller::Direct(&mut honest), (5000, 0), PATIENCE).unwrap();
    let sockets = || Census::of(server.id()).count("socket");
    let (sockets_before, bytes_before) = (sockets(), resident_bytes(server.id()));
    let idle: Vec<Raw> = (0..IDLE).map(|_| Raw::open(&path)).collect();
    let bytes_each = resident_bytes(server.id()).saturating_sub(bytes_before) / IDLE as u64;
    eprintln!("{IDLE} idle connections: {bytes_each} bytes of the server's memory each");
    assert!(bytes_each < BYTES_EACH_MAX, "{bytes_each}");
    let silent: Vec<Raw> = (0..SILENT).map(|_| Raw::connect(&path)).collect();
    let everyone = sockets_before + IDLE + SILENT;
    eventually("all are let in", PATIENCE, || sockets() == everyone);
    let mut seed = 0_u8;
    eventually("the silent ones are let go of", PATIENCE, || {
        seed = seed.wrapping_add(1);
        Way::FillMap.call(Caller::Direct(&mut honest), (5000, seed), PATIENCE).unwrap();
        thread::sleep(Duration::from_millis(50));
        sockets() == everyone - SILENT
    });
    for mut raw in silent {
        assert!(raw.goodbye().message.contains("hello"));
    }
    for raw in [idle.first(), idle.last()] {
        raw.unwrap().socket.set_nonblocking(true).unwrap();
        let read = std::io::Read::read(&mut &raw.unwrap().socket, &mut [0]);
        assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "it is still there");
    }
    drop(idle);
    eventually("all are gone", PATIENCE, || sockets() == sockets_before);
    server.kill();
}

const IDLE: usize = 1500;
const SILENT: usize = 500;
/// What a connection has: room for one read (16 KiB), its state, and what allocating rounds up.
const BYTES_EACH_MAX: u64 = 64 << 10;
