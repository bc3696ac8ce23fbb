//! Port to the steps that are built into an agent.

mod registry;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::client::Reach;
use muster_agent_api::plan::{self, Policy};
use muster_agent_api::result::{CallRecord, StepNode};
use serde_json::{Map, Value};

use crate::definition::StepFile;
use crate::failure::Failure;
use crate::process::Processes;
use crate::stop::StopToken;

pub use registry::{PlanError, Registry};

/// Built-in step with its inputs. `J` is the state that the steps of one job share.
#[async_trait]
pub trait Builtin<J>: Send + Sync {
    /// Returns the role of the step in its job.
    fn role(&self) -> Role {
        Role::Other
    }

    /// Returns whether the step has nothing to do. An idle step appears neither in the log nor in the result.
    fn is_idle(&self) -> bool {
        false
    }

    /// Runs the step.
    ///
    /// # Errors
    /// The step failed.
    async fn run(&self, job: &Arc<J>, stop: &StopToken) -> Result<(), Failure>;

    /// Returns the inputs for the operator's step that replaces this step. `None` means that this step cannot be
    /// replaced.
    fn offer(&self, _job: &J) -> Option<Offer> {
        None
    }

    /// Returns the name and title of the log section for [`Builtin::clear`]. `None` means that a second attempt needs
    /// no cleanup.
    fn clear_section(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Cleans up after the first attempt.
    ///
    /// # Errors
    /// The cleanup failed. The step then has no second attempt.
    async fn clear(&self, _job: &Arc<J>, _stop: &StopToken) -> Result<(), Failure> {
        Ok(())
    }

    /// Returns whether a killed agent left something that [`Builtin::remove_leftovers`] must remove. `temp_dir` holds
    /// the job's temporary files.
    fn has_leftovers(&self, _temp_dir: &Path) -> bool {
        false
    }

    /// Removes what a killed agent left of the step, except temporary files and recorded processes.
    ///
    /// # Errors
    /// The removal failed.
    async fn remove_leftovers(&self, _temp_dir: &Path, _processes: &Processes) -> Result<(), Failure> {
        Ok(())
    }
}

/// Inputs that a built-in step passes to the operator's step that replaces it (docs/reference/replaceable-steps.md).
#[derive(Debug, Default)]
pub struct Offer {
    /// Values by name. Expressions in them are not evaluated.
    pub inputs: Map<String, Value>,
    /// Texts to mask in the log and in the result, such as tokens.
    pub sensitive: Vec<String>,
}

/// Step of the operator that replaces a built-in step.
#[derive(Debug, Clone, PartialEq)]
pub struct Replacement {
    /// Name of the built-in step, without `builtin://`.
    pub builtin: String,
    /// Reference of the operator's step.
    pub step: String,
    /// Inputs that the operator sets. They may contain expressions.
    pub with: Map<String, Value>,
}

/// Built-in step that creates an environment with a second agent. The steps inside it run at that agent.
#[async_trait]
pub trait DelegateTarget<J>: Send + Sync {
    /// Creates the environment. Runs the steps of `beside` once, as soon as everything that they need exists.
    ///
    /// # Errors
    /// [`Failure`], after everything that was created has been removed.
    async fn open(
        &self,
        job: &Arc<J>,
        beside: &dyn BesideSteps,
        stop: &StopToken,
    ) -> Result<Box<dyn OpenTarget>, Failure>;

