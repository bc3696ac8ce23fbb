//! What a pipeline is compiled for: the event, its variables, and the port to files.

use std::collections::BTreeSet;

use muster_job::Variable;

/// What started the pipeline: the values of `CI_PIPELINE_SOURCE` (pipeline-yaml 3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[expect(missing_docs, reason = "the names are GitLab's")]
pub enum PipelineSource {
    #[default]
    Push,
    MergeRequestEvent,
    Schedule,
    Web,
    Api,
    Trigger,
    Pipeline,
    ParentPipeline,
    Chat,
    External,
    ExternalPullRequestEvent,
    WebIde,
}

impl PipelineSource {
    /// Every source with its name.
    pub const ALL: &'static [(Self, &'static str)] = &[
        (Self::Push, "push"),
        (Self::MergeRequestEvent, "merge_request_event"),
        (Self::Schedule, "schedule"),
        (Self::Web, "web"),
        (Self::Api, "api"),
        (Self::Trigger, "trigger"),
        (Self::Pipeline, "pipeline"),
        (Self::ParentPipeline, "parent_pipeline"),
        (Self::Chat, "chat"),
        (Self::External, "external"),
        (Self::ExternalPullRequestEvent, "external_pull_request_event"),
        (Self::WebIde, "webide"),
    ];

    /// The value of `CI_PIPELINE_SOURCE`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(source, _)| *source == self).map_or("push", |(_, name)| name)
    }

    /// The source of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(source, _)| *source)
    }
}

/// Branch or tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub enum RefKind {
    #[default]
    Branch,
    Tag,
}

/// A variable from outside the configuration, with what limits who sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopedVariable {
    /// The variable.
    pub variable: Variable,
    /// Only for pipelines on protected refs.
    pub protected: bool,
    /// `*`, an environment's name, or a pattern with `*`.
    pub environment_scope: String,
}

/// Everything but the configuration that decides what a pipeline is.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// What started it.
    pub source: PipelineSource,
    /// Branch or tag.
    pub ref_kind: RefKind,
    /// The branch's or tag's name.
    pub ref_name: String,
    /// The ref is protected: protected variables are given out.
    pub ref_protected: bool,
    /// Predefined variables that exist before the pipeline does (phase P and L of pipeline-yaml 4.5), also those of
    /// the user (`GITLAB_USER_*`), which the seed layers above YAML variables.
    pub predefined: Vec<Variable>,
    /// Instance, group and project variables, lowest precedence first.
    pub project_variables: Vec<ScopedVariable>,
    /// Variables given to this run: run form, `--var`, trigger, schedule, bridge. They beat all others.
    pub pipeline_variables: Vec<Variable>,
    /// Pipeline inputs (`spec:inputs` of the root file), by name.
    pub inputs: Vec<(String, InputValue)>,
    /// Names of variables that the configuration may set, and which are not set all the same.
    pub unset_variables: Vec<String>,
    /// The file to start from, relative to the repository's root.
    pub config_path: String,
    /// The name of the project, `group/app`.
    pub project_path: String,
    /// The paths that the event changed; `None` where the event has none to compare with, and `changes` then matches.
    pub changed_paths: Option<Vec<String>>,
    /// The commit that [`Context::changed_paths`] are compared with, for people: ``1a2b3c4d, where it left `origin/main` ``.
    pub changed_since: Option<String>,
    /// Every tracked path of the commit, with `/` between its parts.
    pub tracked_paths: std::sync::Arc<BTreeSet<String>>,
    /// Includes that this machine cannot reach ([`SourceError::Unreachable`]) are left out with a warning, and jobs that lack
    /// a part are kept: for looking at a pipeline, not for running it.
    pub stubs_includes: bool,
    /// Every include is read, whatever its rules say: for fetching all that may be needed.
    pub ignores_include_rules: bool,
    /// Decisions name the values that rules compared. It costs a look at each of them, so only `explain` asks for it.
    pub explains: bool,
}

/// The paths in which the pipeline's commit differs from another one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// The paths.
    pub paths: Vec<String>,
    /// The commit that was compared, for people: ``1a2b3c4d, where it left `origin/main` ``.
    pub since: String,
}

