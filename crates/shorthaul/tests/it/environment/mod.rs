//! The library where something is missing. Each test starts a server and a client as processes of
//! their own, takes something away from one of them, and makes calls on every lane: each brings the
//! right bytes or an error that says what is missing, and nobody crashes, hangs or keeps anything.

mod calls;
mod files;
mod limits;
mod memory;
mod namespaces;
mod refused;
mod world;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use shorthaul::limits::{Limits, UserLimits};
use shorthaul::{Descriptors, Server, ServerOptions, peer_policy};

use self::calls::{LANES, answer, attempt, short};
use self::world::World;
use super::child::{Process, say};
use super::service::PATIENCE;

/// What came of each lane's call, by the direct client and the other.
#[derive(Debug)]
struct Outcomes(BTreeMap<String, Vec<String>>);

/// Runs calls on all lanes between a server and a client in their worlds; none if this machine
/// can't make those.
fn run(server: &World, client: &World) -> Option<Outcomes> {
    let folder = tempfile::tempdir().unwrap();
    run_at(&folder.path().join("s"), server, client)
}

fn run_at(path: &Path, server: &World, client: &World) -> Option<Outcomes> {
    let server = start_server(path, server)?;
    let outcomes = call_from(path, client);
    ends_clean(server);
    outcomes
}

/// A server in its world; none if there can't be such a one here.
fn start_server(path: &Path, world: &World) -> Option<Process> {
    let mut server = start("environment server", path, world)?;
    assert_eq!(server.hear(), "serving");
    Some(server)
}

fn start(role: &str, path: &Path, world: &World) -> Option<Process> {
    world.is_possible().then(|| Process::spawn(world.command(role, path)))
}

/// What a client in its world gets on every lane.
fn call_from(path: &Path, world: &World) -> Option<Outcomes> {
    let mut client = start("environment client", path, world)?;
    let mut outcomes = BTreeMap::<_, Vec<_>>::new();
    loop {
        let line = client.hear();
        let Some((lane, outcome)) = line.split_once(": ") else {
            assert_eq!(line, "done");
            break;
        };
        outcomes.entry(lane.to_owned()).or_default().push(outcome.to_owned());
    }
    assert_eq!(client.wait().signal(), None);
    Some(Outcomes(outcomes))
}

/// Ends a server, which has nothing left of its clients.
fn ends_clean(mut server: Process) {
    server.close_stdin();
    assert_eq!(server.hear(), "nothing is left");
    assert!(server.wait().success());
}

impl Outcomes {
    /// These calls bring the right bytes, by the lanes that are named.
    fn work(&self, expected: &[(&str, &str)]) -> &Self {
        for &(call, lane) in expected {
            let outcomes = &self.0[call];
            assert!(outcomes.iter().all(|outcome| outcome == lane), "{call}: {outcomes:?}");
        }
        self
    }

    /// These calls fail with an error that has all these words.
    fn fail(&self, calls: &[&str], words: &[&str]) -> &Self {
        for &call in calls {
            for outcome in &self.0[call] {
                let is_told = words.iter().all(|word| outcome.contains(word));
                assert!(is_told, "{call}: {outcome}, without {words:?}");
            }
        }
        self
    }

    /// Each call works, or fails with an error that has one of these words.
    fn work_or_fail(&self, words: &[&str]) -> usize {
        let mut failed = 0;
        for (call, lane) in LANES {
            for outcome in self.0.get(call).into_iter().flatten() {
                let is_told = words.iter().any(|word| outcome.contains(word));
                let took = outcome.split(", ").all(|taken| lane.split(", ").any(|l| l == taken));
                assert!(took || is_told, "{call}: {outcome}, without {words:?}");
                failed += usize::from(!took);
            }
        }
        failed
    }

