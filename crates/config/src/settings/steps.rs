//! `[runners.steps]`: steps that the operator adds to each job, and the policy for the steps of jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_job::{ExportKind, StepPolicy};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Steps of the operator, and the policy. Stored with a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepsSettings {
    /// Steps before each job, in order.
    pub before: Vec<OperatorStep>,
    /// Steps after each job, in order.
    pub after: Vec<OperatorStep>,
    /// Steps before each upload of artifacts, in order.
    pub before_upload: Vec<OperatorStep>,
    /// Steps of the operator that run in place of built-in steps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replace: Vec<StepReplacement>,
    /// Programs of the operator that run in place of the services of jobs without containers.
    pub services: Vec<HostServiceSettings>,
    /// Rules and limits for the steps of jobs. `None` means that there are none.
    pub policy: Option<StepPolicy>,
    /// Problem of a step or of the policy file. While there is one, the runner requests no jobs.
    pub problem: Option<String>,
}

impl StepsSettings {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A step that the operator adds to each job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperatorStep {
    /// Name, which is an identifier of the step language.
    pub name: String,
    /// What the step does.
    pub action: OperatorAction,
    /// Environment variables of the step.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Maximum time for the step.
    pub timeout: Duration,
    /// Whether a failure is a system failure of the job, and not only a warning.
    pub required: bool,
    /// Variables that the step exports for the rest of the job, by name.
    #[serde(default)]
    pub exports: BTreeMap<String, ExportKind>,
}

/// Action of an [`OperatorStep`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorAction {
    /// Shell commands.
    Script(Vec<String>),
    /// A step with a step file.
    Step {
        /// Reference of the step.
        reference: String,
        /// Inputs of the step. They may contain expressions.
        inputs: Map<String, Value>,
    },
}

/// A step of the operator that runs in place of a built-in step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepReplacement {
    /// Name of the built-in step, without `builtin://`.
    pub builtin: String,
    /// Reference of the operator's step.
    pub reference: String,
    /// Inputs of the step in addition to those of the built-in step. They may contain expressions.
    #[serde(default)]
    pub inputs: Map<String, Value>,
}

/// A program of the operator that runs in place of a service of a job without containers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostServiceSettings {
    /// Pattern of the images of `services:`.
    pub image: String,
    /// Program with its arguments.
    pub command: Vec<String>,
    /// Environment variables of the program.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// TCP port on which the program must accept connections. 0 means that no port is checked.
    #[serde(default)]
    pub port: u16,
    /// Maximum time until the program accepts connections.
    pub timeout: Duration,
}
