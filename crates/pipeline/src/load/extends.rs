//! `extends` (docs/spec/pipeline-yaml.md, section 2.4): merges each job over its parents.
//!
//! A job or hidden key is merged after all its parents, without recursion.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::merge::{Budget, merge_into};
use super::{MAX_DIAGNOSTICS_WITH_SUGGESTIONS, Parent};
use crate::diagnostic::Diagnostic;
use crate::gaps::Gaps;
use crate::limits::MAX_EXTENDS_LEVELS;
use crate::node::{Entry, Map, Node, Value};
use crate::suggest::did_you_mean;

const MAX_CYCLES: usize = 100;
/// Maximum number of keys that the error for a cycle lists.
const MAX_CYCLE_KEYS: usize = 20;

struct Child {
    parents: Vec<Parent>,
    /// Number of parents that have `extends` themselves and have not been merged yet.
    unmerged_parents: usize,
    /// Number of levels of inheritance, including the key itself.
    levels: usize,
}

/// Merges each key with `extends` over its parents. Also returns the parents of these keys, except of keys that depend
/// on a cycle.
pub(super) fn resolve(
    root: &Map,
    budget: &mut Budget,
    gaps: &mut Gaps,
    diagnostics: &mut Vec<Diagnostic>,
) -> (Map, BTreeMap<String, Vec<Parent>>) {
    let mut merged = root.clone();
    let mut children = children(root, gaps, diagnostics);
    let mut children_by_parent: HashMap<String, Vec<Arc<str>>> = HashMap::new();
    let names: HashSet<Arc<str>> = children.iter().map(|(name, _)| Arc::clone(name)).collect();
    for (name, child) in &mut children {
        for parent in child.parents.iter().filter(|parent| names.contains(parent.name.as_str())) {
            children_by_parent.entry(parent.name.clone()).or_default().push(Arc::clone(name));
            child.unmerged_parents += 1;
        }
    }
    let mut ready: Vec<Arc<str>> =
        children.iter().filter(|(_, child)| child.unmerged_parents == 0).map(|(name, _)| Arc::clone(name)).collect();
    let mut children: HashMap<Arc<str>, Child> = children.into_iter().collect();
    let mut parents = BTreeMap::new();
    while let Some(name) = ready.pop() {
        let Some(child) = children.remove(&name) else { continue };
        if child.parents.iter().any(|parent| gaps.has(&parent.name)) {
            gaps.add(&name);
        }
        if child.levels <= MAX_EXTENDS_LEVELS {
            extend(&mut merged, &name, &child, budget);
        } else if child.levels == MAX_EXTENDS_LEVELS + 1 {
            diagnostics.push(too_deep_error(&name, &child));
        }
        for child_name in children_by_parent.get(&*name).into_iter().flatten() {
            if let Some(next) = children.get_mut(child_name) {
                next.levels = next.levels.max(child.levels + 1);
                next.unmerged_parents -= 1;
                if next.unmerged_parents == 0 {
                    ready.push(Arc::clone(child_name));
                }
            }
        }
        parents.insert(name.to_string(), child.parents);
    }
    report_cycles(root, &children, diagnostics);
    (merged, parents)
}

/// Returns the keys with `extends`, in written order.
fn children(root: &Map, gaps: &mut Gaps, diagnostics: &mut Vec<Diagnostic>) -> Vec<(Arc<str>, Child)> {
    let mut found = Vec::new();
    for (name, entry) in root.iter() {
        let Some(extends) = entry.node.as_map().and_then(|map| map.get("extends")) else { continue };
        let named = match &extends.value {
            Value::Null => continue,
            Value::List(names) => names.as_slice(),
            _ => std::slice::from_ref(extends),
        };
        let parent = |node| {
            let parent = parent(root, name, node, gaps, diagnostics);
            if parent.is_none() {
                gaps.add(name);
            }
            parent
        };
        let parents: Vec<Parent> = named.iter().filter_map(parent).collect();
        // A parent without `extends` adds one level.
        let levels = 1 + usize::from(!parents.is_empty());
        found.push((Arc::clone(name), Child { parents, unmerged_parents: 0, levels }));
    }
    found
}

