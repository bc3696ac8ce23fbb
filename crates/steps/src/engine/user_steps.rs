//! Executes the `run:` list of a job, loading each step right before it runs (docs/spec/steps.md, sections 1.5 and 4).
//!
//! A process gets its environment variables from these layers. A later layer replaces variables of earlier layers:
//! 1. the agent's environment, and `CI_STEPS_LOG_LEVEL`
//! 2. exports of earlier steps
//! 3. `env` of the enclosing sequences, outermost first
//! 4. `env` of the entry that calls the step
//! 5. `env` of the step file
//!
//! Job variables are not in the environment. Expressions read them as `vars.NAME` or `job.NAME`.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use indexmap::IndexMap;
use muster_agent_api::development::Development;
use muster_agent_api::result::{CallRecord, StepNode};
use muster_job::{PolicyViolation, StepPolicy, TerminationCause, error_chain, go_duration};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::debug::{Debugger, StepState};
use super::masked_log::MaskedLog;
use super::remote_steps::RemoteSteps;
use super::results::{OnResults, StepResult};
use super::settings::{LOG_LEVEL, SettingError, Settings};
use super::{Job, RETRY_BACKOFF};
use crate::builtin::{Call, Step};
use crate::bundled::BundledSteps;
use crate::definition::{StepFile, parse_run_list};
use crate::disk::DiskError;
use crate::expression::{Dialect, ExpressionError, Scope};
use crate::failure::{Failure, signal_name};
use crate::log::{Log, Stream};
use crate::process::{JobNetwork, LimitError, Processes, RunError};
use crate::remote::{ReferenceError, StepSource};
use crate::stop::StopToken;

