//! Calls that end before their answers come: by time, or taken back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use shorthaul::{Client, Code, Error, InboundCall, ServerOptions, Service, Status};

use super::service::{
    AnyClient, Gate, PATIENCE, Running, Way, check, eventually, pattern, payload_bytes, request,
    serve, start, write_payload,
};

const SHORT: Duration = Duration::from_millis(50);
const BYTES: usize = 100_000;

/// Serves patterns; methods that end in "slow" pass the gate between the halves of their payloads.
fn behind(gate: &Arc<Gate>) -> impl Service {
    let gate = Arc::clone(gate);
    move |call: &mut InboundCall| {
        if call.method().ends_with("slow") {
            let whole = pattern(payload_bytes(call), call.request()[8]);
            write_payload(call, &whole[..whole.len() / 2])?;
            gate.pass();
        }
        serve(call)
    }
}

fn start_behind(gate: &Arc<Gate>) -> Running {
    let options = ServerOptions { workers: 2, ..ServerOptions::default() };
    start(options, behind(gate))
}

fn time_out(way: Way, is_direct: bool) {
    let gate = Gate::new();
    let running = start_behind(&gate);
    let mut client = AnyClient::connect(&running.path, is_direct).unwrap();
    let started = Instant::now();
    let late = client.send(way, " slow", &request(BYTES, 1), BYTES, SHORT);
    let late = late.unwrap_err();
    assert!(started.elapsed() >= SHORT);
    assert!(matches!(late.error(), Error::DeadlineExceeded), "{late}");
    assert!(late.into_buffer().is_none(), "the server may still be writing");
    assert_eq!(client.open_calls(), 1);

    // The connection goes on, and the calls don't meet.
    gate.wait_for(1);
    let second = client.send(way, "", &request(BYTES, 2), BYTES, PATIENCE);
    check(&second.unwrap(), BYTES, 2);
    assert_eq!(client.open_calls(), 1);
    let mut held = (way == Way::FillMap).then(|| client.buffer(BYTES));
    gate.open();
    eventually("the server lets go", PATIENCE, || {
        client.poll();
        client.open_calls() == 0
    });
    for seed in 3..20 {
        let reply = client.send(way, "", &request(BYTES, seed), BYTES, PATIENCE);
        check(&reply.unwrap(), BYTES, seed);
    }
    held.take();
    assert!(running.server.stop(PATIENCE));
}

#[test]
fn a_direct_call_past_its_deadline() {
    Way::ALL.into_iter().for_each(|way| time_out(way, true));
}

#[test]
fn a_call_past_its_deadline() {
    Way::ALL.into_iter().for_each(|way| time_out(way, false));
}

#[test]
fn polling_returns_when_something_has_come() {
    let gate = Gate::new();
    let running = start_behind(&gate);
    let AnyClient::Direct(mut client) = AnyClient::connect(&running.path, true).unwrap() else {
        unreachable!()
    };
    let asked = request(BYTES, 1);
    let call = client.call("map slow").request(&asked).inline(BYTES);
    call.deadline(SHORT).send().unwrap_err();
    let started = Instant::now();
    client.poll(SHORT).unwrap();
    assert!(started.elapsed() >= SHORT, "nothing has come");
    assert_eq!(client.open_calls(), 1);
    gate.wait_for(1);
    gate.open();
    client.poll(PATIENCE).unwrap();
    assert_eq!(client.open_calls(), 0);
    assert!(started.elapsed() < PATIENCE / 2, "it waited on");
}

#[test]
fn the_answer_to_a_past_call_is_nobody_elses() {
    let running = start(ServerOptions::default(), serve);
    for is_direct in [true, false] {
        let mut client = AnyClient::connect(&running.path, is_direct).unwrap();
        let mut seeds = 0..200_u8;
        while let (Some(hasty), Some(patient)) = (seeds.next(), seeds.next()) {
            // Often answered just when nobody waits any more.
            let timeout = Duration::from_micros(u64::from(hasty) * 2);
            let asked = request(BYTES, hasty);
            match client.send(Way::Inline, "", &asked, BYTES, timeout) {
                Ok(reply) => check(&reply, BYTES, hasty),
                Err(late) => assert_eq!(late.error().code(), Code::DeadlineExceeded, "{late}"),
            }
            let asked = request(BYTES, patient);
            let reply = client.send(Way::Inline, "", &asked, BYTES, PATIENCE);
            check(&reply.unwrap(), BYTES, patient);
        }
        eventually("all is let go of", PATIENCE, || {
            client.poll();
            client.open_calls() == 0
        });
    }
}

