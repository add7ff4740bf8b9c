//! What a bench found out. Exporters see only this.

use serde::{Deserialize, Serialize};
use shorthaul::placement::Assignment;

use super::machine::Machine;
use super::method::Method;
use super::session::Mode;
use super::stats::Spread;
use super::work::{Consume, Pages, Source, WaitKind};

/// All of a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) command_line: String,
    pub(crate) date: String,
    pub(crate) version: String,
    pub(crate) source: Source,
    pub(crate) consume: Consume,
    /// Reports from before there was a choice are of sides that sleep.
    #[serde(default = "block")]
    pub(crate) wait: WaitKind,
    /// Older results have small ones.
    #[serde(default)]
    pub(crate) huge_pages: Pages,
    #[serde(default)]
    pub(crate) twin_huge_pages: Pages,
    /// As many as were asked for.
    pub(crate) rounds: usize,
    /// Over all placements; which and why is in each section's rounds.
    #[serde(default)]
    pub(crate) rounds_dropped: usize,
    /// Calls that are under way at a time.
    #[serde(default = "one")]
    pub(crate) in_flight: usize,
    pub(crate) seconds: f64,
    /// What a reader must know before believing the figures; whole sentences.
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
    pub(crate) sections: Vec<Section>,
}

/// One placement.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Section {
    pub(crate) placement: String,
    /// What the machine lacks for it; then it has no more to say.
    pub(crate) why_not: Option<String>,
    pub(crate) threads: Option<Threads>,
    pub(crate) empty_call: Option<EmptyCall>,
    #[serde(default)]
    pub(crate) rounds: Vec<Round>,
    /// What the bench itself adds to each call, in nanoseconds: calls that do nothing.
    #[serde(default)]
    pub(crate) harness_ns: Option<Spread>,
    pub(crate) payloads: Vec<Payload>,
}

/// How the machine was in one round.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Round {
    /// A round trip between the client's and the worker's CPU by a word that both spin on, in
    /// microseconds, at the round's start; by a futex where both are one CPU.
    pub(crate) spin_us: f64,
    /// CPUs' worth of load by other programs during the round.
    pub(crate) foreign_cpus: f64,
    /// Why the round doesn't count, if it doesn't.
    pub(crate) dropped: Option<String>,
}

/// Where the threads run, in `SaCbTc` notation and as CPU numbers.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Threads {
    pub(crate) client: Thread,
    pub(crate) client_reactor: Thread,
    pub(crate) server_reactor: Thread,
    pub(crate) worker: Thread,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Thread {
    pub(crate) place: String,
    pub(crate) cpu: u32,
}

/// What a call costs that moves nothing: 64 bytes there, 8 back.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct EmptyCall {
    /// A bare socketpair between two processes, in microseconds.
    pub(crate) ping_pong_us: Spread,
    pub(crate) direct_us: Spread,
    pub(crate) threads_us: Spread,
    /// Direct call over ping-pong, round by round.
    pub(crate) direct_ratio: Spread,
}

/// One size of payload in one placement.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Payload {
    pub(crate) bytes: usize,
    /// One thread storing into a warm buffer, in MB/s.
    pub(crate) speed_limit: Spread,
    /// Two threads passing a warm buffer, in MB/s.
    pub(crate) hand_over_limit: Spread,
    /// With `--baseline`.
    #[serde(default)]
    pub(crate) twins: Vec<Twin>,
    pub(crate) cells: Vec<Cell>,
}

/// What a method costs with no RPC at all: two processes, one message each way, and the method's
/// own memory calls.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Twin {
    pub(crate) method: String,
    pub(crate) megabytes_per_second: Spread,
    pub(crate) microseconds_per_call: Spread,
}

/// One method in one mode.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Cell {
    pub(crate) method: String,
    pub(crate) mode: Mode,
    pub(crate) megabytes_per_second: Spread,
    pub(crate) microseconds_per_call: Spread,
    /// Shares of the limits of the same round; none for empty payloads.
    pub(crate) of_speed_limit: Option<Spread>,
    pub(crate) of_hand_over_limit: Option<Spread>,
    /// Of the bare twin's speed, in the same round.
    #[serde(default)]
    pub(crate) of_twin: Option<Spread>,
    /// Of an automatic choice: its speed as a share of the best method's that it could have been,
    /// in the same mode and round.
    #[serde(default)]
    pub(crate) of_best: Option<Spread>,
    /// Over all rounds that count.
    #[serde(default)]
    pub(crate) latency: Option<Latency>,
    #[serde(default)]
    pub(crate) cost: Option<Cost>,
    /// The lane that the payloads took, and why, where the library chose it.
    #[serde(default)]
    pub(crate) lane: Option<String>,
    pub(crate) calls: u64,
    /// Calls that the server answered through a mapping it had kept.
    pub(crate) mappings_reused: u64,
}

