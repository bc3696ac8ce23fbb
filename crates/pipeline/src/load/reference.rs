//! Replaces `!reference [key, sub, ...]` with the value that it refers to in the merged tree (docs/spec/pipeline-yaml.md,
//! section 2.5).
//!
//! In a list, a reference to a list becomes a nested list, which the parser of the keyword flattens.

use std::collections::HashMap;
use std::sync::Arc;

use super::MAX_DIAGNOSTICS_WITH_SUGGESTIONS;
use super::merge::Budget;
use crate::diagnostic::Diagnostic;
use crate::gaps::Gaps;
use crate::limits::{Limits, MAX_REFERENCE_CHAIN};
use crate::node::{Map, Node, Span, Value};
use crate::suggest::did_you_mean;

#[derive(Clone)]
struct Resolved {
    /// `None` if the value is unchanged.
    new_value: Option<Value>,
    /// Number of values, after references are expanded.
    nodes: usize,
    /// Depth of the nested lists and maps in the value.
    height: usize,
    /// Number of references in the longest chain that starts in the value.
    chain: usize,
    has_gap: bool,
}

struct Resolver<'a> {
    root: &'a Map,
    limits: &'a Limits,
    budget: &'a mut Budget,
    gaps: &'a mut Gaps,
    diagnostics: &'a mut Vec<Diagnostic>,
    /// Targets by path. `None` for targets that cannot be resolved. Their errors have been reported.
    targets: HashMap<Arc<Vec<String>>, Option<(Value, Resolved)>>,
    stack: Vec<(Arc<Vec<String>>, Span)>,
}

/// Returns the map with all references replaced. Returns `None` if there are no references.
///
/// Reports a reference that cannot be resolved, unless the cause has been reported. In a list, such a reference is
/// removed, and a list that becomes empty becomes null. Elsewhere, the reference becomes null.
pub(super) fn resolve(
    root: &Map,
    limits: &Limits,
    budget: &mut Budget,
    gaps: &mut Gaps,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Map> {
    let mut resolver = Resolver { root, limits, budget, gaps, diagnostics, targets: HashMap::new(), stack: Vec::new() };
    let mut changed: Option<Map> = None;
    for (key, entry) in root.iter() {
        let resolved = resolver.node(&entry.node, 1);
        if resolved.has_gap {
            resolver.gaps.add(key);
        }
        if let Some(value) = resolved.new_value {
            let result = changed.get_or_insert_with(|| root.clone());
            result.insert(Arc::clone(key), entry.key_span, Node::new(value, entry.node.span));
        }
    }
    changed
}

impl Resolver<'_> {
    fn node(&mut self, node: &Node, depth: usize) -> Resolved {
        let mut resolved = Resolved { new_value: None, nodes: 1, height: 0, chain: 0, has_gap: false };
        self.budget.spend(1);
        if self.budget.is_spent() {
            return resolved;
        }
        match &node.value {
            Value::List(items) => {
                let mut result: Option<Vec<Node>> = None;
                for (index, item) in items.iter().enumerate() {
                    let inner = self.node(item, depth + 1);
                    resolved.add(&inner);
                    let is_missing = inner.has_gap && matches!(item.value, Value::Reference(_)) && is_null(&inner);
                    if inner.new_value.is_some() && result.is_none() {
                        result = Some(items.iter().take(index).cloned().collect());
                    }
                    let Some(result) = &mut result else { continue };
                    if !is_missing {
                        result.push(Node::new(inner.new_value.unwrap_or_else(|| item.value.clone()), item.span));
                    }
                }
                resolved.new_value = result.map(|items| match items.is_empty() {
                    true => Value::Null,
                    false => Value::List(Arc::new(items)),
                });
                resolved.height += 1;
            }
            Value::Map(map) => {
                let mut result: Option<Map> = None;
                for (key, entry) in map.iter() {
                    let inner = self.node(&entry.node, depth + 1);
                    resolved.add(&inner);
                    if let Some(value) = inner.new_value {
                        let result = result.get_or_insert_with(|| Map::clone(map));
                        result.insert(Arc::clone(key), entry.key_span, Node::new(value, entry.node.span));
                    }
                }
                resolved.new_value = result.map(|map| Value::Map(Arc::new(map)));
                resolved.height += 1;
            }
            Value::Reference(path) => {
                resolved = match self.target(path, node.span, depth) {
                    Some((value, target)) => Resolved { new_value: Some(value), ..target },
                    None => Resolved { new_value: Some(Value::Null), has_gap: true, ..resolved },
                };
            }
            _ => {}
        }
        resolved
    }

    fn target(&mut self, path: &Arc<Vec<String>>, span: Span, depth: usize) -> Option<(Value, Resolved)> {
        if let Some(first) = self.stack.iter().position(|(known, _)| known == path) {
            self.diagnostics.push(circular(self.stack.get(first..).unwrap_or_default(), path, span));
            return None;
        }
        let found = match self.targets.get(path) {
            Some(known) => {
                let known = known.clone();
                self.budget.spend(known.as_ref().map_or(0, |(_, resolved)| resolved.nodes));
                known
            }
            None if self.stack.len() >= MAX_REFERENCE_CHAIN => {
                self.diagnostics.push(self.chain_too_long(path, span));
                return None;
            }
            None => {
                let found = self.find(path, span).map(|node| {
                    self.stack.push((Arc::clone(path), span));
                    let mut resolved = self.node(&node, depth);
                    self.stack.pop();
                    resolved.chain += 1;
                    (resolved.new_value.take().unwrap_or(node.value), resolved)
                });
                self.targets.insert(Arc::clone(path), found.clone());
                found
            }
        }?;
        if self.stack.len() + found.1.chain > MAX_REFERENCE_CHAIN {
            self.diagnostics.push(self.chain_too_long(path, span));
            return None;
        }
        if depth + found.1.height > self.limits.depth {
            self.diagnostics.push(
                Diagnostic::error(
                    span,
                    format!(
                        "lists and maps are nested more than {} levels deep through `!reference`",
                        self.limits.depth
                    ),
                )
                .help("flatten the configuration; no keyword needs such depth"),
            );
            return None;
        }
        Some(found)
    }

    fn find(&mut self, path: &[String], span: Span) -> Option<Node> {
        let mut map = Some(self.root);
        let mut found: Option<&Node> = None;
        for (index, key) in path.iter().enumerate() {
            let Some(next) = map.and_then(|map| map.get(key)) else {
                let existing_path = path.get(..index).unwrap_or_default();
                let is_consequence =
                    self.gaps.has_missing_file || existing_path.first().is_some_and(|first| self.gaps.has(first));
                if is_consequence {
                    return None;
                }
                let known = map.filter(|_| self.diagnostics.len() < MAX_DIAGNOSTICS_WITH_SUGGESTIONS);
                self.diagnostics.push(missing(path, existing_path, found, known, span));
                return None;
            };
            map = next.as_map();
            found = Some(next);
        }
        found.filter(|node| !node.is_null()).cloned().or_else(|| {
            if path.first().is_some_and(|first| self.gaps.has(first)) {
                return None;
            }
            self.diagnostics.push(
                Diagnostic::error(span, format!("`{}` could not be found: its value is null", reference_text(path)))
                    .help("set a value there, or remove the reference"),
            );
            None
        })
    }

    fn chain_too_long(&self, path: &[String], span: Span) -> Diagnostic {
        let problem = Diagnostic::error(
            span,
            format!(
                "`{}` is referred to by a chain of more than {MAX_REFERENCE_CHAIN} references",
                reference_text(path)
            ),
        );
        match self.stack.first() {
            Some((_, start)) => problem.related(*start, "the chain starts here"),
            None => problem,
        }
    }
}

