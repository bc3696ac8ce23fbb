//! Muster's own keys of an entry, below the key `muster`.
//!
//! GitLab's step-runner ignores the key `muster`, and GitLab rejects it in the `run:` list of a pipeline.

use std::time::Duration;

use muster_agent_api::plan::{Policy, When};
use muster_job::{GoDuration, is_identifier, milliseconds};
use serde_json::{Map, Value};

use crate::yaml::Node;

const KEYS: [&str; 8] = ["if", "when", "retry", "timeout", "allow_failure", "section", "parallel", "matrix"];
/// One less than the maximum number of attempts in a plan.
const MAX_RETRIES: u64 = 9;
const MAX_PARALLEL: u64 = 32;

/// Muster's own keys of an entry.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Extension {
    /// Boolean, or text with an expression. `None` means that the step runs.
    pub condition: Option<Value>,
    /// Conditions and limits under which the engine runs the step.
    pub policy: Policy,
    /// Delay before the second attempt, doubled before each further attempt. `None` means the delay of the job's plan.
    pub retry_delay: Option<Duration>,
    /// Maximum number of steps that run at the same time, including this step. `None` means that the step runs alone.
    pub parallel: Option<usize>,
    /// Mappings from names to lists of values, or to texts with expressions that return lists. The step runs once for
    /// each combination of the values in a mapping. An empty list means that the step runs once.
    pub matrix: Vec<Map<String, Value>>,
}

/// Error in one of Muster's own keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExtensionError {
    /// The value of the key `muster` is not a mapping.
    #[error("`muster` must be a mapping, with some of the keys {keys}", keys = KEYS.join(", "))]
    NotMapping,
    /// The key does not exist.
    #[error("unknown key `muster.{0}`; use one of {keys}", keys = KEYS.join(", "))]
    UnknownKey(String),
    /// A value is invalid.
    #[error("`muster.{key}` must be {expected}")]
    Value {
        /// Name of the key.
        key: &'static str,
        /// Valid values, with their article.
        expected: &'static str,
    },
}

fn invalid_value(key: &'static str, expected: &'static str) -> ExtensionError {
    ExtensionError::Value { key, expected }
}

impl Extension {
    pub(super) const KEY: &'static str = "muster";

    pub(super) fn parse(node: Option<&Node>) -> Result<Self, ExtensionError> {
        let mut parsed = Self::default();
        let fields = match node {
            None => return Ok(parsed),
            Some(Node::Map(fields)) => fields,
            Some(_) => return Err(ExtensionError::NotMapping),
        };
        for (key, value) in fields {
            match key.as_str() {
                "if" => parsed.condition = Some(condition(value)?),
                "when" => parsed.policy.when = when(value)?,
                "retry" => (parsed.policy.attempts, parsed.retry_delay) = retry(value)?,
                "timeout" => {
                    let timeout = duration(value).filter(|timeout| !timeout.is_zero());
                    let timeout =
                        timeout.ok_or_else(|| invalid_value("timeout", "a duration, such as `90s` or `1h30m`"))?;
                    parsed.policy.timeout_ms = milliseconds(timeout).max(1);
                }
                "allow_failure" => {
                    let value = boolean(value).ok_or_else(|| invalid_value("allow_failure", "true or false"))?;
                    parsed.policy.allow_failure = value;
                }
                "section" => {
                    let title = value.as_str().filter(|title| is_title(title));
                    parsed.policy.title =
                        title.ok_or_else(|| invalid_value("section", "a title of one line"))?.to_owned();
                }
                "parallel" => parsed.parallel = parallel(value)?,
                "matrix" => parsed.matrix = matrix(value)?,
                other => return Err(ExtensionError::UnknownKey(other.to_owned())),
            }
        }
        Ok(parsed)
    }
}

fn boolean(node: &Node) -> Option<bool> {
    if let Node::Scalar { value: Value::Bool(value), .. } = node { Some(*value) } else { None }
}

