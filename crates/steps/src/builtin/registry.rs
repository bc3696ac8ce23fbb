//! Registry that creates the built-in steps from a plan.

use std::collections::BTreeMap;

use muster_agent_api::builtin::Inputs;
use muster_agent_api::plan::{self, Policy};
use muster_agent_api::result::{BUILTIN_PREFIX, CallRecord};
use serde_json::{Map, Value};

use super::{Builtin, Call, DelegateTarget, Delegation, Replacement, Step};
use crate::definition::{StepFile, StepFileError};

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
    /// A built-in step is unknown, or inputs or a step file are invalid.
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
            plan::Call::Replaced { name: builtin, inputs, step: reference, with } => {
                let created = self.steps.get(&*builtin).map(|create| create(inputs));
                let created = unwrap_created(&name, builtin.clone(), created)?;
                Call::Replaced(created, Replacement { builtin, step: reference, with })
            }
            plan::Call::Delegate { name: builtin, inputs, beside, steps } => {
                let target = self.targets.get(&*builtin).map(|create| create(inputs));
                let target = unwrap_created(&name, builtin, target)?;
                Call::Delegate(Box::new(Delegation { target, beside: self.load(beside)?, steps }))
            }
            plan::Call::Run(list) => Call::Run(list),
            plan::Call::StepFile(text) => Call::StepFile(Box::new(StepFile::parse(&text)?)),
            plan::Call::Steps(steps) => Call::Steps(self.load(steps)?),
        };
        Ok(Step { name, policy, call, record })
    }

    /// Returns the record of a call. `None` means that the call is not recorded.
    fn record(&self, policy: &Policy, call: &plan::Call) -> Option<Box<CallRecord>> {
        let (plan::Call::Builtin { name, inputs }
        | plan::Call::Replaced { name, inputs, .. }
        | plan::Call::Delegate { name, inputs, .. }) = call
        else {
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

/// Returns the step that a factory created. `created` is `None` if there is no factory.
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
