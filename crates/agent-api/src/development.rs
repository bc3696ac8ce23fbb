//! Options of a job for authors of steps: breakpoints, fake steps, and large records. Not for jobs of a coordinator.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::result::{MAX_FULL_RESULT_BYTES, MAX_RESULT_BYTES};

/// Options of a job for authors of steps.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Development {
    /// Options of the debugger. `None` means that the job cannot be paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug: Option<DebugOptions>,
    /// Steps that replace called steps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fakes: Vec<FakeStep>,
    /// Whether the records of calls ([`crate::plan::JobPlan::record_calls`]) have no limit of their own. Only
    /// [`MAX_FULL_RESULT_BYTES`] then limits the result.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub full_records: bool,
}

impl Development {
    /// Returns whether no option is set.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the maximum size of the job's result, in bytes.
    #[must_use]
    pub fn max_result_bytes(&self) -> usize {
        if self.full_records { MAX_FULL_RESULT_BYTES } else { MAX_RESULT_BYTES }
    }
}

/// Options of a job that a debugger can pause.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DebugOptions {
    /// Initial breakpoints.
    pub breakpoints: Vec<Breakpoint>,
    /// Whether the job pauses before its first step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pause_at_start: bool,
    /// Time that a paused job waits without a debugger, in milliseconds. 0 means 30 s.
    pub attach_timeout_ms: u64,
}

/// Step that replaces another step, without a process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FakeStep {
    /// Replaced step: its reference, or its path as in [`matches_path`].
    pub step: String,
    /// Outputs of the step.
    pub outputs: Map<String, Value>,
    /// Variables that the step exports.
    pub exports: BTreeMap<String, String>,
    /// Output for the log.
    pub log: String,
    /// Exit code. 0 means success.
    pub exit_code: i32,
}

/// Condition for pausing a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakWhen {
    /// Before the step, when its inputs and environment are known.
    Before,
    /// After the step.
    After,
    /// After a failure of the step.
    Failure,
}

impl BreakWhen {
    fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::Failure => "failure",
        }
    }
}

/// Breakpoint, as text `before:STEP`, `after:STEP`, `failure:STEP` or `failure`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Breakpoint {
    /// Condition to pause.
    pub when: BreakWhen,
    /// Pattern of step paths, as in [`matches_path`].
    pub step: String,
}

/// Invalid text form of a breakpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid breakpoint; use `before:STEP`, `after:STEP`, `failure:STEP` or `failure`")]
pub struct BreakpointError(String);

impl FromStr for Breakpoint {
    type Err = BreakpointError;

    fn from_str(text: &str) -> Result<Self, BreakpointError> {
        let (when, step) = text.split_once(':').unwrap_or((text, ""));
        let when = match when {
            "before" if !step.is_empty() => BreakWhen::Before,
            "after" if !step.is_empty() => BreakWhen::After,
            "failure" => BreakWhen::Failure,
            _ => return Err(BreakpointError(text.to_owned())),
        };
        let step = if step.is_empty() { ANY } else { step };
        Ok(Self { when, step: step.to_owned() })
    }
}

impl TryFrom<String> for Breakpoint {
    type Error = BreakpointError;

    fn try_from(text: String) -> Result<Self, BreakpointError> {
        text.parse()
    }
}

impl From<Breakpoint> for String {
    fn from(breakpoint: Breakpoint) -> Self {
        breakpoint.to_string()
    }
}

impl fmt::Display for Breakpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.when.name(), self.step)
    }
}

/// Pattern that matches every step.
pub const ANY: &str = "*";

/// Returns whether `pattern` is `path`, the end of `path`, or [`ANY`].
///
/// A path consists of the steps' names, outermost first, with `/` between them. A pattern consists of whole names, and
/// may omit matrix values such as `: [linux, 1]`.
#[must_use]
pub fn matches_path(pattern: &str, path: &str) -> bool {
    let ends_with = |path: &str| path.strip_suffix(pattern).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'));
    pattern == ANY || ends_with(path) || ends_with(&without_matrix_values(path))
}

fn without_matrix_values(path: &str) -> String {
    let mut names = String::new();
    let mut rest = path;
    while let Some((before, values)) = rest.split_once(": [") {
        // Values may contain slashes and brackets. They end at the first `]` before a slash, or at the end of the path.
        let end = values.find("]/").or_else(|| values.ends_with(']').then_some(values.len() - 1));
        let Some(after) = end.and_then(|end| values.get(end + 1..)) else { break };
        names.push_str(before);
        rest = after;
    }
    names + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_whole_names_at_the_end_of_a_path() {
        for (pattern, path, expected) in [
            ("compile", "build/compile", true),
            ("build/compile", "build/compile", true),
            ("*", "build", true),
            ("pile", "build/compile", false),
            ("build", "build/compile", false),
            ("", "build", false),
            ("build", "build: [linux, 1]", true),
            ("build: [linux, 1]", "build: [linux, 1]", true),
            ("build/compile", "build: [linux/amd64]/compile: [1]", true),
            ("build", "build: [linux", false),
            ("linux", "build: [linux]", false),
        ] {
            assert_eq!(matches_path(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn breakpoint_has_a_text_form() {
        for (text, canonical) in [("before:a/b", "before:a/b"), ("failure", "failure:*"), ("after:*", "after:*")] {
            assert_eq!(text.parse::<Breakpoint>().unwrap().to_string(), canonical);
        }
        for text in ["before", "before:", "", "when:a"] {
            assert!(
                text.parse::<Breakpoint>().unwrap_err().to_string().contains("is not a valid breakpoint"),
                "{text}"
            );
        }
    }
}
