//! Ten thousand calls that nobody answers in time.

use std::thread;
use std::time::Duration;

use shorthaul::{Client, Code, DirectClient};

use super::super::census::{Census, resident_bytes};
use super::super::hostile::isolated;
use super::super::service::eventually;
use super::super::workload::start_server;
use super::PATIENCE;

#[test]
fn ten_thousand_calls_that_time_out_leave_nothing() {
    isolated("load::late::ten_thousand_calls_that_time_out_leave_nothing", be_late);
}

fn be_late() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = start_server(&path, 4);
    let client = Client::connect(&path).unwrap();
    let mut direct = DirectClient::connect(&path).unwrap();
    time_out(&client, &mut direct, 1_500);
    let processes = [std::process::id(), server.id()];
    let censuses = (Census::take(), Census::of(server.id()));
    let before = processes.map(resident_bytes);
    time_out(&client, &mut direct, 10_000);
    let after = processes.map(resident_bytes);
    eprintln!("10,000 calls that timed out: memory of client and server {before:?} → {after:?}");
    for (before, after) in before.into_iter().zip(after) {
        assert!(after < before + (8 << 20), "{before} → {after}");
    }
    censuses.0.returns();
    censuses.1.returns_in(server.id());
    client.call("quick").inline(64).deadline(PATIENCE).send().unwrap();
    direct.call("quick").inline(64).deadline(PATIENCE).send().unwrap();
    server.kill();
}

/// Makes so many calls that time out, and waits until both sides have let go of them.
fn time_out(client: &Client, direct: &mut DirectClient, calls: usize) {
    thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for round in 0..calls / 10 {
                    let call = client.call("never").deadline(SHORT);
                    // Every tenth has a buffer that the server may still write to.
                    let outcome = match (thread + round) % 10 {
                        0 => call.into(client.buffer(4096).unwrap()).send(),
                        _ => call.inline(4096).send(),
                    };
                    let failed = outcome.unwrap_err();
                    assert_eq!(failed.error().code(), Code::DeadlineExceeded, "{failed}");
                }
            });
        }
        for _ in 0..calls / 5 {
            let failed = direct.call("never").inline(4096).deadline(SHORT).send().unwrap_err();
            assert_eq!(failed.error().code(), Code::DeadlineExceeded, "{failed}");
        }
    });
    eventually("all calls are let go of", PATIENCE, || {
        direct.poll(Duration::ZERO).unwrap();
        client.open_calls() + direct.open_calls() == 0
    });
}

const SHORT: Duration = Duration::from_millis(1);
