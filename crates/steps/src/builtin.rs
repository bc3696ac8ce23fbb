//! Port to the steps that are built into an agent: their traits, and the registry that creates them from a plan.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::builtin::Inputs;
use muster_agent_api::client::Reach;
use muster_agent_api::plan::{self, Policy};
use muster_agent_api::result::{BUILTIN_PREFIX, CallRecord, StepNode};
use serde_json::{Map, Value};

use crate::definition::{StepFile, StepFileError};
use crate::failure::Failure;
use crate::process::Processes;
use crate::stop::StopToken;

/// Built-in step with its inputs. `J` is the state that the steps of one job share.
#[async_trait]
pub trait Builtin<J>: Send + Sync {
    /// Returns the role of the step in its job.
    fn role(&self) -> Role {
        Role::Other
    }

    /// Returns whether the step has nothing to do. Then it appears neither in the log nor in the result.
    fn is_idle(&self) -> bool {
        false
    }

    /// Runs the step.
    ///
    /// # Errors
    /// The step failed. The engine decides how the [`Failure`] affects the job.
    async fn run(&self, job: &Arc<J>, stop: &StopToken) -> Result<(), Failure>;

    /// Returns name and title of the log section for [`Builtin::clear`], which runs before the second attempt. `None` means that
    /// nothing needs to be cleared.
    fn clear_section(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Removes what the first attempt left behind.
    ///
    /// # Errors
    /// The cleanup failed. There is then no second attempt.
    async fn clear(&self, _job: &Arc<J>, _stop: &StopToken) -> Result<(), Failure> {
        Ok(())
    }

    /// Returns whether a killed agent left something behind that [`Builtin::remove_leftovers`] must remove. `temp_dir` is the directory
    /// for the job's temporary files.
    fn has_leftovers(&self, _temp_dir: &Path) -> bool {
        false
    }

    /// Removes what a killed agent left of the step, except temporary files and the processes that are recorded with the job.
    ///
    /// # Errors
    /// The removal failed. The agent writes the [`Failure`] to its own log.
    async fn remove_leftovers(&self, _temp_dir: &Path, _processes: &Processes) -> Result<(), Failure> {
        Ok(())
    }
}

/// Built-in step with its inputs that creates an environment with a second agent. The steps inside this step run there.
#[async_trait]
pub trait DelegateTarget<J>: Send + Sync {
    /// Creates the environment.
    ///
    /// # Errors
    /// [`Failure`], after everything that was created has been removed.
    async fn open(&self, job: &Arc<J>, stop: &StopToken) -> Result<Box<dyn OpenTarget>, Failure>;

