//! Helpers to compile a configuration in flow style, and to query its jobs, its errors, and the reason why it creates
//! no pipeline.

use std::fmt::Write as _;
use std::sync::Arc;

use muster_pipeline::context::{PipelineSource, RefKind};
use muster_pipeline::model::{Job, Need, Pipeline, ScriptWork, Work};
use muster_pipeline::{Compiled, NotCreatedReason};

use crate::harness::{TestProject, errors, project};

#[derive(Debug, Clone)]
pub(crate) struct Case {
    yaml: String,
    pub(crate) project: TestProject,
}

impl Case {
    /// Creates a case with this configuration. In the braces of a job, the word `S` stands for `script: [x]`.
    pub(crate) fn new(yaml: &str) -> Self {
        Self { yaml: with_script(yaml), project: project() }
    }

    pub(crate) fn var(mut self, key: &str, value: &str) -> Self {
        self.project = self.project.variable(key, value);
        self
    }

    /// Sets the source of the event, which then has no commit to compare with.
    pub(crate) fn source(mut self, source: PipelineSource) -> Self {
        self.project = self.project.source(source);
        self.project.context.changed_paths = None;
        self
    }

    pub(crate) fn merge_request(mut self) -> Self {
        self.project = self.project.source(PipelineSource::MergeRequestEvent);
        self.project = self.project.predefined("CI_COMMIT_BRANCH", "").predefined("CI_MERGE_REQUEST_ID", "1");
        self
    }

    pub(crate) fn tag(mut self, name: &str) -> Self {
        self.project = self.project.predefined("CI_COMMIT_BRANCH", "").predefined("CI_COMMIT_TAG", name);
        self.project.context.ref_kind = RefKind::Tag;
        self.project.context.ref_name = name.to_owned();
        self.changed_paths(None)
    }

    /// Sets the paths that the event changed. `None` means that there is no commit to compare with.
    pub(crate) fn changed_paths(mut self, paths: Option<&[&str]>) -> Self {
        let owned = paths.map(|paths| paths.iter().map(|path| (*path).to_owned()).collect());
        self.project.context.changed_paths = owned;
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(TestProject) -> TestProject) -> Self {
        self.project = change(self.project);
        self
    }

    pub(crate) fn tracked_path(mut self, path: &str) -> Self {
        Arc::make_mut(&mut self.project.context.tracked_paths).insert(path.to_owned());
        self
    }

    pub(crate) fn compile(&self) -> Compiled {
        self.project.compile(&self.yaml)
    }

    #[track_caller]
    pub(crate) fn pipeline(&self) -> Pipeline {
        let compiled = self.compile();
        let problems = describe(&compiled);
        compiled.pipeline.unwrap_or_else(|| panic!("no pipeline from\n{}\n{problems}", self.yaml))
    }

    #[track_caller]
    pub(crate) fn jobs(&self) -> Vec<String> {
        self.pipeline().jobs.into_iter().map(|job| job.name).collect()
    }

    #[track_caller]
    pub(crate) fn job(&self, name: &str) -> Job {
        let jobs = self.pipeline().jobs;
        let names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
        jobs.into_iter().find(|job| job.name == name).unwrap_or_else(|| panic!("no job `{name}` among {names:?}"))
    }

    /// Asserts that an error contains `part`, that there is no pipeline, and that each error and warning has a
    /// position.
    #[track_caller]
    pub(crate) fn assert_fails(&self, part: &str) {
        let compiled = self.compile();
        let found = errors(&compiled.diagnostics);
        assert!(found.iter().any(|error| error.contains(part)), "`{part}` is not in {found:#?} of\n{}", self.yaml);
        assert!(
            compiled.pipeline.is_none() && compiled.not_created.is_none(),
            "a failed compilation must have no outcome"
        );
        for diagnostic in &compiled.diagnostics {
            assert!(diagnostic.span.is_some(), "each diagnostic must have a position: {diagnostic:?}");
        }
    }

    #[track_caller]
    pub(crate) fn not_created_reason(&self) -> NotCreatedReason {
        let compiled = self.compile();
        let problems = describe(&compiled);
        assert!(compiled.pipeline.is_none(), "unexpected pipeline from\n{}", self.yaml);
        compiled
            .not_created
            .unwrap_or_else(|| panic!("no pipeline and no reason from\n{}\n{problems}", self.yaml))
            .reason
    }
}

#[track_caller]
pub(crate) fn jobs(yaml: &str) -> Vec<String> {
    Case::new(yaml).jobs()
}

#[track_caller]
pub(crate) fn job(yaml: &str, name: &str) -> Job {
    Case::new(yaml).job(name)
}

#[track_caller]
pub(crate) fn assert_fails(yaml: &str, part: &str) {
    Case::new(yaml).assert_fails(part);
}

#[track_caller]
pub(crate) fn script(job: &Job) -> &ScriptWork {
    match &job.work {
        Work::Script(work) => work,
        Work::Bridge(_) => panic!("{} is a bridge", job.name),
    }
}

pub(crate) fn value(job: &Job, name: &str) -> Option<String> {
    job.variables.iter().find(|variable| variable.key == name).map(|variable| variable.value.clone())
}

/// Returns `None` if the job has no `needs`, so that it waits for all earlier stages.
pub(crate) fn needs(job: &Job) -> Option<Vec<String>> {
    let name = |need: &Need| match need {
        Need::Job { name, .. } => Some(name.clone()),
        Need::Project { .. } | Need::Pipeline { .. } => None,
    };
    job.needs.as_ref().map(|needs| needs.iter().filter_map(name).collect())
}

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

/// Replaces each separate word `S` with `script: [x]`.
fn with_script(yaml: &str) -> String {
    let mut out = String::new();
    let mut rest = yaml;
    while let Some(at) = rest.find('S') {
        let before = rest[..at].chars().next_back().or_else(|| out.chars().next_back());
        let after = rest[at + 1..].chars().next();
        let is_separate_word = matches!(before, Some('{' | ' ')) && matches!(after, Some('}' | ','));
        out.push_str(&rest[..at]);
        out.push_str(if is_separate_word { "script: [x]" } else { "S" });
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out
}
