//! Text format of protocol buffers: step-runner reads definitions and writes results in it.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use muster_agent_api::DESCRIPTORS;
use muster_steps::definition::{Body, StepFile, StepFileError, parse_run_list};
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::{Map, Value, json};

#[derive(Debug, thiserror::Error)]
pub(super) enum TextProtoError {
    #[error("failed to read {}: {source}; check --text-proto-step-file", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is not a definition in the text format of protocol buffers: {source}; correct the file", path.display())]
    Parse { path: PathBuf, source: prost_reflect::text_format::ParseError },
    #[error("{}: {problem}; a definition has `type: exec` with `exec`, or `type: steps` with `steps`", path.display())]
    Definition { path: PathBuf, problem: String },
    #[error("{}: {source}", path.display())]
    Steps { path: PathBuf, source: StepFileError },
    #[error("failed to convert a message: {0}")]
    Convert(String),
}

fn descriptor(name: &str) -> Result<MessageDescriptor, TextProtoError> {
    let pool = DescriptorPool::decode(DESCRIPTORS).map_err(|error| TextProtoError::Convert(error.to_string()))?;
    pool.get_message_by_name(name).ok_or_else(|| TextProtoError::Convert(format!("there is no message {name}")))
}

/// Converts a message from JSON to the text format.
pub(super) fn from_json(name: &str, message: Value) -> Result<String, TextProtoError> {
    let message = DynamicMessage::deserialize(descriptor(name)?, message);
    Ok(message.map_err(|error| TextProtoError::Convert(error.to_string()))?.to_text_format())
}

/// Reads a definition. Its local references are relative to the directory of the file.
pub(super) fn read_definition(path: &Path) -> Result<StepFile, TextProtoError> {
    let failed = |source| TextProtoError::Read { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let dir = std::path::absolute(path).map_err(failed)?.parent().unwrap_or(Path::new("/")).to_owned();
    let parsed = DynamicMessage::parse_text_format(descriptor("proto.Definition")?, &text);
    let message = parsed.map_err(|source| TextProtoError::Parse { path: path.to_owned(), source })?;
    let definition = serde_json::to_value(message).map_err(|error| TextProtoError::Convert(error.to_string()))?;
    let invalid = |problem| TextProtoError::Definition { path: path.to_owned(), problem };
    let body = match at(&definition, "/type").as_str() {
        Some("exec") => {
            let command = strings(at(&definition, "/exec/command"));
            if command.is_empty() {
                return Err(invalid("`exec.command` is missing".to_owned()));
            }
            Body::Exec { command, work_dir: at(&definition, "/exec/workDir").as_str().map(str::to_owned) }
        }
        Some("steps") => {
            let steps = at(&definition, "/steps").as_array().into_iter().flatten();
            let list = steps.map(|step| entry(step, &dir)).collect::<Result<Value, _>>().map_err(invalid)?;
            Body::Run {
                entries: parse_run_list(&list)
                    .map_err(|source| TextProtoError::Steps { path: path.to_owned(), source })?,
                outputs: at(&definition, "/outputs").as_object().cloned().unwrap_or_default(),
                delegate: at(&definition, "/delegate").as_str().map(str::to_owned),
            }
        }
        _ => return Err(invalid("`type` is missing".to_owned())),
    };
    let env = at(&definition, "/env").as_object().into_iter().flatten();
    let env: IndexMap<_, _> = env.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
    Ok(StepFile { env, body, ..StepFile::of_list(Vec::new()) })
}

/// Converts a `Step` to an entry of a list of steps.
fn entry(step: &Value, dir: &Path) -> Result<Value, String> {
    let fields = ["name", "env", "inputs"].map(|key| (key.to_owned(), at(step, &format!("/{key}")).clone()));
    let mut entry: Map<_, _> = fields.into_iter().filter(|(_, value)| !value.is_null()).collect();
    entry.insert(
        "step".to_owned(),
        reference(at(step, "/step"), dir).map_err(|error| format!("step {}: {error}", at(step, "/name")))?,
    );
    Ok(entry.into())
}

/// Converts a `Step.Reference` to the reference of an entry.
fn reference(reference: &Value, dir: &Path) -> Result<Value, String> {
    let parts = reference.get("path").unwrap_or(at(reference, "/paths/parts"));
    let (parts, text) = (strings(parts), |key: &str| at(reference, &format!("/{key}")).as_str().unwrap_or_default());
    let file = Some(text("filename")).filter(|name| !name.is_empty() && *name != "step.yml");
    let step_dir: PathBuf = parts.iter().collect();
    let path: PathBuf = step_dir.iter().chain(file.map(std::ffi::OsStr::new)).collect();
    let location = |fields: &[&str], keys: &[&str]| {
        let fields = fields.iter().zip(keys).map(|(field, key)| ((*field).to_owned(), json!(text(key))));
        let path_fields = [("dir".to_owned(), json!(step_dir)), ("file".to_owned(), json!(file))];
        Value::Object(fields.chain(path_fields).collect())
    };
    Ok(match text("protocol") {
        "local" => json!(dir.join(path)),
        "dist" => json!(format!("dist://{}", path.display())),
        "dynamic" if text("url").is_empty() => json!(text("pathExp")),
        "dynamic" => json!(text("url")),
        "git" => json!({"git": location(&["url", "rev"], &["url", "version"])}),
        "oci" => json!({"oci": location(&["registry", "repository", "tag"], &["registry", "repository", "tag"])}),
        other => return Err(format!("the protocol {other:?} of its reference is not supported")),
    })
}

/// Returns the value at a JSON pointer. A missing value is null.
fn at<'v>(value: &'v Value, pointer: &str) -> &'v Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}

/// Returns the strings in a list, or no strings if the value is not a list.
fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}