    /// Removes what a killed agent may have left of the environment, except the processes that are recorded with the job.
    ///
    /// # Errors
    /// [`Failure::Configuration`] if no attempt can succeed. After any other error, another attempt may succeed.
    async fn remove_leftovers(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Environment that was created for the steps inside a step, and the connection to its agent.
#[async_trait]
pub trait OpenTarget: Reach {
    /// Returns the job's directory in the environment.
    fn project_dir(&self) -> &Path;

    /// Returns the time without an answer after which the agent of the environment is considered lost.
    fn silence_timeout(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// Returns whether the environment shares its network neither with its machine nor with other jobs.
    fn has_own_network(&self) -> bool {
        false
    }

    /// Waits until the environment is known to be lost. Returns the reason. Cancel-safe.
    async fn lost(&self) -> String;

    /// Returns the cause of a failure of the steps, as far as the environment knows it. `None` means that the cause is not known.
    async fn explain(&self, _failure: &Failure) -> Option<String> {
        None
    }

    /// Returns result nodes for what ran in the environment beside the steps, such as services. Called before [`OpenTarget::close`].
    async fn nodes(&self) -> Vec<StepNode> {
        Vec::new()
    }

    /// Removes the environment, with everything that still runs there.
    async fn close(&self);
}

/// Role of a step in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Prints the environment of the job. The step is not part of the result, and runs before the job's files are prepared.
    Prepare,
    /// Gets the sources.
    Sources,
    /// Runs the user's commands. A cancel ends them and leaves time for [`Role::AfterScript`].
    Script,
    /// Runs if the script has started, even after a cancel.
    AfterScript,
    /// Removes what the job left behind. The step runs even if the job was stopped.
    Cleanup,
    /// Any other step.
    #[default]
    Other,
}

/// Step of a job's plan, ready to run.
pub struct Step<J> {
    /// Name of the step in the result, and name of its log section.
    pub name: String,
    /// Policy under which the engine runs the step: condition, attempts, timeout.
    pub policy: Policy,
    /// Action of the step.
    pub call: Call<J>,
    /// Record of the call for the result. `None` means that calls are not recorded, or that the steps inside have their own records.
    pub record: Option<Box<CallRecord>>,
}

/// Action of a [`Step`].
pub enum Call<J> {
    /// Runs a built-in step.
    Builtin(Box<dyn Builtin<J>>),
    /// Runs the `run:` list of a job.
    Run(Value),
    /// Runs a user's step file.
    StepFile(Box<StepFile>),
    /// Creates an environment and runs the steps at its agent.
    Delegate(Box<dyn DelegateTarget<J>>, Vec<plan::Step>),
    /// Runs steps in order.
    Steps(Vec<Step<J>>),
}

impl<J> Step<J> {
    pub(crate) fn role(&self) -> Role {
        match &self.call {
            _ if self.policy.by_operator => Role::Other,
            Call::Builtin(builtin) => builtin.role(),
            Call::Run(_) | Call::StepFile(_) => Role::Script,
            Call::Steps(_) | Call::Delegate(..) => Role::Other,
        }
    }

    /// Returns whether the author of the job wrote the commands or steps that this step runs. The operator's limits apply to them.
    pub(crate) fn is_by_author(&self) -> bool {
        matches!(self.role(), Role::Script | Role::AfterScript)
    }

    /// Returns whether this step, or a step inside it at the same agent, is written by the author of the job.
    #[must_use]
    pub fn has_steps_by_author(&self) -> bool {
        match &self.call {
            Call::Steps(steps) => steps.iter().any(Self::has_steps_by_author),
            _ => self.is_by_author(),
        }
    }

    /// Returns the name of the step's log section.
    pub(crate) fn section_name(&self) -> &str {
        if self.policy.section.is_empty() { &self.name } else { &self.policy.section }
    }

    pub(crate) fn is_idle(&self) -> bool {
        match &self.call {
            Call::Builtin(builtin) => builtin.is_idle(),
            Call::Run(_) | Call::StepFile(_) => false,
            Call::Delegate(_, steps) => steps.is_empty(),
            Call::Steps(steps) => steps.iter().all(Self::is_idle),
        }
    }

    /// Returns the steps that create environments, among this step and the steps inside it.
    #[must_use]
    pub fn targets(&self) -> Vec<&dyn DelegateTarget<J>> {
        match &self.call {
            Call::Delegate(target, _) => vec![&**target],
            Call::Steps(steps) => steps.iter().flat_map(Self::targets).collect(),
            Call::Builtin(_) | Call::Run(_) | Call::StepFile(_) => Vec::new(),
        }
    }

    /// Returns the built-in steps among this step and the steps inside it, except the steps that run at another agent.
    #[must_use]
    pub fn builtins(&self) -> Vec<&dyn Builtin<J>> {
        match &self.call {
            Call::Builtin(builtin) => vec![&**builtin],
            Call::Steps(steps) => steps.iter().flat_map(Self::builtins).collect(),
            Call::Delegate(..) | Call::Run(_) | Call::StepFile(_) => Vec::new(),
        }
    }

    /// Returns whether the step contains other steps, which have their own policies.
    pub(crate) fn has_inner_steps(&self) -> bool {
        matches!(self.call, Call::Steps(_) | Call::Delegate(..))
    }
}

impl<J> std::fmt::Debug for Step<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Step").field("name", &self.name).field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// Error in a step of a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The agent does not have the built-in step.
    #[error("step {step:?}: there is no built-in step {builtin:?}")]
    UnknownBuiltin {
        /// Name of the step.
        step: String,
        /// Name of the built-in step.
        builtin: String,
    },
    /// The inputs of a built-in step are invalid.
    #[error("step {step:?}: inputs of builtin://{builtin}: {source}")]
    Inputs {
        /// Name of the step.
        step: String,
        /// Name of the built-in step.
        builtin: String,
        /// Error of the inputs.
        #[source]
        source: serde_json::Error,
    },
    /// A user's step file is invalid.
    #[error(transparent)]
    StepFile(#[from] StepFileError),
}

type StepFactory<J> = fn(Value) -> Result<Box<dyn Builtin<J>>, serde_json::Error>;

/// Returns the recorded inputs of a step with these inputs in a plan.
type Recorder = fn(&Value) -> Map<String, Value>;

type TargetFactory<J> = fn(Value) -> Result<Box<dyn DelegateTarget<J>>, serde_json::Error>;

/// The built-in steps of an agent, by name.
pub struct Registry<J> {
    steps: BTreeMap<&'static str, StepFactory<J>>,
    targets: BTreeMap<&'static str, TargetFactory<J>>,
    recorders: BTreeMap<&'static str, Recorder>,
    records_calls: bool,
}

impl<J> Default for Registry<J> {
    fn default() -> Self {
        Self { steps: BTreeMap::new(), targets: BTreeMap::new(), recorders: BTreeMap::new(), records_calls: false }
    }
}

impl<J> std::fmt::Debug for Registry<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.steps.keys().chain(self.targets.keys())).finish()
    }
}

