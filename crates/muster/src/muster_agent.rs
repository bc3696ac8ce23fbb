//! `muster-agent`: only `muster agent`, as a small executable that is copied to instances.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod agent;
#[expect(dead_code, reason = "shared with `muster`, which also logs in other ways")]
mod logging;
#[expect(
    dead_code,
    reason = "shared with `muster`, which also derives the number of jobs from the limit of open files"
)]
mod open_files;
mod runtime;

/// Execute the steps of jobs on a machine that a manager has copied this program to.
#[derive(Debug, Parser)]
#[command(name = "muster-agent", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Execute the steps of jobs. Started by managers.
    #[command(subcommand)]
    Agent(agent::Command),
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let command = agent::from_environment(&arguments).unwrap_or_else(|| {
        let Command::Agent(command) = Cli::parse_from(arguments).command;
        command
    });
    agent::run(command)
}
