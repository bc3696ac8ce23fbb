//! Parser of step files and `run` lists.

use indexmap::IndexMap;
use muster_job::is_identifier;
use serde_json::{Map, Value};

use super::{Body, Call, Extension, Kind, Location, Outputs, Parameter, Spec, StepEntry, StepFile, StepFileError};
use crate::yaml::{self, Node};

type Fields = IndexMap<String, Node>;

/// Repository of the step that runs a GitHub action, and its revision (docs/spec/steps.md, section 1.7).
const ACTION_RUNNER: (&str, &str) = ("https://gitlab.com/components/action-runner", "main");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Identifiers,
    Any,
}

impl StepFile {
    /// Parses the text of a step file.
    ///
    /// # Errors
    /// The text is not valid YAML, or not a valid step file.
    pub fn parse(text: &str) -> Result<Self, StepFileError> {
        let documents = yaml::parse_documents(text, 2)?;
        let [spec, definition] = documents.as_slice() else {
            let key = documents.first().and_then(Node::as_map).and_then(|map| map.keys().find(|key| *key != "spec"));
            return Err(StepFileError::DocumentCount(key.cloned()));
        };
        let spec = parse_spec(spec)?;
        let definition = definition.as_map();
        let definition = definition.ok_or_else(|| StepFileError::wrong_type("the definition", "a mapping"))?;
        let env = env(definition, Names::Identifiers)?;
        let body = match (definition.get("exec"), definition.get("run")) {
            (Some(exec), None) => parse_exec(exec)?,
            (None, Some(run)) => Body::Run {
                entries: entries(run, Names::Identifiers)?,
                outputs: values(definition, "outputs", Names::Identifiers)?,
                delegate: scalar_text(definition, "delegate", "`delegate`")?,
            },
            _ => return Err(StepFileError::NotOneBody),
        };
        Ok(Self { spec, body, env })
    }
}

/// Parses the text of a list of steps, in YAML or JSON. Accepts any names.
///
/// # Errors
/// The text is not valid YAML, or a step is invalid.
pub fn parse_list(text: &str) -> Result<Vec<StepEntry>, StepFileError> {
    let documents = yaml::parse_documents(text, 1)?;
    entries(documents.first().unwrap_or(&Node::List(Vec::new())), Names::Any)
}

/// Parses the text of one value, in YAML or JSON.
///
/// # Errors
/// The text is not valid YAML, or contains an unquoted date.
pub fn parse_value(name: &str, text: &str) -> Result<Value, StepFileError> {
    match yaml::parse_documents(text, 1)?.first() {
        Some(node) => json(name, node),
        None => Ok(Value::Null),
    }
}

/// Parses the `run:` list of a job. Accepts any names (docs/spec/steps.md, section 1.1).
///
/// # Errors
/// The list or a step is invalid.
pub fn parse_run_list(run: &Value) -> Result<Vec<StepEntry>, StepFileError> {
    entries(&Node::from(run), Names::Any)
}

fn entries(run: &Node, names: Names) -> Result<Vec<StepEntry>, StepFileError> {
    let list = if let Node::List(list) = run { list.as_slice() } else { &[] };
    if list.is_empty() {
        return Err(StepFileError::wrong_type("`run`", "a list of at least one step"));
    }
    let numbered = |(index, node): (usize, &Node)| {
        parse_entry(node, names).map_err(|source| StepFileError::Entry { number: index + 1, source: Box::new(source) })
    };
    list.iter().enumerate().map(numbered).collect()
}

