//! Inputs of the built-in steps that lists of steps may call.

use std::collections::BTreeMap;

use muster_steps::definition::{Kind, Outputs, Parameter, Spec};
use muster_steps::failure::Failure;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Inputs of `builtin://checkout`. Empty texts and `None` keep the job's values.
#[derive(Debug, Deserialize)]
pub(super) struct CheckoutCall {
    pub(super) strategy: String,
    pub(super) depth: Option<f64>,
    pub(super) submodules: String,
}

/// Inputs of `builtin://cache/restore` and `builtin://cache/save`.
#[derive(Debug, Deserialize)]
pub(super) struct CacheCall {
    /// Key of the only cache to restore or save. Empty means all caches.
    pub(super) key: String,
}

/// Inputs of `builtin://artifacts/download`.
#[derive(Debug, Deserialize)]
pub(super) struct DownloadCall {
    /// Name of the only job whose artifacts are downloaded. Empty means all dependencies.
    pub(super) job: String,
}

/// Inputs of `builtin://artifacts/upload`.
#[derive(Debug, Deserialize)]
pub(super) struct UploadCall {
    pub(super) paths: Vec<String>,
    pub(super) exclude: Vec<String>,
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) artifact_type: String,
    /// Format of the artifact. Empty means GitLab's format for the type.
    pub(super) format: String,
    pub(super) expire_in: String,
}

/// Inputs of `builtin://service`.
#[derive(Debug, Deserialize)]
pub(super) struct ServiceCall {
    pub(super) command: Vec<String>,
    /// Name for the log. Empty means the name of the program.
    pub(super) name: String,
    /// TCP port of the loopback address that must accept connections. 0 means none.
    pub(super) port: u16,
    pub(super) env: BTreeMap<String, String>,
    pub(super) timeout: String,
}

/// Returns inputs and outputs of a step, if it exists.
pub(super) fn spec(name: &str) -> Option<Spec> {
    let required = |name: &str, kind| (name.to_owned(), Parameter { kind, default: None, is_sensitive: false });
    let optional =
        |name: &str, kind, default| (name.to_owned(), Parameter { kind, default: Some(default), is_sensitive: false });
    let text = |name: &str, default: &str| optional(name, Kind::String, json!(default));
    let inputs = match name {
        "checkout" => {
            vec![text("strategy", ""), optional("depth", Kind::Number, Value::Null), text("submodules", "")]
        }
        "cache/restore" | "cache/save" => vec![text("key", "")],
        "artifacts/download" => vec![text("job", "")],
        "artifacts/upload" => vec![
            required("paths", Kind::Array),
            optional("exclude", Kind::Array, json!([])),
            text("name", "artifacts"),
            text("type", "archive"),
            text("format", ""),
            text("expire_in", ""),
        ],
        "service" => vec![
            required("command", Kind::Array),
            text("name", ""),
            optional("port", Kind::Number, json!(0)),
            optional("env", Kind::Struct, json!({})),
            text("timeout", "30s"),
        ],
        _ => return None,
    };
    Some(Spec { inputs: inputs.into_iter().collect(), outputs: Outputs::default() })
}

/// Returns the inputs of a call.
pub(super) fn parsed<T: DeserializeOwned>(inputs: &Map<String, Value>) -> Result<T, Failure> {
    let read = |(name, value): (&String, &Value)| (name.clone(), to_integer(value));
    let inputs = Value::Object(inputs.iter().map(read).collect());
    serde_json::from_value(inputs).map_err(|error| Failure::Step(format!("the inputs are not valid: {error}")))
}

/// Converts a whole number up to `u32::MAX` to an integer, because expressions produce only floating-point numbers.
fn to_integer(value: &Value) -> Value {
    match value.as_f64() {
        Some(number) if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) => {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
            let number = number as u32;
            json!(number)
        }
        _ => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_of_another_type_are_rejected() {
        let inputs = |value: Value| value.as_object().cloned().unwrap();
        let valid = json!({ "command": ["redis"], "name": "", "port": 6379.0, "env": {}, "timeout": "30s" });
        assert_eq!(parsed::<ServiceCall>(&inputs(valid.clone())).unwrap().port, 6379);
        for (name, value) in [("port", json!(70000)), ("port", json!(1.5)), ("command", json!("redis"))] {
            let mut invalid = inputs(valid.clone());
            invalid.insert(name.to_owned(), value);
            assert!(parsed::<ServiceCall>(&invalid).unwrap_err().to_string().starts_with("the inputs are not valid: "));
        }
    }
}
