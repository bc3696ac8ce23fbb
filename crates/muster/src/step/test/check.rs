//! Compares the result of a test with its expectations.

use std::path::Path;

use indexmap::IndexMap;
use muster_agent_api::development::matches_path;
use muster_agent_api::result::{JobResult, StepNode, StepStatus};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use super::file::{Case, ExpectedFile, ExpectedStatus, ExpectedStep, pattern};

const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// Line of the expectation in the test file.
    pub(super) line: u64,
    pub(super) message: String,
}

struct Checker<'c> {
    case: &'c Case,
    result: &'c JobResult,
    log: &'c str,
    /// Node of the tested step. `None` means that it was not started.
    node: Option<&'c StepNode>,
    mismatches: Vec<Mismatch>,
}

pub(super) fn check(case: &Case, result: &JobResult, log: &str, work_dir: &Path) -> Vec<Mismatch> {
    // The levels of the tree are the job, the step file and the tested step.
    let node = result.tree.steps.first().and_then(|file| file.steps.first());
    let mut checker = Checker { case, result, log, node, mismatches: Vec::new() };
    checker.check_outcome();
    let call = node.and_then(|node| node.call.as_deref()).cloned().unwrap_or_default();
    let expect = &case.test.expect;
    checker.check_values("output", &expect.outputs, &call.outputs);
    checker.check_strings("exported variable", &expect.exports, &call.exports);
    checker.check_log();
    for (path, expected) in &expect.files {
        if let Err(message) = check_file(&work_dir.join(path), path, &expected.value) {
            checker.add(expected.referenced.line(), message);
        }
    }
    for expected in &expect.steps {
        checker.check_step(expected.referenced.line(), &expected.value);
    }
    checker.mismatches
}

impl Checker<'_> {
    fn add(&mut self, line: u64, message: String) {
        self.mismatches.push(Mismatch { line, message });
    }

    fn check_outcome(&mut self) {
        let expect = &self.case.test.expect;
        let has_failed = self.result.tree.status != StepStatus::Success;
        let error = &self.result.message;
        match (expect.status, has_failed) {
            (ExpectedStatus::Success, true) => self.add(self.case.line, format!("the step failed: {error}")),
            (ExpectedStatus::Failure, false) => {
                self.add(self.case.line, "the step succeeded, but a failure is expected".to_owned());
            }
            _ => {}
        }
        if let Some(expected) = &expect.exit_code {
            let code = match self.node.and_then(|node| node.exit_code) {
                None if !has_failed => Some(0),
                code => code,
            };
            if code != Some(expected.value) {
                let code = code.map_or("none".to_owned(), |code| code.to_string());
                self.add(expected.referenced.line(), format!("the exit code is {code}, expected {}", expected.value));
            }
        }
        if let Some(expected) = &expect.error
            && !matches(&expected.value, error)
        {
            self.add(expected.referenced.line(), format!("the error {error:?} does not match {:?}", expected.value));
        }
    }

    fn check_log(&mut self) {
        let expect = &self.case.test.expect;
        for expected in &expect.log {
            if !matches(&expected.value, self.log) {
                self.add(expected.referenced.line(), format!("the log does not match {:?}", expected.value));
            }
        }
        for expected in &expect.log_excludes {
            if matches(&expected.value, self.log) {
                self.add(
                    expected.referenced.line(),
                    format!("the log matches {:?}, which is excluded", expected.value),
                );
            }
        }
    }

    fn check_values(&mut self, kind: &str, expected: &IndexMap<String, Spanned<Value>>, values: &Map<String, Value>) {
        for (name, expected) in expected {
            let line = expected.referenced.line();
            match values.get(name) {
                None => self.add(line, format!("there is no {kind} {name:?}")),
                Some(value) if !is_equal(value, &expected.value) => {
                    self.add(line, format!("{kind} {name:?} is {value}, expected {}", expected.value));
                }
                Some(_) => {}
            }
        }
    }

    fn check_strings(&mut self, kind: &str, expected: &IndexMap<String, Spanned<String>>, values: &Map<String, Value>) {
        let value = |(name, text): (&String, &Spanned<String>)| {
            let value = Value::String(text.value.clone());
            (name.clone(), Spanned::new(value, text.referenced, text.defined))
        };
        self.check_values(kind, &expected.iter().map(value).collect(), values);
    }

    fn check_step(&mut self, line: u64, expected: &ExpectedStep) {
        let name = &expected.step;
        let found = self.node.and_then(|node| find(&node.steps, "", name));
        // A step that was skipped was not called.
        let is_called = found.is_some_and(|node| node.status != StepStatus::Skipped);
        let (node, true) = (found.filter(|_| is_called), expected.called) else {
            if is_called {
                self.add(line, format!("step {name:?} was called, but the test does not expect it"));
            }
            return;
        };
        let Some(node) = node else { return self.add(line, format!("step {name:?} was not called")) };
        if let Some(status) = expected.status.filter(|status| !status.matches(node.status)) {
            let (expected, found) = match status {
                ExpectedStatus::Success => ("success", "failed"),
                ExpectedStatus::Failure => ("failure", "succeeded"),
            };
            let error = if node.message.is_empty() { String::new() } else { format!(": {}", node.message) };
            self.add(line, format!("step {name:?} {found}, expected {expected}{error}"));
        }
        let call = node.call.as_deref().cloned().unwrap_or_default();
        self.check_values(&format!("input of step {name:?}"), &expected.inputs, &call.inputs);
        self.check_values(&format!("output of step {name:?}"), &expected.outputs, &call.outputs);
        self.check_strings(&format!("variable of step {name:?}"), &expected.env, &call.env);
    }
}

