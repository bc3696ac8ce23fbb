//! Types of step files, which have two documents: a specification and a definition (docs/spec/steps.md, section 1).

use indexmap::IndexMap;
use serde_json::{Map, Value};

use crate::yaml::{self, YamlError};

/// Error in a step file or in a `run` list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepFileError {
    /// The file is not valid YAML.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// The file does not have two documents.
    #[error("a step file must have two documents, separated by `---`: the specification and the definition")]
    DocumentCount,
    /// A value has the wrong type.
    #[error("{name} must be {expected}")]
    Type {
        /// Name of the value.
        name: String,
        /// Required type, with its article.
        expected: &'static str,
    },
    /// The specification contains an unknown key.
    #[error(
        "`{0}` is not a valid key of the specification; check that `---` separates the specification from the definition"
    )]
    UnknownSpecKey(String),
    /// `outputs` is neither a mapping nor `delegate`.
    #[error("`outputs`: unsupported value: {0}")]
    UnsupportedOutputs(String),
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
    /// A step does not have exactly one target.
    #[error("{0:?} needs exactly one of `script`, `step`, `func`")]
    NotOneCall(String),
    /// A script step has inputs.
    #[error("{0:?}: `script` does not accept inputs")]
    ScriptInputs(String),
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
    fn wrong_type(name: impl Into<String>, expected: &'static str) -> Self {
        Self::Type { name: name.into(), expected }
    }
}

/// Parsed step file.
#[derive(Debug, Clone, PartialEq)]
pub struct StepFile {
    /// Inputs and outputs of the step.
    pub spec: Spec,
    /// Action of the step.
    pub body: Body,
    /// Environment variables of its process, or of all of its steps.
    pub env: IndexMap<String, String>,
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
    /// Default value. `None` means that an input is required.
    pub default: Option<Value>,
}

/// Type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the format")]
pub enum Kind {
    String,
    Number,
    Boolean,
    Struct,
    Array,
}

impl Kind {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "string" => Self::String,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            "struct" => Self::Struct,
            "array" => Self::Array,
            _ => return None,
        })
    }

    /// Returns the type of a value. `None` means that the value is null.
    #[must_use]
    pub fn from_value(value: &Value) -> Option<Self> {
        Some(match value {
            Value::String(_) => Self::String,
            Value::Number(_) => Self::Number,
            Value::Bool(_) => Self::Boolean,
            Value::Object(_) => Self::Struct,
            Value::Array(_) => Self::Array,
            Value::Null => return None,
        })
    }

    /// Returns the name of the type in step files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Struct => "struct",
            Self::Array => "array",
        }
    }
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
    /// Name of the step. In the `run:` list of a job it may be empty.
    pub name: String,
    /// Environment variables of the step and everything that it calls.
    pub env: IndexMap<String, String>,
    /// Inputs for the step that is called.
    pub inputs: Map<String, Value>,
    /// Target of the call.
    pub call: Call,
}

/// Target of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Shell script.
    Script(String),
    /// Reference of a step. It may contain expressions.
    Step(String),
    /// Kind of step that this engine does not support. The text completes "... are not supported".
    Unsupported(&'static str),
}

impl StepFile {
    /// Parses the text of a step file.
    ///
    /// # Errors
    /// The text is not valid YAML, or not a valid step file.
    pub fn parse(text: &str) -> Result<Self, StepFileError> {
        let documents = yaml::parse_documents(text, 2)?;
        let [spec, definition] = documents.as_slice() else { return Err(StepFileError::DocumentCount) };
        let spec = parse_spec(spec)?;
        let definition = definition.as_object();
        let definition = definition.ok_or_else(|| StepFileError::wrong_type("the definition", "a mapping"))?;
        let env = env(definition)?;
        let body = match (definition.get("exec"), definition.get("run")) {
            (Some(exec), None) => parse_exec(exec)?,
            (None, Some(run)) => Body::Run {
                entries: parse_run_list(run)?,
                outputs: object(definition, "outputs")?,
                delegate: definition.get("delegate").and_then(Value::as_str).map(str::to_owned),
            },
            _ => return Err(StepFileError::NotOneBody),
        };
        Ok(Self { spec, body, env })
    }
}

/// Parses the steps of a `run` list.
///
/// # Errors
/// The list or one of its steps is invalid. The error has the position of the step.
pub fn parse_run_list(run: &Value) -> Result<Vec<StepEntry>, StepFileError> {
    let list = run.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| StepFileError::wrong_type("`run`", "a list of at least one step"))?;
    let numbered = |(index, value): (usize, &Value)| {
        parse_entry(value).map_err(|source| StepFileError::Entry { number: index + 1, source: Box::new(source) })
    };
    list.iter().enumerate().map(numbered).collect()
}

fn parse_entry(value: &Value) -> Result<StepEntry, StepFileError> {
    let entry = value.as_object().ok_or_else(|| StepFileError::wrong_type("a step", "a mapping"))?;
    let name = entry.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let calls = ["script", "step", "func", "action"].map(|key| entry.get(key).map(|value| (key, value)));
    let mut calls = calls.into_iter().flatten();
    let (Some((key, value)), None) = (calls.next(), calls.next()) else {
        return Err(StepFileError::NotOneCall(name));
    };
    let call = match (key, value) {
        ("action", _) => Call::Unsupported("GitHub actions"),
        ("script", Value::String(text)) if !text.is_empty() => Call::Script(text.clone()),
        ("script", _) => {
            return Err(StepFileError::wrong_type(format!("{name:?}: `script`"), "a string that is not empty"));
        }
        (_, Value::String(reference)) => Call::Step(reference.clone()),
        (_, Value::Object(reference)) if reference.contains_key("git") => Call::Unsupported("steps from git"),
        (_, Value::Object(reference)) if reference.contains_key("oci") => {
            Call::Unsupported("steps from OCI registries")
        }
        _ => return Err(StepFileError::wrong_type(format!("{name:?}: `{key}`"), "a reference")),
    };
    let inputs = object(entry, "inputs")?;
    if matches!(call, Call::Script(_)) && !inputs.is_empty() {
        return Err(StepFileError::ScriptInputs(name));
    }
    Ok(StepEntry { name, env: env(entry)?, inputs, call })
}

