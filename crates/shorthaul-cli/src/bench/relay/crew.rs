//! The clients and receivers of a run: processes that live through all of it, and are told what to
//! do, one run after the other.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use shorthaul::relay::Method;

use super::channel::Channel;
use super::line::{Ends, Line};
use super::message::{Answer, Job, Request, Stretch, Taken, now_ns};
use super::plan::{Crowd, Plan};
use super::sink::{Files, Sink};
use super::source;
use crate::bench::process::{ServerProcess, spawn};

/// All processes of a run.
pub(super) struct Crew {
    members: Vec<Member>,
}

/// A client, its files, and who receives what it relays.
struct Member {
    client: Worker,
    receiver: Option<Worker>,
    line: Line,
    /// What it reads where each client has a file of its own.
    own: Option<File>,
    /// Its own open of the first file: with the other clients' it has nothing in common but the
    /// pages.
    shared: File,
}

/// One run: a method, by some clients at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) crowd: Crowd,
    pub(super) method: Method,
    pub(super) chunk_bytes: usize,
    pub(super) loops: u32,
}

/// How it went.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Done(Vec<Relayed>),
    /// The method can't do it between these ends.
    Unsupported(String),
}

/// What one client did, and its receiver.
#[derive(Clone, Debug)]
pub(super) struct Relayed {
    pub(super) start_ns: u64,
    /// When the last byte had arrived.
    pub(super) end_ns: u64,
    pub(super) bytes: u64,
    pub(super) loops: u32,
    pub(super) calls: u64,
    /// Of both processes.
    pub(super) cpu: Duration,
    pub(super) method: String,
}

impl Crew {
    pub(super) fn start(plan: &Plan) -> Result<Self> {
        let members = (0..plan.clients_max()).map(|index| Member::start(plan, index));
        Ok(Self { members: members.collect::<Result<_>>()? })
    }

    /// The processes, beside this one.
    pub(super) fn processes(&self) -> Vec<u32> {
        let workers =
            self.members.iter().flat_map(|m| std::iter::once(&m.client).chain(&m.receiver));
        workers.map(|worker| worker.process.id()).collect()
    }

    /// Each client reads its files, every byte; then they are in the page cache, if they fit.
    pub(super) fn warm(&mut self, plan: &Plan) -> Result<()> {
        for files in [Files::Shared, Files::Own] {
            if !plan.crowds.iter().any(|crowd| crowd.files == files) {
                continue;
            }
            for member in &self.members {
                member.client.tell(&Request::Warm, &[member.source(files).as_fd()])?;
            }
            let mut clients: Vec<&mut Worker> =
                self.members.iter_mut().map(|member| &mut member.client).collect();
            let answers = gather(&mut clients)?;
            for (member, answer) in self.members.iter().zip(answers) {
                let Answer::Warmed { bytes } = answer else {
                    bail!("a client answered {answer:?}")
                };
                let size = member.source(files).metadata()?.len();
                ensure!(
                    size == bytes || !plan.is_verified,
                    "a file that tells no size, or another one than it has, can't be compared \
                     with what arrives: leave out --verify"
                );
            }
        }
        Ok(())
    }

    /// Does a run: all clients begin at the same time.
    pub(super) fn run(&mut self, plan: &Plan, run: &Run) -> Result<Outcome> {
        let members = &mut self.members[..run.crowd.clients];
        for member in &*members {
            member.prepare(plan, run)?;
        }
        for answer in gather(&mut workers(members))? {
            ensure!(matches!(answer, Answer::Ready), "a process answered {answer:?}");
        }
        let start_ns = now_ns() + LEAD_NS * (1 + members.len() as u64 / 8);
        for member in &*members {
            member.client.tell(&Request::Go { start_ns }, &[])?;
        }
        let answers = gather(&mut workers(members))?;
        outcome(plan, run, members, &answers)
    }
}

/// All processes of `members`: first each client, behind it its receiver.
fn workers(members: &mut [Member]) -> Vec<&mut Worker> {
    members.iter_mut().flat_map(|m| std::iter::once(&mut m.client).chain(&mut m.receiver)).collect()
}

