//! `trigger`.

use crate::config::keywords;
use crate::config::needs::NameEntry;
use crate::config::parsing::{Fields, Path, Problems, json, text};
use crate::limits::MAX_CHILD_INCLUDES;
use crate::model::{Bridge, BridgeTarget, ChildInclude, Strategy};
use crate::node::{Node, Span, Value};

/// Keys for the origin of an include entry. Each entry needs exactly one of them.
const ACCESSORS: &[&str] = &["local", "project", "template", "component", "remote", "artifact"];

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BridgeEntry {
    pub(crate) bridge: Bridge,
    /// Jobs whose artifacts contain configuration of the child pipeline.
    pub(crate) producers: Vec<NameEntry>,
}

pub(crate) fn trigger(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<BridgeEntry> {
    if let Some(project) = node.as_str() {
        if project.trim().is_empty() {
            problems.report(node.span, at, "config can't be blank");
            return None;
        }
        let target = BridgeTarget::Project { project: project.to_owned(), branch: None, inputs: Vec::new() };
        return Some(default_bridge(target));
    }
    if node.as_map().is_none() {
        problems.report(node.span, at, format_args!("config should be a hash or a string, but it is {}", node.kind()));
        return None;
    }
    let fields = Fields::parse(node, at, keywords::TRIGGER, problems)?;
    let mut producers = Vec::new();
    let target = match (fields.get("project"), fields.get("include")) {
        (Some(node), None) => {
            let project = fields.text("project", problems).unwrap_or_default();
            if node.as_str().is_some_and(|text| text.trim().is_empty()) {
                problems.report(node.span, at.key("project"), "config can't be blank");
            }
            let (branch, inputs) = (fields.text("branch", problems), inputs(&fields, problems));
            BridgeTarget::Project { project, branch, inputs }
        }
        (None, Some(include)) => {
            for key in ["branch", "inputs"].into_iter().filter(|key| fields.get(key).is_some()) {
                let help = if key == "inputs" { "move `inputs` to the entry of `include`" } else { "remove `branch`" };
                let message = format!("config has `{key}`, which is valid only with `project`, not with `include`");
                problems.report_with_help(fields.key_span(key), at, message, help);
            }
            BridgeTarget::Child(includes(include, at.key("include"), &mut producers, problems))
        }
        (Some(_), Some(_)) => {
            problems.report(node.span, at, "config uses both `project` and `include`, which are mutually exclusive");
            return None;
        }
        (None, None) => {
            problems.report(node.span, at, "config should have the key `project` or `include`");
            return None;
        }
    };
    let strategy = match fields.choice("strategy", &["depend", "mirror"], problems).as_deref() {
        Some("depend") => Strategy::Depend,
        Some("mirror") => Strategy::Mirror,
        _ => Strategy::None,
    };
    let forward = fields
        .get("forward")
        .and_then(|node| Fields::parse(node, at.key("forward"), &["yaml_variables", "pipeline_variables"], problems));
    let bridge = Bridge {
        target,
        strategy,
        forward_yaml_variables: forward.is_none_or(|forward| forward.flag("yaml_variables", true, problems)),
        forward_pipeline_variables: forward.is_some_and(|forward| forward.flag("pipeline_variables", false, problems)),
    };
    Some(BridgeEntry { bridge, producers })
}

/// Creates the bridge that mirrors a pipeline of another project (`needs: {pipeline: group/project}` without
/// `trigger`).
pub(crate) fn mirror(project: String) -> BridgeEntry {
    default_bridge(BridgeTarget::Mirror { project })
}

fn default_bridge(target: BridgeTarget) -> BridgeEntry {
    let bridge =
        Bridge { target, strategy: Strategy::None, forward_yaml_variables: true, forward_pipeline_variables: false };
    BridgeEntry { bridge, producers: Vec::new() }
}

fn inputs(fields: &Fields<'_>, problems: &mut Problems) -> Vec<(String, serde_json::Value)> {
    let Some(node) = fields.get("inputs") else { return Vec::new() };
    let Some(map) = node.as_map() else {
        let at = fields.at();
        problems.report(node.span, at.key("inputs"), format_args!("config should be a map, but it is {}", node.kind()));
        return Vec::new();
    };
    map.iter().map(|(name, entry)| (name.to_string(), json(&entry.node))).collect()
}

fn includes(node: &Node, at: Path<'_>, producers: &mut Vec<NameEntry>, problems: &mut Problems) -> Vec<ChildInclude> {
    let single = std::slice::from_ref(node);
    let items = node.as_list().unwrap_or(single);
    if items.is_empty() {
        problems.report(node.span, at, "config can't be blank");
    }
    if items.len() > MAX_CHILD_INCLUDES {
        let message = format!("config is too long (maximum is {MAX_CHILD_INCLUDES}, but it has {})", items.len());
        problems.report(node.span, at, message);
    }
    items.iter().filter_map(|item| include(item, at, producers, problems)).collect()
}

fn include(node: &Node, at: Path<'_>, producers: &mut Vec<NameEntry>, problems: &mut Problems) -> Option<ChildInclude> {
    if let Some(path) = node.as_str() {
        let kind = if path.starts_with("http://") || path.starts_with("https://") { "remote" } else { "local" };
        return Some(ChildInclude::Entry(serde_json::json!({ kind: path })));
    }
    let fields = Fields::parse(node, at, keywords::TRIGGER_INCLUDE, problems)?;
    let used: Vec<&str> = ACCESSORS.iter().copied().filter(|key| fields.get(key).is_some()).collect();
    match used.as_slice() {
        ["artifact"] => artifact(node.span, &fields, producers, problems),
        ["project"] if fields.get("file").is_none() => {
            problems.report(node.span, at, "config must specify the file where to fetch the config from");
            None
        }
        [_] => {
            if fields.get("job").is_some() {
                problems.report(fields.key_span("job"), at, "config has `job`, which is valid only with `artifact`");
            }
            Some(ChildInclude::Entry(json(node)))
        }
        _ => {
            let message = format!("needs to match exactly one accessor of: {}", ACCESSORS.join(", "));
            problems.report(node.span, at, message);
            None
        }
    }
}

fn artifact(
    span: Span,
    fields: &Fields<'_>,
    producers: &mut Vec<NameEntry>,
    problems: &mut Problems,
) -> Option<ChildInclude> {
    let at = fields.at();
    let path = fields.text("artifact", problems);
    let Some(node) = fields.get("job") else {
        problems.report(span, at, "config must specify the job where to fetch the artifact from");
        return None;
    };
    let job = text(node, at.key("job"), problems)?;
    producers.push(NameEntry { name: job.clone(), span: node.span });
    Some(ChildInclude::Artifact { path: path?, job, inputs: inputs(fields, problems) })
}

/// Returns true if `needs` mirrors a pipeline: a map with `pipeline` but without `job`, or a list with only such a map.
pub(crate) fn is_mirror(needs: &Node) -> bool {
    let entry = match &needs.value {
        Value::List(list) if list.len() == 1 => list.first(),
        Value::Map(_) => Some(needs),
        _ => None,
    };
    entry.and_then(Node::as_map).is_some_and(|map| map.get("pipeline").is_some() && map.get("job").is_none())
}
