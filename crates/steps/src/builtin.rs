//! The port to the steps that come with an agent: one trait, and the registry that makes them from a plan.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use muster_agent_api::builtin::Inputs;
use muster_agent_api::client::Reach;
use muster_agent_api::plan::{self, Policy};
use serde_json::Value;

use crate::definition::StepFile;
use crate::failure::Failure;
use crate::stop::Stop;

/// A built-in step with its inputs. `J` is what the steps of one job share.
#[async_trait]
pub trait Builtin<J>: Send + Sync {
    /// Returns its part in the job.
    fn role(&self) -> Role {
        Role::Other
    }

    /// Returns whether it has nothing to do. Then it leaves nothing in the log and in the result.
    fn is_idle(&self) -> bool {
        false
    }

    /// Runs the step.
    ///
    /// # Errors
    /// [`Failure`]; the engine decides what it means for the job.
    async fn run(&self, job: &Arc<J>, stop: &Stop) -> Result<(), Failure>;

    /// Returns the log section, as name and title, of what [`Builtin::clear`] does before the second try. `None` means that it
    /// does nothing.
    fn clearing(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Removes what the first try left.
    ///
    /// # Errors
    /// [`Failure`]; there is no second try then.
    async fn clear(&self, _job: &Arc<J>, _stop: &Stop) -> Result<(), Failure> {
        Ok(())
    }
}

/// A built-in step with its inputs that makes a place with an agent for the steps inside it.
#[async_trait]
pub trait Place<J>: Send + Sync {
    /// Makes the place.
    ///
    /// # Errors
    /// [`Failure`]; nothing is left of the place then.
    async fn open(&self, job: &Arc<J>, stop: &Stop) -> Result<Box<dyn OpenPlace>, Failure>;
}

/// A place that was made, and the way to its agent.
#[async_trait]
pub trait OpenPlace: Reach {
    /// Returns the directory of the job there.
    fn project_dir(&self) -> &Path;

    /// Waits until the place is known to be gone. Returns how. Cancel-safe.
    async fn lost(&self) -> String;

    /// Removes the place, with everything that still runs there.
    async fn close(&self);
}

/// Part of a step in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Prints where the job runs. It is not in the result, and the files of the job are not prepared for it.
    Prepare,
    /// Gets the sources.
    Sources,
    /// The author's own commands: a cancel ends them and leaves time for [`Role::AfterScript`].
    Script,
    /// Runs once the script has started, also after a cancel.
    AfterScript,
    /// Removes what the job left. It runs also when the job is ended by force.
    Cleanup,
    /// Any other.
    #[default]
    Other,
}

/// A step of a job's plan, ready to run.
pub struct Step<J> {
    /// Name in the result and of the log section.
    pub name: String,
    /// How the engine runs it.
    pub policy: Policy,
    /// What it does.
    pub call: Call<J>,
}

/// What a [`Step`] does.
pub enum Call<J> {
    /// Runs a built-in step.
    Builtin(Box<dyn Builtin<J>>),
    /// Runs an author's `run:` list.
    Run(Value),
    /// Runs an author's step.
    StepFile(Box<StepFile>),
    /// Runs the steps of a plan at the agent of a place.
    Delegate(Box<dyn Place<J>>, Vec<plan::Step>),
    /// Runs steps in order.
    Steps(Vec<Step<J>>),
}

impl<J> Step<J> {
    pub(crate) fn role(&self) -> Role {
        match &self.call {
            Call::Builtin(builtin) => builtin.role(),
            Call::Run(_) | Call::StepFile(_) => Role::Script,
            Call::Steps(_) | Call::Delegate(..) => Role::Other,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        match &self.call {
            Call::Builtin(builtin) => builtin.is_idle(),
            Call::Run(_) | Call::StepFile(_) => false,
            Call::Delegate(_, steps) => steps.is_empty(),
            Call::Steps(steps) => steps.iter().all(Self::is_idle),
        }
    }

    /// Whether it has steps inside that have policies of their own.
    pub(crate) fn is_group(&self) -> bool {
        matches!(self.call, Call::Steps(_) | Call::Delegate(..))
    }
}

impl<J> std::fmt::Debug for Step<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Step").field("name", &self.name).field("policy", &self.policy).finish_non_exhaustive()
    }
}

type Make<J> = fn(Value) -> Result<Box<dyn Builtin<J>>, serde_json::Error>;

type MakePlace<J> = fn(Value) -> Result<Box<dyn Place<J>>, serde_json::Error>;

/// The built-in steps of an agent, by name.
pub struct Registry<J> {
    steps: BTreeMap<&'static str, Make<J>>,
    places: BTreeMap<&'static str, MakePlace<J>>,
}

impl<J> Default for Registry<J> {
    fn default() -> Self {
        Self { steps: BTreeMap::new(), places: BTreeMap::new() }
    }
}

impl<J> std::fmt::Debug for Registry<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.steps.keys().chain(self.places.keys())).finish()
    }
}

impl<J> Registry<J> {
    /// Adds the built-in step with inputs of type `B`.
    #[must_use]
    pub fn with<B: Builtin<J> + Inputs + 'static>(mut self) -> Self {
        self.steps.insert(B::BUILTIN, |inputs| Ok(Box::new(serde_json::from_value::<B>(inputs)?)));
        self
    }

    /// Adds the place with inputs of type `P`.
    #[must_use]
    pub fn with_place<P: Place<J> + Inputs + 'static>(mut self) -> Self {
        self.places.insert(P::BUILTIN, |inputs| Ok(Box::new(serde_json::from_value::<P>(inputs)?)));
        self
    }

    /// Makes the steps of a plan ready to run.
    ///
    /// # Errors
    /// Name of the step, and what is wrong with its call.
    pub fn load(&self, steps: Vec<plan::Step>) -> Result<Vec<Step<J>>, String> {
        steps.into_iter().map(|step| self.load_one(step)).collect()
    }

    fn load_one(&self, step: plan::Step) -> Result<Step<J>, String> {
        let plan::Step { name, policy, call } = step;
        let call = match call {
            plan::Call::Builtin { name: builtin, inputs } => {
                Call::Builtin(made(&name, &builtin, self.steps.get(&*builtin).map(|make| make(inputs)))?)
            }
            plan::Call::Delegate { name: builtin, inputs, steps } => {
                let place = made(&name, &builtin, self.places.get(&*builtin).map(|make| make(inputs)))?;
                Call::Delegate(place, steps)
            }
            plan::Call::Run(list) => Call::Run(list),
            plan::Call::StepFile(text) => Call::StepFile(Box::new(StepFile::parse(&text)?)),
            plan::Call::Steps(steps) => Call::Steps(self.load(steps)?),
        };
        Ok(Step { name, policy, call })
    }
}

fn made<T>(step: &str, builtin: &str, made: Option<Result<T, serde_json::Error>>) -> Result<T, String> {
    let made = made.ok_or_else(|| format!("step {step:?}: there is no built-in step {builtin:?}"))?;
    made.map_err(|error| format!("step {step:?}: inputs of builtin://{builtin}: {error}"))
}
