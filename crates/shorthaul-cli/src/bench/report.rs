//! What a bench found out. Exporters see only this.

use serde::{Deserialize, Serialize};
use shorthaul::placement::Assignment;

use super::machine::Machine;
use super::method::Method;
use super::session::Mode;
use super::stats::Spread;
use super::work::{Consume, Source};

/// All of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) command_line: String,
    pub(crate) date: String,
    pub(crate) version: String,
    pub(crate) source: Source,
    pub(crate) consume: Consume,
    /// Asked for.
    pub(crate) rounds: usize,
    /// Over all placements; see [`Section::rounds`].
    #[serde(default)]
    pub(crate) rounds_dropped: usize,
    /// Calls in flight.
    #[serde(default = "one")]
    pub(crate) in_flight: usize,
    pub(crate) seconds: f64,
    /// What a reader must know before believing a figure; whole sentences.
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
    pub(crate) sections: Vec<Section>,
}

/// One placement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Section {
    pub(crate) placement: String,
    /// What the machine lacks for it; then it has no more to say.
    pub(crate) why_not: Option<String>,
    pub(crate) threads: Option<Threads>,
    pub(crate) empty_call: Option<EmptyCall>,
    #[serde(default)]
    pub(crate) rounds: Vec<Round>,
    /// What the harness itself costs per call, in nanoseconds: the `null` engine.
    #[serde(default)]
    pub(crate) harness_ns: Option<Spread>,
    pub(crate) payloads: Vec<Payload>,
}

/// How a round began.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    /// A spin round trip between the client's and the worker's CPU at the round's start; all on one
    /// CPU, a futex round trip.
    pub(crate) spin_us: f64,
    /// CPUs' worth of load by other programs during the round.
    pub(crate) foreign_cpus: f64,
    /// Why it doesn't count, if it doesn't.
    pub(crate) dropped: Option<String>,
}

/// Where the threads run, in `SaCbTc` notation and as CPU numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Threads {
    pub(crate) client: Thread,
    pub(crate) client_reactor: Thread,
    pub(crate) server_reactor: Thread,
    pub(crate) worker: Thread,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Thread {
    pub(crate) place: String,
    pub(crate) cpu: u32,
}

/// What a call costs that moves nothing: 64 bytes there, 8 back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EmptyCall {
    /// A bare socketpair between two processes, in microseconds.
    pub(crate) ping_pong_us: Spread,
    pub(crate) direct_us: Spread,
    pub(crate) threads_us: Spread,
    /// Direct call over ping-pong, round by round.
    pub(crate) direct_ratio: Spread,
}

/// One size of payload in one placement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Payload {
    pub(crate) bytes: usize,
    /// One thread storing into a warm buffer, in MB/s.
    pub(crate) speed_limit: Spread,
    /// Two threads passing a warm buffer, in MB/s.
    pub(crate) hand_over_limit: Spread,
    /// Methods without the RPC, with `--baseline`.
    #[serde(default)]
    pub(crate) twins: Vec<Twin>,
    pub(crate) cells: Vec<Cell>,
}

/// A method's bare twin: its memory calls and one blocking message each way, no RPC.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Twin {
    pub(crate) method: String,
    pub(crate) megabytes_per_second: Spread,
    pub(crate) microseconds_per_call: Spread,
}

/// One method in one mode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) method: String,
    pub(crate) mode: Mode,
    pub(crate) megabytes_per_second: Spread,
    pub(crate) microseconds_per_call: Spread,
    /// Shares of the limits of the same round; none for empty payloads.
    pub(crate) of_speed_limit: Option<Spread>,
    pub(crate) of_hand_over_limit: Option<Spread>,
    /// Share of the twin of the same round.
    #[serde(default)]
    pub(crate) of_twin: Option<Spread>,
    /// Over all rounds that count.
    #[serde(default)]
    pub(crate) latency: Option<Latency>,
    #[serde(default)]
    pub(crate) cost: Option<Cost>,
    /// The lane that the payloads took, and for `auto` why.
    #[serde(default)]
    pub(crate) lane: Option<String>,
    pub(crate) calls: u64,
    /// Calls that the server answered through a mapping it had kept.
    pub(crate) mappings_reused: u64,
}

/// Time of single calls, in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// What client and server spent together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// A GB is 10^9 bytes; none for empty payloads.
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

impl Payload {
    /// The fastest cell.
    pub(crate) fn best(&self) -> Option<&Cell> {
        let time = |cell: &&Cell| cell.microseconds_per_call.median;
        self.cells.iter().min_by(|a, b| time(a).total_cmp(&time(b)))
    }

    /// What the method of `cell` does without the RPC.
    pub(crate) fn twin(&self, cell: &Cell) -> Option<&Twin> {
        self.twins.iter().find(|twin| twin.method == cell.method)
    }

    pub(crate) fn cell(&self, method: &Method, mode: Mode) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.method == method.name && cell.mode == mode)
    }
}

/// What `in_flight` is in files that don't say.
fn one() -> usize {
    1
}
