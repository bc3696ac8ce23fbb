//! What all keyword parsers share: the path for messages, the collector of problems, and typed readers of nodes.
//!
//! A reader returns `None` where the node is wrong, after it has told the collector why; a parser then goes on with the
//! next keyword, so that all problems of a file are reported at once.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use crate::diagnostic::{Diagnostic, Severity};
use crate::node::{Map, Node, Span, Value};
use crate::patterns::Patterns;
use crate::suggest::closest;

/// How deep lists inside `script`, `rules`, `stages` and `tags` may be nested (pipeline-yaml 1.0).
pub(crate) const MAX_LIST_NESTING: usize = 10;

/// Most diagnostics that are kept; nobody reads more.
const MAX_DIAGNOSTICS: usize = 1000;
/// How many errors come with a suggestion.
const MAX_SUGGESTIONS: usize = 20;

/// Where in the configuration a value stands, for messages: `jobs:test:cache:key`. Made without allocation, since it is
/// only shown where something is wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    name: &'a str,
}

impl<'a> Path<'a> {
    /// A path of one part.
    pub(crate) fn root(name: &'a str) -> Self {
        Self { parent: None, name }
    }

    /// The path of a key below this one.
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

/// The collector of diagnostics. The same message at the same place is kept once: `default` values are read again in
/// every job that takes them.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    list: Vec<Diagnostic>,
    errors: usize,
    seen: HashSet<(Option<Span>, String)>,
    /// Places where something could not be loaded: whatever is missing there has been told.
    unloaded: HashSet<Span>,
    /// The regular expressions so far.
    pub(crate) patterns: Patterns,
}

impl Problems {
    /// A collector that begins with what was found while the configuration was loaded.
    pub(crate) fn after_load(diagnostics: &[Diagnostic]) -> Self {
        let mut problems = Self::default();
        for diagnostic in diagnostics {
            problems.push(diagnostic.clone());
        }
        let errors = diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
        problems.unloaded = errors.filter_map(|diagnostic| diagnostic.span).collect();
        problems
    }

    /// Tells that the regular expressions take too much together, if they do.
    pub(crate) fn check_patterns(&mut self, span: Span) {
        if let Some(problem) = self.patterns.problem(span) {
            self.push(problem);
        }
    }

    /// Adds a diagnostic.
    pub(crate) fn push(&mut self, diagnostic: Diagnostic) {
        // Counted also where it is a repeat: whoever compares counts has to learn that its value is wrong.
        self.errors += usize::from(diagnostic.severity == Severity::Error);
        if diagnostic.span.is_some_and(|span| self.unloaded.contains(&span)) {
            return;
        }
        if self.list.len() < MAX_DIAGNOSTICS && self.seen.insert((diagnostic.span, diagnostic.message.clone())) {
            self.list.push(diagnostic);
        }
    }

    /// Adds an error in GitLab's style: the path, then what is wrong with it.
    pub(crate) fn wrong(&mut self, span: Span, at: Path<'_>, what: impl fmt::Display) {
        self.push(Diagnostic::error(span, format!("{at} {what}")));
    }

    /// As [`Problems::wrong`], with what to do.
    pub(crate) fn wrong_help(&mut self, span: Span, at: Path<'_>, what: impl fmt::Display, help: impl Into<String>) {
        self.push(Diagnostic::error(span, format!("{at} {what}")).help(help));
    }

    /// Where the list stands, for [`Problems::roll_back`].
    pub(crate) fn mark(&self) -> (usize, usize) {
        (self.list.len(), self.errors)
    }

    /// Forgets what was found since a mark.
    pub(crate) fn roll_back(&mut self, (found, errors): (usize, usize)) {
        self.list.truncate(found);
        self.errors = errors;
    }

    /// How many errors there were so far.
    pub(crate) fn errors(&self) -> usize {
        self.errors
    }

    /// All of them: what could not be loaded, as the cause of what follows, then in the order of the places they point at;
    /// those without a place come first.
    pub(crate) fn into_list(self) -> Vec<Diagnostic> {
        let mut list = self.list;
        let is_cause = |found: &Diagnostic| {
            found.severity == Severity::Error && found.span.is_some_and(|span| self.unloaded.contains(&span))
        };
        list.sort_by_key(|found| (!is_cause(found), found.span.map(|span| (span.source, span.start))));
        list
    }

