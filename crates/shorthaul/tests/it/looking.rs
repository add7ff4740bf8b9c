//! Clients whose reactors look for their answers: all that goes on beside that goes on as ever.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use shorthaul::{
    Buffer, CallError, Client, ClientOptions, Descriptors, Error, InboundCall, ServerOptions,
    Status, Wait,
};
use shorthaul_platform::usage::process_cpu_time;

use super::hostile::isolated;
use super::service::{Gate, PATIENCE, Running, check, eventually, request, serve, start};
use super::workload::{self, Caller, Way};

const WAITS: [Wait; 2] = [Wait::Adaptive, Wait::Spin];
const THREADS: u8 = 4;
const SHORT: Duration = Duration::from_millis(50);
const SIZES: [usize; 2] = [100, 20_000];

fn connect(running: &Running, wait: Wait) -> Client {
    let options = ClientOptions { wait, ..ClientOptions::default() };
    Client::connect_with(&running.path, &options).unwrap()
}

/// A small call, whose answer has no reason to go through the socket.
fn quick_call(client: &Client, seed: u8, buffer: Buffer) -> Result<Buffer, CallError> {
    let asked = request(100, seed);
    let call = client.call("map").request(&asked).deadline(PATIENCE);
    let reply = call.into(buffer).send()?;
    check(&reply, 100, seed);
    Ok(reply.into_buffer().unwrap())
}

fn quick_calls(client: &Client, calls: usize, seed: u8) {
    let mut buffer = client.buffer(100).unwrap();
    for turn in 0..calls {
        buffer = quick_call(client, seed.wrapping_add(turn as u8), buffer).unwrap();
    }
}

/// Calls of all ways in turn, as many as are asked for.
fn mixed_calls(client: &Client, ways: &[Way], calls: usize, thread: u8) {
    let all = ways.iter().flat_map(|way| SIZES.map(|bytes| (*way, bytes))).cycle();
    for ((way, bytes), turn) in all.take(calls).zip(0_u8..=255_u8) {
        let seed = turn.wrapping_mul(THREADS).wrapping_add(thread);
        way.call(Caller::Threaded(client), (bytes, seed), PATIENCE).unwrap();
    }
}

/// A server whose "slow" calls pass the gate.
fn start_behind(gate: &Arc<Gate>) -> Running {
    let gate = Arc::clone(gate);
    let options = ServerOptions { workers: 4, ..ServerOptions::default() };
    start(options, move |call: &mut InboundCall| -> Result<(), Status> {
        if call.method().ends_with("slow") {
            gate.pass();
        }
        serve(call)
    })
}

#[test]
fn many_threads_get_their_own_answers_by_every_lane() {
    for wait in WAITS {
        for inline_handlers in [false, true] {
            // Relays wait for their readers, which reactors must not.
            let (descriptors, ways) = if inline_handlers {
                (Descriptors::Refuse, &Way::ALL[..8])
            } else {
                (Descriptors::Streams, &Way::ALL[..])
            };
            let options =
                ServerOptions { inline_handlers, wait, descriptors, ..ServerOptions::default() };
            let running = start(options, workload::serve);
            let client = connect(&running, wait);
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    let client = &client;
                    scope.spawn(move || {
                        quick_calls(client, 600, thread);
                        mixed_calls(client, ways, 200, thread);
                        quick_calls(client, 600, thread);
                    });
                }
            });
            assert_eq!(client.open_calls(), 0);
        }
    }
}

#[test]
fn calls_that_end_early_hold_up_no_others() {
    for wait in WAITS {
        let gate = Gate::new();
        let running = start_behind(&gate);
        let client = connect(&running, wait);
        quick_calls(&client, 200, 0);
        let slow = || client.call("map slow").request(&[0; 9]).inline(0);
        thread::scope(|scope| {
            let late = scope.spawn(|| slow().deadline(SHORT).send().unwrap_err());
            let pending = Client::start(slow()).unwrap();
            quick_calls(&client, 200, 1);
            gate.wait_for(2);
            pending.cancel();
            let late = late.join().unwrap();
            assert!(matches!(late.error(), Error::DeadlineExceeded), "{late}");
        });
        // Both are the server's still.
        assert_eq!(client.open_calls(), 2);
        quick_calls(&client, 200, 2);
        let waits = Client::start(slow().deadline(PATIENCE)).unwrap();
        quick_calls(&client, 200, 3);
        gate.open();
        assert_eq!(waits.wait().unwrap().response(), [0]);
        eventually("the server lets go", PATIENCE, || client.open_calls() == 0);
        quick_calls(&client, 200, 4);
    }
}

