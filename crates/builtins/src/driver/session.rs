//! Runs the programs of a driver.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::builtin::{DriverPrepare, DriverProgram};
use muster_steps::engine::Job as _;
use muster_steps::failure::Failure;
use muster_steps::log::{Log, Stream};
use muster_steps::process::Processes;
use muster_steps::stop::StopToken;

use super::output::OutputPipe;
use super::program::{BUILD_FAILURE, ProgramRun, SYSTEM_FAILURE};
use crate::blocking::blocking;
use crate::context::Context;
use crate::driver_state::{ConfigOutput, DriverState, has_placeholder};
use crate::removal::remove_tree;

pub(super) const DIRECTORY: &str = "custom-executor";
const RESPONSE_FILE: &str = "response.json";
/// Maximum number of bytes that `config_exec` may print.
const MAX_CONFIG_BYTES: usize = 1024 * 1024;

impl DriverState {
    /// Creates the driver's directory with the payload of the job.
    pub(super) async fn begin(context: &Context, inputs: &DriverPrepare, stop: &StopToken) -> Result<Self, Failure> {
        let dir = context.temp_dir.join(DIRECTORY);
        let processes =
            context.processes.separate_set("driver").map_err(Failure::io("failed to prepare the driver"))?;
        let (path, payload) = (dir.clone(), inputs.payload.clone());
        blocking(context, "creating the driver's directory", stop, move || {
            create(&path, &payload).map_err(Failure::io(format!("failed to create {}", path.display())))
        })
        .await?;
        Ok(Self {
            driver: inputs.driver.clone(),
            dir,
            output: ConfigOutput::default(),
            binding: None,
            processes,
            services: inputs.services.clone(),
            shell: inputs.directories.shell.clone(),
            project_dir: inputs.project_dir.clone(),
            host_name: inputs.directories.host_name.clone(),
        })
    }

    /// Runs `config_exec`, and returns its output. Without `config_exec`, the output is empty.
    ///
    /// # Errors
    /// [`Failure`] of the program, or [`Failure::System`] if its output is too long.
    pub(super) async fn config(&self, context: &Context, stop: &StopToken) -> Result<Vec<u8>, Failure> {
        let Some(program) = &self.driver.config else { return Ok(Vec::new()) };
        let (mut output, stdout) =
            OutputPipe::new(MAX_CONFIG_BYTES).map_err(Failure::io("failed to create a pipe for config_exec"))?;
        let run = ProgramRun { stdout: Some(Arc::new(stdout)), ..self.program(context, "config_exec", program) };
        output.collect_during(run.run(&self.processes, stop)).await?;
        output.into_bytes().ok_or_else(|| {
            Failure::System(format!(
                "config_exec `{}` printed more than {} KiB to standard output; it must print a JSON object there, and all else to standard \
                 error",
                program.program,
                MAX_CONFIG_BYTES / 1024
            ))
        })
    }

    /// Runs `prepare_exec`.
    pub(super) async fn prepare(&self, context: &Context, stop: &StopToken) -> Result<(), Failure> {
        let Some(program) = &self.driver.prepare else { return Ok(()) };
        self.program(context, "prepare_exec", program).run(&self.processes, stop).await
    }

    /// Runs `run_exec` with a script and the name of a stage.
    pub(super) async fn stage(
        &self,
        context: &Context,
        script: &Path,
        name: &str,
        stop: &StopToken,
    ) -> Result<(), Failure> {
        let run = self.program(context, "run_exec", &self.driver.run);
        ProgramRun { args: vec![script.into(), name.into()], ..run }.run(&context.processes, stop).await
    }

