//! The project of the conformance cases (docs/spec/pipeline-yaml.md, section 8): `grp/app` with a push to its default
//! branch `main` and four tracked files, of which `src/a.rb` changed. All files are in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_job::Variable;
use muster_pipeline::context::{
    Changes, ChildSource, ComponentFields, Context, IncludeTarget, IncludedFile, InputValue, Origin, PipelineSource,
    ScopedVariable, SourceError, Sources,
};
use muster_pipeline::diagnostic::{Diagnostic, Severity};
use muster_pipeline::load::{self, Loaded};
use muster_pipeline::node::{Node, Value};
use muster_pipeline::{Compiled, compile, compile_child};

#[derive(Debug, Clone, Default)]
pub(crate) struct TestProject {
    pub(crate) context: Context,
    files: BTreeMap<String, Vec<u8>>,
    components: BTreeMap<String, ComponentFields>,
    refs: BTreeMap<String, Vec<String>>,
}

pub(crate) fn project() -> TestProject {
    let predefined = [
        ("CI", "true"),
        ("GITLAB_CI", "true"),
        ("CI_SERVER_FQDN", "git.example.org"),
        ("CI_PROJECT_NAME", "app"),
        ("CI_PROJECT_PATH", "grp/app"),
        ("CI_DEFAULT_BRANCH", "main"),
        ("CI_COMMIT_BRANCH", "main"),
        ("CI_COMMIT_REF_NAME", "main"),
        ("CI_COMMIT_REF_SLUG", "main"),
        ("CI_COMMIT_SHA", "0123456789abcdef0123456789abcdef01234567"),
        ("CI_PIPELINE_SOURCE", "push"),
        ("CI_CONFIG_PATH", ".gitlab-ci.yml"),
    ];
    let tracked = ["Dockerfile", "src/a.rb", "src/lib/b.rb", "docs/x.md"];
    TestProject {
        context: Context {
            ref_name: "main".to_owned(),
            ref_protected: true,
            predefined: predefined.iter().map(|(key, value)| Variable::public(*key, *value)).collect(),
            config_path: ".gitlab-ci.yml".to_owned(),
            project_path: "grp/app".to_owned(),
            changed_paths: Some(vec!["src/a.rb".to_owned()]),
            tracked_paths: Arc::new(tracked.iter().map(|path| (*path).to_owned()).collect()),
            ..Context::default()
        },
        ..TestProject::default()
    }
}

impl TestProject {
    pub(crate) fn file(mut self, path: &str, text: impl AsRef<[u8]>) -> Self {
        self.files.insert(path.to_owned(), text.as_ref().to_vec());
        Arc::make_mut(&mut self.context.tracked_paths).insert(path.to_owned());
        self
    }

    /// Adds a file outside of the project. The location is `project:path`, `project@ref:path`, a URL, or
    /// `template:name`.
    pub(crate) fn external_file(mut self, location: &str, text: &str) -> Self {
        self.files.insert(location.to_owned(), text.as_bytes().to_vec());
        self
    }

    /// Adds a component. The location is `address@version`.
    pub(crate) fn component(mut self, location: &str, fields: ComponentFields, text: &str) -> Self {
        self.components.insert(location.to_owned(), fields);
        self.external_file(location, text)
    }

    pub(crate) fn variable(self, key: &str, value: &str) -> Self {
        self.scoped(Variable::public(key, value), false, "*")
    }

    pub(crate) fn scoped(mut self, variable: Variable, protected: bool, scope: &str) -> Self {
        self.context.project_variables.push(ScopedVariable {
            variable,
            protected,
            environment_scope: scope.to_owned(),
        });
        self
    }

    pub(crate) fn pipeline_variable(mut self, key: &str, value: &str) -> Self {
        self.context.pipeline_variables.push(Variable::public(key, value));
        self
    }

    /// Sets a predefined variable. An empty value removes the variable.
    pub(crate) fn predefined(mut self, key: &str, value: &str) -> Self {
        self.context.predefined.retain(|variable| variable.key != key);
        if !value.is_empty() {
            self.context.predefined.push(Variable::public(key, value));
        }
        self
    }

    pub(crate) fn source(mut self, source: PipelineSource) -> Self {
        self.context.source = source;
        self.predefined("CI_PIPELINE_SOURCE", source.as_str())
    }

    pub(crate) fn input(mut self, name: &str, value: serde_json::Value) -> Self {
        self.context.inputs.push((name.to_owned(), InputValue::Json(value)));
        self
    }

    /// Adds a git ref that `compare_to` can name. `changed` lists the paths that changed after it.
    pub(crate) fn git_ref(mut self, name: &str, changed: &[&str]) -> Self {
        self.refs.insert(name.to_owned(), changed.iter().map(|path| (*path).to_owned()).collect());
        self
    }

