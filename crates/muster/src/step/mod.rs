//! `muster step`: tools for people who write steps.
//!
//! Each command is a module with its arguments and `run`. Steps run at an agent, as in a job ([`local`]).

mod local;
mod request;
mod run;

use std::fmt::Display;
use std::process::ExitCode;

/// Subcommands of `muster step`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum StepCommand {
    /// Run a step, or the scripts of a saved job, on this machine.
    Run(run::RunArgs),
}

/// Runs a subcommand of `muster step`.
pub(crate) fn run(command: StepCommand) -> ExitCode {
    crate::logging::init_command("warn");
    match command {
        StepCommand::Run(args) => run::run(args),
    }
}

/// Prints an error. Returns the exit code of a command that failed.
fn fail(error: impl Display) -> ExitCode {
    anstream::eprintln!("error: {error}");
    ExitCode::FAILURE
}