/// The value of an input, as the run request gives it.
#[derive(Debug, Clone, PartialEq)]
pub enum InputValue {
    /// Text, to be read by the input's declared type.
    Text(String),
    /// A typed value.
    Json(serde_json::Value),
}

/// What an `include` entry asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IncludeTarget {
    /// A file of the project that the asking file belongs to.
    Local {
        /// Where the asking file comes from.
        origin: Origin,
        /// Path from the root of the repository, without a leading `/`.
        path: String,
    },
    /// A file of another project.
    Project {
        /// `group/app`
        project: String,
        /// Branch, tag or commit; `None` is the project's `HEAD`.
        git_ref: Option<String>,
        /// Path from the root of that repository.
        path: String,
    },
    /// A file at a URL.
    Remote {
        /// `https://...`
        url: String,
    },
    /// A template of the server.
    Template {
        /// Path below the folder of templates.
        name: String,
    },
    /// A component.
    Component {
        /// `host/group/project/name@version`, without the version.
        address: String,
        /// Commit, tag, branch, `~latest`, `1` or `1.2`.
        version: String,
    },
}

/// Which tree a file comes from; nested `include:local` stays inside it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Origin {
    /// The project that the pipeline is for.
    #[default]
    Root,
    /// Another project at a ref.
    Project {
        /// `group/app`
        project: String,
        /// As asked for.
        git_ref: Option<String>,
    },
    /// A URL, a template: `local` is not possible there.
    Detached,
}

/// A file that was found.
#[derive(Debug, Clone)]
pub struct IncludedFile {
    /// The name to show in errors.
    pub name: String,
    /// Its bytes; the loader checks size and encoding.
    pub bytes: Vec<u8>,
    /// Where nested `local` includes look.
    pub origin: Origin,
    /// For a component: the fields of `$[[ component.* ]]`.
    pub component: Option<ComponentFields>,
}

/// `$[[ component.name ]]` and its siblings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the names are GitLab's")]
pub struct ComponentFields {
    pub name: String,
    pub sha: String,
    pub version: Option<String>,
    pub reference: String,
}

/// One text that a child pipeline is made of (`trigger:include`); several are merged in order.
#[derive(Debug, Clone, PartialEq)]
pub enum ChildSource {
    /// An include entry, as [`crate::model::ChildInclude::Entry`] holds it.
    Entry(serde_json::Value),
    /// A file that a job of the parent pipeline made.
    Artifact {
        /// The name to show in errors: `g.yml from job gen`.
        name: String,
        /// Its bytes.
        bytes: Vec<u8>,
        /// The `inputs` of the entry.
        inputs: Vec<(String, serde_json::Value)>,
    },
}

/// Why a file could not be had. The text is shown as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// It is not there.
    #[error("{0}")]
    NotFound(String),
    /// It may be there, but this machine cannot reach it; the text says what to configure.
    #[error("{0}")]
    Unreachable(String),
}

/// The port to files: the only way in which this room learns about the world.
pub trait Sources {
    /// Is told of files that will be read, before the first of them is: they may be got side by side.
    fn prefetch(&self, _targets: &[IncludeTarget]) {}

    /// Reads one file.
    ///
    /// # Errors
    /// [`SourceError`], whose text becomes the message at the `include` entry.
    fn read(&self, target: &IncludeTarget) -> Result<IncludedFile, SourceError>;

    /// The tracked paths of the tree that `origin` names, for wildcard `local` includes and `rules:exists`.
    ///
    /// # Errors
    /// As for [`Sources::read`].
    fn paths(&self, origin: &Origin) -> Result<std::sync::Arc<BTreeSet<String>>, SourceError>;

    /// What differs between `compare_to` (branch, tag, commit) and the pipeline's commit; `None` where there is no such ref.
    fn changed_since(&self, compare_to: &str) -> Option<Changes>;

    /// The blob ids (`commits` false) or last-commit ids (`commits` true) of tracked paths, for `cache:key:files`
    /// and `files_commits`. Paths that do not exist are left out.
    fn object_ids(&self, paths: &[String], commits: bool) -> Vec<String>;
}