fn outcome(plan: &Plan, run: &Run, members: &[Member], answers: &[Answer]) -> Result<Outcome> {
    let mut answers = answers.iter();
    let mut all = Vec::new();
    let mut unsupported = None;
    for member in members {
        let stretch = answers.next();
        let taken = member.receiver.as_ref().and_then(|_| answers.next());
        match (stretch, taken) {
            (Some(Answer::Relayed(stretch)), None) => {
                member.check_file(plan, run, stretch)?;
                all.push(relayed(stretch, None));
            }
            (Some(Answer::Relayed(stretch)), Some(Answer::Taken(taken))) => {
                check(stretch, taken).with_context(|| member.client.name.clone())?;
                all.push(relayed(stretch, Some(taken)));
            }
            (Some(Answer::Unsupported(why)), _) => unsupported = Some(why.clone()),
            other => bail!("{} and its receiver answered {other:?}", member.client.name),
        }
    }
    Ok(unsupported.map_or(Outcome::Done(all), Outcome::Unsupported))
}

fn relayed(stretch: &Stretch, taken: Option<&Taken>) -> Relayed {
    let Stretch { start_ns, bytes, loops, calls, .. } = *stretch;
    Relayed {
        start_ns,
        end_ns: taken.map_or(0, |taken| taken.end_ns).max(stretch.end_ns),
        bytes,
        loops,
        calls,
        cpu: stretch.cpu + taken.map_or(Duration::ZERO, |taken| taken.cpu),
        method: stretch.method.clone(),
    }
}

/// A relay that loses or changes bytes is no relay, however fast.
fn check(stretch: &Stretch, taken: &Taken) -> Result<()> {
    let (sent, got) = (stretch.bytes, taken.bytes);
    ensure!(sent == got, "{}: of {sent} bytes relayed its receiver got {got}", stretch.method);
    match taken.differs_at {
        Some(at) => bail!("{}: byte {at} of what arrived differs from the file's", stretch.method),
        None => Ok(()),
    }
}

impl Member {
    fn start(plan: &Plan, index: usize) -> Result<Self> {
        let cpu = plan.cpu(index);
        let first = source::path(&plan.name, 0);
        let shared = source::open(&first)?;
        let has_own = plan.paths().len() > 1;
        let path = if has_own { source::path(&plan.name, index) } else { first };
        let own = if has_own { Some(source::open(&path)?) } else { None };
        let port = plan.port + u16::try_from(index).context("there are that many ports")?;
        let line = Line::new(plan.sink, port, &path)?;
        let receiver = plan.sink.has_receiver();
        let receiver = receiver.then(|| Worker::start("receiver", index, cpu)).transpose()?;
        let client = Worker::start("client", index, cpu)?;
        Ok(Self { client, receiver, line, own, shared })
    }

    fn source(&self, files: Files) -> &File {
        match files {
            Files::Shared => &self.shared,
            Files::Own => self.own.as_ref().unwrap_or(&self.shared),
        }
    }

    /// Has client and receiver make themselves ready. Their ends are with them alone afterwards.
    fn prepare(&self, plan: &Plan, run: &Run) -> Result<()> {
        let name = &self.client.name;
        let ends = self
            .line
            .ends(run.chunk_bytes)
            .with_context(|| format!("can't make a sink for {name}"))?;
        let Ends { sink, receiver: end } = ends;
        let source = self.source(run.crowd.files).as_fd();
        if let (Some(receiver), Some(end), Some(receive)) = (&self.receiver, &end, plan.receive) {
            let both = [end.as_fd(), source];
            let descriptors = if plan.is_verified { &both[..] } else { &both[..1] };
            receiver.tell(&Request::Take(receive), descriptors)?;
        }
        let job = Job {
            method: run.method.name().to_owned(),
            chunk_bytes: run.chunk_bytes,
            loops: run.loops,
            time: plan.time,
            rewinds: plan.sink == Sink::File,
        };
        self.client.tell(&Request::Relay(job), &[source, sink.as_fd()])
    }

