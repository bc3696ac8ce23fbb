//! Stores the variables of `cleanup_exec`, so that another agent can clean up if this agent is killed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::builtin::DriverPrepare;
use muster_files::Limit;
use muster_steps::failure::Failure;
use muster_steps::process::Processes;
use muster_steps::stop::StopToken;

use super::program::ProgramRun;
use super::session::{AgentLog, DIRECTORY, with_base};
use crate::blocking::blocking;
use crate::context::Context;
use crate::driver_state::DriverState;

const FILE: &str = "cleanup_environment.json";
const LIMIT: Limit =
    Limit { bytes: 256 * 1024 * 1024, remedy: "remove it, and clean up the driver's environment by hand" };
const STATUS: &str = "CUSTOM_ENV_CI_JOB_STATUS";

impl DriverState {
    /// Stores the current variables of `cleanup_exec`.
    pub(super) async fn store_cleanup_variables(&self, context: &Context, stop: &StopToken) -> Result<(), Failure> {
        let (dir, own) = (self.dir.clone(), self.own_env(context));
        blocking(context, "storing the variables of cleanup_exec", stop, move || {
            write(&dir, &own).map_err(Failure::io(format!("failed to write {}", dir.join(FILE).display())))
        })
        .await
    }
}

/// Replaces the file atomically.
fn write(dir: &Path, own: &BTreeMap<String, String>) -> io::Result<()> {
    let new = dir.join(format!("{FILE}.new"));
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(own)?)?;
    file.sync_all()?;
    std::fs::rename(new, dir.join(FILE))
}

/// Returns whether something that the driver created for the job, such as a container, may still exist.
pub(super) fn exist(temp_dir: &Path) -> bool {
    temp_dir.join(DIRECTORY).join(FILE).exists()
}

/// Runs `cleanup_exec` after the agent was killed.
pub(super) async fn clean_up(inputs: &DriverPrepare, temp_dir: &Path, processes: &Processes) -> Result<(), Failure> {
    let Some(program) = &inputs.driver.cleanup else { return Ok(()) };
    let dir = temp_dir.join(DIRECTORY);
    let text = muster_files::read(dir.join(FILE), LIMIT).await.map_err(|error| Failure::System(error.to_string()))?;
    let mut own: BTreeMap<String, String> = serde_json::from_str(&text).map_err(|error| {
        Failure::System(format!(
            "{} does not contain the variables of cleanup_exec: {error}; clean up the driver's environment by hand",
            dir.join(FILE).display()
        ))
    })?;
    own.insert(STATUS.to_owned(), "failed".to_owned());
    let run = ProgramRun {
        key: "cleanup_exec",
        program,
        args: Vec::new(),
        env: with_base(processes, own),
        dir: &dir,
        stdout: None,
        log: Arc::new(AgentLog),
        grace: Duration::from_millis(inputs.driver.graceful_kill_ms),
    };
    run.run(processes, &StopToken::new()).await
}
