//! Step files as types: two documents, a specification and a definition (steps 1).

use indexmap::IndexMap;
use serde_json::{Map, Value};

use crate::yaml;

/// A step, ready to be called.
#[derive(Debug, Clone, PartialEq)]
pub struct StepFile {
    /// What it takes and gives.
    pub spec: Spec,
    /// What it does.
    pub body: Body,
    /// Environment for its process, or for all of its steps.
    pub env: IndexMap<String, String>,
}

/// What a step takes and gives.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spec {
    /// Inputs by name.
    pub inputs: IndexMap<String, Parameter>,
    /// Outputs.
    pub outputs: Outputs,
}

/// The outputs of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Outputs {
    /// By name.
    Declared(IndexMap<String, Parameter>),
    /// Whatever the step that it delegates to gives.
    Delegate,
}

impl Default for Outputs {
    fn default() -> Self {
        Self::Declared(IndexMap::new())
    }
}

/// One input or output.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// The kind of its values.
    pub kind: Kind,
    /// Without one, an input is required.
    pub default: Option<Value>,
}

/// Kinds of values.
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

    /// The kind of a value; null has none.
    #[must_use]
    pub fn of(value: &Value) -> Option<Self> {
        Some(match value {
            Value::String(_) => Self::String,
            Value::Number(_) => Self::Number,
            Value::Bool(_) => Self::Boolean,
            Value::Object(_) => Self::Struct,
            Value::Array(_) => Self::Array,
            Value::Null => return None,
        })
    }

    /// Its name in step files.
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

/// What a step does.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// Starts a process.
    Exec {
        /// Program and arguments.
        command: Vec<String>,
        /// Where; none means the job's directory.
        work_dir: Option<String>,
    },
    /// Runs steps, one after the other.
    Run {
        /// The steps.
        items: Vec<Item>,
        /// Its outputs, as expressions.
        outputs: Map<String, Value>,
        /// The step whose outputs are its own.
        delegate: Option<String>,
    },
}

/// One step of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Its name; may be empty in a job's own list.
    pub name: String,
    /// Environment for it and everything below it.
    pub env: IndexMap<String, String>,
    /// What it gives to the step that it calls.
    pub inputs: Map<String, Value>,
    /// What it calls.
    pub call: Call,
}

/// What an item calls.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// A shell script.
    Script(String),
    /// A step by its reference; may hold expressions.
    Step(String),
    /// Something that this engine has no way to fetch, in words.
    Unsupported(&'static str),
}

impl StepFile {
    /// Reads the text of a step file.
    ///
    /// # Errors
    /// What is wrong and where.
    pub fn parse(text: &str) -> Result<Self, String> {
        let documents = yaml::read(text, 2)?;
        let [spec, definition] = documents.as_slice() else {
            return Err(
                "a step file has two documents, separated by `---`: the specification and the definition".to_owned()
            );
        };
        let spec = parse_spec(spec)?;
        let definition = definition.as_object().ok_or("the definition must be a mapping")?;
        let env = env(definition)?;
        let body = match (definition.get("exec"), definition.get("run")) {
            (Some(exec), None) => parse_exec(exec)?,
            (None, Some(run)) => Body::Run {
                items: items(run)?,
                outputs: object(definition, "outputs")?,
                delegate: definition.get("delegate").and_then(Value::as_str).map(str::to_owned),
            },
            (Some(_), Some(_)) => return Err("a definition has `exec` or `run`, not both".to_owned()),
            (None, None) => return Err("a definition needs `exec` or `run`".to_owned()),
        };
        Ok(Self { spec, body, env })
    }
}

/// The steps of a `run` list.
///
/// # Errors
/// What is wrong with which of them.
pub fn items(run: &Value) -> Result<Vec<Item>, String> {
    let list = run.as_array().filter(|list| !list.is_empty()).ok_or("`run` must be a list of at least one step")?;
    list.iter().enumerate().map(|(index, value)| item(value).map_err(|e| format!("step {}: {e}", index + 1))).collect()
}

fn item(value: &Value) -> Result<Item, String> {
    let item = value.as_object().ok_or("a step must be a mapping")?;
    let name = item.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let shapes = ["script", "step", "func", "action"].map(|key| item.get(key).map(|value| (key, value)));
    let mut shapes = shapes.into_iter().flatten();
    let (Some((key, value)), None) = (shapes.next(), shapes.next()) else {
        return Err(format!("{name:?} needs exactly one of `script`, `step`, `func`"));
    };
    let call = match (key, value) {
        ("action", _) => Call::Unsupported("GitHub actions"),
        ("script", Value::String(text)) if !text.is_empty() => Call::Script(text.clone()),
        ("script", _) => return Err(format!("{name:?}: `script` must be a text that is not empty")),
        (_, Value::String(reference)) => Call::Step(reference.clone()),
        (_, Value::Object(long)) if long.contains_key("git") => Call::Unsupported("steps from git"),
        (_, Value::Object(long)) if long.contains_key("oci") => Call::Unsupported("steps from OCI registries"),
        _ => return Err(format!("{name:?}: `{key}` must be a reference")),
    };
    let inputs = object(item, "inputs")?;
    if matches!(call, Call::Script(_)) && !inputs.is_empty() {
        return Err(format!("{name:?}: `script` takes no inputs"));
    }
    Ok(Item { name, env: env(item)?, inputs, call })
}

