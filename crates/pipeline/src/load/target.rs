//! Resolves an include entry to files: expands variables and wildcards, checks extensions (docs/spec/pipeline-yaml.md,
//! section 1.1).

use super::entry::{Location, Text};
use super::variables::Variables;
use crate::context::{Context, IncludeTarget, Origin, Sources};
use crate::diagnostic::Diagnostic;
use crate::expand::Unknown;
use crate::glob::Glob;
use crate::node::Span;

pub(super) struct Resolver<'a> {
    pub(super) context: &'a Context,
    pub(super) sources: &'a dyn Sources,
    pub(super) variables: &'a Variables,
    pub(super) origin: &'a Origin,
    /// Maximum number of files that an entry is resolved to.
    pub(super) max_targets: usize,
}

impl Resolver<'_> {
    pub(super) fn targets(&self, location: &Location, diagnostics: &mut Vec<Diagnostic>) -> Vec<(IncludeTarget, Span)> {
        let found = match location {
            Location::Local(path) => self.local(path, diagnostics),
            Location::Project { project, git_ref, files } => {
                let project = self.expand(project);
                let git_ref = git_ref.as_ref().map(|git_ref| self.expand(git_ref)).filter(|name| !name.is_empty());
                let target = |file: &Text| {
                    let path = relative(&self.expand(file));
                    let (project, git_ref) = (project.clone(), git_ref.clone());
                    (IncludeTarget::Project { project, git_ref, path }, file.span)
                };
                files.iter().take(self.max_targets).map(target).collect()
            }
            Location::Remote { url, .. } => vec![(IncludeTarget::Remote { url: self.expand(url) }, url.span)],
            Location::Template(name) => vec![(IncludeTarget::Template { name: self.expand(name) }, name.span)],
            Location::Component(address) => self.component(address, diagnostics),
        };
        found.into_iter().filter(|(target, span)| check_extension(target, *span, diagnostics)).collect()
    }

    fn local(&self, written: &Text, diagnostics: &mut Vec<Diagnostic>) -> Vec<(IncludeTarget, Span)> {
        let span = written.span;
        if *self.origin == Origin::Detached {
            diagnostics.push(
                Diagnostic::error(span, "`include:local` cannot be used in a remote file or a template")
                    .help("such a file is not in a repository; use `remote` or `project`"),
            );
            return Vec::new();
        }
        let path = relative(&self.expand(written));
        let target = |path: String| (IncludeTarget::Local { origin: self.origin.clone(), path }, span);
        if !path.contains('*') {
            return vec![target(path)];
        }
        let tree = match self.origin {
            Origin::Root => Ok(std::sync::Arc::clone(&self.context.tracked_paths)),
            _ => self.sources.paths(self.origin),
        };
        match (Glob::of_include(&path), tree) {
            (Ok(glob), Ok(tree)) => {
                let paths = tree.iter().filter(|path| glob.is_match(path)).take(self.max_targets);
                let found: Vec<_> = paths.cloned().map(target).collect();
                if found.is_empty() {
                    // GitLab presumably includes nothing in this case (docs/spec/pipeline-yaml.md, section 9, point 2).
                    diagnostics.push(Diagnostic::warning(span, format!("no tracked file matches `{path}`")));
                }
                found
            }
            (Err(problem), _) => {
                diagnostics.push(Diagnostic::error(span, problem.to_string()));
                Vec::new()
            }
            (_, Err(problem)) => {
                diagnostics.push(Diagnostic::error(span, problem.to_string()));
                Vec::new()
            }
        }
    }

    fn component(&self, written: &Text, diagnostics: &mut Vec<Diagnostic>) -> Vec<(IncludeTarget, Span)> {
        let text = self.expand(written);
        match text.rsplit_once('@') {
            Some((address, version)) if address.matches('/').count() >= 2 && !version.is_empty() => {
                let (address, version) = (address.to_owned(), version.to_owned());
                vec![(IncludeTarget::Component { address, version }, written.span)]
            }
            _ => {
                diagnostics
                    .push(Diagnostic::error(written.span, format!("`{text}` is not a valid component address")).help(
                    "write `<host>/<project path>/<name>@<version>`, such as `$CI_SERVER_FQDN/group/project/lint@1.2`",
                ));
                Vec::new()
            }
        }
    }

    fn expand(&self, text: &Text) -> String {
        self.variables.expand(&text.text, Unknown::Empty)
    }
}

fn relative(path: &str) -> String {
    path.trim_start_matches('/').to_owned()
}

pub(super) fn has_yaml_extension(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.ends_with(".yml") || lower.ends_with(".yaml")
}

fn check_extension(target: &IncludeTarget, span: Span, diagnostics: &mut Vec<Diagnostic>) -> bool {
    let file = match target {
        IncludeTarget::Local { path, .. } | IncludeTarget::Project { path, .. } => path,
        IncludeTarget::Remote { url } => url,
        IncludeTarget::Template { name } => name,
        IncludeTarget::Component { .. } => return true,
    };
    let is_yaml = has_yaml_extension(file);
    if !is_yaml {
        diagnostics.push(
            Diagnostic::error(span, format!("included file `{file}` does not have YAML extension"))
                .help("the name must end with `.yml` or `.yaml`"),
        );
    }
    is_yaml
}

/// Returns the name without the kind (`local`, `remote`, ...).
pub(super) fn name(target: &IncludeTarget) -> String {
    match target {
        IncludeTarget::Local { path, .. } => path.clone(),
        IncludeTarget::Project { project, path, git_ref: None } => format!("{project}:{path}"),
        IncludeTarget::Project { project, path, git_ref: Some(git_ref) } => format!("{project}@{git_ref}:{path}"),
        IncludeTarget::Remote { url } => url.clone(),
        IncludeTarget::Template { name } => name.clone(),
        IncludeTarget::Component { address, version } => format!("{address}@{version}"),
    }
}

/// Returns the kind and the name, such as `local ci/build.yml`.
pub(super) fn description(target: &IncludeTarget) -> String {
    let kind = match target {
        IncludeTarget::Local { .. } => "local",
        IncludeTarget::Project { .. } => "project",
        IncludeTarget::Remote { .. } => "remote",
        IncludeTarget::Template { .. } => "template",
        IncludeTarget::Component { .. } => "component",
    };
    format!("{kind} {}", name(target))
}

pub(super) fn location_description(location: &Location) -> String {
    match location {
        Location::Local(path) => format!("local {}", path.text),
        Location::Project { project, files, .. } => {
            let files: Vec<&str> = files.iter().map(|file| file.text.as_str()).collect();
            format!("project {}:{}", project.text, files.join(","))
        }
        Location::Remote { url, .. } => format!("remote {}", url.text),
        Location::Template(name) => format!("template {}", name.text),
        Location::Component(address) => format!("component {}", address.text),
    }
}
