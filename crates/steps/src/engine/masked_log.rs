//! Log that masks the values of sensitive inputs and outputs.

use std::sync::Arc;

use muster_agent_api::result::masked_value;
use muster_job::mask::{Masker, Secrets};
use parking_lot::Mutex;
use serde_json::Value;

use crate::log::{Log, Stream};

/// Writes to the log of the job, without the values of sensitive inputs and outputs.
pub(super) struct MaskedLog {
    inner: Arc<dyn Log>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    values: Vec<String>,
    secrets: Secrets,
    /// Masker of the output. `None` means that there are no sensitive values yet.
    masker: Option<Masker>,
}

impl MaskedLog {
    pub(super) fn new(inner: Arc<dyn Log>) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Masks all strings and numbers of a value from now on.
    pub(super) fn add(&self, value: &Value) {
        let mut state = self.state.lock();
        let known = state.values.len();
        collect(value, &mut state.values);
        if state.values.len() > known {
            self.flush_locked(&mut state);
            state.secrets = Secrets::new(state.values.iter().map(String::as_str), []);
            state.masker = Some(Masker::new(&state.secrets));
        }
    }

    /// Returns a text without the sensitive values.
    pub(super) fn mask(&self, text: &str) -> String {
        let state = self.state.lock();
        if state.masker.is_some() { state.secrets.mask(text) } else { text.to_owned() }
    }

    /// Returns a log that writes to `inner`, without the values that are sensitive now.
    pub(super) fn with_same_values(&self, inner: Arc<dyn Log>) -> Self {
        let state = self.state.lock();
        let secrets = state.secrets.clone();
        let masker = state.masker.is_some().then(|| Masker::new(&secrets));
        Self { inner, state: Mutex::new(State { values: state.values.clone(), secrets, masker }) }
    }

    /// Returns a value without the sensitive values in its strings and numbers.
    pub(super) fn mask_value(&self, value: &Value) -> Value {
        masked_value(value, &|text| self.mask(text))
    }

    /// Writes the output that was held back because it could be the start of a sensitive value.
    pub(super) fn flush(&self) {
        self.flush_locked(&mut self.state.lock());
    }

    fn flush_locked(&self, state: &mut State) {
        let Some(mut masker) = state.masker.take() else { return };
        let mut out = Vec::new();
        masker.finish(&mut out);
        if !out.is_empty() {
            self.inner.write(Stream::Output, &out);
        }
        state.masker = Some(Masker::new(&state.secrets));
    }
}

impl Drop for MaskedLog {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Log for MaskedLog {
    fn write(&self, stream: Stream, bytes: &[u8]) {
        let mut state = self.state.lock();
        match &mut state.masker {
            None => self.inner.write(stream, bytes),
            Some(masker) => {
                let mut out = Vec::new();
                masker.push(bytes, &mut out);
                if !out.is_empty() {
                    self.inner.write(stream, &out);
                }
            }
        }
    }

    fn end_lines(&self) {
        self.flush();
        self.inner.end_lines();
    }
}

/// Adds the texts of the strings and numbers of a value.
fn collect(value: &Value, texts: &mut Vec<String>) {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(_) => crate::expression::to_text(value),
        Value::Array(items) => return items.iter().for_each(|item| collect(item, texts)),
        Value::Object(object) => return object.values().for_each(|item| collect(item, texts)),
        Value::Null | Value::Bool(_) => return,
    };
    if !text.trim().is_empty() && !texts.contains(&text) {
        texts.push(text);
    }
}
