//! What a bench found out. Exporters see only this.

use serde::Serialize;
use shorthaul::placement::Assignment;

use super::machine::Machine;
use super::method::Method;
use super::session::Mode;
use super::stats::Spread;
use super::work::{Consume, Source};

/// All of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) command_line: String,
    pub(crate) date: String,
    pub(crate) version: &'static str,
    pub(crate) source: Source,
    pub(crate) consume: Consume,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) sections: Vec<Section>,
}

/// One placement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Section {
    pub(crate) placement: &'static str,
    /// What the machine lacks for it; then it has no more to say.
    pub(crate) why_not: Option<String>,
    pub(crate) threads: Option<Threads>,
    pub(crate) empty_call: Option<EmptyCall>,
    pub(crate) payloads: Vec<Payload>,
}

/// Where the threads run, in `SaCbTc` notation and as CPU numbers.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Threads {
    pub(crate) client: Thread,
    pub(crate) client_reactor: Thread,
    pub(crate) server_reactor: Thread,
    pub(crate) worker: Thread,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Thread {
    pub(crate) place: String,
    pub(crate) cpu: u32,
}

/// What a call costs that moves nothing: 64 bytes there, 8 back.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EmptyCall {
    /// A bare socketpair between two processes, in microseconds.
    pub(crate) ping_pong_us: Spread,
    pub(crate) direct_us: Spread,
    pub(crate) threads_us: Spread,
    /// Direct call over ping-pong, round by round.
    pub(crate) direct_ratio: Spread,
}

/// One size of payload in one placement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Payload {
    pub(crate) bytes: usize,
    /// One thread storing into a warm buffer, in MB/s.
    pub(crate) speed_limit: Spread,
    /// Two threads passing a warm buffer, in MB/s.
    pub(crate) hand_over_limit: Spread,
    pub(crate) cells: Vec<Cell>,
}

/// One method in one mode.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) method: &'static str,
    pub(crate) mode: Mode,
    pub(crate) megabytes_per_second: Spread,
    pub(crate) microseconds_per_call: Spread,
    /// Shares of the limits of the same round; none for empty payloads.
    pub(crate) of_speed_limit: Option<Spread>,
    pub(crate) of_hand_over_limit: Option<Spread>,
    pub(crate) calls: u64,
    /// Calls that the server answered through a mapping it had kept.
    pub(crate) mappings_reused: u64,
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
}

impl Payload {
    /// The fastest cell.
    pub(crate) fn best(&self) -> Option<&Cell> {
        let time = |cell: &&Cell| cell.microseconds_per_call.median;
        self.cells.iter().min_by(|a, b| time(a).total_cmp(&time(b)))
    }

    pub(crate) fn cell(&self, method: &Method, mode: Mode) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.method == method.name && cell.mode == mode)
    }
}
