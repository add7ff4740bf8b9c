//! `shorthaul bench`: which way is fastest here, and why. Also the other process of a bench, which
//! the first one starts.

mod compare;
mod export;
mod flags;
mod hygiene;
mod limits;
mod machine;
mod measure;
mod method;
mod output;
mod ping_pong;
mod plan;
mod process;
mod progress;
mod relay;
mod report;
mod runner;
mod saved;
mod server;
mod session;
mod stats;
mod summary;
mod twin;
mod work;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use shorthaul::huge_pages_refused;
use shorthaul::placement::Placement;

use self::method::{Methods, parse_methods};
use self::output::OutputArgs;
pub(crate) use self::ping_pong::{PongArgs, pong};
use self::plan::{Plan, parse_payload};
use self::progress::Progress;
use self::relay::RelayArgs;
pub(crate) use self::relay::{
    ProcessArgs as RelayProcessArgs, serve_client as serve_relay_client,
    serve_receiver as serve_relay_receiver,
};
use self::report::Report;
use self::runner::Findings;
use self::saved::Saved;
pub(crate) use self::server::{ServerArgs, run as serve};
pub(crate) use self::twin::{TwinArgs, serve as serve_twin};
use self::work::{Consume, Pages, Source, WaitKind};

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
    /// Files moved into sinks by splice, mmap, read and write and others, by several processes.
    Relay(RelayArgs),
    /// Write a saved result in another form, or compare two, without measuring.
    Report(ReportArgs),
}

/// What the bench of calls takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct RpcArgs {
    /// Sizes of the payload: one, or a list such as 4KiB,1MiB,64MiB.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_payload,
        allow_negative_numbers = true,
        default_value = "1MiB"
    )]
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

    /// How both sides wait for each other: in threads mode the reactors; callers and workers sleep.
    #[arg(long, value_enum, default_value_t = WaitKind::Adaptive)]
    wait: WaitKind,

    /// Where the server's bytes come from.
    #[arg(long, value_enum, default_value_t = Source::Fill)]
    source: Source,

    /// Calls that are under way at a time.
    #[arg(long, value_name = "CALLS", default_value_t = 1, value_parser = in_flight_range())]
    in_flight: u8,

    /// Run each method beside its bare twin: the same memory calls and one message each way, no
    /// RPC.
    #[arg(long)]
    baseline: bool,

    /// Huge pages for memory that has room for them: of the rows, the limits and the twins.
    #[arg(long, value_enum, default_value_t = Pages::Auto)]
    huge_pages: Pages,

    /// Huge pages for the bare twins alone, where they should differ: a twin that does the obvious
    /// has none. As --huge-pages by default.
    #[arg(long, value_enum)]
    twin_huge_pages: Option<Pages>,

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
        Some(Which::Relay(args)) => return relay::run(&args),
        Some(Which::Rpc(args)) => args,
        None => args.rpc,
    };
    let plan = Plan::new(&args)?;
    let outputs = args.output.prepare()?;
    let began = Instant::now();
    let Findings { sections, mut warnings } = runner::run(&plan, &Progress::new())?;
    warnings.extend(huge_pages_refused().map(|why| format!("There were {why}.")));
    let rounds = sections.iter().flat_map(|section| &section.rounds);
    let report = Report {
        machine: machine::Machine::read(&plan.topology),
        command_line: command_line(),
        date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        source: plan.source,
        consume: plan.consume,
        wait: plan.wait,
        huge_pages: plan.huge_pages,
        twin_huge_pages: plan.twin_huge_pages,
        rounds: plan.rounds,
        rounds_dropped: rounds.filter(|round| round.dropped.is_some()).count(),
        in_flight: plan.in_flight,
        seconds: began.elapsed().as_secs_f64(),
        warnings,
        sections,
    };
    outputs.write(&report)?;
    if !plan.is_possible() {
        bail!("this machine can do none of the placements asked for; see `shorthaul topology`");
    }
    Ok(())
}

/// What was typed, as far as it is text.
fn command_line() -> String {
    let words = std::env::args_os().skip(1);
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

fn in_flight_range() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(1..=64)
}

/// Writes a saved result in another form.
fn rewrite(args: &ReportArgs) -> Result<()> {
    match saved::read(&args.saved)? {
        Saved::Calls(report) => args.output.prepare()?.write(&report),
        Saved::Relays(report) => {
            let outputs = args.output.prepare()?;
            outputs.ensure_no_comparison()?;
            outputs.write_relay(&report)
        }
    }
}