fn parse_entry(node: &Node, names: Names) -> Result<StepEntry, StepFileError> {
    let entry = node.as_map().ok_or_else(|| StepFileError::wrong_type("a step", "a mapping"))?;
    let name = scalar_text(entry, "name", "`name`")?.unwrap_or_default();
    let calls = ["script", "step", "func", "action"].map(|key| entry.get(key).map(|value| (key, value)));
    let mut calls = calls.into_iter().flatten();
    let (Some((key, value)), None) = (calls.next(), calls.next()) else {
        return Err(StepFileError::NotOneCall(name));
    };
    if names == Names::Identifiers {
        if name.is_empty() {
            return Err(StepFileError::NoName);
        }
        check_name("name", &name, names)?;
    }
    let extension = Extension::parse(entry.get(Extension::KEY))
        .map_err(|source| StepFileError::Extension { step: name.clone(), source })?;
    let call = match (key, value.to_scalar_text()) {
        ("action", Some(text)) if !text.is_empty() => {
            let inputs = Value::Object(values(entry, "inputs", names)?);
            return Ok(StepEntry { env: env(entry, names)?, name, extension, ..action(text, inputs) });
        }
        ("script", Some(text)) if !text.is_empty() => Call::Script(text),
        ("script" | "action", _) => {
            return Err(StepFileError::wrong_type(format!("{name:?}: `{key}`"), "a string that is not empty"));
        }
        (_, Some(reference)) => Call::Step(reference),
        (_, None) => {
            let fields = value.as_map();
            location(
                &name,
                fields.ok_or_else(|| StepFileError::wrong_type(format!("{name:?}: `{key}`"), "a reference"))?,
            )?
        }
    };
    let inputs = values(entry, "inputs", names)?;
    if matches!(call, Call::Script(_)) && !inputs.is_empty() {
        return Err(StepFileError::ScriptInputs(name));
    }
    Ok(StepEntry { env: env(entry, names)?, name, inputs, call, extension })
}

/// Returns an entry that runs a GitHub action. The caller sets its name, `env` and extension.
fn action(text: String, inputs: Value) -> StepEntry {
    let (url, rev) = ACTION_RUNNER;
    let (dir, file) = (String::new(), String::new());
    StepEntry {
        name: String::new(),
        env: IndexMap::new(),
        inputs: Map::from_iter([("action".to_owned(), Value::String(text)), ("inputs".to_owned(), inputs)]),
        call: Call::Remote(Location::Git { url: url.to_owned(), rev: rev.to_owned(), dir, file }),
        extension: Extension::default(),
    }
}

/// Parses a reference that is a mapping (docs/spec/steps.md, section 2.2).
fn location(step: &str, fields: &Fields) -> Result<Call, StepFileError> {
    let (name, value) = match (fields.get("git"), fields.get("oci")) {
        (Some(_), Some(_)) => return Err(StepFileError::TwoLocations(step.to_owned())),
        (None, None) => return Err(StepFileError::NoLocation(step.to_owned())),
        (Some(git), None) => ("git", git),
        (None, Some(oci)) => ("oci", oci),
    };
    let optional = |field: &'static str| match value.as_map() {
        Some(fields) => scalar_text(fields, field, &format!("{name}.{field}")),
        None => Ok(None),
    };
    let required = |field: &'static str| {
        optional(field)?.ok_or_else(|| StepFileError::NoField { step: step.to_owned(), field, location: name })
    };
    let (dir, file) = (optional("dir")?.unwrap_or_default(), optional("file")?.unwrap_or_default());
    Ok(Call::Remote(if name == "git" {
        Location::Git { url: required("url")?, rev: required("rev")?, dir, file }
    } else {
        let (registry, repository, tag) = (required("registry")?, required("repository")?, required("tag")?);
        Location::Oci { registry, repository, tag, dir, file }
    }))
}

fn parse_exec(exec: &Node) -> Result<Body, StepFileError> {
    let wrong_type = || StepFileError::wrong_type("`exec.command`", "a list of at least one string");
    let command = exec.as_map().and_then(|exec| exec.get("command"));
    let Some(Node::List(command)) = command.filter(|command| **command != Node::List(Vec::new())) else {
        return Err(wrong_type());
    };
    let command = command.iter().map(|item| item.to_scalar_text().ok_or_else(wrong_type)).collect::<Result<_, _>>()?;
    let work_dir = exec.as_map().map(|exec| scalar_text(exec, "work_dir", "`exec.work_dir`")).transpose()?.flatten();
    Ok(Body::Exec { command, work_dir })
}

fn parse_spec(document: &Node) -> Result<Spec, StepFileError> {
    let document = match document {
        document if document.is_null() => return Ok(Spec::default()),
        Node::Map(document) => document,
        _ => return Err(StepFileError::wrong_type("the specification", "a mapping")),
    };
    if let Some(key) = document.keys().find(|key| *key != "spec") {
        return Err(StepFileError::UnknownSpecKey(key.clone()));
    }
    let spec = match document.get("spec") {
        Some(Node::Map(spec)) => spec,
        None => return Ok(Spec::default()),
        Some(spec) if spec.is_null() => return Ok(Spec::default()),
        Some(_) => return Err(StepFileError::wrong_type("`spec`", "a mapping")),
    };
    let outputs = match spec.get("outputs").and_then(Node::to_scalar_text) {
        Some(text) if text == "delegate" => Outputs::Delegate,
        Some(text) => return Err(StepFileError::UnsupportedOutputs(text)),
        None => Outputs::Declared(parameters(spec, "outputs")?),
    };
    Ok(Spec { inputs: parameters(spec, "inputs")?, outputs })
}

