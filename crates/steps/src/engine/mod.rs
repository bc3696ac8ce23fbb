//! Executes steps: a list of them in order, each loaded right before it runs (steps 1.5, 4).
//!
//! Environment of a process, the lowest layer first: the agent's own, what earlier steps exported, the enclosing
//! sequences' (outermost first), the calling item's, the step's own. Job variables are no environment: expressions
//! reach them as `vars.NAME` or `job.NAME`.

mod call;
mod exec;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use indexmap::IndexMap;
use muster_agent_api::result::{StepNode, StepStatus};
use muster_job::EndCause;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::definition::{Item, items};
use crate::expression::ExpressionError;
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
    Stopped(EndCause),
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

/// Steps that an agent brings along, called by `builtin://<name>`.
#[async_trait]
pub trait BuiltinSteps: Send + Sync {
    /// Runs the built-in step `name`; its outputs. None if there is no step of this name.
    async fn run(
        &self,
        name: &str,
        inputs: &Map<String, Value>,
        stop: &Stop,
    ) -> Option<Result<Map<String, Value>, StepError>>;
}

/// What steps run in.
pub struct Engine<'a> {
    /// Starts and ends their processes.
    pub processes: &'a Processes,
    /// Where they print.
    pub log: Arc<dyn Log>,
    /// Ends them.
    pub stop: &'a Stop,
    /// From TERM to KILL.
    pub grace: Duration,
    /// The lowest layer of their environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The job's variables.
    pub variables: Map<String, Value>,
    /// The job's directory; it never changes.
    pub work_dir: PathBuf,
    /// For output and export files; private to the job.
    pub temp_dir: PathBuf,
    /// The steps of the agent.
    pub builtins: &'a dyn BuiltinSteps,
    exports: Mutex<IndexMap<String, String>>,
}

impl std::fmt::Debug for Engine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("work_dir", &self.work_dir).finish_non_exhaustive()
    }
}

/// What is known at one place of the call tree.
struct Frame<'f> {
    /// Where local references start from.
    dir: &'f Path,
    /// Layers of environment above the exports.
    env: IndexMap<String, String>,
    inputs: Map<String, Value>,
    /// Outputs of the siblings that ended.
    steps: Map<String, Value>,
    output_file: &'f Path,
    export_file: &'f Path,
    depth: usize,
}

/// How deep steps may call steps.
const MAX_DEPTH: usize = 32;

impl<'a> Engine<'a> {
    /// An engine for one job.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the surroundings, said once")]
    pub fn new(
        processes: &'a Processes,
        log: Arc<dyn Log>,
        stop: &'a Stop,
        grace: Duration,
        variables: Map<String, Value>,
        work_dir: PathBuf,
        temp_dir: PathBuf,
        builtins: &'a dyn BuiltinSteps,
    ) -> Self {
        let environment = processes.environment().to_vec();
        let exports = Mutex::default();
        Self { processes, log, stop, grace, environment, variables, work_dir, temp_dir, builtins, exports }
    }

    /// Runs the steps of a job's `run` list. A node for each that was started goes to `nodes`.
    ///
    /// # Errors
    /// The first failure; the steps behind it were not started.
    pub async fn run(&self, list: &Value, nodes: &mut Vec<StepNode>) -> Result<(), StepError> {
        let items = items(list).map_err(StepError::Step)?;
        let none = PathBuf::new();
        let frame = Frame {
            dir: &self.work_dir,
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
    async fn sequence(
        &self,
        items: &[Item],
        mut frame: Frame<'_>,
        nodes: &mut Vec<StepNode>,
    ) -> Result<Map<String, Value>, StepError> {
        for item in items {
            if let Some(cause) = self.stop.cause() {
                return Err(StepError::Stopped(cause));
            }
            let started = Instant::now();
            let started_ms = unix_ms();
            let mut inner = Vec::new();
            // Boxed, because steps call steps.
            let result = Box::pin(self.item(item, &frame, &mut inner)).await;
            nodes.push(StepNode {
                name: item.name.clone(),
                status: status(&result),
                started_ms,
                duration_ms: millis(started.elapsed()),
                exit_code: match result.as_ref().map_err(StepError::cause) {
                    Err(StepError::Exit(code)) => Some(*code),
                    _ => None,
                },
                message: result.as_ref().err().map(ToString::to_string).unwrap_or_default(),
                cause: match result.as_ref().map_err(StepError::cause) {
                    Err(StepError::Stopped(cause)) => Some(*cause),
                    _ => None,
                },
                steps: inner,
            });
            let outputs = result.map_err(|error| StepError::Inner { name: item.name.clone(), source: error.into() })?;
            let outputs = Map::from_iter([("outputs".to_owned(), Value::Object(outputs))]);
            frame.steps.insert(item.name.clone(), Value::Object(outputs));
        }
        Ok(frame.steps)
    }

    /// What expressions can see.
    fn scope(&self, frame: &Frame<'_>) -> Value {
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
            ("work_dir".to_owned(), path(&self.work_dir)),
            ("step_dir".to_owned(), path(frame.dir)),
            ("func_dir".to_owned(), path(frame.dir)),
        ]))
    }
}

fn status<T>(result: &Result<T, StepError>) -> StepStatus {
    match result.as_ref().map_err(StepError::cause) {
        Ok(_) => StepStatus::Success,
        Err(StepError::Stopped(_)) => StepStatus::Cancelled,
        Err(_) => StepStatus::Failure,
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