fn count(node: &Node) -> Option<u64> {
    if let Node::Scalar { value: Value::Number(number), .. } = node { number.as_u64() } else { None }
}

/// Returns the duration in a text. `None` means that the text is invalid, such as a number without a unit.
fn duration(node: &Node) -> Option<Duration> {
    match GoDuration::parse(node.as_str()?) {
        Some(GoDuration::NonNegative(duration)) => Some(duration),
        Some(GoDuration::Negative) | None => None,
    }
}

fn is_title(title: &str) -> bool {
    !title.trim().is_empty() && !title.contains(char::is_control)
}

fn condition(node: &Node) -> Result<Value, ExtensionError> {
    let expression = || node.as_str().map(str::trim).filter(|text| is_expression(text)).map(Value::from);
    boolean(node)
        .map(Value::Bool)
        .or_else(expression)
        .ok_or_else(|| invalid_value("if", "one expression, such as `${{ vars.CI_COMMIT_BRANCH == \"main\" }}`"))
}

/// Returns whether a text is one expression. The result of two expressions would be a text, which counts as true.
fn is_expression(text: &str) -> bool {
    let inner = text.strip_prefix("${{").and_then(|rest| rest.strip_suffix("}}"));
    inner.is_some_and(|inner| !inner.contains("${{") && !inner.contains("}}"))
}

fn when(node: &Node) -> Result<When, ExtensionError> {
    match node.as_str() {
        Some("on_success") => Ok(When::OnSuccess),
        Some("on_failure") => Ok(When::OnFailure),
        Some("always") => Ok(When::Always),
        _ => Err(invalid_value("when", "one of on_success, on_failure, always")),
    }
}

/// Returns the maximum number of attempts, and the delay before the second attempt.
fn retry(node: &Node) -> Result<(u32, Option<Duration>), ExtensionError> {
    let invalid = || {
        invalid_value(
            "retry",
            "a number from 0 to 9, or a mapping of `max` and `delay`, such as `{max: 2, delay: 10s}`",
        )
    };
    let (max, delay) = match node {
        Node::Map(fields) => {
            if fields.keys().any(|key| key != "max" && key != "delay") {
                return Err(invalid());
            }
            let delay = fields.get("delay").map(|delay| duration(delay).ok_or_else(invalid)).transpose()?;
            (fields.get("max"), delay)
        }
        node => (Some(node), None),
    };
    let max = max.and_then(count).filter(|max| *max <= MAX_RETRIES).ok_or_else(invalid)?;
    Ok((u32::try_from(max).unwrap_or_default() + 1, delay))
}

fn parallel(node: &Node) -> Result<Option<usize>, ExtensionError> {
    let max = match (boolean(node), count(node)) {
        (Some(false), _) => return Ok(None),
        (Some(true), _) => Some(MAX_PARALLEL),
        (None, count) => count.filter(|count| (1..=MAX_PARALLEL).contains(count)),
    };
    let max = max.ok_or_else(|| invalid_value("parallel", "true, false, or a number from 1 to 32"))?;
    Ok(usize::try_from(max).ok())
}

fn matrix(node: &Node) -> Result<Vec<Map<String, Value>>, ExtensionError> {
    let invalid = || {
        invalid_value("matrix", "a mapping of names to lists, such as `{os: [linux, mac]}`, or a list of such mappings")
    };
    let mapping = |node: &Node| {
        let fields = node.as_map().filter(|fields| !fields.is_empty()).ok_or_else(invalid)?;
        fields
            .iter()
            .map(|(name, values)| Ok((name.clone(), matrix_values(name, values).ok_or_else(invalid)?)))
            .collect()
    };
    match node {
        Node::List(mappings) if !mappings.is_empty() => mappings.iter().map(mapping).collect(),
        node => Ok(vec![mapping(node)?]),
    }
}