#[test]
fn a_running_handler_learns_that_its_call_was_taken_back() {
    let (sender, learned) = channel();
    let gate = Gate::new();
    let entered = Arc::clone(&gate);
    let running = start(ServerOptions::default(), move |call: &mut InboundCall| {
        entered.pass();
        let by = Instant::now() + PATIENCE;
        while !call.is_cancelled() && Instant::now() < by {
            std::thread::yield_now();
        }
        sender.send(call.is_cancelled()).unwrap();
        Err(Status::new(Code::Cancelled, "as asked"))
    });
    gate.open();
    let client = Client::connect(&running.path).unwrap();
    let buffer = client.buffer(4096).unwrap();
    let pending = Client::start(client.call("wait").into(buffer)).unwrap();
    gate.wait_for(1);
    assert_eq!(client.open_calls(), 1);
    pending.cancel();
    assert_eq!(learned.recv_timeout(PATIENCE), Ok(true));
    eventually("it is let go of", PATIENCE, || client.open_calls() == 0);
}

/// A server with one worker, whose calls are counted and wait at a gate.
fn one_gated_worker() -> (Arc<Gate>, Arc<AtomicUsize>, Running) {
    let gate = Gate::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let (entered, counted) = (Arc::clone(&gate), Arc::clone(&runs));
    let options = ServerOptions { workers: 1, ..ServerOptions::default() };
    let running = start(options, move |call: &mut InboundCall| {
        counted.fetch_add(1, Ordering::Relaxed);
        entered.pass();
        call.reply(b"done")
    });
    (gate, runs, running)
}

#[test]
fn a_waiting_call_that_was_taken_back_is_not_run() {
    let (gate, runs, running) = one_gated_worker();
    let client = Client::connect(&running.path).unwrap();
    let first = Client::start(client.call("")).unwrap();
    gate.wait_for(1);
    let inline = client.call("").inline(50 << 20);
    let second = Client::start(inline).unwrap();
    let third = Client::start(client.call("")).unwrap();
    second.cancel();
    // Acknowledged while the only worker is still at the first.
    eventually("it is let go of", PATIENCE, || client.open_calls() == 2);
    gate.open();
    assert_eq!(first.wait().unwrap().response(), b"done");
    assert_eq!(third.wait().unwrap().response(), b"done");
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

#[test]
fn a_call_that_waits_past_its_deadline_is_not_run() {
    let (gate, runs, running) = one_gated_worker();
    let client = Client::connect(&running.path).unwrap();
    let first = Client::start(client.call("")).unwrap();
    gate.wait_for(1);
    let late = client.call("").deadline(SHORT).send().unwrap_err();
    assert!(matches!(late.error(), Error::DeadlineExceeded), "{late}");
    gate.open();
    first.wait().unwrap();
    eventually("it is let go of", PATIENCE, || client.open_calls() == 0);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[test]
fn a_waiting_call_that_was_taken_back_makes_no_room_for_others() {
    let gate = Gate::new();
    let entered = Arc::clone(&gate);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let running = start(ServerOptions::default(), move |call: &mut InboundCall| {
        if call.method() == "large" {
            counted.fetch_add(1, Ordering::Relaxed);
            entered.pass();
        }
        call.reply(b"")
    });
    let client = Client::connect(&running.path).unwrap();
    let large = || Client::start(client.call("large").inline(60 << 20)).unwrap();
    let first = large();
    gate.wait_for(1);
    // Two answers of this size are more than one connection may have under way.
    large().cancel();
    eventually("it is let go of", PATIENCE, || client.open_calls() == 1);
    let third = large();
    // There is a worker left, but not for it.
    let other = Client::connect(&running.path).unwrap();
    other.call("small").deadline(PATIENCE).send().unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    gate.open();
    first.wait().unwrap();
    third.wait().unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

#[cfg(feature = "long-tests")] // Waits out the time in which a cancel must be acknowledged.
#[test]
fn a_call_counts_until_its_late_answer_though_its_buffer_is_given_up() {
    let (sender, told) = channel::<()>();
    let told = std::sync::Mutex::new(told);
    let running = start(ServerOptions::default(), move |call: &mut InboundCall| {
        told.lock().unwrap().recv_timeout(PATIENCE * 6).unwrap();
        call.reply(b"late")
    });
    for is_direct in [true, false] {
        let mut client = AnyClient::connect(&running.path, is_direct).unwrap();
        let asked = request(BYTES, 1);
        let late = client.send(Way::FillMap, "", &asked, BYTES, SHORT);
        late.unwrap_err();
        std::thread::sleep(CANCEL_ACK_TIMEOUT + Duration::from_millis(500));
        client.poll();
        assert_eq!(client.open_calls(), 1);
        sender.send(()).unwrap();
        eventually("the late answer comes", PATIENCE, || {
            client.poll();
            client.open_calls() == 0
        });
    }
}

/// The library's own.
#[cfg(feature = "long-tests")]
const CANCEL_ACK_TIMEOUT: Duration = Duration::from_secs(10);