/// From the start of a call until its answer was looked at.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// What a cell took of the machine, client and server process together.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Cost {
    /// GB are 10^9 bytes; none for empty payloads.
    pub(crate) cpu_seconds_per_gb: Option<Spread>,
    /// Medians over the rounds.
    pub(crate) context_switches_per_call: f64,
    pub(crate) page_faults_per_call: f64,
}

impl Threads {
    pub(crate) fn new(assignment: &Assignment) -> Self {
        let thread = |cpu: &shorthaul_platform::topology::Cpu| Thread {
            place: cpu.place().to_string(),
            cpu: cpu.id,
        };
        Self {
            client: thread(&assignment.client),
            client_reactor: thread(&assignment.client_reactor),
            server_reactor: thread(&assignment.server_reactor),
            worker: thread(&assignment.worker),
        }
    }

    pub(crate) fn cpus(&self) -> [u32; 4] {
        [self.client.cpu, self.client_reactor.cpu, self.server_reactor.cpu, self.worker.cpu]
    }
}

impl Report {
    /// Which pages what was measured has.
    pub(crate) fn pages(&self) -> String {
        let rows = self.huge_pages.description();
        if self.twin_huge_pages == self.huge_pages {
            return rows.to_owned();
        }
        format!("{rows}, but those of twins {}", self.twin_huge_pages.description())
    }
}

impl Section {
    /// Rounds that the spreads of this placement are of.
    pub(crate) fn rounds_counted(&self, report: &Report) -> usize {
        match self.rounds.len() {
            // A result from before rounds were kept: none was dropped then.
            0 => report.rounds,
            _ => self.rounds.iter().filter(|round| round.dropped.is_none()).count(),
        }
    }
}

impl Cell {
    /// Whether the library chose the lane.
    pub(crate) fn is_automatic(&self) -> bool {
        matches!(self.method.as_str(), "auto" | "put(auto)")
    }

    /// Whether its payloads go to the server.
    pub(crate) fn is_put(&self) -> bool {
        self.method.starts_with("put(")
    }
}

impl Payload {
    /// The fastest cell, of those that bring a payload to the client if there are any (what goes
    /// the other way is another task), and of methods that leave no choice to the library.
    pub(crate) fn best(&self) -> Option<&Cell> {
        let rank = |cell: &Cell| (cell.is_automatic(), cell.is_put());
        let time = |cell: &Cell| cell.microseconds_per_call.median;
        self.cells.iter().min_by(|a, b| rank(a).cmp(&rank(b)).then(time(a).total_cmp(&time(b))))
    }

    /// What the method of `cell` does without the RPC.
    pub(crate) fn twin(&self, cell: &Cell) -> Option<&Twin> {
        self.twins.iter().find(|twin| twin.method == cell.method)
    }

    pub(crate) fn cell(&self, method: &Method, mode: Mode) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.method == method.name && cell.mode == mode)
    }
}

/// Reports of older versions made one call at a time, and didn't say so.
fn block() -> WaitKind {
    WaitKind::Block
}

fn one() -> usize {
    1
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use crate::bench::saved::{self, Saved};

    /// What is in the repository was written by older versions.
    #[test]
    fn committed_runs_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks");
        let machines = fs::read_dir(folder).unwrap().map(|machine| machine.unwrap().path());
        let files = machines.filter(|path| path.is_dir()).flat_map(|path| {
            fs::read_dir(path).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>()
        });
        let mut count = 0;
        for file in files.filter(|file| file.extension().is_some_and(|e| e == "json")) {
            match saved::read(&file).unwrap_or_else(|error| panic!("{error}")) {
                Saved::Calls(report) => assert!(report.in_flight >= 1, "{}", file.display()),
                Saved::Relays(report) => assert!(report.has_figures(), "{}", file.display()),
            }
            count += 1;
        }
        assert!(count > 0, "no run was found");
    }
}