impl<J> Registry<J> {
    /// Adds the built-in step with inputs of type `B`.
    #[must_use]
    pub fn with<B: Builtin<J> + Inputs + 'static>(mut self) -> Self {
        self.steps.insert(B::BUILTIN, |inputs| Ok(Box::new(serde_json::from_value::<B>(inputs)?)));
        self.recorders.insert(B::BUILTIN, recorded::<B>);
        self
    }

    /// Adds the built-in step with inputs of type `T` that creates an environment.
    #[must_use]
    pub fn with_target<T: DelegateTarget<J> + Inputs + 'static>(mut self) -> Self {
        self.targets.insert(T::BUILTIN, |inputs| Ok(Box::new(serde_json::from_value::<T>(inputs)?)));
        self.recorders.insert(T::BUILTIN, recorded::<T>);
        self
    }

    /// Sets whether the loaded steps have records of their calls.
    #[must_use]
    pub fn recording_calls(mut self, records_calls: bool) -> Self {
        self.records_calls = records_calls;
        self
    }

    /// Converts the steps of a plan to steps that can run.
    ///
    /// # Errors
    /// A step calls an unknown built-in step, or its inputs or its step file are invalid.
    pub fn load(&self, steps: Vec<plan::Step>) -> Result<Vec<Step<J>>, PlanError> {
        steps.into_iter().map(|step| self.load_one(step)).collect()
    }

    fn load_one(&self, step: plan::Step) -> Result<Step<J>, PlanError> {
        let plan::Step { name, policy, call } = step;
        let record = self.record(&policy, &call);
        let call = match call {
            plan::Call::Builtin { name: builtin, inputs } => Call::Builtin(unwrap_created(
                &name,
                builtin.clone(),
                self.steps.get(&*builtin).map(|create| create(inputs)),
            )?),
            plan::Call::Delegate { name: builtin, inputs, steps } => {
                let target = self.targets.get(&*builtin).map(|create| create(inputs));
                Call::Delegate(unwrap_created(&name, builtin, target)?, steps)
            }
            plan::Call::Run(list) => Call::Run(list),
            plan::Call::StepFile(text) => Call::StepFile(Box::new(StepFile::parse(&text)?)),
            plan::Call::Steps(steps) => Call::Steps(self.load(steps)?),
        };
        Ok(Step { name, policy, call, record })
    }

    /// Returns the record of a call. `None` means that the call is not recorded.
    fn record(&self, policy: &Policy, call: &plan::Call) -> Option<Box<CallRecord>> {
        let (plan::Call::Builtin { name, inputs } | plan::Call::Delegate { name, inputs, .. }) = call else {
            return None;
        };
        let recorder = self.recorders.get(&**name).filter(|_| self.records_calls)?;
        let (step, inputs) = (format!("{BUILTIN_PREFIX}{name}"), recorder(inputs));
        Some(Box::new(if policy.by_operator {
            CallRecord::without_values(&step, &inputs)
        } else {
            CallRecord { step, inputs, ..CallRecord::default() }
        }))
    }
}

/// Returns what is recorded of inputs of type `I`. Invalid inputs have no record, because their step cannot be loaded.
fn recorded<I: Inputs>(inputs: &Value) -> Map<String, Value> {
    I::deserialize(inputs).map(|inputs| inputs.record()).unwrap_or_default()
}

/// Returns the step that a factory created. `None` means that there is no factory.
fn unwrap_created<T>(
    step: &str,
    builtin: String,
    created: Option<Result<T, serde_json::Error>>,
) -> Result<T, PlanError> {
    match created {
        None => Err(PlanError::UnknownBuiltin { step: step.to_owned(), builtin }),
        Some(Err(source)) => Err(PlanError::Inputs { step: step.to_owned(), builtin, source }),
        Some(Ok(step)) => Ok(step),
    }
}
