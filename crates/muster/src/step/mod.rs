//! `muster step`: tools for authors and users of steps.
//!
//! Steps run at an agent, as in a job ([`local`]).

mod catalog;
mod debug;
mod deterministic;
mod error;
mod fetcher;
mod index;
mod local;
mod lock;
mod publish;
mod repeat;
mod request;
mod results;
mod run;
mod show;
mod test;

use std::fmt::Display;
use std::process::ExitCode;

use error::StepCommandError;

/// Log filter of these commands, which print their results themselves.
const LOG_FILTER: &str = "warn,muster_runner_api=off,muster_coordinator=off";

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
    /// Run a step of a result tree again, with the recorded inputs and environment, and fail if it produces something else.
    Repeat(repeat::RepeatArgs),
    /// Pin the remote steps of the pipeline in `muster-steps.lock`. Steps that are pinned already do not change.
    Lock(lock::StepLockArgs),
    /// Pin the current content of remote steps in `muster-steps.lock`.
    Update(lock::StepUpdateArgs),
    /// Check that `muster-steps.lock` pins every remote step of the pipeline, and that the pinned content is available.
    Verify(lock::StepVerifyArgs),
    /// Publish the steps of a directory as an image in a registry.
    Publish(publish::StepPublishArgs),
    /// Mark a published step as deprecated or defective. Jobs that use it print the message as a warning.
    Mark(publish::StepMarkArgs),
    /// Search a registry or an index for steps.
    Search(catalog::StepSearchArgs),
    /// Show a remote step: its digest, platforms, inputs, outputs and marks.
    Info(catalog::StepInfoArgs),
}

pub(crate) fn run(command: StepCommand) -> ExitCode {
    crate::logging::init_command(LOG_FILTER);
    match command {
        StepCommand::Run(args) => run::run(args),
        StepCommand::Test(args) => test::run(args),
        StepCommand::Debug(args) => debug::run(args),
        StepCommand::Results(args) => results::run(&args),
        StepCommand::Repeat(args) => repeat::run(&args),
        StepCommand::Lock(args) => exit_code(lock::lock(&args)),
        StepCommand::Update(args) => exit_code(lock::update(&args)),
        StepCommand::Verify(args) => exit_code(lock::verify(&args)),
        StepCommand::Publish(args) => exit_code(publish::publish(&args)),
        StepCommand::Mark(args) => exit_code(publish::mark(&args)),
        StepCommand::Search(args) => exit_code(catalog::search(&args)),
        StepCommand::Info(args) => exit_code(catalog::info(&args)),
    }
}

fn fail(error: impl Display) -> ExitCode {
    anstream::eprintln!("error: {error}");
    ExitCode::FAILURE
}

fn exit_code(work: impl Future<Output = Result<bool, StepCommandError>>) -> ExitCode {
    crate::runtime::block_on(async { crate::ci::exit_code(Box::pin(work).await) })
}
