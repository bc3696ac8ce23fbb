//! `muster step`: tools for authors of steps.
//!
//! Each command is a module with its arguments and `run`. Steps run at an agent, as in a job ([`local`]).

mod debug;
mod deterministic;
mod local;
mod request;
mod results;
mod run;
mod show;
mod test;

use std::fmt::Display;
use std::process::ExitCode;

/// Subcommands of `muster step`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum StepCommand {
    /// Run a step, or the scripts of a saved job, on this machine.
    Run(run::RunArgs),
    /// Run unit tests of steps.
    Test(test::TestArgs),
    /// Run a step, pause it at breakpoints, and inspect it.
    Debug(debug::DebugArgs),
    /// Show the steps of a finished run from its result tree.
    Results(results::ResultsArgs),
}

/// Runs a subcommand of `muster step`.
pub(crate) fn run(command: StepCommand) -> ExitCode {
    crate::logging::init_command("warn");
    match command {
        StepCommand::Run(args) => run::run(args),
        StepCommand::Test(args) => test::run(args),
        StepCommand::Debug(args) => debug::run(args),
        StepCommand::Results(args) => results::run(&args),
    }
}

/// Prints an error. Returns the exit code of a command that failed.
fn fail(error: impl Display) -> ExitCode {
    anstream::eprintln!("error: {error}");
    ExitCode::FAILURE
}
