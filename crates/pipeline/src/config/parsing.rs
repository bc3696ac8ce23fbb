//! Code that all keyword parsers share.
//!
//! A function that reads a node reports an invalid node and returns `None`. The parser continues, so that all problems
//! of a file are reported at once.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use crate::diagnostic::{Diagnostic, Severity};
use crate::node::{Map, Node, Span, Value};
use crate::patterns::Patterns;
use crate::suggest::closest;

/// Maximum depth of nested lists in keywords that flatten them, such as `script`, `rules` and `stages`
/// (docs/spec/pipeline-yaml.md, section 1.0).
pub(crate) const MAX_LIST_NESTING: usize = 10;

const MAX_DIAGNOSTICS: usize = 1000;
/// Number of errors after which unknown keys and names get no suggestions.
const MAX_ERRORS_WITH_SUGGESTIONS: usize = 20;

/// Path of a value in the configuration for messages, such as `jobs:test:cache:key`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    name: &'a str,
}

impl<'a> Path<'a> {
    pub(crate) fn root(name: &'a str) -> Self {
        Self { parent: None, name }
    }

    pub(crate) fn key(&'a self, name: &'a str) -> Self {
        Self { parent: Some(self), name }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}:")?;
        }
        f.write_str(self.name)
    }
}

/// Collector of diagnostics. Stores a message only once per position, because `default` values are parsed again for
/// every job that inherits them.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    list: Vec<Diagnostic>,
    stored_errors: usize,
    errors: usize,
    seen: HashSet<(Option<Span>, String)>,
    /// Positions of the errors of loading. Later diagnostics at these positions are dropped.
    load_error_spans: HashSet<Span>,
    pub(crate) patterns: Patterns,
}

impl Problems {
    pub(crate) fn with_load_diagnostics(diagnostics: &[Diagnostic]) -> Self {
        let mut problems = Self::default();
        for diagnostic in diagnostics {
            problems.push(diagnostic.clone());
        }
        let errors = diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
        problems.load_error_spans = errors.filter_map(|diagnostic| diagnostic.span).collect();
        problems
    }

    pub(crate) fn check_patterns_budget(&mut self, span: Span) {
        if let Some(problem) = self.patterns.budget_error(span) {
            self.push(problem);
        }
    }

    pub(crate) fn push(&mut self, diagnostic: Diagnostic) {
        // Errors that are not stored are counted like others, because callers compare counts to find out whether their value is invalid.
        let is_error = diagnostic.severity == Severity::Error;
        self.errors += usize::from(is_error);
        if diagnostic.span.is_some_and(|span| self.load_error_spans.contains(&span)) {
            return;
        }
        // Errors and warnings have separate limits, so that many warnings cannot displace the errors that explain why
        // there is no pipeline.
        let stored = if is_error { self.stored_errors } else { self.list.len() - self.stored_errors };
        if stored < MAX_DIAGNOSTICS && self.seen.insert((diagnostic.span, diagnostic.message.clone())) {
            self.stored_errors += usize::from(is_error);
            self.list.push(diagnostic);
        }
    }

    /// Adds an error in GitLab's style: the path, then the message.
    pub(crate) fn report(&mut self, span: Span, at: Path<'_>, message: impl fmt::Display) {
        self.push(Diagnostic::error(span, format!("{at} {message}")));
    }

    pub(crate) fn report_with_help(
        &mut self,
        span: Span,
        at: Path<'_>,
        message: impl fmt::Display,
        help: impl Into<String>,
    ) {
        self.push(Diagnostic::error(span, format!("{at} {message}")).help(help));
    }

    pub(crate) fn mark(&self) -> (usize, usize) {
        (self.list.len(), self.errors)
    }

    pub(crate) fn roll_back(&mut self, (found, errors): (usize, usize)) {
        for removed in self.list.drain(found..) {
            self.stored_errors -= usize::from(removed.severity == Severity::Error);
            // The same diagnostic must be reported if it occurs again.
            self.seen.remove(&(removed.span, removed.message));
        }
        self.errors = errors;
    }

    /// Returns the number of errors, including those that are not stored.
    pub(crate) fn error_count(&self) -> usize {
        self.errors
    }

    /// Returns the diagnostics. Errors of loading that have a position come first, because they can cause the others.
    ///
    /// Both groups are ordered by position. Diagnostics without a position come first in the second group.
    pub(crate) fn into_list(self) -> Vec<Diagnostic> {
        let mut list = self.list;
        let is_cause = |found: &Diagnostic| {
            found.severity == Severity::Error && found.span.is_some_and(|span| self.load_error_spans.contains(&span))
        };
        list.sort_by_key(|found| (!is_cause(found), found.span.map(|span| (span.source, span.start))));
        list
    }

    /// Returns false after [`MAX_ERRORS_WITH_SUGGESTIONS`] errors, because each suggestion takes time.
    pub(crate) fn may_suggest(&self) -> bool {
        self.errors < MAX_ERRORS_WITH_SUGGESTIONS
    }
}

