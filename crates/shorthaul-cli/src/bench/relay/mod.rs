//! `shorthaul bench relay`: files moved into sinks by several clients at once, each a process of
//! its own. The methods, flags and lines are those of Jens Axboe's splice-bench.

mod args;
mod channel;
mod client;
mod crew;
pub(in crate::bench) mod export;
mod line;
mod making;
mod meaning;
mod message;
mod plan;
mod receiver;
mod report;
mod runner;
mod sink;
mod source;
mod summary;

use std::time::Instant;

use anyhow::{Result, bail};

pub(crate) use self::args::RelayArgs;
pub(crate) use self::client::run as serve_client;
pub(crate) use self::message::ProcessArgs;
use self::plan::Plan;
pub(crate) use self::receiver::run as serve_receiver;
pub(crate) use self::report::RelayReport;
use self::report::{Kind, Settings};
use super::command_line;
use super::machine::Machine;
use super::progress::Progress;

/// Runs a bench of relays and writes its result.
pub(crate) fn run(args: &RelayArgs) -> Result<()> {
    let plan = Plan::new(args)?;
    let outputs = args.output.prepare()?;
    outputs.ensure_no_comparison()?;
    making::make_missing(&plan)?;
    let began = Instant::now();
    let findings = runner::run(&plan, &Progress::new())?;
    let report = RelayReport {
        kind: Kind::Relay,
        machine: Machine::read(&plan.topology),
        command_line: command_line(),
        date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        settings: Settings::of(&plan, findings.files),
        rounds: plan.rounds,
        seconds: began.elapsed().as_secs_f64(),
        warnings: findings.warnings,
        groups: findings.groups,
    };
    outputs.write_relay(&report)?;
    if !report.has_figures() {
        bail!("none of the methods asked for can do it; what each lacks is in the result");
    }
    Ok(())
}