fn parent(root: &Map, child: &str, node: &Node, gaps: &Gaps, diagnostics: &mut Vec<Diagnostic>) -> Option<Parent> {
    let Some(name) = node.as_str() else {
        let problem = Diagnostic::error(
            node.span,
            format!("`{child}`: `extends` must be a job's name or a list of names, not {}", node.kind()),
        );
        diagnostics.push(match node.value {
            Value::Reference(_) => {
                problem.help("`extends` is resolved before `!reference`; write the name instead of the reference")
            }
            _ => problem,
        });
        return None;
    };
    match root.entry(name) {
        Some(entry) if entry.node.as_map().is_some() => {
            return Some(Parent { name: name.to_owned(), named_at: node.span });
        }
        Some(entry) => diagnostics.push(
            Diagnostic::error(
                node.span,
                format!("{child}: invalid base in `extends`: `{name}` is {}, not a map", entry.node.kind()),
            )
            .related(entry.key_span, format!("`{name}` is defined here")),
        ),
        // The parent may be in a file that could not be read. That error has been reported.
        None if gaps.has_missing_file => {}
        None => {
            let mut problem = Diagnostic::error(node.span, format!("{child}: unknown keys in `extends` ({name})"));
            let known = if diagnostics.len() < MAX_DIAGNOSTICS_WITH_SUGGESTIONS { root.len() } else { 0 };
            problem.help = did_you_mean(name, root.keys().take(known).map(|key| &**key).filter(|key| *key != child))
                .or_else(|| Some(format!("define `{name}` here or in an included file")));
            diagnostics.push(problem);
        }
    }
    None
}

fn extend(merged: &mut Map, name: &Arc<str>, child: &Child, budget: &mut Budget) {
    let mut result = Map::default();
    for parent in &child.parents {
        if let Some(map) = merged.get(&parent.name).and_then(Node::as_map) {
            merge_into(&mut result, map, budget);
        }
    }
    // The result must not contain the `extends` of a parent.
    result.remove("extends");
    let Some(Entry { key_span, node }) = merged.entry(name).cloned() else { return };
    if let Some(child_map) = node.as_map() {
        merge_into(&mut result, child_map, budget);
    }
    merged.insert(Arc::clone(name), key_span, Node::new(Value::Map(Arc::new(result)), node.span));
}

fn too_deep_error(name: &str, child: &Child) -> Diagnostic {
    Diagnostic::error(
        child.parents.first().map(|parent| parent.named_at),
        format!("{name}: nesting too deep in `extends`: more than {MAX_EXTENDS_LEVELS} levels"),
    )
    .help("extend several parents at once instead of a chain: `extends: [.a, .b]`")
}

/// Reports each cycle once.
///
/// Every key in `unresolved` is part of a cycle or depends on a cycle.
fn report_cycles(root: &Map, unresolved: &HashMap<Arc<str>, Child>, diagnostics: &mut Vec<Diagnostic>) {
    let mut visited: HashSet<&str> = HashSet::new();
    let mut entries: HashSet<(&str, &str)> = HashSet::new();
    let mut cycles = 0;
    for start in root.keys() {
        // The keys on the path with their remaining parents, and the `extends` entries between these keys.
        let mut keys = Vec::new();
        let mut path: Vec<&Parent> = Vec::new();
        let mut on_path: HashMap<&str, usize> = HashMap::new();
        let mut next: Option<&str> = Some(start);
        loop {
            if let Some(name) = next.take()
                && let Some(child) = unresolved.get(name)
                && visited.insert(name)
            {
                on_path.insert(name, keys.len());
                keys.push((name, child.parents.iter()));
            } else {
                path.truncate(keys.len().saturating_sub(1));
            }
            let Some((name, parents)) = keys.last_mut() else { break };
            let Some(parent) = parents.next() else {
                on_path.remove(name);
                keys.pop();
                continue;
            };
            if !entries.insert((*name, &parent.name)) {
                continue;
            }
            path.push(parent);
            match on_path.get(parent.name.as_str()) {
                Some(&first) if cycles < MAX_CYCLES => {
                    cycles += 1;
                    diagnostics.push(cycle(path.get(first..).unwrap_or_default()));
                }
                Some(_) => {}
                None => next = Some(&parent.name),
            }
        }
    }
}

/// Creates the error for a cycle. `path` contains the `extends` entries along the cycle. The message leaves out the
/// middle of a long cycle.
fn cycle(path: &[&Parent]) -> Diagnostic {
    let closing = path.last().map_or("", |parent| parent.name.as_str());
    let mut names: Vec<&str> = vec![closing];
    let (begin, end) = path.split_at(path.len().min(MAX_CYCLE_KEYS));
    names.extend(begin.iter().map(|parent| parent.name.as_str()));
    if !end.is_empty() {
        names.extend(["...", closing]);
    }
    let problem = Diagnostic::error(
        path.first().map(|parent| parent.named_at),
        format!("{closing}: circular dependency detected in `extends`: {}", names.join(" -> ")),
    );
    begin.iter().skip(1).fold(problem, |problem, parent| {
        problem.related(parent.named_at, format!("`{}` is extended here", parent.name))
    })
}
