//! `muster-agent`: what `muster agent` is, in a file of its own that holds nothing else, since it is copied to instances.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod agent;
#[expect(dead_code, reason = "shared with the larger program, which logs in more ways")]
mod logging;
#[expect(dead_code, reason = "shared with the larger program, which counts jobs by it")]
mod open_files;
mod runtime;

/// Executes the steps of jobs where Muster has placed it.
#[derive(Debug, Parser)]
#[command(name = "muster-agent", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Execute the steps of jobs; started by a manager.
    #[command(subcommand)]
    Agent(agent::Command),
}

fn main() -> ExitCode {
    let Command::Agent(command) = Cli::parse().command;
    agent::run(command)
}