/// Failure of a step of a `run:` list.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A process exited with this status.
    #[error("exec: exit status {0}")]
    Exit(i32),
    /// A process was terminated by this signal.
    #[error("exec: signal: {}", signal_name(*.0))]
    Signal(i32),
    /// The steps were stopped.
    #[error("stopped")]
    Stopped(TerminationCause),
    /// A step exceeded its own timeout.
    #[error("exceeded timeout of {}", go_duration(*.0))]
    Timeout(Duration),
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
    /// The working directory of a process does not exist.
    #[error("exec: chdir {0}: no such directory; create it in an earlier step, or change `work_dir`")]
    WorkDir(String),
    /// A setting of the steps is invalid.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A reference is invalid or not supported.
    #[error("failed to load: fetching step: {0}")]
    Reference(#[from] ReferenceError),
    /// A remote step was not fetched.
    #[error("failed to load: fetching step: {source_name}: {message}")]
    Fetch {
        /// Source of the step.
        source_name: String,
        /// Error of the server, and the remedy.
        message: String,
    },
    /// The operator's policy does not allow the step.
    #[error("failed to load: {0}")]
    Refused(Box<PolicyViolation>),
    /// The limits of the rule that allows the step cannot be enforced.
    #[error("failed to load: the limits of the step policy's rule for this step cannot be enforced here")]
    Limits(#[source] LimitError),
    /// The step does not comply with the disk limit of the rule that allows it.
    #[error(transparent)]
    Disk(DiskError),
    /// The inputs do not match the step, or the steps are nested too deep.
    #[error("{0}")]
    Call(String),
    /// The step file or its outputs are invalid, or another part of the step failed.
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
    pub(super) fn within(self, name: &str) -> Self {
        Self::Inner { name: name.to_owned(), source: self.into() }
    }

    /// Returns the innermost error, without the names of the steps around it.
    #[must_use]
    pub fn cause(&self) -> &Self {
        match self {
            Self::Inner { source, .. } => source.cause(),
            other => other,
        }
    }

    /// Whether another attempt of the step may succeed.
    pub(super) fn may_pass_later(&self) -> bool {
        let fails_again = match self.cause() {
            // An expression in a nested step may succeed in another attempt, because the outputs that it uses may then
            // differ. An expression of this step's own call fails again.
            Self::Expression { .. } => !matches!(self, Self::Inner { .. }),
            Self::Setting(_)
            | Self::Reference(_)
            | Self::Refused(_)
            | Self::Limits(_)
            | Self::Disk(_)
            | Self::Call(_) => true,
            _ => false,
        };
        !fails_again
    }
}

impl From<&StepError> for Failure {
    /// The text names the nested steps down to the step that failed.
    fn from(error: &StepError) -> Self {
        match error.cause() {
            StepError::Exit(code) => Self::Exit(*code),
            StepError::Signal(signal) => Self::Signal(*signal),
            StepError::Stopped(cause) => Self::Stopped(*cause),
            StepError::System(message) => Self::System(message.clone()),
            StepError::Refused(_) | StepError::Limits(_) => Self::Configuration(error_chain(error)),
            _ => Self::Step(error_chain(error)),
        }
    }
}

/// State of a running `run:` list. Clones share the exports.
#[derive(Clone)]
pub(super) struct UserSteps<'a> {
    pub(super) processes: &'a Processes,
    pub(super) log: Arc<MaskedLog>,
    pub(super) stop: &'a StopToken,
    pub(super) grace: Duration,
    /// Lowest layer of the processes' environment.
    pub(super) environment: Arc<[(OsString, OsString)]>,
    /// Inputs that a step of the outermost list gets if its step file declares them. Empty unless the list replaces a
    /// built-in step.
    pub(super) offered: Arc<Map<String, Value>>,
    pub(super) variables: Arc<Map<String, Value>>,
    pub(super) settings: Settings,
    /// Operator's policy for the steps. `None` allows every step.
    pub(super) policy: Option<&'a StepPolicy>,
    /// Whether the lock file of the checkout pins the remote steps.
    pub(super) obeys_lock_file: bool,
    pub(super) work_dir: &'a Path,
    pub(super) image: &'a str,
    /// Private directory of the job for output and export files.
    pub(super) temp_dir: &'a Path,
    pub(super) exports: Arc<Mutex<IndexMap<String, String>>>,
    /// Exports of the running parallel step only. Outside of parallel steps, of all steps.
    pub(super) own_exports: Arc<Mutex<IndexMap<String, String>>>,
    /// Whether a client of step-runner sent the step file. The log then names each step that starts a process, and
    /// failures name the path of the failed step.
    is_step_file: bool,
    /// Receiver of the results. `None` writes them to a file if [`Settings::is_debug`] is set.
    pub(super) on_results: Option<OnResults>,
    pub(super) recorded_calls: RecordedCalls,
    pub(super) record_bytes_left: Arc<AtomicUsize>,
    pub(super) development: Option<&'a Development>,
    pub(super) debugger: Option<&'a Arc<Debugger>>,
    pub(super) step_source: Option<Arc<dyn StepSource>>,
    pub(super) bundled: Option<Arc<dyn BundledSteps>>,
    pub(super) remote: Arc<RemoteSteps>,
    pub(super) retry_backoff: (Duration, Duration),
    pub(super) has_section_markers: bool,
    /// Network that only the current step uses. `None` means that its traffic cannot be counted.
    pub(super) network: Option<&'a JobNetwork>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordedCalls {
    None,
    /// References of the steps, and names of their inputs. For steps of the operator, whose values are hidden from the
    /// author.
    WithoutValues,
    Complete,
}

#[derive(Default)]
pub(super) struct Record {
    pub(super) nodes: Vec<StepNode>,
    /// Results for the results file. Empty if the file is not written.
    pub(super) results: Vec<StepResult>,
    /// Call of the step. `None` means that calls are not recorded, or that the step could not be loaded.
    pub(super) call: Option<CallRecord>,
}

