//! `script`, `before_script`, `after_script`, `hooks` and `run`.

use crate::config::parsing::{Fields, MAX_LIST_NESTING, Path, Problems, flat_list, text};
use crate::node::{Node, Value};

/// Parses a script: a string, or a list of strings whose nested lists are flattened. As on GitLab, numbers and booleans
/// are errors.
pub(crate) fn script(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    match &node.value {
        Value::String(line) => Some(vec![line.to_string()]),
        Value::List(_) => lines(node, at, problems),
        _ => {
            problems.report(node.span, at, expected_strings_message(&format!("it is {}", node.kind())));
            None
        }
    }
}

/// Returns the message for a script of a wrong type. `actual` is the end of its sentence, such as `it is a number`.
fn expected_strings_message(actual: &str) -> String {
    format!("config should be a string or a nested array of strings up to {MAX_LIST_NESTING} levels deep, but {actual}")
}

fn lines(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let mut all = Vec::new();
    let mut is_valid = true;
    for item in flat_list(node, at, problems)? {
        if let Some(line) = item.as_str() {
            all.push(line.to_owned());
            continue;
        }
        is_valid = false;
        let message = expected_strings_message(&format!("it contains {}", item.kind()));
        match item.value {
            Value::Map(_) => {
                problems.report_with_help(
                    item.span,
                    at,
                    message,
                    "a line that contains `: ` is a map in YAML; put it into quotes",
                );
            }
            _ => problems.report_with_help(item.span, at, message, "put the line into quotes"),
        }
    }
    is_valid.then_some(all)
}

/// Parses the `script` of a job, which cannot be blank.
pub(crate) fn main_script(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let lines = script(node, at, problems)?;
    if lines.iter().all(|line| line.trim().is_empty()) {
        problems.report(node.span, at, "can't be blank");
        return None;
    }
    Some(lines)
}

pub(crate) fn hooks(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let fields = Fields::parse(node, at, &["pre_get_sources_script"], problems)?;
    let hook = fields.get("pre_get_sources_script")?;
    script(hook, at.key("pre_get_sources_script"), problems)
}

/// Checks the steps of `run`, and returns them as JSON. Each step must have a name and exactly one of `script`, `step`
/// and `func`.
pub(crate) fn run(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<serde_json::Value> {
    const WORK_KEYS: &[&str] = &["script", "step", "func"];
    let Some(steps) = node.as_list() else {
        problems.report(node.span, at, format_args!("config should be an array of steps, but it is {}", node.kind()));
        return None;
    };
    if steps.is_empty() {
        problems.report(node.span, at, "can't be blank");
        return None;
    }
    let before = problems.error_count();
    for step in steps {
        let Some(fields) =
            Fields::parse(step, at, &["name", "script", "step", "func", "env", "inputs", "muster"], problems)
        else {
            continue;
        };
        if let Some(name) = fields.required_text("name", problems).filter(|name| !is_step_name(name)) {
            let message =
                format!("name `{name}` should consist of letters, digits and `_`, and not start with a digit");
            problems.report(fields.key_span("name"), at, message);
        }
        let kinds: Vec<&str> = WORK_KEYS.iter().copied().filter(|kind| fields.get(kind).is_some()).collect();
        if kinds.len() != 1 {
            let message = format!("entry should have exactly one of: {}", WORK_KEYS.join(", "));
            problems.report(step.span, at, message);
        }
        if let Some(line) = fields.get("script") {
            let _ = text(line, at.key("script"), problems);
        }
        for key in ["step", "func"] {
            if let Some(reference) = fields.get(key) {
                check_step_reference(reference, at.key(key), problems);
            }
        }
        // GitLab does not have the key `muster`. The agent checks its content (docs/reference/steps.md).
        for key in ["env", "inputs", "muster"] {
            if let Some(map) = fields.get(key).filter(|map| map.as_map().is_none()) {
                problems.report(
                    map.span,
                    at.key(key),
                    format_args!("config should be a map, but it is {}", map.kind()),
                );
            }
        }
    }
    (problems.error_count() == before).then(|| crate::config::parsing::json(node))
}

fn is_step_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Accepts a string, or a map with `git` or `oci`.
fn check_step_reference(node: &Node, at: Path<'_>, problems: &mut Problems) {
    if node.as_str().is_some() {
        return;
    }
    let Some(fields) = Fields::parse(node, at, &["git", "oci"], problems) else { return };
    match (fields.get("git"), fields.get("oci")) {
        (Some(git), None) => {
            let keys = ["url", "rev", "dir", "file"];
            if let Some(git) = Fields::parse(git, at.key("git"), &keys, problems) {
                let _ = git.required_text("url", problems);
            }
        }
        (None, Some(oci)) => {
            let keys = ["registry", "repository", "tag", "dir", "file"];
            let _ = Fields::parse(oci, at.key("oci"), &keys, problems);
        }
        _ => problems.report(node.span, at, "config should have exactly one of: git, oci"),
    }
}
