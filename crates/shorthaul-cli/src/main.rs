//! The command `shorthaul`: which way is fastest on this machine, and why.
#![forbid(unsafe_code)]

mod topology;

use clap::{Parser, Subcommand};

/// Bulk data between processes on one Linux machine, at memory speed.
#[derive(Parser)]
#[command(name = "shorthaul", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Topology(topology::TopologyArgs),
}

fn main() -> std::process::ExitCode {
    let done = match Args::parse().command {
        Command::Topology(args) => topology::run(args),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shorthaul: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
