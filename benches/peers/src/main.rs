//! Shorthaul beside everything that a user would pick instead: one run, the same work for all.

mod cell;
mod machine;
mod meeting;
mod options;
mod output;
mod peers;
mod report;
mod rounds;
mod statistics;
mod variant;
mod versions;
mod work;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "shorthaul-peers", about = "Measures Shorthaul beside its rivals")]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: options::Options,
}

/// The other processes of a run, which it starts itself.
#[derive(Debug, Subcommand)]
enum Command {
    #[command(hide = true)]
    Cell(cell::CellArgs),
    #[command(hide = true)]
    Serve(cell::ServeArgs),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.command {
        None => rounds::run(&args.options),
        Some(Command::Cell(cell)) => cell::measure(cell),
        Some(Command::Serve(serve)) => cell::serve(serve),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