    pub(crate) fn load(&self, text: impl AsRef<[u8]>) -> Loaded {
        load::load(text.as_ref(), &self.context, self)
    }

    pub(crate) fn load_child(&self, entries: &[ChildSource]) -> Loaded {
        load::load_child(entries, &self.context, self)
    }

    pub(crate) fn compile(&self, text: impl AsRef<[u8]>) -> Compiled {
        compile(text.as_ref(), &self.context, self)
    }

    pub(crate) fn compile_child(&self, entries: &[ChildSource]) -> Compiled {
        compile_child(entries, &self.context, self)
    }
}

impl Sources for TestProject {
    fn read(&self, target: &IncludeTarget) -> Result<IncludedFile, SourceError> {
        let (location, origin) = match target {
            IncludeTarget::Local { origin: Origin::Root, path } => (path.clone(), Origin::Root),
            IncludeTarget::Local { origin: Origin::Detached, path } => (path.clone(), Origin::Detached),
            IncludeTarget::Local { origin: origin @ Origin::Project { project, git_ref }, path } => {
                (location_in_project(project, git_ref.as_deref(), path), origin.clone())
            }
            IncludeTarget::Project { project, git_ref, path } => (
                location_in_project(project, git_ref.as_deref(), path),
                Origin::Project { project: project.clone(), git_ref: git_ref.clone() },
            ),
            IncludeTarget::Remote { url } => (url.clone(), Origin::Detached),
            IncludeTarget::Template { name } => (format!("template:{name}"), Origin::Detached),
            IncludeTarget::Component { address, version } => (format!("{address}@{version}"), Origin::Detached),
        };
        match self.files.get(&location) {
            Some(bytes) => Ok(IncludedFile {
                bytes: bytes.clone(),
                origin,
                component: self.components.get(&location).cloned(),
                name: location,
            }),
            None if matches!(target, IncludeTarget::Local { .. }) => {
                Err(SourceError::NotFound(format!("local file `{location}` does not exist")))
            }
            None => Err(SourceError::Unreachable(format!(
                "`{location}` cannot be reached from here: map it to a local checkout in the configuration of muster"
            ))),
        }
    }

    fn paths(&self, origin: &Origin) -> Result<Arc<BTreeSet<String>>, SourceError> {
        Ok(match origin {
            Origin::Root => Arc::clone(&self.context.tracked_paths),
            Origin::Detached => Arc::default(),
            Origin::Project { project, git_ref } => {
                let prefix = location_in_project(project, git_ref.as_deref(), "");
                let paths = self.files.keys().filter_map(|location| location.strip_prefix(&prefix));
                Arc::new(paths.map(str::to_owned).collect())
            }
        })
    }

    fn changed_since(&self, compare_to: &str) -> Option<Changes> {
        let paths = self.refs.get(compare_to)?.clone();
        Some(Changes { paths, since: format!("1a2b3c4d, the merge base with `{compare_to}`") })
    }

    fn object_ids(&self, paths: &[String], commits: bool) -> Vec<String> {
        let known = paths.iter().filter(|path| self.context.tracked_paths.contains(*path));
        known.map(|path| format!("{}-of-{path}", if commits { "commit" } else { "blob" })).collect()
    }
}

fn location_in_project(project: &str, git_ref: Option<&str>, path: &str) -> String {
    match git_ref {
        Some(git_ref) => format!("{project}@{git_ref}:{path}"),
        None => format!("{project}:{path}"),
    }
}

pub(crate) fn json(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        Value::Float(value) => (*value).into(),
        Value::String(text) => (**text).into(),
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(map) => map.iter().map(|(key, entry)| (key.to_string(), json(&entry.node))).collect(),
        Value::Reference(path) => serde_json::json!({ "!reference": **path }),
    }
}

#[track_caller]
pub(crate) fn merged(loaded: &Loaded) -> serde_json::Value {
    assert_eq!(errors(&loaded.diagnostics), [""; 0], "the configuration must have no errors");
    json(&loaded.root)
}

pub(crate) fn errors(diagnostics: &[Diagnostic]) -> Vec<String> {
    messages(diagnostics, Severity::Error)
}

pub(crate) fn warnings(diagnostics: &[Diagnostic]) -> Vec<String> {
    messages(diagnostics, Severity::Warning)
}

fn messages(diagnostics: &[Diagnostic], severity: Severity) -> Vec<String> {
    let of_severity = diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity);
    of_severity.map(|diagnostic| diagnostic.message.clone()).collect()
}

#[track_caller]
pub(crate) fn assert_rejected(diagnostics: &[Diagnostic], part: &str) {
    let found = errors(diagnostics);
    assert!(found.len() == 1 && found[0].contains(part), "expected one error with `{part}`, found {found:#?}");
}
