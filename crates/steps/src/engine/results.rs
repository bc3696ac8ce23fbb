//! File with the results of all steps: step-runner's `StepResult` as JSON (docs/spec/steps.md, section 5).

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use indexmap::IndexMap;
use muster_agent_api::result::{CallRecord, StepNode};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::call::{Details, Invocation};
use super::reference::is_dynamic;
use super::user_steps::UserSteps;
use crate::definition::{Body, Call, Location, Outputs, Parameter, StepEntry, StepFile};
use crate::expression::Dialect;
use crate::log::{Log, Stream};
use crate::remote::{RemoteStep, Source, split};
use crate::style;

/// Receiver of the `StepResult` of the outermost step, as JSON.
pub type OnResults = Arc<dyn Fn(Value) + Send + Sync>;

const RESULTS_FILE: &str = "step-results.json";

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StepResult {
    pub(super) step: StepCall,
    pub(super) spec_definition: Value,
    /// `success` or `failure`.
    pub(super) status: &'static str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) outputs: Map<String, Value>,
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(super) exports: IndexMap<String, String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) env: Map<String, Value>,
    /// Process of the step. `None` means that the step needs no process, or that its command is invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exec_result: Option<ExecResult>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) sub_step_results: Vec<StepResult>,
}

/// Call of a step, with evaluated expressions. The call of the outermost step is empty.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct StepCall {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) name: String,
    #[serde(rename = "step", skip_serializing_if = "Value::is_null")]
    pub(super) reference: Value,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) env: Map<String, Value>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) inputs: Map<String, Value>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExecResult {
    pub(super) command: Vec<String>,
    pub(super) work_dir: String,
    /// Exit code. -1 means that the process was not started, or was terminated by a signal.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) exit_code: i32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(code: &i32) -> bool {
    *code == 0
}

impl UserSteps<'_> {
    /// Returns the record of a call, without the variables that all steps have.
    pub(super) fn call_record(
        &self,
        invocation: &Invocation<'_>,
        details: &Details,
        outputs: &Map<String, Value>,
    ) -> CallRecord {
        let is_inherited = |key: &str, value: &str| {
            let last = self.environment.iter().rev().find(|(name, _)| name == key);
            last.is_some_and(|(_, inherited)| inherited == value)
        };
        let env = details.env.iter().filter(|(key, value)| !is_inherited(key, value));
        let text = |(key, value): (&String, &String)| (key.clone(), Value::String(value.clone()));
        CallRecord {
            step: invocation.text.to_owned(),
            inputs: invocation.inputs.clone(),
            env: env.map(text).collect(),
            command: details.exec.as_ref().map(|exec| exec.command.clone()).unwrap_or_default(),
            work_dir: details.exec.as_ref().map(|exec| exec.work_dir.clone()).unwrap_or_default(),
            outputs: outputs.clone(),
            exports: details.exports.iter().map(text).collect(),
            truncated: false,
        }
    }

    /// Masks all sensitive values in nodes that were recorded before these values became sensitive.
    pub(super) fn mask_nodes(&self, nodes: &mut [StepNode]) {
        if self.log.values().is_empty() {
            return;
        }
        let mask = |text: &str| self.log.mask(text);
        for node in nodes {
            node.message = mask(&node.message);
            node.call = node.call.take().map(|call| Box::new(call.masked(&mask)));
            self.mask_nodes(&mut node.steps);
        }
    }

    /// Returns the record. If the list has reached its memory limit for records, the record has only the step's
    /// reference.
    pub(super) fn limit_record(&self, record: CallRecord) -> CallRecord {
        if self.development.is_some_and(|development| development.full_records) {
            return record;
        }
        let size = record.size();
        let left = self.record_bytes_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(size));
        if left.is_ok() { record } else { record.reference() }
    }

    pub(super) fn step_result(
        &self,
        invocation: Invocation<'_>,
        details: Details,
        succeeded: bool,
        outputs: Map<String, Value>,
    ) -> StepResult {
        let Invocation { file, inputs, caller_input_names, name, reference, .. } = invocation;
        let values = |env: IndexMap<String, String>| {
            env.into_iter().map(|(key, value)| (key, Value::String(value))).collect::<Map<_, _>>()
        };
        let is_called = !reference.is_null();
        StepResult {
            step: StepCall {
                name: name.to_owned(),
                reference,
                env: if is_called { values(details.call_env) } else { Map::new() },
                inputs: inputs.into_iter().filter(|(name, _)| caller_input_names.contains(name)).collect(),
            },
            spec_definition: spec_definition(file, self.settings.dialect, !is_called),
            status: if succeeded { "success" } else { "failure" },
            outputs,
            exports: details.exports,
            env: values(details.env),
            exec_result: details.exec,
            sub_step_results: details.inner.results,
        }
    }

    pub(super) fn records_results(&self) -> bool {
        self.settings.is_debug || self.on_results.is_some()
    }

    /// Passes the results, without sensitive values, to their receiver or to the results file. Errors are only logged.
    pub(super) async fn write_results(&self, result: &StepResult) {
        let dir = self.work_dir.to_owned();
        let value = serde_json::to_value(result).map(|value| self.log.mask_value(&value));
        let written = match (value, &self.on_results) {
            (Ok(value), Some(on_results)) => {
                on_results(value);
                Ok(())
            }
            (Ok(value), None) => {
                tokio::task::spawn_blocking(move || write(&dir, &value)).await.unwrap_or_else(|error| Err(error.into()))
            }
            (Err(error), _) => Err(error.into()),
        };
        if let Err(error) = written {
            let path = self.work_dir.join(RESULTS_FILE);
            let message =
                format!("failed to write `{}`: {error}; the result of the job is not affected", path.display());
            self.log.write(Stream::Runner, style::warning(&message).as_bytes());
        }
    }
}

