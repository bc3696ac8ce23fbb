//! Inputs of the custom executor's steps (`docs/spec/job-execution.md`, section 6).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Inputs;

/// Placeholder for the builds directory, until the driver's configuration stage reports it.
pub const BUILDS_DIR: &str = "/__muster_builds_dir__";
/// Placeholder for the cache directory, until the driver's configuration stage reports it.
pub const CACHE_DIR: &str = "/__muster_cache_dir__";
/// Placeholder for the components of the project directory's path that differ between runners and slots. They are
/// empty unless the builds directory is shared.
pub const LAYOUT: &str = "/__muster_layout__";

/// Runs a driver's configuration stage and preparation, before all other steps of the driver.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DriverPrepare {
    /// Programs of the driver.
    pub driver: Driver,
    /// Payload of the job as JSON, for `JOB_RESPONSE_FILE`.
    pub payload: String,
    /// Services of the job as a JSON array, for `CUSTOM_ENV_CI_JOB_SERVICES`. Empty means no services.
    pub services: String,
    /// Directories, shell and host name for the scripts.
    pub directories: DriverDirectories,
    /// Project directory of the job. May contain [`BUILDS_DIR`] and [`LAYOUT`].
    pub project_dir: String,
    /// Additional lines for the log.
    pub lines: Vec<String>,
}

impl Inputs for DriverPrepare {
    const BUILTIN: &'static str = "driver/prepare";
}

/// Runs a stage of the job as a generated script, which the driver executes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DriverStage {
    /// GitLab's name of the stage, such as `get_sources`.
    pub stage: String,
    /// Built-in step that does the same work in other environments.
    pub builtin: String,
    /// Inputs of that step, whose texts may contain [`BUILDS_DIR`], [`CACHE_DIR`] and [`LAYOUT`].
    pub inputs: Value,
}

impl Inputs for DriverStage {
    const BUILTIN: &'static str = "driver/stage";
}

/// Cleans up the driver's environment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DriverCleanup {}

impl Inputs for DriverCleanup {
    const BUILTIN: &'static str = "driver/cleanup";
}

/// Programs of a driver, and the grace time to stop them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Driver {
    /// Configuration stage. `None` means no program.
    pub config: Option<DriverProgram>,
    /// Preparation. `None` means no program.
    pub prepare: Option<DriverProgram>,
    /// Program that executes the scripts.
    pub run: DriverProgram,
    /// Cleanup. `None` means no program.
    pub cleanup: Option<DriverProgram>,
    /// Time between TERM and KILL when a program is stopped, in milliseconds.
    pub graceful_kill_ms: u64,
}

/// Program of a driver.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DriverProgram {
    /// Path of the program.
    pub program: String,
    /// Arguments before the arguments of the stage.
    pub args: Vec<String>,
    /// Maximum run time in milliseconds. 0 means only the timeouts of the job.
    pub timeout_ms: u64,
}

/// Directories, shell and host name for the scripts of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DriverDirectories {
    /// Parent directory of checkouts. Empty means not configured.
    pub builds: String,
    /// Parent directory of caches. Empty means not configured.
    pub cache: String,
    /// Value of [`LAYOUT`] if the builds directory is shared.
    pub shared_layout: String,
    /// Shell of the scripts, unless the configuration stage reports another shell.
    pub shell: String,
    /// Name of the manager's host.
    pub host_name: String,
}
