//! Peers that break the rules, in every way that one can think of: the other side ends with a clear
//! error, nothing is leaked, and everybody else is served as if nothing had happened.
#![allow(clippy::unwrap_used, reason = "tests")]

mod allowances;
mod cancels;
mod churn;
mod crowds;
mod cycles;
mod descriptor;
mod edges;
mod extremes;
mod foreign;
mod framing;
pub(super) mod fuse;
mod given;
mod kinds;
mod lingering;
mod narrow;
pub(super) mod neighbours;
mod peers;
pub(super) mod raw;
mod rings;
mod sealed_answers;
mod servers;
mod uploads;

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shorthaul::{
    Buffer, ClientOptions, Code, DirectClient, FillMethod, FillPolicy, InboundCall, Lane,
    RunningServer, SealedObject, Server, ServerOptions, Status, Wait,
};
use tempfile::TempDir;

use super::census::Census;

/// A server, an honest client of it, and a count of what both hold when nobody else is there.
struct Stage {
    folder: TempDir,
    path: PathBuf,
    server: RunningServer,
    honest: DirectClient,
    buffer: Option<Buffer>,
    seed: u8,
    census: Census,
    /// Told of each call that waits at the gate, until it is opened for one.
    arrived: Receiver<()>,
    gate: Sender<()>,
}

impl Stage {
    fn new() -> Self {
        Self::with(ServerOptions::default())
    }

    fn with(options: ServerOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (arrive, arrived) = channel();
        let (gate, opened) = channel();
        let opened = Arc::new(Mutex::new(opened));
        let server = Server::bind_with(&path, options)
            .unwrap()
            .start(move |call: &mut InboundCall| serve(call, &arrive, &opened))
            .unwrap();
        // One that makes rings would do so at any time, and they are counted.
        let options = ClientOptions { wait: Wait::Block, ..ClientOptions::default() };
        let mut honest = DirectClient::connect_with(&path, &options).unwrap();
        let buffer = Some(honest.buffer(HONEST_BYTES).unwrap());
        let mut stage = Self {
            folder,
            path,
            server,
            honest,
            buffer,
            seed: 0,
            census: Census::default(),
            arrived,
            gate,
        };
        stage.honest_calls();
        stage.census = Census::take();
        stage
    }

    /// The honest client's next calls work byte for byte, on two lanes.
    fn honest_calls(&mut self) {
        self.seed = self.seed.wrapping_add(1);
        let expected = pattern(HONEST_BYTES, self.seed);
        let mut request = (HONEST_BYTES as u64).to_le_bytes().to_vec();
        request.push(self.seed);
        let call = self.honest.call("fill").request(&request);
        let inline = call.inline(HONEST_BYTES).send().unwrap();
        assert!(inline.to_vec() == expected && inline.lane() == Lane::Inline);
        let buffer = self.buffer.take().unwrap();
        let call = self.honest.call("fill").request(&request);
        let filled = call.into(buffer).send().unwrap();
        assert!(filled.to_vec() == expected && filled.lane() == Lane::FillMap);
        self.buffer = filled.into_buffer();
    }

    /// After a hostile peer has gone: others are served, and nothing is left of it. Counts the
    /// whole process, so it belongs into tests that are [`isolated`].
    fn ends_clean(&mut self) {
        self.honest_calls();
        self.census.returns();
        eventually("connections end", || self.server.stats().connections == 1);
    }
}

fn serve(
    call: &mut InboundCall,
    arrive: &Sender<()>,
    opened: &Mutex<Receiver<()>>,
) -> Result<(), Status> {
    match call.method() {
        "fill" => {
            let bytes = u64::from_le_bytes(call.request()[..8].try_into().unwrap()) as usize;
            let seed = call.request()[8];
            call.payload(bytes)?.copy_from(&pattern(bytes, seed))?;
            call.reply(&[seed])
        }
        "fill by writing" => {
            let bytes = u64::from_le_bytes(call.request()[..8].try_into().unwrap()) as usize;
            let seed = call.request()[8];
            let policy = FillPolicy { method: FillMethod::Write, ..FillPolicy::default() };
            call.payload_with(bytes, policy)?.copy_from(&pattern(bytes, seed))?;
            call.reply(&[seed])
        }
        "echo" => {
            let response = call.request().to_vec();
            echo(call)?;
            call.reply(&response)
        }
        "gate" => {
            call.payload(64)?.fill(7, 64)?;
            arrive.send(()).ok();
            let waited = opened.lock().unwrap().recv_timeout(PATIENCE);
            waited.expect("the gate is opened");
            call.reply(b"opened")
        }
        // A payload, and a long response beside it.
        "fill and tell" => {
            call.payload(20_000)?.copy_from(&pattern(20_000, 7))?;
            call.reply(&pattern(60_000, 8))
        }
        // Looks at its payload only when it is let through.
        "gate echo" => {
            arrive.send(()).ok();
            let waited = opened.lock().unwrap().recv_timeout(PATIENCE);
            waited.expect("the gate is opened");
            echo(call)?;
            call.reply(b"opened")
        }
        "no bytes in two parts" => {
            call.payload(0)?.next_part()?;
            call.reply(b"")
        }
        "object" => {
            let start = call.request()[0] as usize;
            let object = SealedObject::copy_of(&pattern(HONEST_BYTES, 1)).unwrap();
            call.payload_object(&object, start * 64..HONEST_BYTES)?;
            call.reply(b"")
        }
        other => Err(Status::new(Code::Unimplemented, format!("no method {other}"))),
    }
}

/// Answers with the payload of the request, in the same parts.
fn echo(call: &mut InboundCall) -> Result<(), Status> {
    let upload = call.upload()?;
    let parts = upload.parts().clone();
    let payload = upload.into_slice()?.to_vec();
    if payload.is_empty() {
        return Ok(());
    }
    let mut out = call.payload(payload.len())?;
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            out.next_part()?;
        }
        out.copy_from(&payload[part])?;
    }
    Ok(())
}

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(13).wrapping_add((at >> 8) as u8) ^ seed).collect()
}

/// Runs something while this process can open `count` descriptors and no more. Only for tests that
/// are [`isolated`].
fn with_descriptors(count: u64, run: impl FnOnce()) {
    let limits = getrlimit(Resource::Nofile);
    // The kernel gives the lowest number that is free.
    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(next + count), ..limits }).unwrap();
    run();
    setrlimit(Resource::Nofile, limits).unwrap();
}

/// How often a test does something: as often as it should with long tests, else less.
fn rounds(short: usize, long: usize) -> usize {
    if cfg!(feature = "long-tests") { long } else { short }
}

/// Waits for something that other threads will have done soon.
fn eventually(what: &str, mut is_done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_done() {
        assert!(Instant::now() < until, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a test in a process of its own, where no other test opens or maps anything. `name` is the
/// test's own.
pub(super) fn isolated(name: &str, test: impl FnOnce()) {
    if std::env::var_os(ISOLATED).is_some() {
        return test();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(ISOLATED, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} failed on its own:\n{text}\n{errors}");
    assert!(text.contains("1 passed"), "there is no test {name}");
    eprint!("{errors}");
}

const ISOLATED: &str = "SHORTHAUL_TEST_ISOLATED";
const HONEST_BYTES: usize = 20_000;
/// Longer than anything takes; only to end a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);