    /// Whether there are few enough errors for suggestions, which cost a look at all known names each.
    pub(crate) fn may_suggest(&self) -> bool {
        self.errors < MAX_SUGGESTIONS
    }
}

/// A map whose keys have been checked against the allowed ones. A key whose value is null counts as absent, as in
/// GitLab.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map,
    at: Path<'a>,
    span: Span,
}

impl<'a> Fields<'a> {
    /// Opens a map; tells about each unknown key, with the nearest known one.
    pub(crate) fn parse(node: &'a Node, at: Path<'a>, allowed: &[&str], problems: &mut Problems) -> Option<Self> {
        Self::parse_with(node, at, allowed, problems, |_| None)
    }

    /// As [`Fields::parse`]; `help` may know better what to do about an unknown key than to take the nearest one.
    pub(crate) fn parse_with(
        node: &'a Node,
        at: Path<'a>,
        allowed: &[&str],
        problems: &mut Problems,
        help: fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let Some(map) = node.as_map() else {
            problems.wrong(node.span, at, format_args!("config should be a map, but it is {}", node.kind()));
            return None;
        };
        let fields = Self { map, at, span: node.span };
        for (key, entry) in map.iter() {
            if allowed.contains(&&**key) {
                continue;
            }
            match help(key) {
                Some(help) => problems.wrong_help(entry.key_span, at, Unknown(key), help),
                None => unknown_key(key, entry.key_span, at, allowed, problems),
            }
        }
        Some(fields)
    }

    /// The value of a key, unless it is null.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Node> {
        self.map.get(key).filter(|node| !node.is_null())
    }

    /// The place of the whole map.
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    /// The place of a key.
    pub(crate) fn key_span(&self, key: &str) -> Span {
        self.map.entry(key).map_or(self.span, |entry| entry.key_span)
    }

    /// The path of the map.
    pub(crate) fn at(&self) -> Path<'a> {
        self.at
    }

    /// The text of a key, if it is there.
    pub(crate) fn text(&self, key: &str, problems: &mut Problems) -> Option<String> {
        self.get(key).and_then(|node| text(node, self.at.key(key), problems))
    }

    /// The text of a key that must be there.
    pub(crate) fn required_text(&self, key: &str, problems: &mut Problems) -> Option<String> {
        if self.get(key).is_none() {
            problems.wrong(self.span, self.at, format_args!("config should have the key `{key}`"));
        }
        self.text(key, problems)
    }

    /// The boolean of a key, or `default`.
    pub(crate) fn flag(&self, key: &str, default: bool, problems: &mut Problems) -> bool {
        self.get(key).and_then(|node| boolean(node, self.at.key(key), problems)).unwrap_or(default)
    }

    /// The list of texts of a key; empty where it is absent. One text alone is no list, as on GitLab.
    pub(crate) fn texts(&self, key: &str, problems: &mut Problems) -> Vec<String> {
        self.get(key).and_then(|node| text_list(node, self.at.key(key), problems)).unwrap_or_default()
    }

    /// The text of a key that must be one of `allowed`.
    pub(crate) fn choice(&self, key: &str, allowed: &[&str], problems: &mut Problems) -> Option<String> {
        self.get(key).and_then(|node| choice(node, self.at.key(key), allowed, problems))
    }
}

/// An unknown key, as the end of a message.
struct Unknown<'a>(&'a str);

impl fmt::Display for Unknown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "config contains unknown keys: `{}`", self.0)
    }
}

/// Tells about an unknown key.
pub(crate) fn unknown_key(key: &str, span: Span, at: Path<'_>, allowed: &[&str], problems: &mut Problems) {
    let help = match problems.may_suggest().then(|| suggest(key, allowed)).flatten() {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("known keys here: {}", allowed.join(", ")),
    };
    problems.wrong_help(span, at, Unknown(key), help);
}

/// The known word that is nearest to a mistyped one.
pub(crate) fn suggest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    closest(word, known.iter().copied())
}