/// Values of one sequence or step, like a stack frame.
pub(super) struct Frame<'f> {
    /// Directory that local references are relative to.
    pub(super) dir: &'f Path,
    /// Variables that take precedence over exports (layers 3 to 5).
    pub(super) env: IndexMap<String, String>,
    pub(super) inputs: Map<String, Value>,
    pub(super) steps: Map<String, Value>,
    /// Values for one run of a step with a matrix. Empty for other steps.
    pub(super) matrix: Map<String, Value>,
    pub(super) output_file: &'f Path,
    pub(super) export_file: &'f Path,
    pub(super) depth: usize,
    /// Names of the steps from the outermost step to this step. Empty for the outermost list.
    pub(super) path: String,
}

/// Maximum total size in bytes of the complete call records of a list, before masking.
pub(super) const MAX_RECORD_BYTES: usize = 16 * 1024 * 1024;
pub(super) const MAX_DEPTH: usize = 32;

impl<'a> UserSteps<'a> {
    /// Returns the state for the steps that `step` calls. They run until `stop` is stopped.
    ///
    /// # Errors
    /// A setting is invalid.
    pub(super) fn new<J: Job>(job: &'a Arc<J>, stop: &'a StopToken, step: &Step<J>) -> Result<Self, SettingError> {
        let processes = job.processes();
        let environment = processes.environment().to_vec();
        let variables = job.values();
        let lookup = |name: &str| {
            let variable = variables.get(name).and_then(Value::as_str).map(str::to_owned);
            let inherited = || environment.iter().rev().find(|(key, _)| key == name)?.1.to_str().map(str::to_owned);
            variable.or_else(inherited)
        };
        let settings = if step.is_by_operator() { Settings::OF_OPERATOR } else { Settings::read(lookup)? };
        let mut steps = Self {
            offered: Arc::default(),
            processes,
            log: Arc::new(MaskedLog::new(job.log())),
            stop,
            grace: job.grace(),
            environment: Arc::default(),
            variables: Arc::new(variables),
            settings,
            policy: None,
            obeys_lock_file: true,
            work_dir: job.work_dir(),
            image: job.image(),
            temp_dir: job.temp_dir(),
            exports: Arc::default(),
            own_exports: Arc::default(),
            is_step_file: matches!(step.call, Call::StepFile(_)),
            on_results: job.on_results(),
            recorded_calls: RecordedCalls::None,
            record_bytes_left: Arc::new(MAX_RECORD_BYTES.into()),
            development: job.development(),
            debugger: job.debugger(),
            step_source: job.step_source(),
            bundled: job.bundled_steps(),
            remote: Arc::default(),
            retry_backoff: RETRY_BACKOFF,
            has_section_markers: false,
            network: job.network(),
        };
        steps.set_environment(environment);
        Ok(steps)
    }

    /// Sets the lowest layer of the processes' environment, with the log level of the settings.
    pub(super) fn set_environment(&mut self, mut environment: Vec<(OsString, OsString)>) {
        environment.push((LOG_LEVEL.into(), self.settings.log_level.into()));
        self.environment = environment.into();
    }

    /// Runs a job's `run:` list, and adds the nodes of its steps to `nodes`. Steps that are skipped because of an
    /// earlier failure have no node.
    ///
    /// If `returns_outputs` is set, returns the outputs of the last step.
    ///
    /// # Errors
    /// The first failure. After it, only `on_failure` and `always` steps run.
    pub(super) async fn run(
        &self,
        name: &str,
        list: &Value,
        returns_outputs: bool,
        nodes: &mut Vec<StepNode>,
    ) -> Result<Map<String, Value>, StepError> {
        let entries = parse_run_list(list).map_err(|error| StepError::Step(error.to_string()))?;
        let file = if returns_outputs { StepFile::with_outputs_of_last(entries) } else { StepFile::of_list(entries) };
        self.run_file(name, &file, nodes).await
    }

