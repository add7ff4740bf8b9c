//! Runs the cells of a plan in rounds, each beside the memory-copy limit of its round.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use shorthaul_platform::memory::PrivateMemory;
use shorthaul_platform::store::Store;
use shorthaul_platform::topology::pin_current_thread;

use super::crew::{Crew, Outcome, Run};
use super::plan::{Crowd, Plan};
use super::report::{Figures, Group, SourceFile};
use super::sink::clients;
use super::source;
use super::summary::{self, Samples};
use crate::bench::hygiene::{self, Load};
use crate::bench::limits::repeat;
use crate::bench::progress::Progress;

/// What a run gave.
pub(super) struct Findings {
    pub(super) files: Vec<SourceFile>,
    pub(super) groups: Vec<Group>,
    /// Whole sentences.
    pub(super) warnings: Vec<String>,
}

/// Runs the plan.
pub(super) fn run(plan: &Plan, progress: &Progress) -> Result<Findings> {
    let mut crew = Crew::start(plan)?;
    let mut bench = Bench::new(plan);
    progress.begin(bench.steps_in_all(plan));
    crew.warm(plan)?;
    let (files, mut warnings) = look_at_files(plan)?;
    bench.round(plan, &mut crew, None, progress)?;
    let mut foreign_cpus = Vec::new();
    for round in 0..plan.rounds {
        let processes = crew.processes();
        let load = Load::begin(&processes)?;
        bench.round(plan, &mut crew, Some(round), progress)?;
        foreign_cpus.push(load.foreign_cpus(&processes)?);
    }
    progress.end();
    drop(crew);
    warnings.extend(hygiene::busy_machine(&foreign_cpus));
    let groups = bench.groups(plan);
    warnings.extend(cut_short(plan, &groups));
    warnings.extend(too_short(&groups));
    warnings.extend(crowded(plan));
    Ok(Findings { files, groups, warnings })
}

/// What runs with the same clients and chunks, and what it gave.
struct Part {
    crowd: Crowd,
    chunk_bytes: usize,
    copy_limits: Vec<f64>,
    /// For each method of the plan.
    cells: Vec<Samples>,
}

struct Bench {
    parts: Vec<Part>,
    /// When the rounds began that count.
    began: Instant,
    steps: usize,
}

impl Bench {
    fn new(plan: &Plan) -> Self {
        let cells = || vec![Samples::default(); plan.methods.len()];
        let parts = plan.chunks.iter().flat_map(|&chunk_bytes| {
            let part =
                move |&crowd| Part { crowd, chunk_bytes, copy_limits: vec![], cells: cells() };
            plan.crowds.iter().map(part)
        });
        Self { parts: parts.collect(), began: Instant::now(), steps: 0 }
    }

    /// Runs that count.
    fn steps_in_all(&self, plan: &Plan) -> usize {
        plan.rounds * self.parts.len() * plan.methods.len()
    }

    /// Runs everything once. Without a number it doesn't count, and one loop is enough: buffers,
    /// pipes and the pages of files that are written come into being.
    fn round(
        &mut self,
        plan: &Plan,
        crew: &mut Crew,
        round: Option<usize>,
        progress: &Progress,
    ) -> Result<()> {
        if round == Some(0) {
            self.began = Instant::now();
        }
        let count = plan.methods.len();
        for part in 0..self.parts.len() {
            if round.is_some() {
                let limit = copy_limit(plan.cpu(0), self.parts[part].chunk_bytes)?;
                self.parts[part].copy_limits.push(limit);
            }
            for index in 0..count {
                // Each round begins elsewhere, so that no method always follows the same one.
                let index = (index + round.unwrap_or(0)) % count;
                if round.is_some() {
                    self.step(plan, part, index, progress);
                }
                self.run_cell(plan, crew, (part, index), round.is_some())?;
            }
        }
        Ok(())
    }

    /// Says what comes next.
    fn step(&mut self, plan: &Plan, part: usize, index: usize, progress: &Progress) {
        let left = time_left(self.began.elapsed(), self.steps, self.steps_in_all(plan));
        let who = clients(self.parts[part].crowd.clients);
        progress.step(&format!("{who} {}", plan.methods[index]), left);
        self.steps += 1;
    }

    /// Runs a method of a part, unless it is known that this can't be done.
    fn run_cell(
        &mut self,
        plan: &Plan,
        crew: &mut Crew,
        (part, index): (usize, usize),
        counts: bool,
    ) -> Result<()> {
        let Part { crowd, chunk_bytes, cells, .. } = &mut self.parts[part];
        let samples = &mut cells[index];
        if samples.why_not.is_some() {
            return Ok(());
        }
        let (method, crowd, chunk_bytes) = (plan.methods[index], *crowd, *chunk_bytes);
        let loops = if counts { plan.loops } else { 1 };
        let outcome = crew.run(plan, &Run { crowd, method, chunk_bytes, loops })?;
        if counts || matches!(outcome, Outcome::Unsupported(_)) {
            samples.add(outcome);
        }
        Ok(())
    }

    fn groups(&self, plan: &Plan) -> Vec<Group> {
        let group = |part: &Part| {
            let Part { crowd, chunk_bytes, copy_limits, cells } = part;
            let alone = plan.is_scaling.then(|| {
                let is_alone =
                    |other: &&Part| other.chunk_bytes == *chunk_bytes && other.crowd.clients == 1;
                self.parts.iter().find(is_alone).map(|part| &part.cells[..])
            });
            summary::group(plan, *crowd, *chunk_bytes, copy_limits, cells, alone.flatten())
        };
        self.parts.iter().map(group).collect()
    }
}