/// Returns the first step whose path matches the pattern `name`, as in [`matches_path`].
fn find<'n>(nodes: &'n [StepNode], parent: &str, name: &str) -> Option<&'n StepNode> {
    nodes.iter().find_map(|node| {
        let path = if parent.is_empty() { node.name.clone() } else { format!("{parent}/{}", node.name) };
        if matches_path(name, &path) { Some(node) } else { find(&node.steps, &path, name) }
    })
}

/// Returns the difference from the expectation as an error.
fn check_file(path: &Path, name: &str, expected: &ExpectedFile) -> Result<(), String> {
    let metadata = std::fs::symlink_metadata(path);
    match (metadata, expected.exists) {
        (Err(_), false) => return Ok(()),
        (Ok(_), false) => return Err(format!("the file {name:?} exists, but the test expects that it does not")),
        (Err(error), true) => return Err(format!("the file {name:?} cannot be read: {error}")),
        (Ok(_), true) if expected.content.is_none() && expected.matches.is_none() => return Ok(()),
        (Ok(_), true) => {}
    }
    let limit = muster_files::Limit { bytes: MAX_FILE_BYTES, remedy: "compare its checksum in the step instead" };
    let bytes = muster_files::open(path).and_then(|file| muster_files::read_open(file, path, limit));
    let bytes = bytes.map_err(|error| error.to_string())?;
    let content = String::from_utf8_lossy(&bytes);
    if let Some(expected) = expected.content.as_ref().filter(|expected| **expected != content) {
        return Err(format!("the file {name:?} contains {content:?}, expected {expected:?}"));
    }
    match expected.matches.as_ref().filter(|pattern| !matches(pattern, &content)) {
        Some(pattern) => Err(format!("the file {name:?} contains {content:?}, which does not match {pattern:?}")),
        None => Ok(()),
    }
}

/// Returns whether a pattern, which is known to be valid, matches.
fn matches(text: &str, haystack: &str) -> bool {
    pattern(text).is_ok_and(|pattern| pattern.is_match(haystack))
}

/// Returns whether two values are equal. Numbers are compared by value: 1 equals 1.0.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| is_equal(a, b)))
        }
        _ => a == b,
    }
}
