//! Errors of step files.

use super::extension::ExtensionError;
use crate::yaml::YamlError;

/// Error in a step file or in a `run` list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepFileError {
    /// The file is not valid YAML.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// The file does not have two documents. Contains a key other than `spec` in the first document, if there is one.
    #[error(
        "a step file must have two documents, separated by `---`: the specification and the definition{}",
        .0.as_ref().map(|key| format!("; field `{key}` not found in the specification")).unwrap_or_default()
    )]
    DocumentCount(Option<String>),
    /// A value has the wrong type.
    #[error("{name} must be {expected}")]
    Type {
        /// Name of the value.
        name: String,
        /// Required type, with an article.
        expected: &'static str,
    },
    /// A date or time is used as a value.
    #[error("`{name}`: {text:?} is a timestamp, which steps do not support; put it in quotes")]
    Timestamp {
        /// Name of the value.
        name: String,
        /// Text of the timestamp.
        text: String,
    },
    /// A name is not valid.
    #[error("`{key}`: {name:?} is not a valid name; use letters, digits and `_`, and do not start with a digit")]
    Name {
        /// Key that contains the name.
        key: &'static str,
        /// The name.
        name: String,
    },
    /// A step has no name.
    #[error("`name` is missing; add a name, which later steps need to read the outputs of the step")]
    NoName,
    /// The specification contains an unknown key.
    #[error(
        "field `{0}` not found in the specification; check that `---` separates the specification from the definition"
    )]
    UnknownSpecKey(String),
    /// `outputs` is neither a mapping nor `delegate`.
    #[error("`outputs`: unsupported value: {0}; use a mapping, or `delegate`")]
    UnsupportedOutputs(String),
    /// An input or output has no type.
    #[error("`{0}`: missing property `type`; add one of string, number, boolean, struct and array")]
    NoType(String),
    /// The default of an input or output does not have the declared type.
    #[error("`{name}`: type {kind} and default must match")]
    DefaultType {
        /// Name of the parameter.
        name: String,
        /// Type of the parameter.
        kind: &'static str,
    },
    /// The definition has both `exec` and `run`, or neither.
    #[error("a definition needs exactly one of `exec` and `run`")]
    NotOneBody,
    /// A step has none of `script`, `step`, `func` and `action`, or several of them.
    #[error("{0:?} needs exactly one of `script`, `step`, `func`")]
    NotOneCall(String),
    /// A script step has inputs.
    #[error("{0:?}: `script` does not accept inputs")]
    ScriptInputs(String),
    /// A reference names two locations.
    #[error("{0:?}: cannot use both git: and oci: fields, please specify only one step location")]
    TwoLocations(String),
    /// A reference names no location.
    #[error("{0:?}: field git: or oci: required")]
    NoLocation(String),
    /// A reference lacks a field.
    #[error("{step:?}: field {field} in {location}: required")]
    NoField {
        /// Name of the step.
        step: String,
        /// Name of the field.
        field: &'static str,
        /// `git` or `oci`.
        location: &'static str,
    },
    /// One of Muster's own keys is invalid.
    #[error("{step:?}: {source}")]
    Extension {
        /// Name of the step.
        step: String,
        /// Error of the key.
        #[source]
        source: ExtensionError,
    },
    /// A step of a list is invalid.
    #[error("step {number}: {source}")]
    Entry {
        /// Position of the step in its list, from 1.
        number: usize,
        /// Error of the step.
        #[source]
        source: Box<StepFileError>,
    },
}

impl StepFileError {
    pub(super) fn wrong_type(name: impl Into<String>, expected: &'static str) -> Self {
        Self::Type { name: name.into(), expected }
    }
}