/// By the speed so far.
fn time_left(elapsed: Duration, done: usize, all: usize) -> Duration {
    let each = elapsed.as_secs_f64() / done.max(1) as f64;
    Duration::from_secs_f64(each * all.saturating_sub(done) as f64)
}

/// The **memory-copy limit** in bytes per second: one thread, on the first client's CPU if that is
/// known, that copies a warm block of `bytes` bytes to another one, by the better kind of store.
fn copy_limit(cpu: Option<u32>, bytes: usize) -> Result<f64> {
    let measure = || {
        if let Some(cpu) = cpu {
            pin_current_thread(cpu).with_context(|| format!("can't pin to CPU {cpu}"))?;
        }
        let (source, mut target) = (PrivateMemory::new(bytes)?, PrivateMemory::new(bytes)?);
        source.populate();
        target.populate();
        let mut best: f64 = 0.0;
        for store in [Store::Ordinary, Store::streaming_or_ordinary()] {
            let seconds_each = repeat(COPY_TIME, || {
                target.copy_in(0, &source, store);
                Ok(())
            })?;
            best = best.max(bytes as f64 / seconds_each);
        }
        Ok(best)
    };
    // A thread of its own: this one stays where it may run.
    match thread::scope(|scope| scope.spawn(measure).join()) {
        Ok(limit) => limit,
        Err(_) => bail!("the thread that measures the memory-copy limit failed"),
    }
}

/// The files, and a warning if they aren't in memory after all clients have read them.
fn look_at_files(plan: &Plan) -> Result<(Vec<SourceFile>, Vec<String>)> {
    let (mut files, mut warnings) = (Vec::new(), Vec::new());
    for path in plan.paths() {
        let file = source::open(&path)?;
        let bytes = file.metadata()?.len();
        let name = path.to_string_lossy().into_owned();
        match source::cached_share(&file, bytes) {
            Some(share) if bytes > 0 && share < CACHED_MIN => warnings.push(format!(
                "Only {:.0} % of {name} ({}) stayed in the page cache after it was read: figures \
                 contain the disk. Take a smaller file, or free some memory.",
                share * 100.0,
                ByteSize(bytes).display().iec()
            )),
            _ => {}
        }
        files.push(SourceFile { name, bytes });
    }
    warnings.extend(unequal(&files));
    Ok((files, warnings))
}

fn unequal(files: &[SourceFile]) -> Option<String> {
    let sizes = || files.iter().map(|file| file.bytes);
    let (least, most) = (sizes().min()?, sizes().max()?);
    (least != most).then(|| {
        let [least, most] = [least, most].map(|bytes| ByteSize(bytes).display().iec());
        format!(
            "The files have from {least} to {most}: clients with short ones leave the others alone \
             at the end, so figures of all together say little. Take files of one size."
        )
    })
}

fn cut_short(plan: &Plan, groups: &[Group]) -> Option<String> {
    let figures = groups.iter().flat_map(|group| &group.cells).filter_map(|c| c.figures.as_ref());
    let loops = figures.flat_map(|figures| &figures.clients).map(|client| client.loops).min()?;
    (loops < plan.loops).then(|| {
        format!(
            "Some clients made only {loops} of {} loops in {} s (-t).",
            plan.loops,
            plan.time.as_secs_f64()
        )
    })
}

/// Starting and ending take tens of microseconds, and a timer's tick milliseconds.
fn too_short(groups: &[Group]) -> Option<String> {
    let cells = groups.iter().flat_map(|group| &group.cells);
    let is_short = |figures: &Figures| figures.clients.iter().any(|c| c.nanoseconds < SHORT_NS);
    let short = cells.filter(|cell| cell.figures.as_ref().is_some_and(is_short));
    let mut methods: Vec<&str> = short.map(|cell| cell.method.as_str()).collect();
    methods.sort_unstable();
    methods.dedup();
    (!methods.is_empty()).then(|| {
        format!(
            "Less than {} ms were measured of {}: more loops (-l) or a larger file would steady \
             that.",
            SHORT_NS / 1_000_000,
            methods.join(", ")
        )
    })
}

fn crowded(plan: &Plan) -> Option<String> {
    let (most, cpus) = (plan.clients_max(), plan.topology.cpus().len());
    (most > cpus).then(|| {
        format!(
            "{} on {cpus} CPUs: where there are more clients than CPUs they take turns.",
            clients(most)
        )
    })
}

const COPY_TIME: Duration = Duration::from_millis(10);
const CACHED_MIN: f64 = 0.999;
const SHORT_NS: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_was() {
        let second = Duration::from_secs(1);
        assert_eq!(time_left(second, 2, 6), second * 2);
        assert_eq!(time_left(Duration::ZERO, 0, 6), Duration::ZERO);
        assert_eq!(time_left(second, 7, 6), Duration::ZERO);
    }

    #[test]
    fn files_of_several_sizes_are_a_warning() {
        let file = |bytes| SourceFile { name: "file0".into(), bytes };
        assert!(unequal(&[file(1 << 20), file(1 << 30)]).unwrap().contains("1.0 GiB"));
        assert_eq!(unequal(&[file(5), file(5)]), None);
        assert_eq!(unequal(&[]), None);
    }

    #[test]
    fn a_copy_has_a_speed() {
        assert!(copy_limit(None, 4096).unwrap() > 0.0);
        assert!(copy_limit(None, 1).unwrap() > 0.0);
    }
}
