//! Clients that are killed: their server lets go of all that was theirs, and serves the others.

use std::env;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::super::census::Census;
use super::super::child::{Process, say};
use super::super::service::AnyClient;
use super::super::workload::{self, Random, Way, fail_at_once, start_server};
use super::{BYTES, PATIENCE, RECOVERY_MAX, rounds};

/// The role of a client that is there to be killed: both kinds at once connect, make some calls
/// and close again, for ever. Tells how long that took at first, in microseconds.
pub(crate) fn call_for_ever(path: &Path) {
    fail_at_once();
    let way = Way::ALL[env::var(WAY).unwrap().parse::<usize>().unwrap()];
    let call_once = |is_direct, seed: u8| {
        let mut client = AnyClient::connect(path, is_direct).unwrap();
        for call in 0..3 {
            way.call(client.caller(), (BYTES, seed.wrapping_add(call)), PATIENCE).unwrap();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for seed in (0_u8..=255).cycle() {
                call_once(false, seed);
            }
        });
        for round in 0_usize.. {
            let began = Instant::now();
            call_once(true, round as u8);
            if round == 0 {
                say(began.elapsed().as_micros());
            }
        }
    });
}

/// A process that plays that role, by one lane.
pub(crate) fn command(path: &Path, way: Way) -> Command {
    let mut command = workload::command("is killed", path);
    let index = Way::ALL.iter().position(|&other| other == way).unwrap();
    command.env(WAY, index.to_string());
    command
}

fn kill_clients(way: Way) {
    let mut random = Random::new(&format!("killing clients, {way:?}"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    // One worker: what a server keeps for later calls does not depend on how many ran at once.
    let server = start_server(&path, 1);
    let mut honest = AnyClient::connect_asleep(&path).unwrap();
    way.call(honest.caller(), (BYTES, 1), PATIENCE).unwrap();
    let before = settled(server.id(), way);
    let (rounds, mut longest) = (rounds(if way == Way::Sealed { 5 } else { 15 }), Duration::ZERO);
    for round in 0..rounds {
        let mut client = Process::spawn(command(&path, way));
        let micros: u64 = client.hear().parse().unwrap();
        thread::sleep(Duration::from_micros(random.below(micros * 3 / 2)));
        client.kill();
        let killed_at = Instant::now();
        way.call(honest.caller(), (BYTES, round as u8), PATIENCE).unwrap();
        before.returns_in(server.id());
        longest = longest.max(killed_at.elapsed());
    }
    eprintln!("killing clients, {way:?}: {rounds} rounds, longest recovery {longest:?}");
    assert!(longest < RECOVERY_MAX, "{longest:?}");
    server.kill();
}

/// What a server holds when nothing changes any more: a sealed answer is seen to be given back up
/// to a second later.
fn settled(server: u32, way: Way) -> Census {
    let rest = Duration::from_millis(if way == Way::Sealed { 2_500 } else { 300 });
    let by = Instant::now() + PATIENCE;
    let (mut census, mut since) = (Census::of(server), Instant::now());
    while since.elapsed() < rest {
        assert!(Instant::now() < by, "it never settles: {census:?}");
        thread::sleep(Duration::from_millis(20));
        let now = Census::of(server);
        if now != census {
            (census, since) = (now, Instant::now());
        }
    }
    census
}

macro_rules! tests {
    ($($name:ident: $way:ident,)*) => {
        $(
            #[test]
            fn $name() {
                kill_clients(Way::$way);
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

const WAY: &str = "SHORTHAUL_TEST_WAY";