    /// Removes what a killed agent may have left of the environment, except recorded processes.
    ///
    /// # Errors
    /// [`Failure::Configuration`] if no attempt can succeed. After any other error, another attempt may succeed.
    async fn remove_leftovers(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Steps of a plan that start what runs beside an environment, such as services.
#[async_trait]
pub trait BesideSteps: Sync {
    /// Runs the steps, each under its policy, until one fails.
    ///
    /// # Errors
    /// Failure of a step.
    async fn run(&self) -> Result<(), Failure>;
}

/// Environment of a [`DelegateTarget`], and the connection to its agent.
#[async_trait]
pub trait OpenTarget: Reach {
    /// Returns the job's directory in the environment.
    fn project_dir(&self) -> &Path;

    /// Returns the image of the container. Empty means that the environment is not a container.
    #[expect(clippy::unnecessary_literal_bound, reason = "an implementation returns a name that it owns")]
    fn image(&self) -> &str {
        ""
    }

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

    /// Returns the cause of a step's failure. `None` means that the environment does not know the cause.
    async fn explain(&self, _failure: &Failure) -> Option<String> {
        None
    }

    /// Returns result nodes for what ran beside the environment, such as services. Called before [`OpenTarget::close`].
    ///
    /// Each node is merged into the node of the step with the same name.
    async fn beside_nodes(&self) -> Vec<StepNode> {
        Vec::new()
    }

    /// Removes the environment, with everything that still runs there.
    async fn close(&self);
}

/// Role of a step in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Prints the environment of the job. Not part of the result.
    Prepare,
    /// Gets the sources.
    Sources,
    /// Runs the user's commands. A cancel ends them and leaves time for [`Role::AfterScript`].
    Script,
    /// Runs if the script has started, even if the script failed or was canceled.
    AfterScript,
    /// Removes what the job left behind, even if the job was stopped.
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
    /// Record of the call for the result. `None` means that the call is not recorded.
    pub record: Option<Box<CallRecord>>,
}

/// Action of a [`Step`].
pub enum Call<J> {
    /// Runs a built-in step.
    Builtin(Box<dyn Builtin<J>>),
    /// Runs the operator's step. The replaced built-in step provides inputs and role.
    Replaced(Box<dyn Builtin<J>>, Replacement),
    /// Runs the `run:` list of a job.
    Run(Value),
    /// Runs a user's step file.
    StepFile(Box<StepFile>),
    /// Creates an environment and runs steps at its agent.
    Delegate(Box<Delegation<J>>),
    /// Runs steps in order.
    Steps(Vec<Step<J>>),
}

/// Environment and the steps that run in it or beside it.
pub struct Delegation<J> {
    /// Creates the environment.
    pub target: Box<dyn DelegateTarget<J>>,
    /// Steps that start what runs beside the environment. They run at this agent.
    pub beside: Vec<Step<J>>,
    /// Steps that run at the agent of the environment.
    pub steps: Vec<plan::Step>,
}

impl<J> Step<J> {
    pub(crate) fn role(&self) -> Role {
        match &self.call {
            _ if self.policy.by_operator => Role::Other,
            Call::Builtin(builtin) | Call::Replaced(builtin, _) => builtin.role(),
            Call::Run(_) | Call::StepFile(_) => Role::Script,
            Call::Steps(_) | Call::Delegate(_) => Role::Other,
        }
    }

    /// Returns whether the operator chose the step: it was added to the job, or it replaces a built-in step.
    #[must_use]
    pub fn is_by_operator(&self) -> bool {
        self.policy.by_operator || matches!(self.call, Call::Replaced(..))
    }

    /// Returns whether the author of the job wrote the commands or steps that this step runs.
    pub(crate) fn is_by_author(&self) -> bool {
        matches!(self.role(), Role::Script | Role::AfterScript)
    }

    /// Returns whether the author of the job wrote this step, or a step inside it at the same agent.
    #[must_use]
    pub fn has_steps_by_author(&self) -> bool {
        match &self.call {
            Call::Steps(steps) => steps.iter().any(Self::has_steps_by_author),
            _ => self.is_by_author(),
        }
    }

    pub(crate) fn section_name(&self) -> &str {
        if self.policy.section.is_empty() { &self.name } else { &self.policy.section }
    }

    pub(crate) fn is_idle(&self) -> bool {
        match &self.call {
            Call::Builtin(builtin) | Call::Replaced(builtin, _) => builtin.is_idle(),
            Call::Run(_) | Call::StepFile(_) => false,
            Call::Delegate(delegation) => delegation.steps.is_empty(),
            Call::Steps(steps) => steps.iter().all(Self::is_idle),
        }
    }

    /// Returns the steps that create environments, among this step and its inner steps.
    #[must_use]
    pub fn targets(&self) -> Vec<&dyn DelegateTarget<J>> {
        match &self.call {
            Call::Delegate(delegation) => vec![&*delegation.target],
            Call::Steps(steps) => steps.iter().flat_map(Self::targets).collect(),
            Call::Builtin(_) | Call::Replaced(..) | Call::Run(_) | Call::StepFile(_) => Vec::new(),
        }
    }

    /// Returns the built-in steps among this step and its inner steps, without replaced steps and steps of another
    /// agent.
    #[must_use]
    pub fn builtins(&self) -> Vec<&dyn Builtin<J>> {
        match &self.call {
            Call::Builtin(builtin) => vec![&**builtin],
            Call::Steps(steps) => steps.iter().flat_map(Self::builtins).collect(),
            Call::Delegate(delegation) => delegation.beside.iter().flat_map(Self::builtins).collect(),
            Call::Replaced(..) | Call::Run(_) | Call::StepFile(_) => Vec::new(),
        }
    }

    pub(crate) fn has_inner_steps(&self) -> bool {
        matches!(self.call, Call::Steps(_) | Call::Delegate(_))
    }
}

impl<J> std::fmt::Debug for Step<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Step").field("name", &self.name).field("policy", &self.policy).finish_non_exhaustive()
    }
}
