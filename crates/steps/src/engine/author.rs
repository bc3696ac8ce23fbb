//! Executes an author's `run:` list: its steps in order, each loaded right before it runs (steps 1.5, 4).
//!
//! Environment of a process, the lowest layer first: the agent's own, what earlier steps exported, the enclosing
//! sequences' (outermost first), the calling item's, the step's own. Job variables are no environment: expressions
//! reach them as `vars.NAME` or `job.NAME`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use muster_agent_api::result::StepNode;
use muster_job::TerminationCause;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::{Began, Ending, Job};
use crate::definition::{Item, items};
use crate::expression::ExpressionError;
use crate::failure::Failure;
use crate::log::Log;
use crate::process::{Processes, RunError};
use crate::stop::Stop;

/// Why a step did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A process ended with this status.
    #[error("exec: exit status {0}")]
    Exit(i32),
    /// A process was ended by this signal.
    #[error("exec: signal: {0}")]
    Signal(i32),
    /// The steps were asked to end.
    #[error("stopped")]
    Stopped(TerminationCause),
    /// A process could not be run.
    #[error("exec: {0}")]
    Run(#[from] RunError),
    /// An expression has no value.
    #[error("{at}: {source}")]
    Expression {
        /// Which text.
        at: String,
        /// Why.
        #[source]
        source: ExpressionError,
    },
    /// The step is wrong, or gave back what is wrong.
    #[error("{0}")]
    Step(String),
    /// The machine is at fault.
    #[error("{0}")]
    System(String),
    /// A step inside a sequence.
    #[error("step {name:?}: {source}")]
    Inner {
        /// Its name.
        name: String,
        /// Its error.
        #[source]
        source: Box<StepError>,
    },
}

impl StepError {
    /// The error itself, without the steps around it.
    #[must_use]
    pub fn cause(&self) -> &Self {
        match self {
            Self::Inner { source, .. } => source.cause(),
            other => other,
        }
    }
}

impl From<&StepError> for Failure {
    /// The text names the author's steps on the way to the one that failed.
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

/// An author's `run:` list while it runs, with what its steps have exported.
pub(super) struct AuthorSteps<'a> {
    pub(super) processes: &'a Processes,
    pub(super) log: Arc<dyn Log>,
    pub(super) stop: &'a Stop,
    /// From TERM to KILL.
    pub(super) grace: Duration,
    /// The lowest layer of their environment.
    pub(super) environment: Vec<(OsString, OsString)>,
    /// The job's variables.
    variables: Map<String, Value>,
    pub(super) work_dir: &'a Path,
    /// For output and export files; private to the job.
    pub(super) temp_dir: &'a Path,
    pub(super) exports: Mutex<IndexMap<String, String>>,
}

/// What is known at one place of the call tree.
pub(super) struct Frame<'f> {
    /// Where local references start from.
    pub(super) dir: &'f Path,
    /// Layers of environment above the exports.
    pub(super) env: IndexMap<String, String>,
    pub(super) inputs: Map<String, Value>,
    /// Outputs of the siblings that ended.
    pub(super) steps: Map<String, Value>,
    pub(super) output_file: &'f Path,
    pub(super) export_file: &'f Path,
    pub(super) depth: usize,
}

/// How deep steps may call steps.
pub(super) const MAX_DEPTH: usize = 32;

impl<'a> AuthorSteps<'a> {
    /// Returns the steps of a job that run until `stop`.
    pub(super) fn of<J: Job>(job: &'a J, stop: &'a Stop) -> Self {
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

    /// Runs the steps of a job's `run` list. A node for each that was started goes to `nodes`.
    ///
    /// # Errors
    /// The first failure; the steps behind it were not started.
    pub(super) async fn run(&self, list: &Value, nodes: &mut Vec<StepNode>) -> Result<(), StepError> {
        let items = items(list).map_err(StepError::Step)?;
        let none = PathBuf::new();
        let frame = Frame {
            dir: self.work_dir,
            env: IndexMap::new(),
            inputs: Map::new(),
            steps: Map::new(),
            output_file: &none,
            export_file: &none,
            depth: 0,
        };
        self.sequence(&items, frame, nodes).await.map(|_| ())
    }

    /// Runs items in order; the outputs of all of them by name.
    pub(super) async fn sequence(
        &self,
        items: &[Item],
        mut frame: Frame<'_>,
        nodes: &mut Vec<StepNode>,
    ) -> Result<Map<String, Value>, StepError> {
        for item in items {
            if let Some(cause) = self.stop.cause() {
                return Err(StepError::Stopped(cause));
            }
            let began = Began::now();
            let mut inner = Vec::new();
            // Boxed, because steps call steps.
            let result = Box::pin(self.item(item, &frame, &mut inner)).await;
            nodes.push(began.node(&item.name, Ending::from(&result), inner));
            let outputs = result.map_err(|error| StepError::Inner { name: item.name.clone(), source: error.into() })?;
            let outputs = Map::from_iter([("outputs".to_owned(), Value::Object(outputs))]);
            frame.steps.insert(item.name.clone(), Value::Object(outputs));
        }
        Ok(frame.steps)
    }

    /// What expressions can see.
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
