//! The `run:` lists of a repository's pipeline, for `muster step`.

use std::path::PathBuf;

use muster_pipeline::context::{Context, Sources};
use muster_pipeline::diagnostic::Severity;
use muster_pipeline::load::{self, Loaded};
use muster_pipeline::node::{Node, Value};

use super::args::PipelineArgs;
use super::error::CiError;
use super::prepare::{PipelineSources, with_sources};
use super::ui;
use super::vendor::MAX_CHILD_DEPTH;

/// Arguments that select the pipeline.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StepListsArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
}

pub(crate) struct StepLists {
    pub(crate) worktree: PathBuf,
    /// Names of jobs with their lists, including hidden jobs and jobs that rules exclude.
    pub(crate) lists: Vec<(String, serde_json::Value)>,
    /// Child pipelines that could not be read, with the reason.
    pub(crate) unreadable: Vec<String>,
}

impl StepLists {
    /// Reads the configuration, everything that it includes, and its child pipelines.
    ///
    /// # Errors
    /// If the pipeline's own configuration cannot be read or has errors, which are printed.
    pub(crate) async fn read(args: &StepListsArgs) -> Result<Self, CiError> {
        let read = |sources: PipelineSources| {
            // An include may be excluded for this event, but not for others.
            let context = Context { ignores_include_rules: true, ..sources.context.clone() };
            let loaded = load::load(&sources.text, &context, &sources.sources);
            if loaded.has_errors() {
                let text =
                    muster_pipeline::render::render(&loaded.diagnostics, &loaded.sources, ui::stderr_has_color());
                ui::errln(text.trim_end());
                let errors =
                    loaded.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count();
                return Err(CiError::Configuration { errors });
            }
            let worktree = sources.snapshot.worktree.clone();
            let mut found = Self { worktree, lists: Vec::new(), unreadable: Vec::new() };
            found.add(&loaded, &context, &sources.sources, 0);
            Ok(found)
        };
        with_sources(args.pipeline.clone(), read).await
    }

    fn add(&mut self, loaded: &Loaded, context: &Context, sources: &dyn Sources, depth: usize) {
        self.lists.extend(lists(&loaded.root));
        if depth == MAX_CHILD_DEPTH {
            return;
        }
        let generated = load::generated_children(&loaded.root);
        let reason = "a job creates its configuration";
        self.unreadable.extend(generated.iter().map(|job| format!("the child pipeline of job `{job}`: {reason}")));
        for child in load::children(&loaded.root) {
            let child = load::load_child(&child, context, sources);
            let error = child.diagnostics.iter().find(|diagnostic| diagnostic.severity == Severity::Error);
            match error {
                Some(error) => self.unreadable.push(format!("a child pipeline: {}", error.message)),
                None => self.add(&child, context, sources, depth + 1),
            }
        }
    }
}

fn lists(root: &Node) -> Vec<(String, serde_json::Value)> {
    let jobs = root.as_map().into_iter().flat_map(|map| map.iter());
    let list = |(name, entry): (&std::sync::Arc<str>, &muster_pipeline::node::Entry)| {
        let run = entry.node.as_map()?.get("run")?;
        run.as_list().map(|_| (name.to_string(), json(run)))
    };
    jobs.filter_map(list).collect()
}

fn json(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::Null | Value::Reference(_) => serde_json::Value::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        Value::Float(value) => (*value).into(),
        Value::String(text) => text.to_string().into(),
        Value::List(list) => list.iter().map(json).collect(),
        Value::Map(map) => map
            .iter()
            .map(|(key, entry)| (key.to_string(), json(&entry.node)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    }
}
