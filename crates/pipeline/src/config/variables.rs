//! `variables` of the top level, of jobs and of rules.

use muster_job::Variable;

use crate::config::parsing::{Fields, Path, Problems, boolean, text};
use crate::node::{Node, Span};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VariableEntry {
    pub(crate) variable: Variable,
    pub(crate) span: Span,
}

#[derive(Clone, Copy)]
enum VariablesParent {
    Global,
    Job,
    Rule,
}

pub(crate) fn global(node: &Node, at: Path<'_>, problems: &mut Problems) -> Vec<VariableEntry> {
    read(node, at, VariablesParent::Global, problems)
}

pub(crate) fn of_job(node: &Node, at: Path<'_>, problems: &mut Problems) -> Vec<Variable> {
    read(node, at, VariablesParent::Job, problems).into_iter().map(|entry| entry.variable).collect()
}

pub(crate) fn of_rule(node: &Node, at: Path<'_>, problems: &mut Problems) -> Vec<Variable> {
    read(node, at, VariablesParent::Rule, problems).into_iter().map(|entry| entry.variable).collect()
}

fn read(node: &Node, at: Path<'_>, parent: VariablesParent, problems: &mut Problems) -> Vec<VariableEntry> {
    let Some(map) = node.as_map() else {
        problems.report(node.span, at, format_args!("config should be a map of variables, but it is {}", node.kind()));
        return Vec::new();
    };
    let mut all = Vec::with_capacity(map.len());
    for (name, entry) in map.iter() {
        if !is_name(name) {
            let message = format!("config has the invalid name `{name}`; use letters, digits, `_` and `-`");
            problems.report(entry.key_span, at, message);
            continue;
        }
        if let Some(variable) = value(name, &entry.node, at, parent, problems) {
            all.push(VariableEntry { variable, span: entry.key_span });
        }
    }
    all
}

pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

fn value(name: &str, node: &Node, at: Path<'_>, parent: VariablesParent, problems: &mut Problems) -> Option<Variable> {
    if node.is_null() {
        return Some(Variable::public(name, ""));
    }
    if let Some(text) = node.scalar_text() {
        return Some(Variable::public(name, text));
    }
    let at = at.key(name);
    let allowed: &[&str] = match (parent, node.as_map()) {
        (VariablesParent::Global, Some(_)) => &["value", "description", "options", "expand"],
        (VariablesParent::Job, Some(_)) => &["value", "expand"],
        (VariablesParent::Rule, _) | (_, None) => {
            problems.report(node.span, at, format_args!("config should be a scalar value, but it is {}", node.kind()));
            return None;
        }
    };
    let fields = Fields::parse(node, at, allowed, problems)?;
    let content = match fields.get("value") {
        None => String::new(),
        Some(content) => content.scalar_text().or_else(|| text(content, at.key("value"), problems))?,
    };
    if let Some(options) = fields.get("options") {
        check_options(&fields, options, &content, problems);
    }
    if let Some(description) = fields.get("description") {
        let _ = text(description, at.key("description"), problems);
    }
    let expand = fields.get("expand").and_then(|node| boolean(node, at.key("expand"), problems)).unwrap_or(true);
    Some(Variable { raw: !expand, ..Variable::public(name, content) })
}

fn check_options(fields: &Fields<'_>, node: &Node, value: &str, problems: &mut Problems) {
    let at = fields.at();
    let Some(list) = node.as_list() else {
        problems.report(node.span, at.key("options"), format_args!("should be an array, but it is {}", node.kind()));
        return;
    };
    let options: Vec<String> = list.iter().filter_map(Node::scalar_text).collect();
    let mut unique = std::collections::HashSet::new();
    if options.len() != list.len() || !options.iter().all(|option| unique.insert(option)) {
        problems.report(node.span, at.key("options"), "should be an array of unique strings");
    }
    if !options.iter().any(|option| option == value) {
        let message = format!("value `{value}` should be one of the options: {}", options.join(", "));
        problems.report(fields.key_span("value"), at, message);
    }
}
