//! Executes the `run:` list of a job: its steps in order, each loaded right before it runs (docs/spec/steps.md, sections 1.5 and 4).
//!
//! A process gets its environment variables from these layers. A later layer replaces variables of earlier layers:
//! 1. the agent's environment
//! 2. exports of earlier steps
//! 3. `env` of the enclosing sequences, outermost first
//! 4. `env` of the entry that calls the step
//! 5. `env` of the step file
//!
//! Job variables are not part of the environment. Expressions read them as `vars.NAME` or `job.NAME`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use muster_agent_api::result::StepNode;
use muster_job::TerminationCause;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::{Job, StartTime, StepEnd};
use crate::definition::{StepEntry, parse_run_list};
use crate::expression::ExpressionError;
use crate::failure::Failure;
use crate::log::Log;
use crate::process::{Processes, RunError};
use crate::stop::StopToken;

/// Failure of a step of a `run:` list.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A process exited with this status.
    #[error("exec: exit status {0}")]
    Exit(i32),
    /// A process was terminated by this signal.
    #[error("exec: signal: {0}")]
    Signal(i32),
    /// The steps were stopped.
    #[error("stopped")]
    Stopped(TerminationCause),
    /// A process could not be started or watched.
    #[error("exec: {0}")]
    Run(#[from] RunError),
    /// An expression could not be parsed or evaluated.
    #[error("{description}: {source}")]
    Expression {
        /// Description of the text that contains the expression.
        description: String,
        /// Error of the expression.
        #[source]
        source: ExpressionError,
    },
    /// The step file, its inputs or its outputs are invalid.
    #[error("{0}")]
    Step(String),
    /// The failure was caused by the machine, not by the job.
    #[error("{0}")]
    System(String),
    /// A step inside a sequence failed.
    #[error("step {name:?}: {source}")]
    Inner {
        /// Name of the step.
        name: String,
        /// Failure of the step.
        #[source]
        source: Box<StepError>,
    },
}

impl StepError {
    /// Returns the error of the innermost step, without the names of the steps that contain it.
    #[must_use]
    pub fn cause(&self) -> &Self {
        match self {
            Self::Inner { source, .. } => source.cause(),
            other => other,
        }
    }
}

impl From<&StepError> for Failure {
    /// Returns the failure of the job. Its text names the nested steps down to the step that failed.
    fn from(error: &StepError) -> Self {
        match error.cause() {
            StepError::Exit(code) => Self::Exit(*code),
            StepError::Signal(signal) => Self::Signal(*signal),
            StepError::Stopped(cause) => Self::Stopped(*cause),
            StepError::System(message) => Self::System(message.clone()),
            _ => Self::Step(error.to_string()),
        }
    }
}

/// State of a `run:` list while it runs, with the exports of its steps.
pub(super) struct UserSteps<'a> {
    pub(super) processes: &'a Processes,
    pub(super) log: Arc<dyn Log>,
    pub(super) stop: &'a StopToken,
    /// Time between TERM and KILL when processes are terminated.
    pub(super) grace: Duration,
    /// Lowest layer of the processes' environment.
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Variables of the job, for expressions.
    variables: Map<String, Value>,
    pub(super) work_dir: &'a Path,
    /// Directory for output and export files. It is private to the job.
    pub(super) temp_dir: &'a Path,
    pub(super) exports: Mutex<IndexMap<String, String>>,
}

/// Values that expressions and calls of one sequence or step can use, like a stack frame.
pub(super) struct Frame<'f> {
    /// Directory that local references are relative to.
    pub(super) dir: &'f Path,
    /// Environment variables of the layers above the exports.
    pub(super) env: IndexMap<String, String>,
    pub(super) inputs: Map<String, Value>,
    /// Outputs of the earlier steps of the same sequence, by their names.
    pub(super) steps: Map<String, Value>,
    pub(super) output_file: &'f Path,
    pub(super) export_file: &'f Path,
    pub(super) depth: usize,
}

/// Maximum depth of steps that call steps.
pub(super) const MAX_DEPTH: usize = 32;

impl<'a> UserSteps<'a> {
    /// Returns the state for a `run:` list of the job. Its steps end when `stop` is stopped.
    pub(super) fn new<J: Job>(job: &'a J, stop: &'a StopToken) -> Self {
        let processes = job.processes();
        Self {
            processes,
            log: job.log(),
            stop,
            grace: job.grace(),
            environment: processes.environment().to_vec(),
            variables: job.values(),
            work_dir: job.work_dir(),
            temp_dir: job.temp_dir(),
            exports: Mutex::default(),
        }
    }

    /// Runs the steps of a job's `run:` list. Adds a node to `nodes` for each step that was started.
    ///
    /// # Errors
    /// The first failure. The steps after it are not started.
    pub(super) async fn run(&self, list: &Value, nodes: &mut Vec<StepNode>) -> Result<(), StepError> {
        let entries = parse_run_list(list).map_err(|error| StepError::Step(error.to_string()))?;
        let no_file = PathBuf::new();
        let frame = Frame {
            dir: self.work_dir,
            env: IndexMap::new(),
            inputs: Map::new(),
            steps: Map::new(),
            output_file: &no_file,
            export_file: &no_file,
            depth: 0,
        };
        self.run_sequence(&entries, frame, nodes).await.map(|_| ())
    }

    /// Runs the steps in order. Returns the outputs of all of them by name.
    pub(super) async fn run_sequence(
        &self,
        entries: &[StepEntry],
        mut frame: Frame<'_>,
        nodes: &mut Vec<StepNode>,
    ) -> Result<Map<String, Value>, StepError> {
        for entry in entries {
            if let Some(cause) = self.stop.cause() {
                return Err(StepError::Stopped(cause));
            }
            let start = StartTime::now();
            let mut inner = Vec::new();
            // Boxed, because this function is recursive.
            let result = Box::pin(self.run_entry(entry, &frame, &mut inner)).await;
            nodes.push(start.node(&entry.name, StepEnd::from(&result), inner));
            let outputs =
                result.map_err(|error| StepError::Inner { name: entry.name.clone(), source: error.into() })?;
            let outputs = Map::from_iter([("outputs".to_owned(), Value::Object(outputs))]);
            frame.steps.insert(entry.name.clone(), Value::Object(outputs));
        }
        Ok(frame.steps)
    }

    /// Returns the values that expressions can use, as an object.
    pub(super) fn scope(&self, frame: &Frame<'_>) -> Value {
        let mut env: Map<String, Value> = self
            .environment
            .iter()
            .filter_map(|(key, value)| Some((key.to_str()?.to_owned(), Value::String(value.to_str()?.to_owned()))))
            .collect();
        let exports = self.exports.lock();
        let layers = exports.iter().chain(&frame.env);
        env.extend(layers.map(|(key, value)| (key.clone(), Value::String(value.clone()))));
        let path = |path: &Path| Value::String(path.to_string_lossy().into_owned());
        Value::Object(Map::from_iter([
            ("env".to_owned(), Value::Object(env)),
            ("inputs".to_owned(), Value::Object(frame.inputs.clone())),
            ("vars".to_owned(), Value::Object(self.variables.clone())),
            ("job".to_owned(), Value::Object(self.variables.clone())),
            ("steps".to_owned(), Value::Object(frame.steps.clone())),
            ("output_file".to_owned(), path(frame.output_file)),
            ("export_file".to_owned(), path(frame.export_file)),
            ("work_dir".to_owned(), path(self.work_dir)),
            ("step_dir".to_owned(), path(frame.dir)),
            ("func_dir".to_owned(), path(frame.dir)),
        ]))
    }
}

#[cfg(test)]
mod tests;
