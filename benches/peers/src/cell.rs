//! One cell of one round: a client process, and the server process that it starts.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::meeting::Meeting;
use crate::peers::{self, Caller, Peer};
use crate::work::Load;

/// What the client process is to do.
#[derive(Clone, Debug, Args)]
pub(crate) struct CellArgs {
    #[arg(long)]
    pub(crate) peer: String,
    #[arg(long)]
    pub(crate) folder: PathBuf,
    #[arg(long)]
    pub(crate) bytes: usize,
    #[arg(long)]
    pub(crate) calls_in_flight: usize,
    #[arg(long)]
    pub(crate) time: f64,
    #[arg(long)]
    pub(crate) client_cpu: usize,
    #[arg(long)]
    pub(crate) server_cpu: usize,
}

/// What the server process is to do; its client is standard input.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArgs {
    #[arg(long)]
    peer: String,
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    bytes: usize,
    #[arg(long)]
    calls_in_flight: usize,
    #[arg(long)]
    cpu: usize,
}

/// What comes of a cell, on standard output.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// Seconds for each call.
    Time(f64),
    /// Why there is none.
    Failed(String),
}

/// Measures, as the client, and says what came of it.
pub(crate) fn measure(args: &CellArgs) -> Result<()> {
    let outcome = match try_to_measure(args) {
        Ok(seconds) => Outcome::Time(seconds),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    };
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

/// Answers, as the server, until it is ended.
pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    settle(args.cpu)?;
    let meeting = Meeting::of_server(args.folder.clone(), args.bytes, args.calls_in_flight)?;
    peers::named(&args.peer)?.serve(&meeting)
}

fn try_to_measure(args: &CellArgs) -> Result<f64> {
    settle(args.client_cpu)?;
    let peer = peers::named(&args.peer)?;
    let (link, _server) = start_server(args)?;
    let meeting = Meeting {
        link,
        folder: args.folder.clone(),
        bytes: args.bytes,
        in_flight: args.calls_in_flight,
    };
    meeting.wait_until_ready()?;
    let mut caller = peer.connect(&meeting).context("can't connect")?;
    time_calls(&*peer, &mut *caller, args)
}

/// Seconds for each call, once everything is warm.
fn time_calls(peer: &dyn Peer, caller: &mut dyn Caller, args: &CellArgs) -> Result<f64> {
    let in_flight = args.calls_in_flight;
    let time = Duration::from_secs_f64(args.time);
    let mut made = 0;
    let mut run = |calls: u64| -> Result<f64> {
        let load = Load::new(args.bytes, in_flight, made, calls);
        let start = Instant::now();
        caller.run(&load)?;
        made += calls;
        Ok(start.elapsed().as_secs_f64() / calls as f64)
    };
    // Twice as many each time: the last and longest stretch says how long a warm call takes.
    let warm_calls = peer.calls_to_warm_up(args.bytes).max(WARM_CALLS_MIN);
    let start = Instant::now();
    let mut calls = in_flight as u64;
    let mut seconds = run(calls)?;
    let mut warmed = calls;
    while warmed < warm_calls || start.elapsed() < time / WARM_PART {
        calls *= 2;
        seconds = run(calls)?;
        warmed += calls;
    }
    let fitting = (args.time / seconds) as u64;
    run(fitting.max(calls_min(args.bytes, seconds)).max(in_flight as u64))
}

/// One call of a slow peer says enough; else three.
fn calls_min(bytes: usize, seconds: f64) -> u64 {
    if bytes >= LARGE_BYTES && seconds > SLOW_SECONDS { 1 } else { 3 }
}

/// Starts this program again as the server of `args.peer`.
fn start_server(args: &CellArgs) -> Result<(UnixStream, Server)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(this_program()?);
    command.arg("serve").args(["--peer", &args.peer]).arg("--folder").arg(&args.folder);
    command.args(["--bytes", &args.bytes.to_string()]);
    command.args(["--calls-in-flight", &args.calls_in_flight.to_string()]);
    command.args(["--cpu", &args.server_cpu.to_string()]);
    let stdin = Stdio::from(OwnedFd::from(theirs));
    let server = command.stdin(stdin).stdout(Stdio::null()).spawn();
    Ok((ours, Server(server.context("can't start the server process")?)))
}

/// Ends with its client.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // What has ended by itself is waited for all the same.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

pub(crate) fn this_program() -> Result<PathBuf> {
    // A program that was built anew during the run is still the one that was started.
    std::fs::read_link(Path::new("/proc/self/exe"))
        .map(|path| if path.exists() { path } else { PathBuf::from("/proc/self/exe") })
        .context("can't find this program itself")
}

/// First of all: such a process ends with its parent, and it and its threads keep to one CPU.
fn settle(cpu: usize) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).with_context(|| format!("can't pin to CPU {cpu}"))
}

/// Part of the time of a cell that it is warmed up for before.
const WARM_PART: u32 = 2;
const WARM_CALLS_MIN: u64 = 3;
const LARGE_BYTES: usize = 32 << 20;
const SLOW_SECONDS: f64 = 0.05;
