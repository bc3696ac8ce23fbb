//! State of a driver that the steps of one job share (docs/spec/job-execution.md, section 6).

mod binding;
mod config_output;

use std::path::PathBuf;

use muster_agent_api::builtin::Driver;
use muster_steps::process::Processes;

pub(crate) use binding::{Binding, has_placeholder};
pub(crate) use config_output::ConfigOutput;

#[derive(Debug)]
pub(crate) struct DriverState {
    pub(crate) driver: Driver,
    /// Working directory of the driver's programs.
    pub(crate) dir: PathBuf,
    pub(crate) output: ConfigOutput,
    /// Directories of the job. `None` means that the configuration stage has not run.
    pub(crate) binding: Option<Binding>,
    /// Processes of all programs except `run_exec`. They may run until the cleanup ends.
    pub(crate) processes: Processes,
    /// Value of `CI_JOB_SERVICES`.
    pub(crate) services: String,
    /// Shell of the scripts: `bash` or `sh`. Empty means `bash`.
    pub(crate) shell: String,
    /// Project directory, with placeholders for directories.
    pub(crate) project_dir: String,
    /// Name of this machine, for the log.
    pub(crate) host_name: String,
}
