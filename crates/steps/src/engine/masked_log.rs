use std::sync::Arc;

use muster_agent_api::result::masked_value;
use muster_job::mask::{Masker, Secrets};
use parking_lot::Mutex;
use serde_json::Value;

use crate::log::{Log, Stream};

/// Log of the job without the values of sensitive inputs and outputs.
///
/// Steps that run at the same time have separate logs, which mask the same values.
pub(super) struct MaskedLog {
    inner: Arc<dyn Log>,
    sensitive: Arc<Mutex<Sensitive>>,
    output: Mutex<Output>,
}

#[derive(Default)]
struct Sensitive {
    values: Vec<String>,
    secrets: Secrets,
}

#[derive(Default)]
struct Output {
    masker: Option<Masker>,
    /// Number of values that the masker knows.
    values: usize,
}

impl MaskedLog {
    pub(super) fn new(inner: Arc<dyn Log>) -> Self {
        Self { inner, sensitive: Arc::default(), output: Mutex::default() }
    }

    /// Masks the strings and numbers of a value from now on.
    pub(super) fn add_sensitive(&self, value: &Value) {
        let mut sensitive = self.sensitive.lock();
        let known = sensitive.values.len();
        collect(value, &mut sensitive.values);
        if sensitive.values.len() > known {
            sensitive.secrets = Secrets::new(sensitive.values.iter().map(String::as_str), []);
        }
    }

    pub(super) fn values(&self) -> Vec<String> {
        self.sensitive.lock().values.clone()
    }

    pub(super) fn mask(&self, text: &str) -> String {
        let sensitive = self.sensitive.lock();
        if sensitive.values.is_empty() { text.to_owned() } else { sensitive.secrets.mask(text) }
    }

    pub(super) fn inner(&self) -> Arc<dyn Log> {
        Arc::clone(&self.inner)
    }

    /// Returns a log that writes to `inner` and masks the same values, even those added later.
    pub(super) fn with_same_values(&self, inner: Arc<dyn Log>) -> Self {
        Self { inner, sensitive: Arc::clone(&self.sensitive), output: Mutex::default() }
    }

    pub(super) fn mask_value(&self, value: &Value) -> Value {
        masked_value(value, &|text| self.mask(text))
    }

    /// Writes the output that the masker held back as a possible start of a sensitive value.
    pub(super) fn flush(&self) {
        self.end_masker(&mut self.output.lock());
    }

    /// Writes the output that the masker held back, and prepares a masker for all current values.
    fn end_masker(&self, output: &mut Output) {
        let mut out = Vec::new();
        if let Some(mut masker) = output.masker.take() {
            masker.finish(&mut out);
        }
        if !out.is_empty() {
            self.inner.write(Stream::Output, &out);
        }
        let sensitive = self.sensitive.lock();
        output.values = sensitive.values.len();
        output.masker = (output.values > 0).then(|| Masker::new(&sensitive.secrets));
    }
}

impl Drop for MaskedLog {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Log for MaskedLog {
    fn write(&self, stream: Stream, bytes: &[u8]) {
        let mut output = self.output.lock();
        if output.values != self.sensitive.lock().values.len() {
            self.end_masker(&mut output);
        }
        match &mut output.masker {
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
