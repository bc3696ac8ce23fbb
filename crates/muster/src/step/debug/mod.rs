//! `muster step debug`: runs a step, pauses at breakpoints, and reads commands from standard input.
//!
//! ```text
//! agent --states of the job--> session --prompt--> user
//!       <--breakpoint, inspect, execute, resume--  <--lines--
//! ```

mod command;
mod session;

use std::path::PathBuf;
use std::process::ExitCode;

use muster_agent_api::development::{Breakpoint, DebugOptions};
use muster_job::error_chain;

use super::local::LocalAgent;
use super::request;
use super::run::{self, CommandError, JOB_ID, TargetArgs};
use session::Session;

/// Arguments of `muster step debug`.
#[derive(Debug, clap::Args)]
pub(crate) struct DebugArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Pause at a step: before:STEP, after:STEP, failure:STEP, or failure for any failure. STEP is the name of a step, its path, such as
    /// build/compile, or *. Can be repeated. Without breakpoints, the job pauses before its first step.
    #[arg(long = "break", value_name = "BREAKPOINT")]
    breakpoints: Vec<Breakpoint>,
    /// File for the result tree, as JSON, with inputs, environment and outputs of each step.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
}

pub(super) fn run(args: DebugArgs) -> ExitCode {
    crate::runtime::block_on(async {
        match Box::pin(debug(args)).await {
            Ok(code) => code,
            Err(error) => super::fail(error_chain(&error)),
        }
    })
}

async fn debug(args: DebugArgs) -> Result<ExitCode, CommandError> {
    let (mut plan, variables) = args.target.plan()?;
    plan.development.debug = Some(DebugOptions {
        pause_at_start: args.breakpoints.is_empty(),
        breakpoints: args.breakpoints,
        ..DebugOptions::default()
    });
    request::record_calls(&mut plan, args.results.is_some());
    let request = request::request(JOB_ID, &plan, &variables)?;
    let agent = LocalAgent::start().await?;
    let result = Session::new(&agent.connection, JOB_ID).run(&agent, request).await;
    agent.stop().await;
    run::finish(&result?, args.results.as_deref())
}