/// Returns the values for a name: a list that is not empty, or a text that is one expression. `None` means that the
/// name or its values are invalid.
fn matrix_values(name: &str, node: &Node) -> Option<Value> {
    let is_expression = node.as_str().map(str::trim).is_some_and(is_expression);
    let is_list = matches!(node, Node::List(values) if !values.is_empty());
    let value = node.to_json().ok()?;
    (is_identifier(name) && (is_expression || is_list)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::parse_list;

    fn parse(keys: &str) -> Result<Extension, String> {
        let list = format!("- name: a\n  script: ls\n  muster: {keys}\n");
        parse_list(&list)
            .map(|mut entries| entries.remove(0).extension)
            .map_err(|error| muster_job::error_chain(&error))
    }

    #[test]
    fn valid_keys_set_the_policy_and_the_other_fields() {
        let extension = parse(
            "{if: '${{ vars.X }}', when: always, retry: {max: 2, delay: 100ms}, timeout: 1m30s, allow_failure: true, \
             section: Build it, parallel: 4, matrix: {os: [linux, mac], level: '${{ inputs.levels }}'}}",
        )
        .unwrap();
        let policy = Policy {
            title: "Build it".to_owned(),
            when: When::Always,
            attempts: 3,
            timeout_ms: 90_000,
            allow_failure: true,
            ..Policy::default()
        };
        assert_eq!((extension.policy, extension.parallel), (policy, Some(4)));
        assert_eq!(extension.retry_delay, Some(Duration::from_millis(100)));
        assert_eq!(extension.condition, Some("${{ vars.X }}".into()));
        assert_eq!(
            serde_json::to_value(&extension.matrix).unwrap(),
            serde_json::json!([
                {"os": ["linux", "mac"], "level": "${{ inputs.levels }}"}
            ])
        );
        assert_eq!(parse("{retry: 1}").unwrap().policy.attempts, 2);
        assert_eq!(parse("{parallel: true}").unwrap().parallel, Some(32));
        assert_eq!(parse("{if: false}").unwrap().condition, Some(Value::Bool(false)));
        assert_eq!(parse("{}"), Ok(Extension::default()));
    }

    #[test]
    fn error_of_an_invalid_value_names_the_key_and_the_valid_values() {
        for (keys, message) in [
            ("{retries: 2}", "unknown key `muster.retries`; use one of if, when, retry"),
            ("yes", "`muster` must be a mapping"),
            ("{if: main}", "`muster.if` must be one expression"),
            ("{if: '${{ vars.X }} && ${{ vars.Y }}'}", "`muster.if` must be one expression"),
            ("{if: '${{ vars.X }} and }}'}", "`muster.if` must be one expression"),
            ("{when: manual}", "`muster.when` must be one of on_success"),
            ("{retry: 10}", "`muster.retry` must be a number from 0 to 9"),
            ("{retry: {max: 1, when: always}}", "`muster.retry` must be"),
            ("{retry: -1}", "`muster.retry` must be"),
            ("{timeout: 90}", "`muster.timeout` must be a duration"),
            ("{timeout: 0s}", "`muster.timeout` must be a duration"),
            ("{allow_failure: 1}", "`muster.allow_failure` must be true or false"),
            ("{section: \"a\\nb\"}", "`muster.section` must be a title of one line"),
            ("{parallel: 0}", "`muster.parallel` must be true, false, or a number"),
            ("{matrix: {os: []}}", "`muster.matrix` must be a mapping"),
            ("{matrix: {o-s: [a]}}", "`muster.matrix` must be a mapping"),
            ("{matrix: []}", "`muster.matrix` must be a mapping"),
            ("{matrix: {}}", "`muster.matrix` must be a mapping"),
        ] {
            let error = parse(keys).unwrap_err();
            assert!(error.contains("\"a\": ") && error.contains(message), "{keys}: {error}");
        }
    }
}