fn parse_exec(exec: &Value) -> Result<Body, String> {
    let words = exec.get("command").and_then(Value::as_array).filter(|words| !words.is_empty());
    let words = words.ok_or("`exec.command` must be a list of at least one text")?;
    let command =
        words.iter().map(|word| scalar(word).ok_or("`exec.command` must hold texts")).collect::<Result<_, _>>();
    let work_dir = exec.get("work_dir").and_then(Value::as_str).map(str::to_owned);
    Ok(Body::Exec { command: command?, work_dir })
}

fn parse_spec(document: &Value) -> Result<Spec, String> {
    let document = match document {
        Value::Null => return Ok(Spec::default()),
        Value::Object(document) => document,
        _ => return Err("the specification must be a mapping".to_owned()),
    };
    if let Some(key) = document.keys().find(|key| *key != "spec") {
        return Err(format!("`{key}` does not belong in the specification; is the `---` after it missing?"));
    }
    let Some(Value::Object(spec)) = document.get("spec") else { return Ok(Spec::default()) };
    let outputs = match spec.get("outputs") {
        Some(Value::String(text)) if text == "delegate" => Outputs::Delegate,
        Some(Value::String(text)) => return Err(format!("`outputs`: unsupported value: {text}")),
        _ => Outputs::Declared(parameters(spec, "outputs")?),
    };
    Ok(Spec { inputs: parameters(spec, "inputs")?, outputs })
}

fn parameters(spec: &Map<String, Value>, key: &str) -> Result<IndexMap<String, Parameter>, String> {
    let mut parameters = IndexMap::new();
    for (name, value) in object(spec, key)? {
        let kind = value.get("type").and_then(Value::as_str).and_then(Kind::parse);
        let kind = kind
            .ok_or_else(|| format!("`{key}.{name}.type` must be one of string, number, boolean, struct and array"))?;
        let default = value.get("default").filter(|value| !value.is_null()).cloned();
        if default.as_ref().is_some_and(|default| Kind::of(default) != Some(kind)) {
            return Err(format!("`{key}.{name}`: type {} and default must match", kind.name()));
        }
        parameters.insert(name, Parameter { kind, default });
    }
    Ok(parameters)
}

fn object(from: &Map<String, Value>, key: &str) -> Result<Map<String, Value>, String> {
    match from.get(key) {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(object)) => Ok(object.clone()),
        Some(_) => Err(format!("`{key}` must be a mapping")),
    }
}

fn env(from: &Map<String, Value>) -> Result<IndexMap<String, String>, String> {
    let entry = |(key, value): (String, Value)| {
        let text = scalar(&value).ok_or_else(|| format!("`env.{key}` must be a text"))?;
        Ok((key, text))
    };
    object(from, "env")?.into_iter().map(entry).collect()
}

/// A scalar as text.
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
    fn both_shapes_are_read() {
        let exec = StepFile::parse(
            "spec:\n  inputs:\n    who: {type: string, default: you}\n  outputs:\n    out: {type: number}\n---\n\
             exec: {command: [echo, 1], work_dir: /}\nenv: {A: 2}\n",
        )
        .unwrap();
        let command = vec!["echo".to_owned(), "1".to_owned()];
        assert_eq!(exec.body, Body::Exec { command, work_dir: Some("/".to_owned()) });
        assert_eq!(exec.env["A"], "2");
        let run = StepFile::parse("{}\n---\nrun:\n  - {name: a, script: ls}\n  - {name: b, func: ./b}\n").unwrap();
        let Body::Run { items, .. } = run.body else { panic!("a sequence") };
        assert_eq!(items[0].call, Call::Script("ls".to_owned()));
        assert_eq!(items[1].call, Call::Step("./b".to_owned()));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("run: []", "two documents"),
            ("exec: {}\n---\nrun: []", "`exec` does not belong in the specification"),
            ("{}\n---\nrun: []", "at least one step"),
            ("{}\n---\nrun: [{name: a}]", "step 1: \"a\" needs exactly one of"),
            ("{}\n---\nrun: [{name: a, script: x, step: ./y}]", "exactly one of"),
            ("{}\n---\n{exec: {command: [a]}, run: [{script: b}]}", "not both"),
            ("spec: {inputs: {a: {type: text}}}\n---\nexec: {command: [a]}", "must be one of string"),
            ("spec: {inputs: {a: {type: number, default: x}}}\n---\nexec: {command: [a]}", "must match"),
        ] {
            let error = StepFile::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
