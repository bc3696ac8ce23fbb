//! `include:rules` (pipeline-yaml 1.1): whether an entry is used at all.

use std::collections::BTreeSet;

use super::variables::Variables;
use crate::context::{Context, Origin, Sources};
use crate::diagnostic::Diagnostic;
use crate::expand::Unknown;
use crate::expression;
use crate::glob::Glob;
use crate::limits::RULE_PATHS;
use crate::nearest::did_you_mean;
use crate::node::{Map, Node, Span, Value};

const KEYS: &[&str] = &["if", "changes", "exists", "when"];
/// Paths times patterns beyond which a clause is taken as matched without looking (pipeline-yaml 3.3).
const MOST_COMPARISONS: usize = 50_000;

/// What rules look at.
pub(super) struct Evaluator<'a> {
    pub(super) context: &'a Context,
    pub(super) sources: &'a dyn Sources,
    pub(super) variables: &'a Variables,
    /// Where the file with the entry comes from: `exists` looks there.
    pub(super) origin: &'a Origin,
}

/// A problem that makes a rule unusable.
type Checked<T> = Result<T, Box<Diagnostic>>;

impl Evaluator<'_> {
    /// Whether the first rule that matches lets the entry in; without a match it stays out.
    pub(super) fn lets_in(&self, rules: &Node, diagnostics: &mut Vec<Diagnostic>) -> bool {
        let Some(list) = rules.as_list() else {
            diagnostics.push(Diagnostic::error(
                rules.span,
                format!("`include:rules` takes a list of rules, not {}", rules.kind()),
            ));
            return false;
        };
        for rule in list {
            match self.rule(rule, diagnostics) {
                Ok(None) => {}
                Ok(Some(included)) => return included,
                Err(problem) => {
                    diagnostics.push(*problem);
                    return false;
                }
            }
        }
        false
    }

    /// Whether the rule lets the entry in; `None` where it does not match.
    fn rule(&self, rule: &Node, diagnostics: &mut Vec<Diagnostic>) -> Checked<Option<bool>> {
        let map = match rule.as_map() {
            Some(map) if !map.is_empty() => map,
            _ => return Err(error(rule.span, "an include rule is a map with `if`, `changes`, `exists` or `when`")),
        };
        for (key, entry) in map.iter() {
            if !KEYS.contains(&&**key) {
                let mut problem =
                    Diagnostic::error(entry.key_span, format!("include:rules config contains unknown keys: `{key}`"));
                problem.help = did_you_mean(key, KEYS.iter().copied())
                    .or_else(|| Some("rules of an include know `if`, `changes`, `exists` and `when`".to_owned()));
                return Err(problem.into());
            }
        }
        let included = when(map)?;
        let matches = self.condition(map, diagnostics)? && self.changes(map)? && self.exists(map)?;
        Ok(matches.then_some(included))
    }

    fn condition(&self, map: &Map, diagnostics: &mut Vec<Diagnostic>) -> Checked<bool> {
        let Some(node) = present(map, "if") else { return Ok(true) };
        let Some(text) = node.as_str() else {
            return Err(error(node.span, &format!("`if` takes an expression, not {}", node.kind())));
        };
        let describe = |problem: &expression::ExpressionError| {
            let mut diagnostic = Diagnostic::error(node.span, format!("include:rules:if {problem}"));
            diagnostic.help.clone_from(&problem.help);
            diagnostic
        };
        let expression = expression::parse(text).map_err(|problem| describe(&problem))?;
        Ok(expression.evaluate(&|name| self.variables.get(name)).unwrap_or_else(|problem| {
            diagnostics.push(Diagnostic { severity: crate::diagnostic::Severity::Warning, ..describe(&problem) });
            false
        }))
    }

    fn changes(&self, map: &Map) -> Checked<bool> {
        let Some(node) = present(map, "changes") else { return Ok(true) };
        let paths = node.as_map().map_or(Some(node), |map| present(map, "paths"));
        let compare_to = node.as_map().and_then(|map| present(map, "compare_to"));
        let globs = self.globs(paths.unwrap_or(node), "changes")?;
        let compared = match compare_to {
            None => None,
            Some(git_ref) => {
                let name = git_ref.as_str().map(|text| self.variables.expand(text, Unknown::Empty)).unwrap_or_default();
                match self.sources.changed_since(&name) {
                    Some(changed) => Some(changed),
                    None => return Err(error(git_ref.span, "rules:changes:compare_to is not a valid ref")),
                }
            }
        };
        let Some(changed) = compared.as_ref().or(self.context.changed_paths.as_ref()) else { return Ok(true) };
        if changed.len().saturating_mul(globs.len()) > MOST_COMPARISONS {
            return Ok(true);
        }
        Ok(globs.iter().any(|glob| changed.iter().any(|path| glob.is_match(path))))
    }

    fn exists(&self, map: &Map) -> Checked<bool> {
        let Some(node) = present(map, "exists") else { return Ok(true) };
        let Some(form) = node.as_map() else {
            return self.any_exists(&self.globs(node, "exists")?, self.origin, node.span);
        };
        let globs = self.globs(present(form, "paths").unwrap_or(node), "exists")?;
        let text =
            |key| present(form, key).and_then(Node::as_str).map(|text| self.variables.expand(text, Unknown::Empty));
        match (text("project"), text("ref")) {
            (Some(project), git_ref) => self.any_exists(&globs, &Origin::Project { project, git_ref }, node.span),
            (None, None) => self.any_exists(&globs, self.origin, node.span),
            (None, Some(_)) => Err(error(node.span, "`exists:ref` needs `exists:project`")),
        }
    }

    fn any_exists(&self, globs: &[Glob], origin: &Origin, span: Span) -> Checked<bool> {
        let tree = match origin {
            Origin::Root => std::sync::Arc::clone(&self.context.tracked_paths),
            Origin::Detached => std::sync::Arc::new(BTreeSet::new()),
            Origin::Project { .. } => {
                self.sources.paths(origin).map_err(|problem| error(span, &problem.to_string()))?
            }
        };
        let patterned = globs.iter().filter(|glob| !glob.is_exact()).count();
        if patterned.saturating_mul(tree.len()) > MOST_COMPARISONS {
            return Ok(true);
        }
        Ok(globs.iter().any(|glob| glob.exists_in(&tree)))
    }

    fn globs(&self, node: &Node, clause: &str) -> Checked<Vec<Glob>> {
        let nodes = match &node.value {
            Value::List(items) => items.as_slice(),
            Value::String(_) => std::slice::from_ref(node),
            _ => return Err(error(node.span, &format!("`rules:{clause}` takes a list of paths, not {}", node.kind()))),
        };
        if nodes.len() > RULE_PATHS {
            return Err(error(node.span, &format!("`rules:{clause}` has more than {RULE_PATHS} entries")));
        }
        let glob = |item: &Node| match item.as_str() {
            Some(text) => Glob::new(&self.variables.expand(text, Unknown::Keep))
                .map_err(|problem| error(item.span, &problem.to_string())),
            None => Err(error(item.span, &format!("`rules:{clause}` takes paths, not {}", item.kind()))),
        };
        nodes.iter().map(glob).collect()
    }
}

fn when(map: &Map) -> Checked<bool> {
    match present(map, "when").map(|node| (node.as_str(), node)) {
        None | Some((Some("always"), _)) => Ok(true),
        Some((Some("never"), _)) => Ok(false),
        Some((_, node)) => Err(error(node.span, "`when` of an include rule is `always` or `never`")),
    }
}

fn present<'a>(map: &'a Map, key: &str) -> Option<&'a Node> {
    map.get(key).filter(|node| !node.is_null())
}

fn error(span: Span, message: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(span, message))
}
