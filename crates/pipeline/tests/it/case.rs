//! Short ways to compile a configuration in flow style and to ask for jobs, errors and reasons.

use std::fmt::Write as _;
use std::sync::Arc;

use muster_pipeline::context::{PipelineSource, RefKind};
use muster_pipeline::model::{Job, Need, Pipeline, ScriptWork, Work};
use muster_pipeline::{Compiled, NotCreatedReason};

use crate::harness::{World, errors, world};

/// One configuration and the world that it is compiled in.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    yaml: String,
    pub(crate) world: World,
}

impl Case {
    /// A configuration in the default world. `S` as a word of its own stands for `script: [x]`.
    pub(crate) fn new(yaml: &str) -> Self {
        Self { yaml: with_script(yaml), world: world() }
    }

    /// With a project variable.
    pub(crate) fn var(mut self, key: &str, value: &str) -> Self {
        self.world = self.world.variable(key, value);
        self
    }

    /// For another event, on the same branch, with nothing to compare with.
    pub(crate) fn source(mut self, source: PipelineSource) -> Self {
        self.world = self.world.source(source);
        self.world.context.changed_paths = None;
        self
    }

    /// For a merge request from `main`.
    pub(crate) fn merge_request(mut self) -> Self {
        self.world = self.world.source(PipelineSource::MergeRequestEvent);
        self.world = self.world.predefined("CI_COMMIT_BRANCH", "").predefined("CI_MERGE_REQUEST_ID", "1");
        self
    }

    /// For a pushed tag.
    pub(crate) fn tag(mut self, name: &str) -> Self {
        self.world = self.world.predefined("CI_COMMIT_BRANCH", "").predefined("CI_COMMIT_TAG", name);
        self.world.context.ref_kind = RefKind::Tag;
        self.world.context.ref_name = name.to_owned();
        self.changed(None)
    }

    /// With these changed paths; `None`: nothing to compare with.
    pub(crate) fn changed(mut self, paths: Option<&[&str]>) -> Self {
        let owned = paths.map(|paths| paths.iter().map(|path| (*path).to_owned()).collect());
        self.world.context.changed_paths = owned;
        self
    }

    /// With a changed world.
    pub(crate) fn with(mut self, change: impl FnOnce(World) -> World) -> Self {
        self.world = change(self.world);
        self
    }

    /// With one more tracked path.
    pub(crate) fn tracked(mut self, path: &str) -> Self {
        Arc::make_mut(&mut self.world.context.tracked_paths).insert(path.to_owned());
        self
    }

    pub(crate) fn compile(&self) -> Compiled {
        self.world.compile(&self.yaml)
    }

    /// The pipeline, which has to be created.
    #[track_caller]
    pub(crate) fn pipeline(&self) -> Pipeline {
        let compiled = self.compile();
        let problems = describe(&compiled);
        compiled.pipeline.unwrap_or_else(|| panic!("no pipeline from\n{}\n{problems}", self.yaml))
    }

    /// The names of the jobs in creation order.
    #[track_caller]
    pub(crate) fn jobs(&self) -> Vec<String> {
        self.pipeline().jobs.into_iter().map(|job| job.name).collect()
    }

    /// One job of the pipeline.
    #[track_caller]
    pub(crate) fn job(&self, name: &str) -> Job {
        let jobs = self.pipeline().jobs;
        let names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
        jobs.into_iter().find(|job| job.name == name).unwrap_or_else(|| panic!("no job `{name}` among {names:?}"))
    }

    /// Asserts that it is refused, with some error that contains `part`, and that each error has a place.
    #[track_caller]
    pub(crate) fn fails(&self, part: &str) {
        let compiled = self.compile();
        let found = errors(&compiled.diagnostics);
        assert!(found.iter().any(|error| error.contains(part)), "`{part}` is not in {found:#?} of\n{}", self.yaml);
        assert!(compiled.pipeline.is_none() && compiled.not_created.is_none(), "an error and an outcome");
        for diagnostic in &compiled.diagnostics {
            assert!(diagnostic.span.is_some(), "without a place: {diagnostic:?}");
        }
    }

    /// Why no pipeline was created.
    #[track_caller]
    pub(crate) fn none(&self) -> NotCreatedReason {
        let compiled = self.compile();
        let problems = describe(&compiled);
        assert!(compiled.pipeline.is_none(), "a pipeline from\n{}", self.yaml);
        compiled.not_created.unwrap_or_else(|| panic!("no reason from\n{}\n{problems}", self.yaml)).reason
    }
}

/// The names of the jobs of a configuration in the default world.
#[track_caller]
pub(crate) fn jobs(yaml: &str) -> Vec<String> {
    Case::new(yaml).jobs()
}

/// One job of a configuration in the default world.
#[track_caller]
pub(crate) fn job(yaml: &str, name: &str) -> Job {
    Case::new(yaml).job(name)
}

/// Asserts that a configuration is refused in the default world.
#[track_caller]
pub(crate) fn fails(yaml: &str, part: &str) {
    Case::new(yaml).fails(part);
}

/// What a job runs.
#[track_caller]
pub(crate) fn script(job: &Job) -> &ScriptWork {
    match &job.work {
        Work::Script(work) => work,
        Work::Bridge(_) => panic!("{} is a bridge", job.name),
    }
}

/// The value of a YAML variable of a job.
pub(crate) fn value(job: &Job, name: &str) -> Option<String> {
    job.variables.iter().find(|variable| variable.key == name).map(|variable| variable.value.clone())
}

/// The names of the jobs of this pipeline that a job needs; `None`: stage order.
pub(crate) fn needs(job: &Job) -> Option<Vec<String>> {
    let name = |need: &Need| match need {
        Need::Job { name, .. } => Some(name.clone()),
        Need::Project { .. } | Need::Pipeline { .. } => None,
    };
    job.needs.as_ref().map(|needs| needs.iter().filter_map(name).collect())
}

/// All diagnostics with their lines, for a message.
pub(crate) fn describe(compiled: &Compiled) -> String {
    let mut text = String::new();
    for diagnostic in &compiled.diagnostics {
        let line = diagnostic.span.map_or(0, |span| span.line);
        let _ = writeln!(text, "{:?} line {line}: {}", diagnostic.severity, diagnostic.message);
    }
    if let Some(reason) = &compiled.not_created {
        let _ = writeln!(text, "not created: {reason:?}");
    }
    text
}

/// Writes `script: [x]` where the text has the word `S`.
fn with_script(yaml: &str) -> String {
    let mut out = String::new();
    let mut rest = yaml;
    while let Some(at) = rest.find('S') {
        let before = rest[..at].chars().next_back().or_else(|| out.chars().next_back());
        let after = rest[at + 1..].chars().next();
        let alone = matches!(before, Some('{' | ' ')) && matches!(after, Some('}' | ','));
        out.push_str(&rest[..at]);
        out.push_str(if alone { "script: [x]" } else { "S" });
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out
}
