//! What several clients get of one server with a reactor for each CPU: 1, 2, 4 and 8 clients that
//! have payloads of 1 MiB filled into their buffers, in turn, round by round.
//!
//! cargo run --release -p shorthaul --example scaling -- 21

use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use shorthaul::{ClientOptions, DirectClient, InboundCall, Server, ServerOptions, Wait};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let rounds = std::env::args().nth(1).map_or(Ok(5), |rounds| rounds.parse::<usize>())?;
    let cpus = thread::available_parallelism()?.get();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("scaling.sock");
    let options = ServerOptions {
        inline_handlers: true,
        reactors: cpus,
        wait: Wait::Adaptive,
        ..ServerOptions::default()
    };
    let server = Server::bind_with(&path, options)?.start(|call: &mut InboundCall| {
        let byte = call.request()[0];
        call.payload(PAYLOAD_BYTES)?.fill(byte, PAYLOAD_BYTES)?;
        call.reply(&[])
    })?;
    let mut found = vec![Vec::new(); CLIENTS.len()];
    for _ in 0..rounds {
        for (index, &clients) in CLIENTS.iter().enumerate() {
            found[index].push(measure(&path, clients)?);
        }
    }
    println!("{cpus} reactors, {rounds} rounds; payloads of 1 MiB, MB/s in all");
    let first = found[0].clone();
    for (&clients, found) in CLIENTS.iter().zip(&mut found) {
        let ratios: Vec<f64> = found.iter().zip(&first).map(|(rate, one)| rate / one).collect();
        let (rate, ratio) = (spread(found.clone()), spread(ratios));
        println!(
            "{clients} clients: {:.0} ({:.0}–{:.0}), {:.2} ({:.2}–{:.2}) times what one gets",
            rate[1], rate[0], rate[2], ratio[1], ratio[0], ratio[2]
        );
    }
    server.stop(Duration::from_secs(1));
    Ok(())
}

/// Payload that so many clients get in a while, in MB/s.
fn measure(path: &Path, clients: usize) -> Result<f64, Failure> {
    let barrier = Barrier::new(clients);
    thread::scope(|scope| {
        let running: Vec<_> = (0..clients).map(|_| scope.spawn(|| call(path, &barrier))).collect();
        let mut rate = 0.0;
        for client in running {
            rate += client.join().map_err(|_| "a client panicked")??;
        }
        Ok(rate)
    })
}

/// One client's share.
fn call(path: &Path, barrier: &Barrier) -> Result<f64, Failure> {
    let options = ClientOptions { wait: Wait::Adaptive, ..ClientOptions::default() };
    let client = DirectClient::connect_with(path, &options);
    let made = client.and_then(|mut client| Ok((client.buffer(PAYLOAD_BYTES)?, client)));
    barrier.wait();
    let (mut buffer, mut client) = made?;
    let (mut calls, mut start) = (0_u64, Instant::now());
    let warm = start + WARM_UP;
    let mut is_warm = false;
    loop {
        let now = Instant::now();
        if !is_warm && now >= warm {
            (is_warm, calls, start) = (true, 0, now);
        }
        if is_warm && now - start >= TIME {
            let bytes = calls as f64 * PAYLOAD_BYTES as f64;
            return Ok(bytes / (now - start).as_secs_f64() / 1e6);
        }
        calls += 1;
        let reply = client.call("").request(&[calls as u8]).into(buffer).send()?;
        // One byte of each page is read, and right.
        if reply.sum(4096) != u64::from(calls as u8) * (PAYLOAD_BYTES as u64 / 4096) {
            return Err("an answer is not what was asked".into());
        }
        buffer = reply.into_buffer().ok_or("the buffer came back")?;
    }
}

/// The least, the median and the most.
fn spread(mut of: Vec<f64>) -> [f64; 3] {
    of.sort_by(f64::total_cmp);
    [of[0], of[of.len() / 2], of[of.len() - 1]]
}

const CLIENTS: [usize; 4] = [1, 2, 4, 8];
const PAYLOAD_BYTES: usize = 1 << 20;
const WARM_UP: Duration = Duration::from_millis(50);
const TIME: Duration = Duration::from_millis(250);