/// A map whose keys have been checked. As on GitLab, a key with the value null counts as missing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map,
    at: Path<'a>,
    span: Span,
}

impl<'a> Fields<'a> {
    /// Returns the fields of a map, and reports each unknown key.
    pub(crate) fn parse(node: &'a Node, at: Path<'a>, allowed: &[&str], problems: &mut Problems) -> Option<Self> {
        Self::parse_with(node, at, allowed, problems, |_| None)
    }

    /// Like [`Fields::parse`], but a hint from `help` replaces the suggestion of a similar key.
    pub(crate) fn parse_with(
        node: &'a Node,
        at: Path<'a>,
        allowed: &[&str],
        problems: &mut Problems,
        help: fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let Some(map) = node.as_map() else {
            problems.report(node.span, at, format_args!("config should be a map, but it is {}", node.kind()));
            return None;
        };
        let fields = Self { map, at, span: node.span };
        for (key, entry) in map.iter() {
            if allowed.contains(&&**key) {
                continue;
            }
            match help(key) {
                Some(help) => problems.report_with_help(entry.key_span, at, UnknownKeyMessage(key), help),
                None => unknown_key(key, entry.key_span, at, allowed, problems),
            }
        }
        Some(fields)
    }

    /// Returns the value of a key. Returns `None` if the key is missing or its value is null.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Node> {
        self.map.get(key).filter(|node| !node.is_null())
    }

    pub(crate) fn span(&self) -> Span {
        self.span
    }

    /// Returns the position of a key, or the position of the map if the key is not set.
    pub(crate) fn key_span(&self, key: &str) -> Span {
        self.map.entry(key).map_or(self.span, |entry| entry.key_span)
    }

    pub(crate) fn at(&self) -> Path<'a> {
        self.at
    }

    pub(crate) fn text(&self, key: &str, problems: &mut Problems) -> Option<String> {
        self.get(key).and_then(|node| text(node, self.at.key(key), problems))
    }

    pub(crate) fn required_text(&self, key: &str, problems: &mut Problems) -> Option<String> {
        if self.get(key).is_none() {
            problems.report(self.span, self.at, format_args!("config should have the key `{key}`"));
        }
        self.text(key, problems)
    }

    pub(crate) fn flag(&self, key: &str, default: bool, problems: &mut Problems) -> bool {
        self.get(key).and_then(|node| boolean(node, self.at.key(key), problems)).unwrap_or(default)
    }

    /// Returns a list of strings. As on GitLab, a single string is not accepted.
    pub(crate) fn text_list(&self, key: &str, problems: &mut Problems) -> Vec<String> {
        self.get(key).and_then(|node| text_list(node, self.at.key(key), problems)).unwrap_or_default()
    }

    /// Returns the value of a key, which must be one of `allowed`.
    pub(crate) fn choice(&self, key: &str, allowed: &[&str], problems: &mut Problems) -> Option<String> {
        self.get(key).and_then(|node| choice(node, self.at.key(key), allowed, problems))
    }
}

struct UnknownKeyMessage<'a>(&'a str);

impl fmt::Display for UnknownKeyMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "config contains unknown keys: `{}`", self.0)
    }
}

pub(crate) fn unknown_key(key: &str, span: Span, at: Path<'_>, allowed: &[&str], problems: &mut Problems) {
    let help = match problems.may_suggest().then(|| suggest(key, allowed)).flatten() {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("valid keys are: {}", allowed.join(", ")),
    };
    problems.report_with_help(span, at, UnknownKeyMessage(key), help);
}

pub(crate) fn suggest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    closest(word, known.iter().copied())
}

