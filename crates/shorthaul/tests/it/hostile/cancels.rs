//! Calls that are given up at any moment while the server fills: no buffer is had again before the
//! server has let go of it, and no byte of one call is ever seen in another.

use std::time::{Duration, Instant};

use shorthaul::{Buffer, Client, Code, DirectClient, InboundCall, Reply, ServerOptions, Status};

use super::{isolated, rounds};
use crate::service::{
    AnyClient, PATIENCE, Running, Way, check, eventually, pattern, payload_bytes, request, start,
    write_payload,
};

/// Fills in small steps, so that calls are given up in the middle.
fn slowly(call: &mut InboundCall) -> Result<(), Status> {
    let seed = call.request()[8];
    let bytes = payload_bytes(call);
    let whole = pattern(bytes, seed);
    // First garbage, then what is due: a reader before the answer would see the former.
    write_payload(call, &vec![!seed; bytes])?;
    let by = Instant::now() + Duration::from_micros(u64::from(seed) * 4);
    while Instant::now() < by {
        std::thread::yield_now();
    }
    write_payload(call, &whole)?;
    call.reply(&[seed])
}

fn running() -> Running {
    start(ServerOptions { workers: 4, ..ServerOptions::default() }, slowly)
}

/// Replies that are held while other calls go on: theirs are the last bytes of their buffers.
#[derive(Default)]
struct Held {
    replies: Vec<(Reply, u8)>,
}

impl Held {
    fn add(&mut self, reply: Reply, seed: u8) {
        check(&reply, BYTES, seed);
        self.replies.push((reply, seed));
    }

    /// Looks at all once more and gives their buffers back, to be used again at once.
    fn release(&mut self, buffers: &mut Vec<Buffer>) {
        for (reply, seed) in self.replies.drain(..) {
            check(&reply, BYTES, seed);
            buffers.extend(reply.into_buffer());
        }
    }
}

fn give_up_by_time(way: Way, is_direct: bool) {
    let running = running();
    let mut client = AnyClient::connect(&running.path, is_direct).unwrap();
    let (mut held, mut buffers) = (Held::default(), Vec::new());
    let (mut late, mut in_time) = (0, 0);
    // Becomes about what a call takes here and now.
    let mut usual_us = 200.0_f64;
    for round in 0..rounds(600, 10_000) {
        let seed = (round * 7) as u8;
        let asked = request(BYTES, seed);
        let method = way.method("");
        // From far too little to more than enough.
        let timeout = Duration::from_secs_f64((usual_us * (round % 7) as f64 / 3.0 + 1.0) / 1e6);
        let buffer = buffers.pop().or_else(|| way.wants_buffer().then(|| client.buffer(BYTES)));
        let outcome = match &mut client {
            AnyClient::Direct(client) => {
                way.send(client.call(&method).request(&asked).deadline(timeout), BYTES, buffer)
            }
            AnyClient::Threaded(client) => {
                way.send(client.call(&method).request(&asked).deadline(timeout), BYTES, buffer)
            }
        };
        match outcome {
            Ok(reply) => {
                (in_time, usual_us) = (in_time + 1, usual_us * 0.97);
                held.add(reply, seed);
            }
            Err(failed) => {
                (late, usual_us) = (late + 1, (usual_us * 1.03).min(1e6));
                let code = failed.error().code();
                let is_full = code == Code::ResourceExhausted;
                assert!(is_full || code == Code::DeadlineExceeded, "{failed}");
                // Only what the server has let go of, or never had.
                buffers.extend(failed.into_buffer());
                if is_full {
                    eventually("calls end", PATIENCE, || {
                        client.poll();
                        client.open_calls() == 0
                    });
                }
            }
        }
        if round % 8 == 0 {
            held.release(&mut buffers);
            buffers.truncate(4);
        }
    }
    held.release(&mut buffers);
    eventually("all calls end", PATIENCE, || {
        client.poll();
        client.open_calls() == 0
    });
    let asked = request(BYTES, 1);
    check(&client.send(way, "", &asked, BYTES, PATIENCE).unwrap(), BYTES, 1);
    assert!(late > 20 && in_time > 20, "{late} late, {in_time} in time");
}

#[test]
fn a_buffer_of_a_late_call_is_not_had_again_too_early() {
    isolated("hostile::cancels::a_buffer_of_a_late_call_is_not_had_again_too_early", || {
        for way in [Way::FillMap, Way::FillWrite, Way::OneShot, Way::Inline] {
            for is_direct in [true, false] {
                give_up_by_time(way, is_direct);
            }
        }
    });
}

/// Taken back and dropped while they are filled, many at a time.
#[test]
fn calls_that_are_taken_back_mix_with_no_others() {
    let running = running();
    let client = Client::connect(&running.path).unwrap();
    let mut buffers: Vec<Buffer> = (0..4).map(|_| client.buffer(BYTES).unwrap()).collect();
    for round in 0..rounds(600, 10_000) {
        let seed = (round * 11) as u8;
        let method = if round % 2 == 0 { "map" } else { "write" };
        let mut start = |seed: u8| {
            let buffer = buffers.pop().unwrap_or_else(|| client.buffer(BYTES).unwrap());
            let asked = request(BYTES, seed);
            let call = client.call(method).request(&asked).deadline(PATIENCE).into(buffer);
            Client::start(call).unwrap()
        };
        let (first, second, third) = (start(seed), start(seed ^ 1), start(seed ^ 2));
        match round % 3 {
            0 => first.cancel(),
            1 => drop(first),
            _ => check(&first.wait().unwrap(), BYTES, seed),
        }
        let reply = second.wait().unwrap();
        check(&reply, BYTES, seed ^ 1);
        let last = third.wait().unwrap();
        check(&reply, BYTES, seed ^ 1);
        check(&last, BYTES, seed ^ 2);
        buffers.extend([reply, last].into_iter().filter_map(Reply::into_buffer));
        buffers.truncate(4);
        if client.open_calls() > 100 {
            eventually("calls end", PATIENCE, || client.open_calls() < 10);
        }
    }
    eventually("all calls end", PATIENCE, || client.open_calls() == 0);
}

/// A direct client that is dropped with calls open, and its successor.
#[test]
fn a_client_that_leaves_its_calls_mixes_with_no_successor() {
    let running = running();
    for round in 0..rounds(200, 2000) {
        let seed = (round * 3) as u8;
        let asked = request(BYTES, seed);
        let mut client = DirectClient::connect(&running.path).unwrap();
        let buffer = client.buffer(BYTES).unwrap();
        let timeout = Duration::from_micros(round as u64 % 300);
        let call = client.call("map").request(&asked).deadline(timeout).into(buffer);
        if let Ok(reply) = call.send() {
            check(&reply, BYTES, seed);
        }
        drop(client);
        let mut client = DirectClient::connect(&running.path).unwrap();
        let asked = request(BYTES, !seed);
        let call = client.call("map").request(&asked).deadline(PATIENCE).into_fresh(BYTES);
        check(&call.send().unwrap(), BYTES, !seed);
    }
}

const BYTES: usize = 16_000;
