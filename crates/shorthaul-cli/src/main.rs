//! The command `shorthaul`: which way is fastest on this machine, and why.
#![forbid(unsafe_code)]

mod bench;
mod doctor;
mod topology;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Bulk data between processes on one Linux machine, at memory speed.
#[derive(Parser)]
#[command(name = "shorthaul", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one")]
enum Command {
    Bench(bench::BenchArgs),
    Doctor(doctor::DoctorArgs),
    Topology(topology::TopologyArgs),
    #[command(hide = true)]
    BenchServer(bench::ServerArgs),
    #[command(hide = true)]
    BenchPong(bench::PongArgs),
    #[command(hide = true)]
    BenchTwin(bench::TwinArgs),
    #[command(hide = true)]
    BenchRelayClient(bench::RelayProcessArgs),
    #[command(hide = true)]
    BenchRelayReceiver(bench::RelayProcessArgs),
}

fn main() -> ExitCode {
    shorthaul_platform::signals::ignore_file_size_signal();
    // Where it can't be raised, what needs more descriptors says so itself.
    shorthaul::raise_descriptor_limit().ok();
    let done = match Args::parse().command {
        Command::Bench(args) => bench::run(args),
        Command::Doctor(args) => return ended(doctor::run(&args)),
        Command::Topology(args) => topology::run(args),
        Command::BenchServer(args) => bench::serve(&args),
        Command::BenchPong(args) => bench::pong(&args),
        Command::BenchTwin(args) => bench::serve_twin(&args),
        Command::BenchRelayClient(args) => bench::serve_relay_client(&args),
        Command::BenchRelayReceiver(args) => bench::serve_relay_receiver(&args),
    };
    ended(done.map(|()| ExitCode::SUCCESS))
}

fn ended(done: anyhow::Result<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|error| {
        // No Debug: with RUST_BACKTRACE set it would bury the message under a stack.
        eprintln!("shorthaul: {error:#}");
        ExitCode::FAILURE
    })
}