    /// Every call but those takes the lane that it takes where nothing is missing.
    fn else_work(&self, except: &[&str]) -> &Self {
        let others = LANES.iter().filter(|(call, _)| !except.contains(call));
        assert_eq!(self.0.len(), LANES.len());
        self.work(&others.copied().collect::<Vec<_>>())
    }

    fn all_work(&self) {
        self.else_work(&[]);
    }

    /// Every call fails in the same way, for nobody can connect.
    fn all_fail(&self, words: &[&str]) {
        let calls: Vec<_> = LANES.iter().map(|(call, _)| *call).collect();
        self.fail(&calls, words);
    }
}

/// What a server does, as a process of its own.
pub(super) fn serve(path: &Path) {
    end_if_stuck();
    world::take_away("before");
    let server = Server::bind_with(path, options()).and_then(|server| server.start(answer));
    let server = match server {
        Ok(server) => server,
        Err(error) => return say(short(&error)),
    };
    world::take_away("after");
    let before = holdings();
    say("serving");
    // Until the parent closes its end.
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let_go_until(before.as_ref());
    assert!(server.stop(Duration::from_secs(5)));
    say("nothing is left");
}

/// What a client does, as a process of its own.
pub(super) fn call(path: &Path) {
    end_if_stuck();
    world::take_away("before");
    world::take_away("after");
    let calls = std::env::var(CALLS).unwrap_or_default();
    for is_direct in [true, false] {
        for (lane, _) in LANES {
            if !calls.is_empty() && !calls.split(',').any(|call| call == lane) {
                continue;
            }
            match attempt(path, is_direct, lane) {
                Ok(taken) => say(format_args!("{lane}: {taken}")),
                Err(error) => say(format_args!("{lane}: {error}")),
            }
        }
    }
    say("done");
}

/// A process that hangs is ended, which its parent sees.
fn end_if_stuck() {
    thread::spawn(|| {
        thread::sleep(Duration::from_secs(90));
        std::process::abort();
    });
}

fn options() -> ServerOptions {
    let mut options = ServerOptions {
        descriptors: Descriptors::Any,
        workers: 2,
        waiting_workers: 2,
        ..ServerOptions::default()
    };
    match std::env::var(OPTIONS).as_deref() {
        Ok("anybody") => options.policy = Some(peer_policy(|_| Ok(()))),
        Ok("pins its threads") => {
            options.on_thread_start = Some(std::sync::Arc::new(|_| {
                let pinned = shorthaul_platform::topology::pin_current_thread(0);
                say(format_args!("pinning: {:?}", pinned.map_err(|error| error.kind())));
            }));
        }
        Ok("bounded") => {
            options.limits = Limits { inline_bytes_max: 4 << 20, ..Limits::default() };
            options.user_limits = UserLimits {
                inline_bytes_max: 16 << 20,
                region_bytes_max: 16 << 20,
                lent_bytes_max: 4 << 20,
                ..UserLimits::default()
            };
        }
        _ => {}
    }
    options
}

/// Waits until this process has no more than it had before.
fn let_go_until(before: Option<&Vec<String>>) {
    let by = Instant::now() + PATIENCE * 2;
    loop {
        let now = holdings();
        if now.as_ref() == before {
            return;
        }
        assert!(Instant::now() < by, "left behind: {now:#?}\nbefore: {before:#?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// What this process's descriptors and mappings of memory files lead to, where /proc tells. Pipes
/// don't count: servers keep a few for later relays.
fn holdings() -> Option<Vec<String>> {
    let links = fs::read_dir("/proc/self/fd").ok()?;
    let targets = links.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let mut found: Vec<_> = targets.map(|target| target.to_string_lossy().into_owned()).collect();
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    found.extend(maps.lines().filter(|line| line.contains("memfd:")).map(str::to_owned));
    found.retain(|target| !target.starts_with("pipe:"));
    found.sort();
    Some(found)
}

const CALLS: &str = "SHORTHAUL_TEST_CALLS";
const OPTIONS: &str = "SHORTHAUL_TEST_OPTIONS";
