//! Finds the child pipelines that the bridges (trigger jobs) of a merged configuration start.

use crate::config::parsing::json;
use crate::context::ChildSource;
use crate::limits::MAX_CHILD_INCLUDES;
use crate::node::{Node, Value};

/// Returns the `trigger:include` entries of each bridge, except files from artifacts. Omits bridges without such entries,
/// and hidden jobs.
#[must_use]
pub fn children(root: &Node) -> Vec<Vec<ChildSource>> {
    let includes = bridges(root).map(|(_, include)| entries(include));
    includes.filter(|entries| !entries.is_empty()).collect()
}

/// Returns the names of the bridges that start a child pipeline from a file in artifacts.
#[must_use]
pub fn generated_children(root: &Node) -> Vec<String> {
    let generated = bridges(root).filter(|(_, include)| {
        let mut nodes = include.as_list().unwrap_or(std::slice::from_ref(include)).iter();
        nodes.any(|node| node.as_map().is_some_and(|map| map.get("artifact").is_some()))
    });
    generated.map(|(name, _)| name.to_owned()).collect()
}

/// Returns the name and the value of `trigger:include` of each job that is not hidden.
fn bridges(root: &Node) -> impl Iterator<Item = (&str, &Node)> {
    let jobs = root.as_map().into_iter().flat_map(|map| map.iter()).filter(|(name, _)| !name.starts_with('.'));
    jobs.filter_map(|(name, entry)| Some((&**name, entry.node.as_map()?.get("trigger")?.as_map()?.get("include")?)))
}

fn entries(include: &Node) -> Vec<ChildSource> {
    let nodes = include.as_list().unwrap_or(std::slice::from_ref(include));
    let is_static = |node: &&Node| match &node.value {
        Value::Map(map) => map.get("artifact").is_none(),
        Value::String(_) => true,
        _ => false,
    };
    // Loading reports one more entry than allowed as an error, so no further copies are needed.
    let nodes = nodes.iter().filter(is_static).take(MAX_CHILD_INCLUDES + 1);
    nodes.map(|node| ChildSource::Entry(json(node))).collect()
}