fn parse_exec(exec: &Value) -> Result<Body, StepFileError> {
    let wrong_type = || StepFileError::wrong_type("`exec.command`", "a list of at least one string");
    let list = exec.get("command").and_then(Value::as_array).filter(|list| !list.is_empty());
    let command = list.ok_or_else(wrong_type)?.iter().map(|item| scalar(item).ok_or_else(wrong_type));
    let command = command.collect::<Result<_, _>>()?;
    let work_dir = exec.get("work_dir").and_then(Value::as_str).map(str::to_owned);
    Ok(Body::Exec { command, work_dir })
}

fn parse_spec(document: &Value) -> Result<Spec, StepFileError> {
    let document = match document {
        Value::Null => return Ok(Spec::default()),
        Value::Object(document) => document,
        _ => return Err(StepFileError::wrong_type("the specification", "a mapping")),
    };
    if let Some(key) = document.keys().find(|key| *key != "spec") {
        return Err(StepFileError::UnknownSpecKey(key.clone()));
    }
    let Some(Value::Object(spec)) = document.get("spec") else { return Ok(Spec::default()) };
    let outputs = match spec.get("outputs") {
        Some(Value::String(text)) if text == "delegate" => Outputs::Delegate,
        Some(Value::String(text)) => return Err(StepFileError::UnsupportedOutputs(text.clone())),
        _ => Outputs::Declared(parameters(spec, "outputs")?),
    };
    Ok(Spec { inputs: parameters(spec, "inputs")?, outputs })
}

fn parameters(spec: &Map<String, Value>, key: &str) -> Result<IndexMap<String, Parameter>, StepFileError> {
    let mut parameters = IndexMap::new();
    for (name, value) in object(spec, key)? {
        let kind = value.get("type").and_then(Value::as_str).and_then(Kind::parse);
        let kind = kind.ok_or_else(|| {
            StepFileError::wrong_type(
                format!("`{key}.{name}.type`"),
                "one of string, number, boolean, struct and array",
            )
        })?;
        let default = value.get("default").filter(|value| !value.is_null()).cloned();
        if default.as_ref().is_some_and(|default| Kind::from_value(default) != Some(kind)) {
            return Err(StepFileError::DefaultType { name: format!("{key}.{name}"), kind: kind.name() });
        }
        parameters.insert(name, Parameter { kind, default });
    }
    Ok(parameters)
}

fn object(from: &Map<String, Value>, key: &str) -> Result<Map<String, Value>, StepFileError> {
    match from.get(key) {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(object)) => Ok(object.clone()),
        Some(_) => Err(StepFileError::wrong_type(format!("`{key}`"), "a mapping")),
    }
}

fn env(from: &Map<String, Value>) -> Result<IndexMap<String, String>, StepFileError> {
    let entry = |(key, value): (String, Value)| {
        let text = scalar(&value).ok_or_else(|| StepFileError::wrong_type(format!("`env.{key}`"), "a string"))?;
        Ok((key, text))
    };
    object(from, "env")?.into_iter().map(entry).collect()
}

/// Returns a scalar as text. `None` means that the value is null, a list or a mapping.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_exec_and_run_definitions() {
        let exec = StepFile::parse(
            "spec:\n  inputs:\n    who: {type: string, default: you}\n  outputs:\n    out: {type: number}\n---\n\
             exec: {command: [echo, 1], work_dir: /}\nenv: {A: 2}\n",
        )
        .unwrap();
        let command = vec!["echo".to_owned(), "1".to_owned()];
        assert_eq!(exec.body, Body::Exec { command, work_dir: Some("/".to_owned()) });
        assert_eq!(exec.env["A"], "2");
        let run = StepFile::parse("{}\n---\nrun:\n  - {name: a, script: ls}\n  - {name: b, func: ./b}\n").unwrap();
        let Body::Run { entries, .. } = run.body else { panic!("expected a `run` definition") };
        assert_eq!(entries[0].call, Call::Script("ls".to_owned()));
        assert_eq!(entries[1].call, Call::Step("./b".to_owned()));
    }

    #[test]
    fn invalid_step_file_is_rejected_with_reason() {
        for (text, part) in [
            ("run: []", "two documents"),
            ("exec: {}\n---\nrun: []", "`exec` is not a valid key of the specification"),
            ("{}\n---\nrun: []", "at least one step"),
            ("{}\n---\nrun: [{name: a}]", "step 1: \"a\" needs exactly one of"),
            ("{}\n---\nrun: [{name: a, script: x, step: ./y}]", "exactly one of"),
            ("{}\n---\n{exec: {command: [a]}, run: [{script: b}]}", "exactly one of `exec` and `run`"),
            ("{}\n---\nexec: {command: [[a]]}", "`exec.command` must be a list of at least one string"),
            ("spec: {inputs: {a: {type: text}}}\n---\nexec: {command: [a]}", "must be one of string"),
            ("spec: {inputs: {a: {type: number, default: x}}}\n---\nexec: {command: [a]}", "must match"),
        ] {
            let error = StepFile::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