/// Makes calls until one fails, and tells why.
fn call_until_lost(client: &Client, seed: u8, mut buffer: Buffer) -> CallError {
    for seed in (seed..=255).cycle() {
        match quick_call(client, seed, buffer) {
            Ok(back) => buffer = back,
            Err(failed) => return failed,
        }
    }
    unreachable!("the server ends")
}

#[test]
fn a_server_that_is_killed_is_seen_by_all() {
    for round in 0..10_u8 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let server = workload::start_server(&path, 2);
        let wait = WAITS[usize::from(round) % 2];
        let options = ClientOptions { wait, ..ClientOptions::default() };
        let client = Client::connect_with(&path, &options).unwrap();
        thread::scope(|scope| {
            let never = scope.spawn(|| {
                let call = client.call("never").inline(100).deadline(PATIENCE);
                call.send().unwrap_err()
            });
            let start = |seed| {
                let (client, buffer) = (&client, client.buffer(100).unwrap());
                scope.spawn(move || call_until_lost(client, seed, buffer))
            };
            let calling: Vec<_> = (0..THREADS).map(start).collect();
            thread::sleep(Duration::from_millis(5 + u64::from(round)));
            server.kill();
            for ended in calling.into_iter().chain([never]) {
                let failed = ended.join().unwrap();
                assert!(matches!(failed.error(), Error::ConnectionLost(_)), "{failed}");
            }
        });
        assert!(!client.is_alive());
    }
}

#[test]
fn a_server_that_stops_is_seen_by_all() {
    for wait in WAITS {
        let gate = Gate::new();
        let running = start_behind(&gate);
        let client = connect(&running, wait);
        quick_calls(&client, 200, 0);
        thread::scope(|scope| {
            let slow = scope.spawn(|| {
                let call = client.call("map slow").request(&[0; 9]).inline(0);
                call.deadline(PATIENCE).send().unwrap_err()
            });
            let buffer = client.buffer(100).unwrap();
            let calling = scope.spawn(|| call_until_lost(&client, 1, buffer));
            gate.wait_for(1);
            let Running { server, .. } = running;
            scope.spawn(move || server.stop(SHORT));
            let (slow, calling) = (slow.join().unwrap(), calling.join().unwrap());
            gate.open();
            for failed in [slow, calling] {
                assert!(matches!(failed.error(), Error::ConnectionLost(_)), "{failed}");
            }
        });
    }
}

/// Nobody looks for what nobody waits for: an idle client, and one whose calls were all taken back.
#[test]
fn a_client_that_waits_for_nothing_costs_nothing() {
    isolated("looking::a_client_that_waits_for_nothing_costs_nothing", || {
        for wait in WAITS {
            let gate = Gate::new();
            let running = start_behind(&gate);
            let client = connect(&running, wait);
            quick_calls(&client, 1000, 0);
            ensure_idle();
            let late = client.call("map slow").request(&[0; 9]).inline(0).deadline(SHORT);
            late.send().unwrap_err();
            assert_eq!(client.open_calls(), 1);
            ensure_idle();
            gate.open();
        }
    });
}

/// A server looks for 10 ms after a call.
fn ensure_idle() {
    thread::sleep(SHORT);
    let used = || process_cpu_time(std::process::id()).unwrap();
    let (before, began) = (used(), Instant::now());
    thread::sleep(Duration::from_millis(300));
    let used = used() - before;
    assert!(used < began.elapsed() / 3, "{used:?} of {:?}", began.elapsed());
}
