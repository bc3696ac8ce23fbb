//! Parses an `include` entry (docs/spec/pipeline-yaml.md, section 1.1): the file, its inputs, and the rules.

use std::sync::Arc;

use crate::config::size_budget;
use crate::diagnostic::Diagnostic;
use crate::expand::ByteBudget;
use crate::limits::MAX_INCLUDE_ENTRIES_BYTES;
use crate::node::{Map, Node, Span, Value};
use crate::suggest::did_you_mean;

/// Keys for the location of a file. An entry needs exactly one.
const ACCESSORS: &[&str] = &["local", "project", "remote", "template", "component"];
const OTHER_KEYS: &[&str] = &["file", "ref", "integrity", "inputs", "rules", "cache"];

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) location: Location,
    pub(super) span: Span,
    pub(super) inputs: Option<(Arc<Map>, Span)>,
    pub(super) rules: Option<Node>,
}

#[derive(Debug)]
pub(super) enum Location {
    Local(Text),
    Project { project: Text, git_ref: Option<Text>, files: Vec<Text> },
    Remote { url: Text, integrity: Option<Text> },
    Template(Text),
    Component(Text),
}

#[derive(Debug, Clone)]
pub(super) struct Text {
    pub(super) text: String,
    pub(super) span: Span,
}

/// Returns the valid entries of `include`. Stops at the entry that exceeds `budget` ([`budget_error`]).
///
/// Entries own copies of their texts, while aliases share them.
pub(super) fn entries(include: &Node, budget: &ByteBudget, diagnostics: &mut Vec<Diagnostic>) -> Vec<Entry> {
    let nodes = match &include.value {
        Value::Null => &[],
        Value::List(items) => items.as_slice(),
        _ => std::slice::from_ref(include),
    };
    let nodes = nodes.iter().take_while(|node| budget.spend(size_budget::bytes(node)));
    nodes.filter_map(|node| entry(node).map_err(|problem| diagnostics.push(*problem)).ok()).collect()
}

/// Returns an error at `span` if entries were left out because all entries together are too long.
pub(super) fn budget_error(budget: &ByteBudget, span: Span) -> Option<Diagnostic> {
    let mib = MAX_INCLUDE_ENTRIES_BYTES / 1024 / 1024;
    let message = format!("the entries of `include` in all files have more than {mib} MiB");
    let help = "use fewer entries, or shorter paths and inputs";
    budget.is_exceeded().then(|| Diagnostic::error(span, message).help(help))
}

pub(super) fn entry(node: &Node) -> Result<Entry, Box<Diagnostic>> {
    let span = node.span;
    let map = match &node.value {
        Value::String(text) => {
            let text = Text { text: text.to_string(), span };
            let is_remote = text.text.starts_with("http://") || text.text.starts_with("https://");
            let location =
                if is_remote { Location::Remote { url: text, integrity: None } } else { Location::Local(text) };
            return Ok(Entry { location, span, inputs: None, rules: None });
        }
        Value::Map(map) => map,
        Value::Reference(_) => {
            return Err(error(span, "`!reference` cannot be used in `include`")
                .help("files are included before references are resolved; write the entry instead of the reference")
                .into());
        }
        _ => return Err(error(span, &format!("`include` must be a path or a map, not {}", node.kind())).into()),
    };
    check_keys(map)?;
    let location = location(map, span)?;
    let inputs = match map.entry("inputs") {
        Some(entry) => match &entry.node.value {
            Value::Map(inputs) => Some((Arc::clone(inputs), entry.key_span)),
            Value::Null => None,
            _ => return Err(type_error(&entry.node, "inputs", "a map of names and values").into()),
        },
        None => None,
    };
    Ok(Entry { location, span, inputs, rules: map.get("rules").filter(|rules| !rules.is_null()).cloned() })
}

fn check_keys(map: &Map) -> Result<(), Box<Diagnostic>> {
    let known = || ACCESSORS.iter().chain(OTHER_KEYS).copied();
    for (key, entry) in map.iter() {
        if !known().any(|name| name == &**key) {
            let mut problem = error(entry.key_span, &format!("include config contains unknown keys: `{key}`"));
            problem.help = did_you_mean(key, known()).or_else(|| {
                Some("an entry must have one of `local`, `project`, `remote`, `template`, `component`".to_owned())
            });
            return Err(problem.into());
        }
    }
    Ok(())
}

fn location(map: &Map, span: Span) -> Result<Location, Box<Diagnostic>> {
    let accessors: Vec<(&str, &Node)> =
        ACCESSORS.iter().filter_map(|accessor| map.get(accessor).map(|value| (*accessor, value))).collect();
    let &[(accessor, value)] = accessors.as_slice() else {
        let accessors: Vec<&str> = accessors.iter().map(|(accessor, _)| *accessor).collect();
        let found =
            if accessors.is_empty() { "has none".to_owned() } else { format!("has `{}`", accessors.join("`, `")) };
        return Err(error(span, &format!("an include needs to match exactly one accessor, but it {found}"))
            .help("each entry needs exactly one of `local`, `project`, `remote`, `template`, `component`")
            .into());
    };
    for (key, owner) in [("file", "project"), ("ref", "project"), ("integrity", "remote")] {
        if let Some(entry) = map.entry(key)
            && owner != accessor
        {
            return Err(error(
                entry.key_span,
                &format!("`{key}` can be used only with `{owner}`, not with `{accessor}`"),
            )
            .into());
        }
    }
    let value = as_text(value, accessor)?;
    Ok(match accessor {
        "local" => Location::Local(value),
        "remote" => Location::Remote { url: value, integrity: optional_text(map, "integrity")? },
        "template" => Location::Template(value),
        "component" => Location::Component(value),
        _ => Location::Project { project: value, git_ref: optional_text(map, "ref")?, files: files(map, span)? },
    })
}

fn files(map: &Map, span: Span) -> Result<Vec<Text>, Box<Diagnostic>> {
    let Some(node) = map.get("file") else {
        return Err(error(span, "`include:project` needs the key `file`")
            .help("add `file: path/in/that/project.yml`")
            .into());
    };
    let nodes = node.as_list().unwrap_or(std::slice::from_ref(node));
    if nodes.is_empty() {
        return Err(type_error(node, "file", "a path or a list of paths").into());
    }
    nodes.iter().map(|node| as_text(node, "file")).collect()
}

fn optional_text(map: &Map, key: &str) -> Result<Option<Text>, Box<Diagnostic>> {
    map.get(key).filter(|node| !node.is_null()).map(|node| as_text(node, key)).transpose()
}

fn as_text(node: &Node, key: &str) -> Result<Text, Box<Diagnostic>> {
    match node.scalar_text() {
        Some(text) if !text.trim().is_empty() => Ok(Text { text, span: node.span }),
        _ => Err(type_error(node, key, "text").into()),
    }
}

fn type_error(node: &Node, key: &str, expected: &str) -> Diagnostic {
    let found = match &node.value {
        Value::String(text) if text.trim().is_empty() => "a blank string",
        Value::List(items) if items.is_empty() => "an empty list",
        _ => node.kind(),
    };
    error(node.span, &format!("`include:{key}` must be {expected}, not {found}"))
}

fn error(span: Span, message: &str) -> Diagnostic {
    Diagnostic::error(span, message)
}