    /// Of a file nobody counts what it gets: so it is looked at afterwards.
    fn check_file(&self, plan: &Plan, run: &Run, stretch: &Stretch) -> Result<()> {
        let Line::File(file) = &self.line else { return Ok(()) };
        let source = self.source(run.crowd.files);
        let bytes = stretch.bytes / u64::from(stretch.loops.max(1));
        let name = &self.client.name;
        let written = file.metadata()?.len();
        ensure!(
            written >= bytes,
            "{name}, {}: of {bytes} bytes relayed {written} are in the file",
            stretch.method
        );
        match plan.is_verified.then(|| first_difference(source, file, bytes)).transpose()? {
            Some(Some(at)) => bail!(
                "{name}, {}: byte {at} of the file written differs from the source's",
                stretch.method
            ),
            _ => Ok(()),
        }
    }
}

fn first_difference(one: &File, other: &File, bytes: u64) -> Result<Option<u64>> {
    let (mut a, mut b) = (vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]);
    let mut at = 0;
    while at < bytes {
        let part = (bytes - at).min(COMPARED_BYTES as u64) as usize;
        one.read_exact_at(&mut a[..part], at).context("can't read the source again")?;
        other.read_exact_at(&mut b[..part], at).context("can't read what was written")?;
        if let Some(index) = (0..part).find(|&index| a[index] != b[index]) {
            return Ok(Some(at + index as u64));
        }
        at += part as u64;
    }
    Ok(None)
}

/// A process and the way to it.
struct Worker {
    name: String,
    channel: Channel,
    process: ServerProcess,
}

impl Worker {
    fn start(role: &str, index: usize, cpu: Option<u32>) -> Result<Self> {
        let arguments: Vec<String> =
            cpu.iter().flat_map(|cpu| ["--cpu".to_owned(), cpu.to_string()]).collect();
        let (stream, process) = spawn(&format!("bench-relay-{role}"), &arguments)?;
        Ok(Self { name: format!("{role} {index}"), channel: Channel::new(stream)?, process })
    }

    fn tell(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        let told = self.channel.send(request, descriptors);
        told.with_context(|| format!("can't talk to {}", self.name))
    }

    fn answer(&mut self) -> Result<Answer> {
        let name = &self.name;
        match self.channel.receive::<Answer>().with_context(|| name.clone())? {
            Some((Answer::Failed(why), _)) => bail!("{name}: {why}"),
            Some((answer, _)) => Ok(answer),
            None => bail!("{name} has ended by itself ({})", self.process.how_it_ended()),
        }
    }
}

/// Waits for an answer of each. A failure of one is an error at once, whatever the others do.
fn gather(workers: &mut [&mut Worker]) -> Result<Vec<Answer>> {
    let mut answers: Vec<Option<Answer>> = workers.iter().map(|_| None).collect();
    // Ends with the last answer. How long a disk or a file system takes for a loop nobody knows, so
    // there is no deadline; a process that has ended shows as the end of its channel.
    while answers.iter().any(Option::is_none) {
        let waiting: Vec<usize> = (0..answers.len()).filter(|&i| answers[i].is_none()).collect();
        for index in ready(workers, &waiting)? {
            answers[index] = Some(workers[index].answer()?);
        }
    }
    Ok(answers.into_iter().flatten().collect())
}

/// Which of those that are waited for have something to say.
fn ready(workers: &[&mut Worker], waiting: &[usize]) -> Result<Vec<usize>> {
    let of =
        |&index: &usize| PollFd::from_borrowed_fd(workers[index].channel.as_fd(), PollFlags::IN);
    let mut polled: Vec<PollFd<'_>> = waiting.iter().map(of).collect();
    match poll(&mut polled, None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error).context("can't wait for the processes"),
    }
    let has_said = |(poll, _): &(&PollFd<'_>, &usize)| !poll.revents().is_empty();
    Ok(polled.iter().zip(waiting).filter(has_said).map(|(_, &index)| index).collect())
}

/// From the word to begin until they do: all must have got it by then.
const LEAD_NS: u64 = 1_000_000;
const COMPARED_BYTES: usize = 1 << 20;
