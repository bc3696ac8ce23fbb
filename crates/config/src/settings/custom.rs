//! `[runners.custom]`: the driver of the custom executor.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::RunnerSettings;

/// Programs of a driver. Stored with a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CustomSettings {
    /// Program that prints settings for the job. `None` means that the driver has no such program.
    pub config: Option<CustomProgram>,
    /// Program that prepares the environment. `None` means that the driver has no such program.
    pub prepare: Option<CustomProgram>,
    /// Program that executes the scripts of a job. Without it, jobs fail.
    pub run: Option<CustomProgram>,
    /// Program that cleans up the environment. `None` means that the driver has no such program.
    pub cleanup: Option<CustomProgram>,
    /// Time between TERM and KILL when a program is stopped.
    pub graceful_kill_timeout: Duration,
}

/// A program of a driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CustomProgram {
    /// Path of the program.
    pub program: String,
    /// Arguments of every call. The arguments that a stage adds follow them.
    pub args: Vec<String>,
    /// Maximum run time. `None` means that only the timeouts of the job apply.
    pub timeout: Option<Duration>,
}

impl RunnerSettings {
    /// Returns whether a driver runs the scripts of jobs (executor `custom`).
    #[must_use]
    pub fn uses_driver(&self) -> bool {
        self.executor == "custom"
    }
}
