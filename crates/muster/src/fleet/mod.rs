//! `muster fleet`: what an operator of instances needs.

use std::process::ExitCode;

use clap::Subcommand;

mod simulate;
mod svg;

/// Instances for jobs: try a policy before it costs anything.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replay jobs against policies in a modelled cloud: waits, cost, idle share, and a picture.
    ///
    /// The engine is the one that scales real fleets; only the cloud is a model. Policy files are in TOML and have the keys
    /// of `[runners.autoscaler]`. Several policies are compared side by side, on the same jobs.
    Simulate(Box<simulate::Args>),
}

/// Runs one of them.
pub(crate) fn run(command: Command) -> ExitCode {
    match command {
        Command::Simulate(args) => simulate::run(&args),
    }
}
