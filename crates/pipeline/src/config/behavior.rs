//! `when`, `start_in`, `allow_failure`, `retry`, `tags` and `coverage`.

use std::time::Duration;

use muster_job::FailureReason;

use crate::config::keywords;
use crate::config::parsing::{Fields, Path, Problems, choice, duration, integer, text, text_list};
use crate::model::{AllowFailure, Retry, When};
use crate::node::{Node, Value};

const MAX_START_IN: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Number of tags that a job must stay below.
const TAG_LIMIT: usize = 50;

pub(crate) fn when(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<When> {
    parse_when(node, at, &["on_success", "on_failure", "always", "manual", "delayed"], problems)
}

/// Parses `when` of a bridge. Rejects `delayed`, which needs `start_in`, a key that a bridge cannot have.
pub(crate) fn bridge_when(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<When> {
    parse_when(node, at, &["on_success", "on_failure", "always", "manual"], problems)
}

fn parse_when(node: &Node, at: Path<'_>, allowed: &[&str], problems: &mut Problems) -> Option<When> {
    if let Some(word @ ("never" | "delayed")) = node.as_str()
        && !allowed.contains(&word)
    {
        let message = format!("should be one of: {}", allowed.join(", "));
        problems.report_with_help(node.span, at, message, format!("use `{word}` in `rules`"));
        return None;
    }
    choice(node, at, allowed, problems).and_then(|word| parse_when_value(&word))
}

/// Returns `None` for `never` and for invalid texts.
pub(crate) fn parse_when_value(word: &str) -> Option<When> {
    match word {
        "on_success" => Some(When::OnSuccess),
        "on_failure" => Some(When::OnFailure),
        "always" => Some(When::Always),
        "manual" => Some(When::Manual),
        "delayed" => Some(When::Delayed),
        _ => None,
    }
}

/// `delayed` is true for `when: delayed`, which requires `start_in`.
pub(crate) fn start_in(fields: &Fields<'_>, delayed: bool, problems: &mut Problems) -> Option<Duration> {
    let at = fields.at();
    match (fields.get("start_in"), delayed) {
        (None, false) => None,
        (None, true) => {
            let message = "start in should be a duration, because `when` is `delayed`";
            problems.report_with_help(fields.span(), at, message, "add `start_in`, for example `start_in: 5 minutes`");
            None
        }
        (Some(node), false) => {
            problems.report_with_help(node.span, at, "start in must be blank", "`start_in` needs `when: delayed`");
            None
        }
        (Some(node), true) => {
            let duration = duration(node, at.key("start_in"), problems)?;
            if duration.is_zero() || duration > MAX_START_IN {
                problems.report(node.span, at.key("start_in"), "should be 1 second to 1 week");
                return None;
            }
            Some(duration)
        }
    }
}

pub(crate) fn allow_failure(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<AllowFailure> {
    match &node.value {
        Value::Bool(true) => Some(AllowFailure::Yes),
        Value::Bool(false) => Some(AllowFailure::No),
        Value::Map(_) => {
            let fields = Fields::parse(node, at, &["exit_codes"], problems)?;
            let Some(codes) = fields.get("exit_codes") else {
                problems.report(node.span, at, "config should have the key `exit_codes`");
                return None;
            };
            exit_codes(codes, at.key("exit_codes"), problems).map(AllowFailure::ExitCodes)
        }
        _ => {
            let message = format!("should be a boolean value or a map with `exit_codes`, but it is {}", node.kind());
            problems.report(node.span, at, message);
            None
        }
    }
}

/// Accepts an integer, or a non-empty list of unique integers.
fn exit_codes(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<i32>> {
    let single = std::slice::from_ref(node);
    let items = node.as_list().unwrap_or(single);
    let mut codes = Vec::with_capacity(items.len());
    let mut seen = std::collections::HashSet::new();
    let mut is_valid = !items.is_empty();
    for item in items {
        match item.value {
            Value::Int(code) => match i32::try_from(code) {
                Ok(code) if seen.insert(code) => codes.push(code),
                _ => is_valid = false,
            },
            _ => is_valid = false,
        }
    }
    if !is_valid {
        problems.report(node.span, at, "should be an integer or a non-empty array of unique integers");
    }
    is_valid.then_some(codes)
}

pub(crate) fn retry(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Retry> {
    if node.as_map().is_none() {
        return Some(Retry { max: retry_max(node, at, problems)?, always: true, ..Retry::default() });
    }
    let fields = Fields::parse(node, at, &["max", "when", "exit_codes"], problems)?;
    let max = fields.get("max").map_or(Some(0), |node| retry_max(node, at.key("max"), problems));
    let reasons = fields.get("when").map(|node| retry_reasons(node, at.key("when"), problems)).unwrap_or_default();
    let codes = fields.get("exit_codes");
    let exit_codes = codes.and_then(|node| exit_codes(node, at.key("exit_codes"), problems)).unwrap_or_default();
    // `{max: 1}` without other keys retries after any failure (docs/spec/pipeline-yaml.md, section 9, point 4).
    let unconditional = fields.get("when").is_none() && codes.is_none();
    Some(Retry {
        max: max?,
        always: unconditional || reasons.iter().any(|word| word == "always"),
        when: reasons.iter().filter(|word| *word != "always").map(|word| FailureReason::from_wire(word)).collect(),
        exit_codes,
    })
}

fn retry_max(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<u32> {
    integer(node, at, 0..=2, problems).and_then(|max| u32::try_from(max).ok())
}

fn retry_reasons(node: &Node, at: Path<'_>, problems: &mut Problems) -> Vec<String> {
    let single = std::slice::from_ref(node);
    let items = node.as_list().unwrap_or(single);
    items.iter().filter_map(|item| choice(item, at, keywords::RETRY_WHEN, problems)).collect()
}

pub(crate) fn tags(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let tags = text_list(node, at, problems)?;
    if tags.len() >= TAG_LIMIT {
        let message = format!("config must be less than the limit of {TAG_LIMIT} tags, but it has {}", tags.len());
        problems.report(node.span, at, message);
        return None;
    }
    Some(tags)
}

/// Returns the pattern without its slashes.
pub(crate) fn coverage(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<String> {
    let text = text(node, at, problems)?;
    let pattern = text.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')).filter(|inner| !inner.is_empty());
    let Some(pattern) = pattern else {
        let help = format!("write `coverage: '/{}/'`", text.trim_matches('/'));
        problems.report_with_help(node.span, at, "config must be a regular expression enclosed in slashes", help);
        return None;
    };
    if let Err(error) = problems.patterns.compile(pattern, "") {
        problems.report(node.span, at, error);
        return None;
    }
    Some(pattern.to_owned())
}