/// A text.
pub(crate) fn text(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<String> {
    if let Some(text) = node.as_str() {
        return Some(text.to_owned());
    }
    problems.wrong(node.span, at, format_args!("config should be a string, but it is {}", node.kind()));
    None
}

/// A boolean.
pub(crate) fn boolean(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<bool> {
    if let Value::Bool(value) = node.value {
        return Some(value);
    }
    problems.wrong(node.span, at, format_args!("config should be a boolean value, but it is {}", node.kind()));
    None
}

/// A whole number in a range.
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
            problems.wrong(node.span, at, limits);
            None
        }
        Value::Float(value) => {
            problems.wrong(node.span, at, format_args!("config should be a whole number, but it is {value:?}"));
            None
        }
        _ => {
            problems.wrong(node.span, at, format_args!("config should be a number, but it is {}", node.kind()));
            None
        }
    }
}

/// A list of texts, or one text that stands for a list of one.
pub(crate) fn texts(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    match &node.value {
        Value::String(text) => Some(vec![text.to_string()]),
        Value::List(_) => text_list(node, at, problems),
        _ => {
            let what = format!("config should be a string or an array of strings, but it is {}", node.kind());
            problems.wrong(node.span, at, what);
            None
        }
    }
}

/// Reads a list of texts. Lists inside it are errors, as for most keywords of GitLab.
pub(crate) fn text_list(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let items: Vec<&Node> = match node.as_list() {
        Some(list) => list.iter().collect(),
        None => flat_list(node, at, problems)?,
    };
    only_texts(items, at, problems)
}

/// Reads a list of texts in which lists (from `!reference` and anchors) are flattened.
pub(crate) fn flat_text_list(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let items = flat_list(node, at, problems)?;
    only_texts(items, at, problems)
}

fn only_texts(items: Vec<&Node>, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let mut all = Vec::with_capacity(items.len());
    let mut good = true;
    for item in items {
        if let Some(text) = item.as_str() {
            all.push(text.to_owned());
        } else {
            let what = format!("config should be an array of strings, but it holds {}", item.kind());
            problems.wrong(item.span, at, what);
            good = false;
        }
    }
    good.then_some(all)
}

/// The items of a list, with lists inside it flattened to [`MAX_LIST_NESTING`].
pub(crate) fn flat_list<'a>(node: &'a Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<&'a Node>> {
    let Some(list) = node.as_list() else {
        problems.wrong(node.span, at, format_args!("config should be an array, but it is {}", node.kind()));
        return None;
    };
    let mut all = Vec::with_capacity(list.len());
    if let Some(too_deep) = flatten(list, 1, &mut all) {
        let what = format!("config should be an array nested at most {MAX_LIST_NESTING} levels deep");
        problems.wrong(too_deep, at, what);
        return None;
    }
    Some(all)
}

/// Flattens; answers the place of the first list that is nested too deep.
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

/// A text that must be one of a few.
pub(crate) fn choice(node: &Node, at: Path<'_>, allowed: &[&str], problems: &mut Problems) -> Option<String> {
    if let Some(text) = node.as_str().filter(|text| allowed.contains(text)) {
        return Some(text.to_owned());
    }
    let what = format!("config should be one of: {}", allowed.join(", "));
    match node.as_str().and_then(|text| suggest(text, allowed)) {
        Some(known) => problems.wrong_help(node.span, at, what, format!("did you mean `{known}`?")),
        None => problems.wrong(node.span, at, what),
    }
    None
}

/// A duration in words (`3h 30m`, `1 week`), or a number of seconds.
pub(crate) fn duration(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Duration> {
    let words = match &node.value {
        Value::String(text) => &**text,
        // GitLab takes text only.
        Value::Int(number) => {
            let what = format!("config should be a duration: a number is none, write `{number} seconds`");
            problems.wrong(node.span, at, what);
            return None;
        }
        _ => {
            let what = format!("config should be a duration, such as `3h 30m`, but it is {}", node.kind());
            problems.wrong(node.span, at, what);
            return None;
        }
    };
    match crate::duration::parse(words) {
        Ok(duration) => Some(duration),
        Err(error) => {
            problems.wrong(node.span, at, format_args!("config {error}"));
            None
        }
    }
}

/// A duration or `never`, kept as it is written.
pub(crate) fn duration_or_never(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<String> {
    let text = text(node, at, problems)?;
    if let Err(error) = crate::duration::parse_or_never(&text) {
        problems.wrong(node.span, at, format_args!("config {error}"));
        return None;
    }
    Some(text)
}

/// Any value as JSON, for the parts of a job that go to the runner as they are.
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
