//! Finds the child pipelines that the bridges (trigger jobs) of a merged configuration start.

use crate::config::parsing::json;
use crate::context::ChildSource;
use crate::node::{Node, Value};

/// Returns the `trigger:include` entries of each bridge, except files from artifacts. Omits bridges without such entries.
#[must_use]
pub fn children(root: &Node) -> Vec<Vec<ChildSource>> {
    let jobs = root.as_map().into_iter().flat_map(|map| map.iter());
    let triggers = jobs.filter_map(|(_, entry)| entry.node.as_map()?.get("trigger")?.as_map()?.get("include"));
    triggers.map(entries).filter(|entries| !entries.is_empty()).collect()
}

/// Returns the names of the bridges that start a child pipeline from a file in artifacts.
#[must_use]
pub fn generated_children(root: &Node) -> Vec<String> {
    let jobs = root.as_map().into_iter().flat_map(|map| map.iter());
    let generated = jobs.filter(|(_, entry)| {
        let trigger = entry.node.as_map().and_then(|job| job.get("trigger")?.as_map());
        let include = trigger.and_then(|trigger| trigger.get("include"));
        let nodes = include.map(|include| include.as_list().unwrap_or(std::slice::from_ref(include)));
        nodes.unwrap_or_default().iter().any(|node| node.as_map().is_some_and(|map| map.get("artifact").is_some()))
    });
    generated.map(|(name, _)| name.to_string()).collect()
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