/// Writes the results file. Replaces an existing file, even a symbolic link.
fn write(dir: &Path, result: &Value) -> io::Result<()> {
    let permissions = Permissions::from_mode(0o640);
    let mut file = tempfile::Builder::new().prefix(RESULTS_FILE).permissions(permissions).tempfile_in(dir)?;
    file.write_all(result.to_string().as_bytes())?;
    file.persist(dir.join(RESULTS_FILE)).map(drop).map_err(|error| error.error)
}

/// Returns a step file as a `SpecDefinition`. For the outermost step file, empty outputs are omitted.
fn spec_definition(file: &StepFile, dialect: Dialect, is_outermost: bool) -> Value {
    let mut spec = fields([("inputs", parameters(&file.spec.inputs))]);
    match &file.spec.outputs {
        Outputs::Declared(outputs) if is_outermost && outputs.is_empty() => {}
        Outputs::Declared(outputs) => {
            spec.extend(fields([("outputs", parameters(outputs)), ("outputMethod", json!("outputs"))]));
        }
        Outputs::Delegate => spec.extend(fields([("outputMethod", json!("delegate"))])),
    }
    let mut definition = fields([("env", json!(file.env))]);
    definition.extend(match &file.body {
        Body::Exec { command, work_dir } => {
            let exec = fields([("command", json!(command)), ("workDir", json!(work_dir))]);
            fields([("type", json!("exec")), ("exec", exec.into())])
        }
        Body::Script | Body::Bundled(_) | Body::Fake(_) => fields([("type", json!("exec"))]),
        Body::Run { entries, outputs, delegate } => fields([
            ("type", json!("steps")),
            ("steps", entries.iter().map(|item| entry(item, dialect)).collect()),
            ("outputs", json!(outputs)),
            ("delegate", json!(delegate)),
        ]),
    });
    json!({"spec": {"spec": spec}, "definition": definition})
}

fn entry(entry: &StepEntry, dialect: Dialect) -> Value {
    let mut inputs = entry.inputs.clone();
    if let Call::Script(text) = &entry.call {
        inputs.insert("script".to_owned(), json!(text));
    }
    let fields = fields([
        ("name", json!(entry.name)),
        ("step", reference(&entry.call, dialect)),
        ("env", json!(entry.env)),
        ("inputs", inputs.into()),
    ]);
    fields.into()
}

pub(super) fn reference(call: &Call, dialect: Dialect) -> Value {
    let text = match call {
        Call::Script(_) => "dist://script",
        Call::Step(text) => text.trim(),
        Call::Remote(location) if location.is_dynamic() => return dynamic(location),
        Call::Remote(location) => return RemoteStep::at(location, dialect).map_or(Value::Null, |step| remote(&step)),
    };
    if is_dynamic(text) {
        return json!({"protocol": "dynamic", "url": text});
    }
    let (protocol, path) = match text.strip_prefix("dist://") {
        Some(path) => ("dist", path),
        None if text.starts_with(['.', '/']) => ("local", text),
        None => return RemoteStep::parse(text, dialect).map_or_else(|_| json!({"url": text}), |step| remote(&step)),
    };
    let (path, file) = split(path, dialect);
    let root = path.starts_with('/').then_some("/");
    let parts: Vec<&str> = root.into_iter().chain(parts(path)).collect();
    json!({"protocol": protocol, "path": parts, "filename": file.unwrap_or("step.yml")})
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// Returns a remote step as a `Step.Reference`, without credentials.
fn remote(step: &RemoteStep) -> Value {
    let path: Vec<&str> = parts(&step.dir).collect();
    let filename = step.names.last();
    match &step.source {
        Source::Git { revision, .. } => json!(fields([
            ("protocol", json!("git")),
            ("url", json!(step.source.name())),
            ("path", json!(path)),
            ("filename", json!(filename)),
            ("version", json!(revision)),
        ])),
        Source::Oci { registry, repository, tag } => json!(fields([
            ("protocol", json!("oci")),
            ("path", json!(path)),
            ("filename", json!(filename)),
            ("registry", json!(registry)),
            ("repository", json!(repository)),
            ("tag", json!(tag)),
        ])),
    }
}

fn dynamic(location: &Location) -> Value {
    match location {
        Location::Git { url, rev, .. } => json!({"protocol": "git", "url": url, "version": rev}),
        Location::Oci { registry, repository, tag, .. } => {
            json!({"protocol": "oci", "registry": registry, "repository": repository, "tag": tag})
        }
    }
}

fn parameters(parameters: &IndexMap<String, Parameter>) -> Value {
    let parameter = |(name, parameter): (&String, &Parameter)| {
        let mut fields = fields([("type", json!(parameter.kind.name())), ("sensitive", json!(parameter.is_sensitive))]);
        // An empty default is not omitted, because an input without a default is required.
        fields.extend(parameter.default.clone().map(|default| ("default".to_owned(), default)));
        (name.clone(), Value::Object(fields))
    };
    Value::Object(parameters.iter().map(parameter).collect())
}

/// Returns the fields, without empty values, as in the JSON mapping of protobuf.
fn fields<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    let is_empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(object) => object.is_empty(),
        _ => false,
    };
    fields.into_iter().filter(|(_, value)| !is_empty(value)).map(|(key, value)| (key.to_owned(), value)).collect()
}
