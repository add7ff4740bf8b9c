//! What connections cost that have been busy and are idle now: a server and many clients in one
//! process, some calls each, and then nothing. Says how much CPU time that nothing took.
//!
//! cargo run --release -p shorthaul --example idle -- 100

use std::time::{Duration, Instant};

use shorthaul::{ClientOptions, DirectClient, InboundCall, Server, ServerOptions, Wait};
use shorthaul_platform::usage::process_cpu_time;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count = std::env::args().nth(1).map_or(Ok(100), |count| count.parse::<usize>())?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("idle.sock");
    let options =
        ServerOptions { inline_handlers: true, wait: Wait::Adaptive, ..ServerOptions::default() };
    let server = Server::bind_with(&path, options)?;
    let server = server.start(|call: &mut InboundCall| call.reply(&[0; 8]))?;
    let options = ClientOptions { wait: Wait::Adaptive, ..ClientOptions::default() };
    let connect = |_| DirectClient::connect_with(&path, &options);
    let mut clients = (0..count).map(connect).collect::<Result<Vec<_>, _>>()?;
    for client in &mut clients {
        for _ in 0..100 {
            client.call("").request(&[0; 64]).send()?;
        }
    }
    let (before, start) = (process_cpu_time(std::process::id())?, Instant::now());
    std::thread::sleep(Duration::from_secs(10));
    let used = process_cpu_time(std::process::id())? - before;
    let share = used.as_secs_f64() / start.elapsed().as_secs_f64();
    println!("{count} idle connections: {:.3} % of a core", share * 100.0);
    drop(clients);
    server.stop(Duration::from_secs(1));
    Ok(())
}
