//! Human-readable form of calls and results.

use std::fmt::Write as _;

use muster_agent_api::result::{CallRecord, StepNode, StepStatus};
use serde_json::{Map, Value};

use crate::ci::ui;

/// Formats the call of a step. Each line begins with `indent`.
pub(super) fn call(call: &CallRecord, indent: &str) -> String {
    let mut text = String::new();
    if !call.command.is_empty() {
        let _ = writeln!(text, "{indent}command: {}", call.command.join(" "));
    }
    if !call.work_dir.is_empty() {
        let _ = writeln!(text, "{indent}directory: {}", call.work_dir);
    }
    for (title, values) in
        [("inputs", &call.inputs), ("environment", &call.env), ("outputs", &call.outputs), ("exports", &call.exports)]
    {
        if !values.is_empty() {
            let _ = writeln!(text, "{indent}{title}:");
            text.push_str(&self::values(values, &format!("{indent}  ")));
        }
    }
    text
}

/// Formats each value as one line that begins with `indent`.
pub(super) fn values(values: &Map<String, Value>, indent: &str) -> String {
    values.iter().map(|(name, value)| format!("{indent}{name} = {}\n", one_line(value))).collect()
}

/// Formats a value as one line. A string without line breaks is not changed. Everything else is written as JSON.
fn one_line(value: &Value) -> String {
    match value {
        Value::String(text) if !text.contains('\n') => text.clone(),
        other => other.to_string(),
    }
}

/// Formats the result of a step and of the steps in it. `depth` is the number of steps that contain the step.
pub(super) fn result(node: &StepNode, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    let (style, status) = match node.status {
        StepStatus::Success => (ui::GOOD, "success"),
        StepStatus::Failure => (ui::BAD, "failure"),
        StepStatus::Cancelled => (ui::WARN, "canceled"),
        StepStatus::Skipped => (ui::DIM, "skipped"),
    };
    let mut line = format!("{indent}{} {} {:.3}s", ui::paint(style, status), node.name, seconds(node.duration_ms));
    if let Some(code) = node.exit_code {
        let _ = write!(line, ", exit code {code}");
    }
    if !node.message.is_empty() && node.steps.is_empty() {
        let _ = write!(line, ": {}", node.message);
    }
    line.push('\n');
    if let Some(record) = &node.call {
        if !record.step.is_empty() {
            let _ = writeln!(line, "{indent}    step: {}", one_line(&Value::String(record.step.clone())));
        }
        line.push_str(&call(record, &format!("{indent}    ")));
        if record.truncated {
            let _ = writeln!(line, "{indent}    (cut, because the result tree would be too large)");
        }
    }
    line + &node.steps.iter().map(|step| result(step, depth + 1)).collect::<String>()
}

#[expect(clippy::cast_precision_loss, reason = "a duration has few digits")]
fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}
