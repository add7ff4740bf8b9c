//! Servers that are killed: their clients are told, at once and honestly, and hold nothing of them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use shorthaul::{Client, ClientOptions, Error, Reconnecting};

use super::super::census::Census;
use super::super::child::Process;
use super::super::hostile::isolated;
use super::super::service::AnyClient;
use super::super::workload::{Caller, Failed, Random, Way, start_server};
use super::{BYTES, PATIENCE, RECOVERY_MAX, rounds};

/// Where a client was when its server was killed.
#[derive(Debug, Default)]
struct Landed {
    connecting: u64,
    registering: u64,
    calling: u64,
}

fn kill_servers(way: Way) {
    let mut random = Random::new(&format!("killing servers, {way:?}"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let before = Census::take();
    let shared = Reconnecting::new(&path, ClientOptions::default());
    let cycle_us = AtomicU64::new(20_000);
    let (rounds, mut longest) = (rounds(15), Duration::ZERO);
    let mut landed = Landed::default();
    for round in 0..rounds {
        // Takes over the socket that the one before has left.
        let server = start_server(&path, 2);
        let bystander = connect_all_at_once(&shared, &server);
        way.call(Caller::Threaded(&bystander), (BYTES, round as u8), PATIENCE).unwrap();
        let took = thread::scope(|scope| {
            let calling = scope.spawn(|| call_until_lost(way, &path, round % 2 == 0, &cycle_us));
            let cycle = cycle_us.load(Ordering::Relaxed);
            thread::sleep(Duration::from_micros(random.below(cycle * 2)));
            let killed_at = Instant::now();
            server.kill();
            let (failed, ended_at) = calling.join().unwrap();
            landed.note(way, failed);
            ended_at.saturating_duration_since(killed_at)
        });
        longest = longest.max(took);
        let lost = way.call(Caller::Threaded(&bystander), (BYTES, 1), PATIENCE).unwrap_err();
        ensure_lost(way, lost.error());
        drop(lost);
        assert!(!bystander.is_alive());
        drop(bystander);
        assert!(matches!(shared.client(), Err(Error::Io { .. })), "nobody listens");
        before.returns();
    }
    eprintln!("killing servers, {way:?}: {rounds} rounds, {landed:?}, longest {longest:?}");
    assert!(longest < RECOVERY_MAX, "{longest:?}");
}

/// Many ask for a client at the same time, and get the same one: the server has one connection
/// more.
fn connect_all_at_once(shared: &Reconnecting, server: &Process) -> Arc<Client> {
    let sockets = Census::of(server.id()).count("socket");
    let clients: Vec<_> = thread::scope(|scope| {
        let asking: Vec<_> = (0..4).map(|_| scope.spawn(|| shared.client().unwrap())).collect();
        asking.into_iter().map(|asking| asking.join().unwrap()).collect()
    });
    assert!(clients.iter().all(|client| Arc::ptr_eq(client, &clients[0])));
    assert_eq!(Census::of(server.id()).count("socket"), sockets + 1, "one, and not a storm");
    Arc::clone(&clients[0])
}

/// Connects, calls and closes until that fails.
fn call_until_lost(
    way: Way,
    path: &Path,
    is_direct: bool,
    cycle_us: &AtomicU64,
) -> (Result<Failed, Error>, Instant) {
    for seed in (0_u8..=255).cycle() {
        let began = Instant::now();
        let mut client = match AnyClient::connect(path, is_direct) {
            Ok(client) => client,
            Err(error) => return (Err(error), Instant::now()),
        };
        for call in 0..3 {
            let sizes = (BYTES, seed.wrapping_add(call));
            if let Err(failed) = way.call(client.caller(), sizes, PATIENCE) {
                return (Ok(failed), Instant::now());
            }
        }
        drop(client);
        cycle_us.store(began.elapsed().as_micros() as u64, Ordering::Relaxed);
    }
    unreachable!("the server is killed")
}

fn ensure_lost(way: Way, error: &Error) {
    assert!(matches!(error, Error::ConnectionLost(_)), "{way:?}: {error}");
    assert!(error.to_string().contains("connection lost, outcome unknown"), "{error}");
    assert!(!error.is_retryable() && error.closes_connection());
}

impl Landed {
    fn note(&mut self, way: Way, outcome: Result<Failed, Error>) {
        match outcome {
            Err(Error::Io { .. } | Error::ConnectionLost(_)) => self.connecting += 1,
            Err(other) => panic!("{way:?}: {other}"),
            Ok(Failed::Register(error)) => {
                ensure_lost(way, &error);
                self.registering += 1;
            }
            Ok(Failed::Call(error, buffer)) => {
                ensure_lost(way, &error);
                // One that comes back was never sent.
                let is_untouched = buffer.is_none_or(|buffer| buffer.sum(0..BYTES, 1) == 0);
                assert!(is_untouched, "{way:?}: half-filled");
                self.calling += 1;
            }
        }
    }
}

macro_rules! tests {
    ($($name:ident: $way:ident,)*) => {
        $(
            #[test]
            fn $name() {
                let name = concat!("kill::servers::", stringify!($name));
                isolated(name, || kill_servers(Way::$way));
            }
        )*
    };
}

tests! {
    killed_in_inline_answers: Inline,
    killed_in_fills_by_writing: FillWrite,
    killed_in_fills_by_mapping: FillMap,
    killed_in_one_shot_fills: OneShot,
    killed_in_sealed_answers: Sealed,
    killed_in_inline_uploads: InlineUpload,
    killed_in_sealed_uploads: SealedUpload,
    killed_in_uploads_out_of_a_region: RegionUpload,
    killed_in_relays_into_a_pipe: Pipe,
    killed_in_relays_into_a_socket: Socket,
}
