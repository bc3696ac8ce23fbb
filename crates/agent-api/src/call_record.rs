//! Record of a step's call in the result tree, masked and limited in size.

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Prefix of [`CallRecord::step`] for built-in steps.
pub const BUILTIN_PREFIX: &str = "builtin:";

/// Replacement of an omitted value.
pub const MASKED: &str = "[MASKED]";

const MAX_TEXT_BYTES: usize = 64 * 1024;

const MAX_REFERENCE_BYTES: usize = 1024;

/// Parameters and results of an author's step, or parameters of a built-in step, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CallRecord {
    /// Reference of the step with its expressions. `script` for a script, and `builtin:NAME` for a built-in step.
    pub step: String,
    /// Inputs, with their defaults.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub inputs: Map<String, Value>,
    /// Environment variables of the step. In a result tree, without the variables that every step has.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub env: Map<String, Value>,
    /// Program and arguments of the step's process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Working directory of the step's process.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub work_dir: String,
    /// Outputs that the step returned.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub outputs: Map<String, Value>,
    /// Variables that the step exported.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub exports: Map<String, Value>,
    /// Whether a text was cut, or all fields except `step` were removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

impl CallRecord {
    /// Returns the record of a step with only the names of its inputs.
    #[must_use]
    pub fn without_values(step: &str, inputs: &Map<String, Value>) -> Self {
        let inputs = inputs.keys().map(|name| (name.clone(), Value::String(MASKED.to_owned()))).collect();
        Self { step: step.to_owned(), inputs, ..Self::default() }
    }

    /// Returns whether this is the record of a built-in step.
    #[must_use]
    pub fn is_builtin(&self) -> bool {
        self.step.starts_with(BUILTIN_PREFIX)
    }

    /// Returns the record with all texts masked, even names.
    #[must_use]
    pub fn masked(&self, mask: &dyn Fn(&str) -> String) -> Self {
        let map = |map: &Map<String, Value>| masked_map(map, mask);
        Self {
            step: mask(&self.step),
            inputs: map(&self.inputs),
            env: map(&self.env),
            command: self.command.iter().map(|word| mask(word)).collect(),
            work_dir: mask(&self.work_dir),
            outputs: map(&self.outputs),
            exports: map(&self.exports),
            truncated: self.truncated,
        }
    }

    fn cut_texts(&mut self) {
        let Self { step, inputs, env, command, work_dir, outputs, exports, truncated } = self;
        *truncated |= cut(step, MAX_TEXT_BYTES) | cut(work_dir, MAX_TEXT_BYTES);
        for word in command {
            *truncated |= cut(word, MAX_TEXT_BYTES);
        }
        for value in [inputs, env, outputs, exports].into_iter().flat_map(Map::values_mut) {
            *truncated |= cut_value(value);
        }
    }

    /// Cuts long texts, and reduces a record of more than `left` bytes to its reference. Subtracts the final size from
    /// `left`. Returns whether at least the reference fits.
    #[must_use]
    pub(crate) fn limit(&mut self, left: &mut usize) -> bool {
        self.cut_texts();
        let mut size = json_size_within(self, *left);
        if size.is_none() {
            *self = std::mem::take(self).reference();
            size = json_size_within(self, *left);
        }
        *left -= size.unwrap_or(*left);
        size.is_some()
    }

    /// Returns the record with only the reference of the step.
    #[must_use]
    pub fn reference(self) -> Self {
        let mut step = self.step;
        cut(&mut step, MAX_REFERENCE_BYTES);
        Self { step, truncated: true, ..Self::default() }
    }

    /// Returns the size of the record as JSON in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        json_size_within(self, usize::MAX).unwrap_or(usize::MAX)
    }
}

/// Returns the size of a value as JSON. `None` means more than `max`.
pub(crate) fn json_size_within(value: &impl Serialize, max: usize) -> Option<usize> {
    let mut counter = Counter { max, size: 0 };
    serde_json::to_writer(&mut counter, value).ok()?;
    Some(counter.size)
}