pub(crate) fn text(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<String> {
    if let Some(text) = node.as_str() {
        return Some(text.to_owned());
    }
    problems.report(node.span, at, format_args!("config should be a string, but it is {}", node.kind()));
    None
}

pub(crate) fn boolean(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<bool> {
    if let Value::Bool(value) = node.value {
        return Some(value);
    }
    problems.report(node.span, at, format_args!("config should be a boolean value, but it is {}", node.kind()));
    None
}

pub(crate) fn integer(
    node: &Node,
    at: Path<'_>,
    range: std::ops::RangeInclusive<i64>,
    problems: &mut Problems,
) -> Option<i64> {
    match node.value {
        Value::Int(value) if range.contains(&value) => Some(value),
        Value::Int(value) => {
            let limits = format!("must be between {} and {}, but it is {value}", range.start(), range.end());
            problems.report(node.span, at, limits);
            None
        }
        Value::Float(value) => {
            problems.report(node.span, at, format_args!("config should be a whole number, but it is {value:?}"));
            None
        }
        _ => {
            problems.report(node.span, at, format_args!("config should be a number, but it is {}", node.kind()));
            None
        }
    }
}

/// Returns a list of strings. One string counts as a list with one element.
pub(crate) fn text_or_list(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    match &node.value {
        Value::String(text) => Some(vec![text.to_string()]),
        Value::List(_) => text_list(node, at, problems),
        _ => {
            let message = format!("config should be a string or an array of strings, but it is {}", node.kind());
            problems.report(node.span, at, message);
            None
        }
    }
}

/// Returns a list of strings. As in most keywords of GitLab, nested lists are errors.
pub(crate) fn text_list(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let items: Vec<&Node> = match node.as_list() {
        Some(list) => list.iter().collect(),
        // Reports that the node is not a list.
        None => flat_list(node, at, problems)?,
    };
    require_texts(items, at, problems)
}

/// Returns a list of strings. Nested lists, which result from `!reference` and anchors, are flattened.
pub(crate) fn flat_text_list(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let items = flat_list(node, at, problems)?;
    require_texts(items, at, problems)
}

fn require_texts(items: Vec<&Node>, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let mut all = Vec::with_capacity(items.len());
    let mut is_valid = true;
    for item in items {
        if let Some(text) = item.as_str() {
            all.push(text.to_owned());
        } else {
            let message = format!("config should be an array of strings, but it contains {}", item.kind());
            problems.report(item.span, at, message);
            is_valid = false;
        }
    }
    is_valid.then_some(all)
}

/// Returns the elements of a list. Nested lists are flattened, up to [`MAX_LIST_NESTING`] levels.
pub(crate) fn flat_list<'a>(node: &'a Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<&'a Node>> {
    let Some(list) = node.as_list() else {
        problems.report(node.span, at, format_args!("config should be an array, but it is {}", node.kind()));
        return None;
    };
    let mut all = Vec::with_capacity(list.len());
    if let Some(too_deep) = flatten(list, 1, &mut all) {
        let message = format!("config should be an array nested at most {MAX_LIST_NESTING} levels deep");
        problems.report(too_deep, at, message);
        return None;
    }
    Some(all)
}

/// Returns the position of the first list that is nested too deep.
fn flatten<'a>(list: &'a [Node], level: usize, all: &mut Vec<&'a Node>) -> Option<Span> {
    for item in list {
        match item.as_list() {
            Some(_) if level == MAX_LIST_NESTING => return Some(item.span),
            Some(inner) => {
                if let Some(too_deep) = flatten(inner, level + 1, all) {
                    return Some(too_deep);
                }
            }
            None => all.push(item),
        }
    }
    None
}

pub(crate) fn choice(node: &Node, at: Path<'_>, allowed: &[&str], problems: &mut Problems) -> Option<String> {
    if let Some(text) = node.as_str().filter(|text| allowed.contains(text)) {
        return Some(text.to_owned());
    }
    let message = format!("config should be one of: {}", allowed.join(", "));
    match node.as_str().and_then(|text| suggest(text, allowed)) {
        Some(known) => problems.report_with_help(node.span, at, message, format!("did you mean `{known}`?")),
        None => problems.report(node.span, at, message),
    }
    None
}

pub(crate) fn duration(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Duration> {
    let text = match &node.value {
        Value::String(text) => &**text,
        // GitLab accepts strings only.
        Value::Int(number) => {
            let message = format!("config should be a duration, not a number: write `{number} seconds`");
            problems.report(node.span, at, message);
            return None;
        }
        _ => {
            let message = format!("config should be a duration such as `3h 30m`, but it is {}", node.kind());
            problems.report(node.span, at, message);
            return None;
        }
    };
    match crate::duration::parse(text) {
        Ok(duration) => Some(duration),
        Err(error) => {
            problems.report(node.span, at, format_args!("config {error}"));
            None
        }
    }
}

/// Checks that a text is a duration or `never`. Returns the text as written.
pub(crate) fn duration_or_never(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<String> {
    let text = text(node, at, problems)?;
    if let Err(error) = crate::duration::parse_or_never(&text) {
        problems.report(node.span, at, format_args!("config {error}"));
        return None;
    }
    Some(text)
}

/// Converts a node to JSON. An unresolved reference becomes null.
pub(crate) fn json(node: &Node) -> serde_json::Value {
    use serde_json::Value as Json;
    match &node.value {
        Value::Null | Value::Reference(_) => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(value) => Json::from(*value),
        Value::Float(value) => Json::from(*value),
        Value::String(text) => Json::from(&**text),
        Value::List(list) => list.iter().map(json).collect(),
        Value::Map(map) => map.iter().map(|(key, entry)| (key.to_string(), json(&entry.node))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_after_many_warnings_is_stored() {
        let mut problems = Problems::default();
        let mark = problems.mark();
        problems.push(Diagnostic::error(None, "removed"));
        problems.roll_back(mark);
        for number in 0..MAX_DIAGNOSTICS + 5 {
            problems.push(Diagnostic::warning(None, format!("warning {number}")));
        }
        for number in 0..MAX_DIAGNOSTICS + 5 {
            problems.push(Diagnostic::error(None, format!("error {number}")));
        }
        assert_eq!(problems.error_count(), MAX_DIAGNOSTICS + 5);
        let list = problems.into_list();
        let errors = list.iter().filter(|found| found.severity == Severity::Error).count();
        assert_eq!((errors, list.len()), (MAX_DIAGNOSTICS, 2 * MAX_DIAGNOSTICS));
    }
}
