//! A client: a process that relays a file into a sink, again and again.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use shorthaul::relay::{Fault, Method, Relay, RelayError, Relayed};

use super::channel::Channel;
use super::message::{Answer, Job, ProcessArgs, Request, Stretch, begin, cpu_time, now_ns};

/// Does what it is told until the bench has gone.
pub(crate) fn run(args: &ProcessArgs) -> Result<()> {
    let channel = begin(args)?;
    let mut relay = Relay::new();
    while let Some((request, descriptors)) = channel.receive()? {
        let answer = match request {
            Request::Warm => warm(descriptors),
            Request::Relay(job) => {
                // It keeps its buffer and its pipe, as a program would that relays often.
                let method: Method = job.method.parse().map_err(anyhow::Error::msg)?;
                relay = relay.method(method).chunk_bytes(job.chunk_bytes);
                relay_when_told(&channel, &job, &mut relay, descriptors)
            }
            Request::Go { .. } | Request::Take(_) => bail!("this is a client, and it is not ready"),
        };
        let answer = answer.unwrap_or_else(|error| Answer::Failed(format!("{error:#}")));
        channel.send(&answer, &[])?;
    }
    Ok(())
}

/// Reads the file, every byte of it.
fn warm(descriptors: Vec<OwnedFd>) -> Result<Answer> {
    let [file] = take(descriptors)?;
    let (mut file, mut buffer) = (File::from(file), vec![0; WARM_BYTES]);
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer).context("can't read the file")? {
            0 => return Ok(Answer::Warmed { bytes }),
            read => bytes += read as u64,
        }
    }
}

/// Says that it is ready, and relays when all others are.
fn relay_when_told(
    channel: &Channel,
    job: &Job,
    relay: &mut Relay,
    descriptors: Vec<OwnedFd>,
) -> Result<Answer> {
    let [source, sink] = take(descriptors)?.map(File::from);
    channel.send(&Answer::Ready, &[])?;
    let Some((Request::Go { start_ns }, _)) = channel.receive()? else {
        bail!("the start was called off");
    };
    wait_until(start_ns);
    match relay_loops(job, relay, &source, sink) {
        Ok(stretch) => Ok(Answer::Relayed(stretch)),
        Err(error) => explain(error),
    }
}

/// The stretch that is measured: in each loop nothing but the relay.
fn relay_loops(
    job: &Job,
    relay: &mut Relay,
    source: &File,
    mut sink: File,
) -> Result<Stretch, Trouble> {
    let (mut bytes, mut calls, mut loops) = (0, 0, 0);
    let cpu_before = cpu_time();
    let (start_ns, start) = (now_ns(), Instant::now());
    // Ends after so many loops.
    let method = loop {
        if job.rewinds {
            sink.seek(SeekFrom::Start(0)).map_err(Trouble::Seek)?;
        }
        let relayed: Relayed = relay.run(source, .., &sink)?;
        bytes += relayed.bytes;
        calls += relayed.calls;
        loops += 1;
        if loops >= job.loops || start.elapsed() >= job.time {
            break relayed.method;
        }
    };
    // The end of the stream, by which its receiver knows that this is all.
    drop(sink);
    let (end_ns, cpu) = (now_ns(), cpu_time().saturating_sub(cpu_before));
    let method = method.name().to_owned();
    Ok(Stretch { start_ns, end_ns, bytes, loops, calls, cpu, method })
}

/// Why loops ended too soon.
enum Trouble {
    Seek(std::io::Error),
    Relay(RelayError),
}

impl From<RelayError> for Trouble {
    fn from(error: RelayError) -> Self {
        Self::Relay(error)
    }
}

fn explain(trouble: Trouble) -> Result<Answer> {
    match trouble {
        Trouble::Seek(error) => Err(error).context("can't go back to the start of the sink"),
        Trouble::Relay(error) => match &error.fault {
            Fault::Unsupported { source_kind, sink_kind, why, .. } => {
                Ok(Answer::Unsupported(format!("from {source_kind} to {sink_kind}: {why}")))
            }
            _ => Err(error.into()),
        },
    }
}

/// Sleeps, and for the last moment spins: a sleeper is woken late.
fn wait_until(start_ns: u64) {
    let left = Duration::from_nanos(start_ns.saturating_sub(now_ns()));
    std::thread::sleep(left.saturating_sub(SPIN));
    while now_ns() < start_ns {
        std::hint::spin_loop();
    }
}

/// Exactly so many descriptors.
pub(super) fn take<const COUNT: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; COUNT]> {
    let count = descriptors.len();
    descriptors.try_into().ok().with_context(|| format!("{count} descriptors came, not {COUNT}"))
}

const WARM_BYTES: usize = 1 << 20;
const SPIN: Duration = Duration::from_micros(200);
