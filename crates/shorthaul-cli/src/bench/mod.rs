//! `shorthaul bench`: which way is fastest here, and why. Also the other process of a bench, which
//! the first one starts.

mod compare;
mod export;
mod limits;
mod machine;
mod method;
mod output;
mod plan;
mod progress;
mod report;
mod runner;
mod saved;
mod server;
mod session;
mod stats;
mod work;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use shorthaul::placement::Placement;

use self::method::{Methods, parse_methods};
use self::output::OutputArgs;
use self::plan::{Plan, parse_payload};
use self::progress::Progress;
use self::report::Report;
pub(crate) use self::server::{PongArgs, ServerArgs, pong, run as serve};
use self::work::{Consume, Source};

/// Measure which way is fastest on this machine, and why.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    which: Option<Which>,
    #[command(flatten)]
    rpc: RpcArgs,
}

#[derive(Clone, Debug, Subcommand)]
enum Which {
    /// Calls with bulk answers, by every method and thread placement (the default).
    Rpc(RpcArgs),
    /// Write a saved result in another form, or compare two, without measuring.
    Report(ReportArgs),
}

/// What the bench of calls takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct RpcArgs {
    /// Sizes of the payload: one, or a list such as 4KiB,1MiB,64MiB.
    #[arg(long, value_delimiter = ',', value_parser = parse_payload, default_value = "1MiB")]
    payload: Vec<usize>,

    /// Methods to run, such as "fd(s-write)" or "fd(s-write),sidecar,nt". All by default.
    #[arg(long, value_name = "METHODS", value_parser = parse_methods)]
    methods: Option<Methods>,

    /// Placements to run, such as all-same-core; a list with commas. All by default.
    #[arg(long, value_delimiter = ',', value_name = "PLACEMENT")]
    placements: Vec<Placement>,

    /// Measure for so long in all, warm-up and start not counted; longer if a few calls by every
    /// method in every round take longer.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    seconds: Option<f64>,

    /// A few seconds and fewer rounds: to see that it works.
    #[arg(long)]
    quick: bool,

    /// How much of the payload the client reads.
    #[arg(long, value_enum, default_value_t = Consume::Sample)]
    consume: Consume,

    /// Where the server's bytes come from.
    #[arg(long, value_enum, default_value_t = Source::Fill)]
    source: Source,

    #[command(flatten)]
    output: OutputArgs,
}

/// What writing a saved result takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReportArgs {
    /// A result that `--output FILE.json` has kept.
    #[arg(value_name = "FILE.json")]
    saved: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

/// Runs a bench and writes its result.
pub(crate) fn run(args: BenchArgs) -> Result<()> {
    let args = match args.which {
        Some(Which::Report(args)) => return rewrite(&args),
        Some(Which::Rpc(args)) => args,
        None => args.rpc,
    };
    let plan = Plan::new(&args)?;
    let outputs = args.output.prepare()?;
    let began = Instant::now();
    let sections = runner::run(&plan, &Progress::new())?;
    let report = Report {
        machine: machine::Machine::read(&plan.topology),
        command_line: std::env::args().skip(1).collect::<Vec<_>>().join(" "),
        date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        source: plan.source,
        consume: plan.consume,
        rounds: plan.rounds,
        rounds_dropped: 0,
        in_flight: 1,
        seconds: began.elapsed().as_secs_f64(),
        warnings: Vec::new(),
        sections,
    };
    outputs.write(&report)?;
    if !plan.is_possible() {
        bail!("this machine can do none of the placements asked for; see `shorthaul topology`");
    }
    Ok(())
}

/// Writes a saved result in another form.
fn rewrite(args: &ReportArgs) -> Result<()> {
    let report = saved::read(&args.saved)?;
    args.output.prepare()?.write(&report)
}
