//! Finds the child pipelines that a merged configuration starts.

use crate::config::parsing::json;
use crate::context::ChildSource;
use crate::node::{Node, Value};

/// Returns the includes of each bridge of a merged configuration, except files from artifacts.
#[must_use]
pub fn children(root: &Node) -> Vec<Vec<ChildSource>> {
    let jobs = root.as_map().into_iter().flat_map(|map| map.iter());
    let triggers = jobs.filter_map(|(_, entry)| entry.node.as_map()?.get("trigger")?.as_map()?.get("include"));
    triggers.map(entries).filter(|entries| !entries.is_empty()).collect()
}

fn entries(include: &Node) -> Vec<ChildSource> {
    let nodes = include.as_list().unwrap_or(std::slice::from_ref(include));
    let is_static = |node: &&Node| match &node.value {
        Value::Map(map) => map.get("artifact").is_none(),
        Value::String(_) => true,
        _ => false,
    };
    nodes.iter().filter(is_static).map(|node| ChildSource::Entry(json(node))).collect()
}
