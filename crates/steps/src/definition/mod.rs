//! Types of step files, which have two documents: a specification and a definition (docs/spec/steps.md, section 1).

mod error;
mod extension;
mod parse;

use indexmap::IndexMap;
use muster_agent_api::development::FakeStep;
use muster_files::Limit;
use serde_json::{Map, Value};

pub use error::StepFileError;
pub use extension::{Extension, ExtensionError};
pub use parse::{parse_list, parse_run_list, parse_value};

pub use crate::remote::Location;
pub use crate::value::Kind;

/// Maximum size of a step file.
pub const STEP_FILE_LIMIT: Limit = Limit { bytes: 1024 * 1024, remedy: "split the step into several" };

/// Parsed step file.
#[derive(Debug, Clone, PartialEq)]
pub struct StepFile {
    /// Inputs and outputs of the step.
    pub spec: Spec,
    /// Action of the step.
    pub body: Body,
    /// Environment variables of the step's process, or of all steps of its sequence.
    pub env: IndexMap<String, String>,
}

impl StepFile {
    /// Returns the step file that runs a list of steps. It declares neither inputs nor outputs.
    #[must_use]
    pub fn of_list(entries: Vec<StepEntry>) -> Self {
        let body = Body::Run { entries, outputs: Map::new(), delegate: None };
        Self { spec: Spec::default(), body, env: IndexMap::new() }
    }

    /// Returns the step file that runs a list of steps, and has the outputs of the last step.
    #[must_use]
    pub fn with_outputs_of_last(entries: Vec<StepEntry>) -> Self {
        let last = entries.last().map(|entry| entry.name.clone());
        let mut file = Self::of_list(entries);
        if let Body::Run { delegate, .. } = &mut file.body
            && last.is_some()
        {
            *delegate = last;
            file.spec.outputs = Outputs::Delegate;
        }
        file
    }
}

/// Inputs and outputs of a step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spec {
    /// Inputs by name.
    pub inputs: IndexMap<String, Parameter>,
    /// Outputs of the step.
    pub outputs: Outputs,
}

/// Outputs of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Outputs {
    /// Declared outputs by name.
    Declared(IndexMap<String, Parameter>),
    /// Outputs of the step that is named by `delegate`.
    Delegate,
}

impl Outputs {
    /// Returns whether a declared output is sensitive.
    #[must_use]
    pub fn have_sensitive(&self) -> bool {
        matches!(self, Self::Declared(outputs) if outputs.values().any(|output| output.is_sensitive))
    }
}

impl Default for Outputs {
    fn default() -> Self {
        Self::Declared(IndexMap::new())
    }
}

/// Input or output.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Type of its values.
    pub kind: Kind,
    /// Default value. `None` means that the caller must set the input, or that the step must return the output.
    pub default: Option<Value>,
    /// Whether its values must not appear in the log.
    pub is_sensitive: bool,
}

/// Action of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// Starts a process.
    Exec {
        /// Program and arguments.
        command: Vec<String>,
        /// Working directory. `None` means the job's directory.
        work_dir: Option<String>,
    },
    /// Runs the input `script` in a shell: the action of `script:` entries and of `dist://script`.
    Script,
    /// Runs a step that comes with the agent, by its name without `dist://` or `builtin://`.
    Bundled(String),
    /// Returns fixed outputs. Only fake steps of tests have this action.
    Fake(Box<FakeStep>),
    /// Runs steps in order.
    Run {
        /// Steps to run.
        entries: Vec<StepEntry>,
        /// Outputs of the sequence, as expressions.
        outputs: Map<String, Value>,
        /// Name of the step whose outputs become the outputs of the sequence.
        delegate: Option<String>,
    },
}

/// Entry of a `run` list.
#[derive(Debug, Clone, PartialEq)]
pub struct StepEntry {
    /// Name of the step. In step files, a nonempty identifier.
    pub name: String,
    /// Environment variables of the step and everything that it calls.
    pub env: IndexMap<String, String>,
    /// Inputs for the step that is called.
    pub inputs: Map<String, Value>,
    /// Target of the call.
    pub call: Call,
    /// Muster's own keys of the entry. The default changes nothing.
    pub extension: Extension,
}

/// Target of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Shell script.
    Script(String),
    /// Text reference of a step. It may contain expressions.
    Step(String),
    /// Step in a Git repository or an OCI registry. Its texts may contain expressions.
    Remote(Location),
}

#[cfg(test)]
mod tests;
