//! `needs` and `dependencies`.

use crate::config::parallel::{self, MatrixEntry};
use crate::config::parsing::{Fields, Path, Problems, text, text_list};
use crate::node::{Node, Span, Value};

const MAX_NEEDS: usize = 50;
const MAX_PROJECT_NEEDS: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NeedEntry {
    pub(crate) span: Span,
    pub(crate) target: NeedTarget,
    /// Whether to download the artifacts of the job.
    pub(crate) artifacts: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NeedTarget {
    Job {
        name: String,
        optional: bool,
        matrix: Option<Vec<MatrixEntry>>,
    },
    Project {
        project: String,
        job: String,
        git_ref: String,
    },
    /// A job of another pipeline in the same hierarchy.
    Pipeline {
        pipeline: String,
        job: String,
    },
    /// The status of the latest pipeline of another project.
    Mirror {
        project: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) span: Span,
    pub(crate) entries: Vec<NeedEntry>,
}

/// Name of a job or stage as written, with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NameEntry {
    pub(crate) name: String,
    pub(crate) span: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NeedsParent {
    Job,
    /// A trigger job. It cannot need jobs of other pipelines, because it cannot download artifacts.
    Trigger,
    /// A job that only mirrors the pipeline of another project.
    Mirror,
    /// A rule. Only jobs of the same pipeline are allowed.
    Rule,
}

/// Parses `needs`. Nested lists are flattened, and nulls are ignored.
pub(crate) fn needs(node: &Node, at: Path<'_>, parent: NeedsParent, problems: &mut Problems) -> Option<Needs> {
    let items: Vec<&Node> = match &node.value {
        Value::List(_) => crate::config::parsing::flat_list(node, at, problems)?,
        Value::Map(_) => vec![node],
        _ => {
            let message = format!("config can only be a hash or an array, but it is {}", node.kind());
            problems.report(node.span, at, message);
            return None;
        }
    };
    let items: Vec<&Node> = items.into_iter().filter(|item| !item.is_null()).collect();
    if items.len() > MAX_NEEDS {
        let message = format!("can have at most {MAX_NEEDS} entries, but it has {}", items.len());
        problems.report_with_help(node.span, at, message, "combine some of them in a job of an earlier stage");
        return None;
    }
    let entries: Vec<NeedEntry> = items.into_iter().filter_map(|item| entry(item, at, parent, problems)).collect();
    let projects = entries.iter().filter(|entry| matches!(entry.target, NeedTarget::Project { .. })).count();
    if projects > MAX_PROJECT_NEEDS {
        let message = format!("can have at most {MAX_PROJECT_NEEDS} entries with `project`, but it has {projects}");
        problems.report(node.span, at, message);
    }
    Some(Needs { span: node.span, entries })
}

fn entry(node: &Node, at: Path<'_>, parent: NeedsParent, problems: &mut Problems) -> Option<NeedEntry> {
    let at = at.key("need");
    if let Some(name) = node.as_str() {
        if name.is_empty() {
            problems.report(node.span, at, "can't be blank");
            return None;
        }
        let target = NeedTarget::Job { name: name.to_owned(), optional: false, matrix: None };
        return Some(NeedEntry { span: node.span, target, artifacts: true });
    }
    let map = node.as_map();
    let has = |key| map.is_some_and(|map| map.get(key).is_some());
    if parent == NeedsParent::Job && has("project") {
        return project(node, at, problems);
    }
    if parent != NeedsParent::Rule && has("pipeline") {
        return pipeline(node, at, parent, problems);
    }
    if map.is_none() {
        problems.report(node.span, at, format_args!("config should be a name or a map, but it is {}", node.kind()));
        return None;
    }
    let allowed: &[&str] = match parent {
        NeedsParent::Rule => &["job", "artifacts", "optional"],
        NeedsParent::Trigger | NeedsParent::Mirror => &["job", "artifacts", "optional", "parallel"],
        NeedsParent::Job => &["job", "artifacts", "optional", "parallel", "project", "ref", "pipeline"],
    };
    let fields = Fields::parse(node, at, allowed, problems)?;
    let name = fields.required_text("job", problems)?;
    let matrix = fields.get("parallel").and_then(|node| parallel::matrix_map(node, at.key("parallel"), problems));
    let optional = fields.flag("optional", false, problems);
    let artifacts = fields.flag("artifacts", true, problems);
    Some(NeedEntry { span: node.span, target: NeedTarget::Job { name, optional, matrix }, artifacts })
}

fn project(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<NeedEntry> {
    let fields = Fields::parse(node, at, &["project", "job", "ref", "artifacts"], problems)?;
    let artifacts = fields.flag("artifacts", true, problems);
    let project = fields.required_text("project", problems);
    let job = fields.required_text("job", problems);
    let git_ref = fields.required_text("ref", problems);
    let target = NeedTarget::Project { project: project?, job: job?, git_ref: git_ref? };
    Some(NeedEntry { span: node.span, target, artifacts })
}

fn pipeline(node: &Node, at: Path<'_>, parent: NeedsParent, problems: &mut Problems) -> Option<NeedEntry> {
    let fields = Fields::parse(node, at, &["pipeline", "job", "artifacts"], problems)?;
    // IDs are often written without quotes.
    let pipeline = fields.get("pipeline").and_then(|node| match node.value {
        Value::Int(_) => node.scalar_text(),
        _ => text(node, at.key("pipeline"), problems),
    })?;
    if fields.get("job").is_none() {
        if parent == NeedsParent::Job {
            let message =
                "config has `pipeline` without `job`; this mirrors a pipeline, so the job cannot have a script";
            let help = "add the `job` whose artifacts are needed, or remove the script of this job";
            problems.report_with_help(node.span, at, message, help);
        }
        return Some(NeedEntry { span: node.span, target: NeedTarget::Mirror { project: pipeline }, artifacts: false });
    }
    if parent != NeedsParent::Job {
        problems.report(node.span, at, "config of a trigger job can't refer to a job of another pipeline");
        return None;
    }
    let artifacts = fields.flag("artifacts", true, problems);
    let target = NeedTarget::Pipeline { pipeline, job: fields.required_text("job", problems)? };
    Some(NeedEntry { span: node.span, target, artifacts })
}

pub(crate) fn dependencies(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<NameEntry>> {
    let names = text_list(node, at, problems)?;
    let spans = node.as_list().unwrap_or_default().iter().map(|item| item.span);
    Some(names.into_iter().zip(spans).map(|(name, span)| NameEntry { name, span }).collect())
}