struct Counter {
    max: usize,
    size: usize,
}

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.size += bytes.len();
        if self.size > self.max { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn cut_value(value: &mut Value) -> bool {
    match value {
        Value::String(text) => cut(text, MAX_TEXT_BYTES),
        Value::Array(items) => items.iter_mut().fold(false, |is_cut, item| cut_value(item) | is_cut),
        Value::Object(map) => map.values_mut().fold(false, |is_cut, item| cut_value(item) | is_cut),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Cuts a text to `max` bytes, and appends its original size. Returns whether the text was cut.
pub(crate) fn cut(text: &mut String, max: usize) -> bool {
    if text.len() <= max {
        return false;
    }
    let size = format!("… ({} bytes)", text.len());
    text.truncate(text.floor_char_boundary(max.saturating_sub(size.len())));
    text.push_str(&size);
    true
}

/// Returns a value with masked texts and numbers. Names are unchanged.
pub fn masked_value(value: &Value, mask: &dyn Fn(&str) -> String) -> Value {
    masked_with(value, mask, &str::to_owned)
}

/// Returns a map with masked names and values. Of entries with the same masked name, only the last remains.
fn masked_map(map: &Map<String, Value>, mask: &dyn Fn(&str) -> String) -> Map<String, Value> {
    map.iter().map(|(name, value)| (mask(name), masked_with(value, mask, mask))).collect()
}

fn masked_with(value: &Value, mask: &dyn Fn(&str) -> String, mask_name: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(mask(text)),
        Value::Number(number) => {
            let text = number.to_string();
            let masked = mask(&text);
            if masked == text { value.clone() } else { Value::String(masked) }
        }
        Value::Array(items) => items.iter().map(|item| masked_with(item, mask, mask_name)).collect(),
        Value::Object(map) => {
            map.iter().map(|(name, value)| (mask_name(name), masked_with(value, mask, mask_name))).collect()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record_with_inputs(value: Value) -> CallRecord {
        CallRecord {
            step: "./s".to_owned(),
            inputs: value.as_object().cloned().unwrap_or_default(),
            ..CallRecord::default()
        }
    }

    #[test]
    fn names_and_values_at_every_depth_are_masked() {
        let record = CallRecord {
            step: "./hunter2".to_owned(),
            env: Map::from_iter([("hunter2".to_owned(), json!("x"))]),
            command: vec!["sh".to_owned(), "hunter2".to_owned()],
            work_dir: "/hunter2".to_owned(),
            outputs: Map::from_iter([("a".to_owned(), json!([{ "hunter2": { "b": "hunter2" } }]))]),
            exports: Map::from_iter([("hunter2".to_owned(), json!(1))]),
            ..record_with_inputs(json!({ "hunter2": { "hunter2": ["hunter2", true] } }))
        };
        let masked = record.masked(&|text| text.replace("hunter2", MASKED));
        assert!(!serde_json::to_string(&masked).unwrap().contains("hunter2"), "{masked:?}");
        assert_eq!(masked.inputs, record_with_inputs(json!({ MASKED: { MASKED: [MASKED, true] } })).inputs);
    }

    #[test]
    fn long_text_is_cut_at_a_character_and_marked() {
        let mut call = record_with_inputs(json!({ "a": ["é".repeat(40_000)], "b": "short" }));
        let mut left = usize::MAX;
        assert!(call.limit(&mut left));
        let cut = call.clone();
        assert!(call.limit(&mut left) && call == cut, "a text that was cut must not be cut again");
        let text = call.inputs["a"][0].as_str().unwrap();
        assert!(
            text.starts_with('é') && text.ends_with("é… (80000 bytes)") && text.len() <= MAX_TEXT_BYTES,
            "{}",
            text.len()
        );
        assert!(call.truncated && call.inputs["b"] == "short");
    }

    #[test]
    fn records_above_the_limit_keep_only_their_reference() {
        let large = || record_with_inputs(json!({ "list": vec!["x".repeat(60_000); 25] }));
        let (mut records, mut left) = ([large(), large(), large()], 4_000_000);
        assert!(records.iter_mut().all(|record| record.limit(&mut left)));
        let kept: Vec<_> = records.iter().map(|call| (call.step.as_str(), call.truncated, call.inputs.len())).collect();
        assert_eq!(kept, [("./s", false, 1), ("./s", false, 1), ("./s", true, 0)]);
        let stub = records[2].size();
        let mut left = 2 * stub + 1;
        let fits: Vec<_> = records.iter_mut().map(|record| record.limit(&mut left)).collect();
        assert_eq!((fits, left), (vec![true, true, false], 0));
    }

    #[test]
    fn record_without_values_has_the_names_of_the_inputs() {
        let record = CallRecord::without_values(
            "git.example.com/s@1",
            &record_with_inputs(json!({ "token": "hunter2" })).inputs,
        );
        assert_eq!(
            serde_json::to_value(record).unwrap(),
            json!({ "step": "git.example.com/s@1", "inputs": { "token": MASKED } })
        );
    }
}