    pub(super) fn failure(&self, error: &StepError) -> Failure {
        let message = || self.log.mask(&error_chain(error));
        match Failure::from(error) {
            Failure::Exit(code) if self.is_step_file => Failure::StepFile(message(), Some(code)),
            Failure::Signal(_) | Failure::Step(_) if self.is_step_file => Failure::StepFile(message(), None),
            Failure::Step(message) => Failure::Step(self.log.mask(&message)),
            Failure::Configuration(message) => Failure::Configuration(self.log.mask(&message)),
            other => other,
        }
    }

    pub(super) fn announce(&self, name: &str) {
        if self.is_step_file {
            let line = if self.is_legacy() {
                format!("Running step {name:?}\n")
            } else {
                format!("Running step name={name}\n")
            };
            self.log.write(Stream::Runner, line.as_bytes());
        }
    }

    pub(super) fn with_stop<'s>(&'s self, stop: &'s StopToken) -> UserSteps<'s> {
        UserSteps { stop, ..self.clone() }
    }

    /// Returns the state for a step that runs at the same time as others, with a separate log and a copy of the
    /// exports.
    ///
    /// Its `network` is `None`, because the kernel cannot count the traffic of such steps separately.
    pub(super) fn for_parallel_step(&self, log: Arc<dyn Log>) -> Self {
        let log = Arc::new(self.log.with_same_values(log));
        let exports = Arc::new(Mutex::new(self.exports.lock().clone()));
        Self { log, exports, own_exports: Arc::default(), network: None, ..self.clone() }
    }

    /// Sets variables for later steps.
    pub(super) fn export(&self, variables: &IndexMap<String, String>) {
        for exports in [&self.exports, &self.own_exports] {
            exports.lock().extend(variables.clone());
        }
    }

    /// Returns the inputs that a replaced built-in step offers at this depth.
    pub(super) fn inputs_of_replaced_builtin(&self, depth: usize) -> impl Iterator<Item = (&String, &Value)> {
        // Nested steps get inputs only from their calling step.
        self.offered.iter().filter(move |_| depth == 0)
    }

    pub(super) fn set_state(&self, path: &str, state: StepState) {
        if let Some(debugger) = self.debugger {
            debugger.set_state(path, state);
        }
    }

    /// Returns all environment variables that a step sees now. `own` overrides the exports of earlier steps.
    pub(super) fn full_env(&self, own: &IndexMap<String, String>) -> IndexMap<String, String> {
        let inherited = self.environment.iter().filter_map(|(key, value)| Some((key.to_str()?, value.to_str()?)));
        let mut env: IndexMap<String, String> = inherited.map(|(key, value)| (key.into(), value.into())).collect();
        let exports = self.exports.lock();
        env.extend(exports.iter().chain(own).map(|(key, value)| (key.clone(), value.clone())));
        env
    }

    pub(super) fn scope(&self, frame: &Frame<'_>) -> Scope {
        let env = self.full_env(&frame.env).into_iter().map(|(key, value)| (key, Value::String(value))).collect();
        let path = |path: &Path| Value::String(path.to_string_lossy().into_owned());
        let mut values = Map::from_iter([
            ("env".to_owned(), Value::Object(env)),
            ("inputs".to_owned(), Value::Object(frame.inputs.clone())),
            ("vars".to_owned(), Value::Object((*self.variables).clone())),
            ("job".to_owned(), Value::Object((*self.variables).clone())),
            ("steps".to_owned(), Value::Object(frame.steps.clone())),
            ("output_file".to_owned(), path(frame.output_file)),
            ("export_file".to_owned(), path(frame.export_file)),
            ("work_dir".to_owned(), path(self.work_dir)),
            ("step_dir".to_owned(), path(frame.dir)),
            ("func_dir".to_owned(), path(frame.dir)),
        ]);
        if !frame.matrix.is_empty() {
            values.insert("matrix".to_owned(), Value::Object(frame.matrix.clone()));
        }
        Scope::new(self.settings.dialect, Value::Object(values))
    }

    pub(super) fn is_legacy(&self) -> bool {
        self.settings.dialect == Dialect::Legacy
    }
}

#[cfg(test)]
mod tests;
