//! `builtin://driver/prepare`: configures and prepares a driver.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::builtin::DriverPrepare;
use muster_steps::builtin::{Builtin, Role};
use muster_steps::engine::Job as _;
use muster_steps::failure::Failure;
use muster_steps::process::Processes;
use muster_steps::stop::StopToken;
use muster_steps::style;

use super::leftovers;
use crate::context::Context;
use crate::driver_state::{Binding, ConfigOutput, DriverState};

/// Maximum number of attempts, as in gitlab-runner.
const ATTEMPTS: u32 = 3;
const RETRY_DELAY: Duration = Duration::from_secs(3);

#[async_trait]
impl Builtin<Context> for DriverPrepare {
    fn role(&self) -> Role {
        Role::Other
    }

    async fn run(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        // This records the start of user code, so that no other agent retries the job: a driver might not support a
        // second run of its programs for the same job.
        context.wait_until_user_code_may_run(stop).await?;
        let mut attempt = 1;
        loop {
            let failure = match attempt_to_prepare(self, context, stop).await {
                Ok(session) => {
                    *context.driver.lock() = Some(Arc::new(session));
                    return Ok(());
                }
                Err(failure) => failure,
            };
            if attempt >= ATTEMPTS || !matches!(failure, Failure::System(_)) {
                return Err(failure);
            }
            attempt += 1;
            context.print(&style::error(&format!("Preparation failed: {failure}")));
            context.print(&style::info(&format!("Will be retried in {}s ...", RETRY_DELAY.as_secs())));
            tokio::select! {
                cause = stop.stopped() => return Err(Failure::Stopped(cause)),
                () = tokio::time::sleep(RETRY_DELAY) => {}
            }
        }
    }

    fn has_leftovers(&self, temp_dir: &Path) -> bool {
        leftovers::exist(temp_dir)
    }

    async fn remove_leftovers(&self, temp_dir: &Path, processes: &Processes) -> Result<(), Failure> {
        leftovers::clean_up(self, temp_dir, processes).await
    }
}

/// Makes one attempt to prepare the environment. If it fails, cleans the environment up.
async fn attempt_to_prepare(
    inputs: &DriverPrepare,
    context: &Arc<Context>,
    stop: &StopToken,
) -> Result<DriverState, Failure> {
    let mut session = DriverState::begin(context, inputs, stop).await?;
    match run_programs(&mut session, inputs, context, stop).await {
        Ok(()) => Ok(session),
        Err(failure) => {
            if let Err(error) = session.clean_up(context).await {
                context.print(&style::warning(&format!("Cleanup script failed: {error}")));
            }
            Err(failure)
        }
    }
}

async fn run_programs(
    session: &mut DriverState,
    inputs: &DriverPrepare,
    context: &Arc<Context>,
    stop: &StopToken,
) -> Result<(), Failure> {
    session.store_cleanup_variables(context, stop).await?;
    let output = session.config(context, stop).await?;
    session.output = ConfigOutput::parse(&output).map_err(|error| {
        let program = inputs.driver.config.as_ref().map_or("", |config| &config.program);
        Failure::System(format!(
            "the output of config_exec `{program}` is not a valid configuration: {error}; it must print a JSON object to standard output, \
             and all else to standard error"
        ))
    })?;
    session.binding = Some(Binding::new(&inputs.directories, &session.output)?);
    if let Some(shell) = session.output.shell.as_ref().filter(|shell| !shell.is_empty()) {
        session.shell.clone_from(shell);
    }
    if !matches!(session.shell.as_str(), "" | "bash" | "sh") {
        return Err(Failure::Configuration(format!(
            "the custom executor does not support the shell `{}`; set `shell` to `bash` or `sh`",
            session.shell
        )));
    }
    session.store_cleanup_variables(context, stop).await?;
    context.print(&style::plain(&session.output.title()));
    inputs.lines.iter().for_each(|line| context.print(&style::plain(line)));
    session.prepare(context, stop).await
}
