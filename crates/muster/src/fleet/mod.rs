//! `muster fleet`: what an operator of instances needs.

use std::process::ExitCode;

use clap::Subcommand;
use muster_taskscaler::operator::Act;

use crate::ci;

pub(crate) mod ask;
mod explain;
mod operate;
mod simulate;
mod status;
mod svg;

/// Instances for jobs: how they are, why, and what a policy would cost.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show every instance, every slot, and what is missing.
    ///
    /// The manager is asked at the `listen_address` of its configuration; one that does not answer has its state on disk,
    /// which is shown then.
    Status(Box<status::Args>),
    /// Say why a job waits, why an instance went, why none was created.
    ///
    /// The answer is followed by the decisions of the last day that it rests on, with the numbers that they were made by.
    Explain(Box<explain::Args>),
    /// Give an instance no more jobs, and keep it; or let a group make no more instances, and empty it.
    ///
    /// An instance stays until it is resumed or removed: to look at it. The instances of a group go, each after its jobs; those
    /// that were drained by themselves stay. Both last over restarts of the manager, which must be at work, and takes this
    /// from its own user and from root alone.
    Drain(Box<operate::Args>),
    /// Take back what `drain` did, or a removal that still waits for jobs.
    Resume(Box<operate::Args>),
    /// Remove an instance after the jobs that it has, also one that was not asked for here.
    Remove(Box<operate::RemoveArgs>),
    /// Replay jobs against policies in a modelled cloud: waits, cost, idle share, and a picture.
    ///
    /// The engine is the one that scales real fleets; only the cloud is a model. Policy files are in TOML and have the keys
    /// of `[runners.autoscaler]`. Several policies are compared side by side, on the same jobs.
    Simulate(Box<simulate::Args>),
}

/// Runs one of them.
pub(crate) fn run(command: Command) -> ExitCode {
    match command {
        Command::Status(args) => asking(status::run(*args)),
        Command::Explain(args) => asking(explain::run(*args)),
        Command::Drain(args) => asking(operate::run(*args, Act::Drain)),
        Command::Resume(args) => asking(operate::run(*args, Act::Resume)),
        Command::Remove(args) => asking(operate::remove(*args)),
        Command::Simulate(args) => simulate::run(&args),
    }
}

fn asking(work: impl Future<Output = ExitCode>) -> ExitCode {
    crate::logging::of_command("warn");
    crate::runtime::block_on_one_thread(work)
}

/// For programs.
fn print_json(answer: &impl serde::Serialize) -> ExitCode {
    match serde_json::to_string_pretty(answer) {
        Ok(text) => ci::print(format!("{text}\n").as_bytes()),
        Err(error) => {
            ci::ui::report(&error);
            ExitCode::from(2)
        }
    }
}