    /// Runs `cleanup_exec`, ends remaining processes, and removes the driver's directory.
    ///
    /// Only a timeout stops `cleanup_exec`.
    pub(super) async fn clean_up(&self, context: &Context) -> Result<(), Failure> {
        let cleaned = match &self.driver.cleanup {
            Some(program) => {
                let run = ProgramRun { log: Arc::new(AgentLog), ..self.program(context, "cleanup_exec", program) };
                run.run(&self.processes, &StopToken::new()).await
            }
            None => Ok(()),
        };
        self.processes.finish(self.grace()).await;
        let dir = self.dir.clone();
        let removed = tokio::task::spawn_blocking(move || remove_tree(&dir)).await.map_err(std::io::Error::other);
        if let Err(error) = removed.and_then(|removed| removed) {
            tracing::warn!(%error, directory = %self.dir.display(), "failed to remove the directory of a driver");
        }
        cleaned
    }

    fn grace(&self) -> Duration {
        Duration::from_millis(self.driver.graceful_kill_ms)
    }

    fn program<'a>(&'a self, context: &Context, key: &'static str, program: &'a DriverProgram) -> ProgramRun<'a> {
        let (env, grace) = (self.env(context), self.grace());
        ProgramRun { key, program, args: Vec::new(), env, dir: &self.dir, stdout: None, log: context.log(), grace }
    }

    /// Returns the environment of a program. Before the configuration stage, variables with placeholders for
    /// directories are missing.
    fn env(&self, context: &Context) -> Vec<(OsString, OsString)> {
        with_base(&context.processes, self.own_env(context))
    }

    /// Returns the variables for a program in addition to the environment of the job's processes.
    pub(super) fn own_env(&self, context: &Context) -> BTreeMap<String, String> {
        let mut own = BTreeMap::from([
            ("TMPDIR".to_owned(), self.dir.display().to_string()),
            ("JOB_RESPONSE_FILE".to_owned(), self.dir.join(RESPONSE_FILE).display().to_string()),
            ("BUILD_EXIT_CODE_FILE".to_owned(), ProgramRun::exit_code_file(&self.dir).display().to_string()),
            ("BUILD_FAILURE_EXIT_CODE".to_owned(), BUILD_FAILURE.to_string()),
            ("SYSTEM_FAILURE_EXIT_CODE".to_owned(), SYSTEM_FAILURE.to_string()),
        ]);
        own.extend(self.output.job_env.clone().unwrap_or_default());
        for (key, value) in self.variables(context) {
            own.insert(format!("CUSTOM_ENV_{key}"), value);
        }
        own.insert("CUSTOM_ENV_CI_JOB_SERVICES".to_owned(), self.services.clone());
        // Environment variables cannot contain these characters.
        own.retain(|key, value| !key.contains(['=', '\0']) && !value.contains('\0'));
        own
    }

    /// Returns the variables of the job. A file variable has the content as its value.
    fn variables(&self, context: &Context) -> Vec<(String, String)> {
        let status = context.values().get("CI_JOB_STATUS").and_then(|status| status.as_str().map(str::to_owned));
        let status = status.map(|status| ("CI_JOB_STATUS".to_owned(), status));
        let all = context.variables.current().into_iter().map(|variable| (variable.key, variable.value));
        let bound = all.filter_map(|(key, value)| match &self.binding {
            Some(binding) => Some((key, binding.expand(&value))),
            None => (!has_placeholder(&value)).then_some((key, value)),
        });
        bound.chain(status).collect()
    }
}

/// Returns the environment of the job's processes with additional variables.
pub(super) fn with_base(processes: &Processes, own: BTreeMap<String, String>) -> Vec<(OsString, OsString)> {
    let base = processes.environment().iter().cloned();
    base.chain(own.into_iter().map(|(key, value)| (key.into(), value.into()))).collect()
}

fn create(dir: &Path, payload: &str) -> std::io::Result<()> {
    if dir.exists() {
        remove_tree(dir)?;
    }
    DirBuilder::new().mode(0o700).create(dir)?;
    let file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(dir.join(RESPONSE_FILE));
    file?.write_all(payload.as_bytes())
}

/// Writes the output of `cleanup_exec` to the agent's log.
pub(super) struct AgentLog;

impl Log for AgentLog {
    fn write(&self, _: Stream, bytes: &[u8]) {
        tracing::warn!(output = %String::from_utf8_lossy(bytes).trim_end(), "cleanup_exec printed");
    }
}