fn parameters(spec: &Fields, key: &'static str) -> Result<IndexMap<String, Parameter>, StepFileError> {
    let Some(map) = map(spec, key)? else { return Ok(IndexMap::new()) };
    let parameter = |(name, node): (&String, &Node)| {
        if !is_identifier(name) {
            return Err(StepFileError::Name { key, name: name.clone() });
        }
        Ok((name.clone(), parse_parameter(format!("{key}.{name}"), node)?))
    };
    map.iter().map(parameter).collect()
}

fn parse_parameter(name: String, node: &Node) -> Result<Parameter, StepFileError> {
    let field = |key: &str| node.as_map().and_then(|fields| fields.get(key)).filter(|value| !value.is_null());
    let Some(kind) = field("type") else { return Err(StepFileError::NoType(name)) };
    let kind = kind.as_str().and_then(Kind::parse).ok_or_else(|| {
        StepFileError::wrong_type(format!("`{name}.type`"), "one of string, number, boolean, struct and array")
    })?;
    let default = field("default").map(|value| json(&format!("{name}.default"), value)).transpose()?;
    if default.as_ref().is_some_and(|default| Kind::from_value(default) != Some(kind)) {
        return Err(StepFileError::DefaultType { name, kind: kind.name() });
    }
    let is_sensitive = match field("sensitive") {
        None => false,
        Some(Node::Scalar { value: Value::Bool(value), .. }) => *value,
        Some(_) => return Err(StepFileError::wrong_type(format!("`{name}.sensitive`"), "true or false")),
    };
    Ok(Parameter { kind, default, is_sensitive })
}

/// Returns the mapping `key`. `None` means that it is absent or null.
fn map<'n>(from: &'n Fields, key: &str) -> Result<Option<&'n Fields>, StepFileError> {
    match from.get(key).filter(|node| !node.is_null()) {
        None => Ok(None),
        Some(Node::Map(map)) => Ok(Some(map)),
        Some(_) => Err(StepFileError::wrong_type(format!("`{key}`"), "a mapping")),
    }
}

/// Returns the text of the scalar `key`. `None` means that it is absent or null.
fn scalar_text(from: &Fields, key: &str, name: &str) -> Result<Option<String>, StepFileError> {
    let Some(node) = from.get(key).filter(|node| !node.is_null()) else { return Ok(None) };
    node.to_scalar_text().map(Some).ok_or_else(|| StepFileError::wrong_type(name, "a string"))
}

fn values(from: &Fields, key: &'static str, names: Names) -> Result<Map<String, Value>, StepFileError> {
    let Some(map) = map(from, key)? else { return Ok(Map::new()) };
    let value = |(name, node): (&String, &Node)| {
        check_name(key, name, names)?;
        Ok((name.clone(), json(&format!("{key}.{name}"), node)?))
    };
    map.iter().map(value).collect()
}

fn env(from: &Fields, names: Names) -> Result<IndexMap<String, String>, StepFileError> {
    let Some(map) = map(from, "env")? else { return Ok(IndexMap::new()) };
    let variable = |(name, node): (&String, &Node)| {
        check_name("env", name, names)?;
        let text =
            node.to_scalar_text().ok_or_else(|| StepFileError::wrong_type(format!("`env.{name}`"), "a string"))?;
        Ok((name.clone(), text))
    };
    map.iter().map(variable).collect()
}

fn json(name: &str, node: &Node) -> Result<Value, StepFileError> {
    node.to_json().map_err(|text| StepFileError::Timestamp { name: name.to_owned(), text })
}

fn check_name(key: &'static str, name: &str, names: Names) -> Result<(), StepFileError> {
    // An expression in the name of an input or variable is evaluated later.
    let is_expression = matches!(key, "inputs" | "env") && name.contains("${{");
    if names == Names::Any || is_expression || is_identifier(name) {
        return Ok(());
    }
    Err(StepFileError::Name { key, name: name.to_owned() })
}
