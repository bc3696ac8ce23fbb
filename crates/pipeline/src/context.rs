//! Input of a compilation besides the configuration: the event, its variables, and the trait that reads files.

use std::collections::BTreeSet;

use muster_job::Variable;

/// Event that started the pipeline: the values of `CI_PIPELINE_SOURCE` (docs/spec/pipeline-yaml.md, section 3.5).
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
    /// All sources, each with its value of `CI_PIPELINE_SOURCE`.
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

    /// Returns the value of `CI_PIPELINE_SOURCE`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(source, _)| *source == self).map_or("push", |(_, name)| name)
    }

    /// Returns the source with this value of `CI_PIPELINE_SOURCE`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(source, _)| *source)
    }
}

/// Type of the ref of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum RefKind {
    #[default]
    Branch,
    Tag,
}

/// A variable from outside the configuration, with its visibility.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopedVariable {
    /// The variable.
    pub variable: Variable,
    /// Whether the variable is visible only to pipelines on protected refs.
    pub protected: bool,
    /// Environments that see the variable: `*`, a name, or a pattern with `*`.
    pub environment_scope: String,
}

/// All input of a compilation except the configuration and the files that [`Sources`] reads.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// Event that started the pipeline.
    pub source: PipelineSource,
    /// Type of the ref.
    pub ref_kind: RefKind,
    /// Name of the branch or tag.
    pub ref_name: String,
    /// Whether the ref is protected, so that the pipeline gets protected variables.
    pub ref_protected: bool,
    /// Predefined variables that exist before the pipeline does (phases P and L of docs/spec/pipeline-yaml.md, section
    /// 4.5). Of these, only `GITLAB_USER_*` take precedence over YAML variables.
    pub predefined: Vec<Variable>,
    /// Instance, group and project variables, lowest precedence first.
    pub project_variables: Vec<ScopedVariable>,
    /// Variables of this run: from the web form, `--var`, a trigger, a schedule or a bridge. They have the highest
    /// precedence.
    pub pipeline_variables: Vec<Variable>,
    /// Pipeline inputs of the run request (API, trigger, schedule, push option or bridge).
    ///
    /// An input that the root file does not declare applies to the included files that declare it.
    pub inputs: Vec<(String, InputValue)>,
    /// Names of variables that are removed from the pipeline even if the configuration sets them.
    pub unset_variables: Vec<String>,
    /// Path of the root file, relative to the root of the repository.
    pub config_path: String,
    /// Path of the project, such as `group/app`.
    pub project_path: String,
    /// Paths that the event changed. `None` means that the event has no commit to compare with, so that `changes` without
    /// `compare_to` is true.
    pub changed_paths: Option<Vec<String>>,
    /// Human-readable name of the commit that [`Context::changed_paths`] is relative to, such as ``1a2b3c4d, the merge base with
    /// `origin/main` ``. `None` if there is no such commit.
    pub changed_since: Option<String>,
    /// All tracked paths of the commit, with `/` as the separator.
    pub tracked_paths: std::sync::Arc<BTreeSet<String>>,
    /// Whether to skip includes that this machine cannot reach, with a warning for each. Jobs that are incomplete as a
    /// result remain in the pipeline. Such a pipeline can be shown but not run.
    pub stubs_includes: bool,
    /// Whether to read every include regardless of its rules, to download all files that may be needed.
    pub ignores_include_rules: bool,
    /// Whether to record the values that rules compared, for `muster ci explain`.
    pub explains: bool,
}

/// Paths in which the commit of the pipeline differs from another commit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// The changed paths.
    pub paths: Vec<String>,
    /// Human-readable name of the other commit, such as ``1a2b3c4d, the merge base with `origin/main` ``.
    pub since: String,
}

/// Value of a pipeline input ([`Context::inputs`]).
#[derive(Debug, Clone, PartialEq)]
pub enum InputValue {
    /// A text. It is converted to the declared type of the input.
    Text(String),
    /// A typed value.
    Json(serde_json::Value),
}

