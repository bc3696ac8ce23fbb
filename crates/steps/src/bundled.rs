//! Port to the steps that come with the agent and that lists of steps may call: `dist://...` and some of
//! `builtin://...`.

use std::path::Path;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::definition::Spec;
use crate::failure::PortError;
use crate::remote::Lookup;
use crate::stop::StopToken;

/// Port to the bundled steps.
#[async_trait]
pub trait BundledSteps: Send + Sync {
    /// Returns inputs and outputs of a step. `None` means that there is no such step.
    fn spec(&self, name: &str) -> Option<Spec>;

    /// Returns the commands that a POSIX shell runs in place of [`Self::run`]. `None` means that the step runs in this
    /// process.
    ///
    /// The shell has the environment of the step and the variables of the job.
    ///
    /// # Errors
    /// [`PortError`] if an input is invalid.
    fn commands(&self, _call: &BundledCall<'_>) -> Option<Result<String, PortError>> {
        None
    }

    /// Runs a step in this process. Returns its outputs.
    ///
    /// # Errors
    /// [`PortError`].
    async fn run(&self, call: BundledCall<'_>, stop: &StopToken) -> Result<Map<String, Value>, PortError>;
}

/// Call of a bundled step.
pub struct BundledCall<'a> {
    /// Name of the step, without `dist://` and `builtin://`.
    pub name: &'a str,
    /// Inputs, with their defaults.
    pub inputs: &'a Map<String, Value>,
    /// Directory of the job. Relative paths in inputs are relative to it.
    pub work_dir: &'a Path,
    /// Variables of the job, which contain credentials.
    pub lookup: Lookup<'a>,
    /// Prints a message to the log.
    pub print: &'a (dyn Fn(&str) + Sync),
}

impl std::fmt::Debug for BundledCall<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BundledCall")
            .field("name", &self.name)
            .field("work_dir", &self.work_dir)
            .finish_non_exhaustive()
    }
}