impl Resolved {
    fn add(&mut self, inner: &Resolved) {
        self.nodes = self.nodes.saturating_add(inner.nodes);
        self.height = self.height.max(inner.height);
        self.chain = self.chain.max(inner.chain);
        self.has_gap |= inner.has_gap;
    }
}

fn is_null(resolved: &Resolved) -> bool {
    matches!(resolved.new_value, Some(Value::Null))
}

fn reference_text(path: &[String]) -> String {
    format!("!reference [{}]", path.join(", "))
}

fn missing(
    path: &[String],
    existing_path: &[String],
    parent: Option<&Node>,
    map: Option<&Map>,
    span: Span,
) -> Diagnostic {
    let key = path.get(existing_path.len()).map_or("", String::as_str);
    let mut problem = Diagnostic::error(span, format!("`{}` could not be found", reference_text(path)));
    problem.help = match (map, parent) {
        (Some(map), _) => did_you_mean(key, map.keys().map(|key| &**key)).or_else(|| {
            Some(match existing_path {
                [] => format!("the merged configuration has no key `{key}`"),
                _ => format!("`{}` has no key `{key}`", existing_path.join(":")),
            })
        }),
        (None, Some(parent)) if parent.as_map().is_none() => {
            Some(format!("`{}` is {}, not a map", existing_path.join(":"), parent.kind()))
        }
        (None, _) => None,
    };
    match parent {
        Some(parent) => problem.related(parent.span, format!("`{}` is defined here", existing_path.join(":"))),
        None => problem,
    }
}

fn circular(stack: &[(Arc<Vec<String>>, Span)], path: &[String], span: Span) -> Diagnostic {
    let problem = Diagnostic::error(span, format!("`{}` is part of a circular chain", reference_text(path)));
    stack
        .iter()
        .skip(1)
        .fold(problem, |problem, (path, span)| problem.related(*span, format!("through `{}`", reference_text(path))))
}