/// The file that an `include` entry refers to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IncludeTarget {
    /// A file of the tree that contains the including file.
    Local {
        /// Tree that contains the including file.
        origin: Origin,
        /// Path from the root of the repository, without a leading `/`.
        path: String,
    },
    /// A file of another project.
    Project {
        /// Path of the project, such as `group/app`.
        project: String,
        /// Branch, tag or commit. `None` means the `HEAD` of the project.
        git_ref: Option<String>,
        /// Path from the root of the project's repository.
        path: String,
    },
    /// A file at a URL.
    Remote {
        /// URL, such as `https://...`.
        url: String,
    },
    /// A template that the server provides.
    Template {
        /// Path relative to the directory of templates.
        name: String,
    },
    /// A component.
    Component {
        /// Address without the version: `host/group/project/name`.
        address: String,
        /// Commit, tag, branch, `~latest`, `1` or `1.2`.
        version: String,
    },
}

/// Tree that contains a file. A nested `include:local` reads from the same tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Origin {
    /// The project of the pipeline.
    #[default]
    Root,
    /// Another project at a ref.
    Project {
        /// Path of the project, such as `group/app`.
        project: String,
        /// Branch, tag or commit as written. `None` means the `HEAD` of the project.
        git_ref: Option<String>,
    },
    /// No tree: the file is from a URL or a template, and cannot use `include:local`.
    Detached,
}

/// Content of an included file.
#[derive(Debug, Clone)]
pub struct IncludedFile {
    /// Name for error messages.
    pub name: String,
    /// Content in bytes. The loader checks size and encoding.
    pub bytes: Vec<u8>,
    /// Tree in which nested `include:local` entries are resolved.
    pub origin: Origin,
    /// Fields of `$[[ component.* ]]`, if the file is a component.
    pub component: Option<ComponentFields>,
}

/// Fields that a component can use as `$[[ component.<field> ]]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the names are GitLab's")]
pub struct ComponentFields {
    pub name: String,
    pub sha: String,
    pub version: Option<String>,
    pub reference: String,
}

/// A file of a child pipeline (`trigger:include`). Several files are merged in order.
#[derive(Debug, Clone, PartialEq)]
pub enum ChildSource {
    /// An include entry, in the form of [`crate::model::ChildInclude::Entry`].
    Entry(serde_json::Value),
    /// A file from the artifacts of a job of the parent pipeline.
    Artifact {
        /// Name for error messages, such as `g.yml from job gen`.
        name: String,
        /// Content in bytes.
        bytes: Vec<u8>,
        /// `inputs` of the entry.
        inputs: Vec<(String, serde_json::Value)>,
    },
}

/// Reason why a file could not be read. The text is shown to the user unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The file does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The file may exist, but this machine cannot reach it. The text describes what to configure.
    #[error("{0}")]
    Unreachable(String),
    /// The file is on this machine, but it cannot be read. The text names the file and the cause.
    #[error("{0}")]
    Unreadable(String),
}

/// Reads files, and compares commits of the project. All that this crate uses besides its arguments comes from this
/// trait.
pub trait Sources {
    /// Announces that a configuration will be loaded, for which the time limits of downloads start again.
    fn begin_load(&self) {}

    /// Announces files that will be read, so that they can be downloaded concurrently.
    fn prefetch(&self, _targets: &[IncludeTarget]) {}

    /// Reads a file.
    ///
    /// # Errors
    /// Returns [`SourceError`], whose text becomes the message at the `include` entry.
    fn read(&self, target: &IncludeTarget) -> Result<IncludedFile, SourceError>;

    /// Returns the tracked paths of a tree, for wildcards in `include:local` and for `rules:exists`.
    ///
    /// # Errors
    /// Same as [`Sources::read`].
    fn paths(&self, origin: &Origin) -> Result<std::sync::Arc<BTreeSet<String>>, SourceError>;

    /// Returns the difference between `compare_to` (a branch, tag or commit) and the commit of the pipeline. Returns
    /// `None` if the ref does not exist.
    fn changed_since(&self, compare_to: &str) -> Option<Changes>;

    /// Returns the blob IDs of tracked paths or, if `commits` is true, the IDs of the last commits that changed these
    /// paths. Omits paths that do not exist.
    fn object_ids(&self, paths: &[String], commits: bool) -> Vec<String>;
}
