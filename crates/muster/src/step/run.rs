//! `muster step run`: runs a step, or the scripts of a saved job.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use muster_agent_api::plan::JobPlan;
use muster_agent_api::result::{JobResult, Outcome};
use muster_agent_api::step_runner::RunRequest;
use muster_job::{Variable, error_chain};

use super::deterministic::{Comparison, run_twice};
use super::local::{LocalAgent, LocalError, cancel_on_interrupt};
use super::request::{self, Pair, RequestError, StepCall};
use crate::ci::ui;

/// ID of the job at the agent, which has no other job.
pub(super) const JOB_ID: &str = "step";

/// Arguments of `muster step run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// File for the result tree, as JSON. It contains inputs, environment and outputs of each step, without sensitive values.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Run the step twice, in two copies of the current directory, and fail if this file or directory, or an output of a step, differs. Can be
    /// repeated.
    #[arg(long, value_name = "PATH")]
    verify_deterministic: Vec<PathBuf>,
}

/// Arguments that select what to run.
#[derive(Debug, clap::Args)]
pub(super) struct TargetArgs {
    /// Directory of a step, step file, or reference of a step.
    #[arg(value_name = "STEP", required_unless_present = "job", conflicts_with = "job")]
    step: Option<String>,
    /// Input of the step. A value is read as YAML, unless the step declares it as a string. Can be repeated.
    #[arg(long = "input", value_name = "NAME=VALUE", conflicts_with = "job")]
    inputs: Vec<Pair>,
    /// Environment variable of the step. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "job")]
    env: Vec<Pair>,
    /// Variable of the job, for expressions such as `${{ vars.NAME }}`. Can be repeated.
    #[arg(long = "variable", value_name = "NAME=VALUE")]
    variables: Vec<Pair>,
    /// Run the scripts of a saved job instead: a file with the server's answer to a job request. They run in the current directory, without
    /// checkout, cache, artifacts, image and services.
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error(transparent)]
    Local(#[from] LocalError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("failed to read the path of the working directory; change to a directory that exists")]
    WorkDir(#[source] io::Error),
    #[error("{} is not in the current directory; --verify-deterministic compares copies of this directory", path.display())]
    NotInWorkDir { path: PathBuf },
    #[error("interrupted")]
    Interrupted,
    #[error("failed to copy or compare {}", path.display())]
    Copy { path: PathBuf, source: io::Error },
    #[error("failed to write the results to {}", path.display())]
    Results { path: PathBuf, source: io::Error },
}

impl TargetArgs {
    /// Returns the plan and the variables of the job to run in the current directory.
    pub(super) fn plan(&self) -> Result<(JobPlan, Vec<Variable>), CommandError> {
        self.plan_in(&std::env::current_dir().map_err(CommandError::WorkDir)?)
    }

    pub(super) fn plan_in(&self, work_dir: &Path) -> Result<(JobPlan, Vec<Variable>), CommandError> {
        let (plan, mut variables) = match (&self.job, &self.step) {
            (Some(path), _) => request::saved_job(path, work_dir)?,
            (None, step) => {
                let call = StepCall::new(step.as_deref().unwrap_or_default(), &self.inputs, &self.env)?;
                (call.plan(work_dir), Vec::new())
            }
        };
        variables.extend(self.variables.iter().map(|Pair { name, value }| Variable::public(name, value)));
        Ok((plan, variables))
    }
}

pub(super) fn run(args: RunArgs) -> ExitCode {
    crate::runtime::block_on_one_thread(async {
        match Box::pin(run_target(&args)).await {
            Ok(code) => code,
            Err(error) => super::fail(error_chain(&error)),
        }
    })
}

async fn run_target(args: &RunArgs) -> Result<ExitCode, CommandError> {
    let (mut plan, variables) = args.target.plan()?;
    let agent = LocalAgent::start().await?;
    if !args.verify_deterministic.is_empty() {
        let compared = Box::pin(run_twice(&agent, &args.target, &args.verify_deterministic)).await;
        agent.stop().await;
        return report(&compared?, args.results.as_deref(), NOT_DETERMINISTIC);
    }
    request::record_calls(&mut plan, args.results.is_some());
    let result = run_to_end(&agent, request::request(JOB_ID, &plan, &variables)?, print_log).await;
    agent.stop().await;
    finish(&result?, args.results.as_deref())
}

pub(super) const NOT_DETERMINISTIC: &str = "the step is not deterministic";

/// Reports the result and the differences. Fails with `message` if there are differences.
pub(super) fn report(compared: &Comparison, results: Option<&Path>, message: &str) -> Result<ExitCode, CommandError> {
    let code = finish(&compared.result, results)?;
    for difference in &compared.differences {
        ui::out(&format!("{difference}\n"));
    }
    Ok(match compared.differences.len() {
        0 => code,
        1 => super::fail(format!("{message}: 1 difference")),
        count => super::fail(format!("{message}: {count} differences")),
    })
}

/// Writes the results. If the job failed, prints its error and returns the exit code of the failed process, or 1 if it
/// failed for another reason.
pub(super) fn finish(result: &JobResult, results: Option<&Path>) -> Result<ExitCode, CommandError> {
    if let Some(path) = results {
        write_results(path, result).map_err(|source| CommandError::Results { path: path.to_owned(), source })?;
    }
    Ok(match &result.outcome {
        Outcome::Success => ExitCode::SUCCESS,
        Outcome::Failed { exit_code, .. } => {
            let code = exit_code.and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
            super::fail(&result.message);
            ExitCode::from(code.unwrap_or(1))
        }
    })
}

/// Runs a job to its end. SIGINT or SIGTERM to this process cancels the job.
pub(super) async fn run_to_end(
    agent: &LocalAgent,
    request: RunRequest,
    log: impl FnMut(&[u8]),
) -> Result<JobResult, LocalError> {
    let id = request.id.clone();
    tokio::select! {
        result = agent.run(request, log) => result,
        error = cancel_on_interrupt(&agent.connection, &id) => Err(error),
    }
}

pub(super) fn print_log(bytes: &[u8]) {
    let mut stdout = io::stdout().lock();
    // Ignore errors: the steps continue even if the reader stops reading, as `head` does.
    let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
}

/// Writes the result tree as JSON. Only the user can read a new file.
fn write_results(path: &Path, result: &JobResult) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let text = serde_json::to_vec_pretty(&result.to_tree())?;
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(&text)
}
