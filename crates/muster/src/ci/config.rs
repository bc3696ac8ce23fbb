//! The user's `ci.toml`: where other projects lie, and the variables that GitLab would keep in its settings.
//!
//! It lies in `$XDG_CONFIG_HOME/muster/`, not in a repository: what it holds is of this machine and this person.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_coordinator::includes::{IncludeConfig, Pins, RemotePolicy};
use muster_job::{Secret, Variable};
use muster_pipeline::context::ScopedVariable;
use serde::Deserialize;

use super::error::CiError;
use super::read::whole_text;
use super::ui;
use crate::unpack::UnpackArgs;

/// GitLab's own templates.
const TEMPLATES: &str = "https://gitlab.com/gitlab-org/gitlab/-/raw/master/lib/gitlab/ci/templates";

/// The file, as it is written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Config {
    /// Local checkouts by project path.
    projects: BTreeMap<String, PathBuf>,
    /// Local checkouts by component address without the name.
    components: BTreeMap<String, PathBuf>,
    templates: Templates,
    remote: Remote,
    /// How long past runs are kept.
    pub(super) keep: Keep,
    /// Limits of unpacking artifacts and caches.
    #[serde(default)]
    pub(super) unpack: UnpackArgs,
    /// Protected branches and tags beside the default branch; `*` stands for any text.
    pub(super) protected: Vec<String>,
    /// Variables of projects.
    variables: Vec<ConfiguredVariable>,
    /// Values of the `secrets` keyword.
    secrets: Vec<ConfiguredSecret>,
    /// Where it was read from, or would be.
    #[serde(skip)]
    pub(super) file: PathBuf,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Templates {
    folder: Option<PathBuf>,
    /// Where `muster ci vendor` fetches templates.
    url: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Remote {
    offline: bool,
    /// Seconds that all remote includes of a pipeline may take together.
    timeout: Option<f64>,
    /// Local files by URL, and local folders by the start of URLs, which ends with `/`.
    map: BTreeMap<String, PathBuf>,
}

/// How long past runs are kept.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Keep {
    /// Runs older than this are deleted.
    pub(super) days: u64,
    /// Oldest runs are deleted while a project's runs take more than this.
    pub(super) megabytes: u64,
    /// So many newest runs are kept whatever their age and size.
    pub(super) runs: usize,
}

impl Default for Keep {
    fn default() -> Self {
        Self { days: 30, megabytes: 5000, runs: 10 }
    }
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ConfiguredVariable {
    key: String,
    value: Option<Secret>,
    /// The value is the content of this file.
    value_file: Option<PathBuf>,
    /// The project, or a pattern with `*`; none: every project.
    #[serde(default = "any")]
    project: String,
    #[serde(default)]
    masked: bool,
    #[serde(default)]
    protected: bool,
    /// Jobs see the path of a file with the value.
    #[serde(default)]
    file: bool,
    #[serde(default = "yes")]
    expand: bool,
    #[serde(default = "any")]
    environment_scope: String,
}

impl std::fmt::Debug for ConfiguredVariable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfiguredVariable").field("key", &self.key).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfiguredSecret {
    name: String,
    value: Secret,
    #[serde(default = "any")]
    project: String,
}

fn any() -> String {
    "*".to_owned()
}

fn yes() -> bool {
    true
}

impl Config {
    /// Reads the file; one that is not there is empty.
    pub(super) fn load() -> Result<Self, CiError> {
        let folder = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let folder = folder.or_else(|| std::env::home_dir().map(|home| home.join(".config")));
        let file = folder.unwrap_or_default().join("muster/ci.toml");
        let text = match whole_text(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(CiError::Read { path: file, source }),
        };
        Self::parse(&text, file)
    }

    fn parse(text: &str, file: PathBuf) -> Result<Self, CiError> {
        // toml's own text shows the line; it may hold a value, but only where the value itself is not TOML.
        let mut config: Self = toml::from_str(text)
            .map_err(|error| CiError::Usage(format!("`{}` is not right:\n{error}", file.display())))?;
        config.file = file;
        Ok(config)
    }

    /// What stands in for other projects, templates and URLs.
    pub(super) fn includes(&self, cache: PathBuf, pins: Pins, offline: bool) -> Result<IncludeConfig, CiError> {
        let home = |path: &PathBuf| at_home(path);
        let all = |map: &BTreeMap<String, PathBuf>| map.iter().map(|(key, path)| (key.clone(), home(path))).collect();
        let limit = match self.remote.timeout {
            None => IncludeConfig::default().remote_timeout,
            Some(seconds) => {
                Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero()).ok_or_else(|| {
                    let file = self.file.display();
                    CiError::Usage(format!(
                        "`{file}`: `timeout` of [remote] is a number of seconds above 0, not {seconds}"
                    ))
                })?
            }
        };
        Ok(IncludeConfig {
            projects: all(&self.projects),
            components: all(&self.components),
            templates: self.templates.folder.as_ref().map(home),
            remotes: all(&self.remote.map),
            remote: if offline || self.remote.offline { RemotePolicy::Offline } else { RemotePolicy::Allowed },
            remote_timeout: limit,
            on_wait: Some(Arc::new(waits)),
            cache: Some(cache),
            pins,
            config_file: self.file.clone(),
        })
    }

    /// The URL before the names of templates.
    pub(super) fn template_url(&self) -> String {
        let url = self.templates.url.as_deref().unwrap_or(TEMPLATES);
        format!("{}/", url.trim_end_matches('/'))
    }

    /// The variables of a project, those for more projects first: the more exact one wins.
    pub(super) fn variables(&self, project: &str) -> Result<Vec<ScopedVariable>, CiError> {
        let mut found: Vec<_> = self.variables.iter().filter(|entry| matches(&entry.project, project)).collect();
        found.sort_by_key(|entry| (!entry.project.contains('*'), entry.project.len()));
        found.into_iter().map(|entry| self.variable(entry)).collect()
    }

    fn variable(&self, entry: &ConfiguredVariable) -> Result<ScopedVariable, CiError> {
        let value = match (&entry.value, &entry.value_file) {
            (Some(value), None) => value.expose().to_owned(),
            (None, Some(path)) => {
                let path = at_home(path);
                whole_text(&path).map_err(|source| CiError::Read { path, source })?
            }
            _ => {
                let (key, file) = (&entry.key, self.file.display());
                return Err(CiError::Usage(format!("`{file}`: variable `{key}` needs either `value` or `value-file`")));
            }
        };
        Ok(ScopedVariable {
            variable: Variable {
                key: entry.key.clone(),
                value,
                public: false,
                masked: entry.masked,
                file: entry.file,
                raw: !entry.expand,
            },
            protected: entry.protected,
            environment_scope: entry.environment_scope.clone(),
        })
    }

    /// The values of the `secrets` keyword for a project.
    pub(super) fn secrets(&self, project: &str) -> BTreeMap<String, Secret> {
        let fitting = self.secrets.iter().filter(|secret| matches(&secret.project, project));
        fitting.map(|secret| (secret.name.clone(), secret.value.clone())).collect()
    }
}

/// Says what is being waited for.
fn waits(urls: &[String], left: Duration) {
    let urls = urls.iter().map(|url| ui::plain(url)).collect::<Vec<_>>().join(", ");
    ui::note(&format!("waiting for {urls} (at most {} more)", ui::duration(left)));
}

/// A path in which `~/` stands for the home folder.
pub(super) fn at_home(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::home_dir()) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

/// Whether a pattern, in which `*` stands for any text, fits the whole of `text`.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts: Vec<_> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_the_whole_text() {
        for (pattern, text, fits) in [
            ("*", "a/b", true),
            ("group/*", "group/app", true),
            ("group/*", "other/app", false),
            ("*/app", "group/app", true),
            ("g*p", "gp", true),
            ("g*p", "g", false),
            ("a", "ab", false),
            ("r*/*x", "rel/a/x", true),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn the_more_exact_variable_wins_and_a_secret_is_in_no_debug_text() {
        let text = r#"
            [[variables]]
            key = "TOKEN"
            value = "exact-value"
            project = "group/app"
            masked = true
            [[variables]]
            key = "TOKEN"
            value = "general"
            [[secrets]]
            name = "DB"
            value = "exact-value"
        "#;
        let config = Config::parse(text, PathBuf::from("ci.toml")).unwrap();
        let values: Vec<_> =
            config.variables("group/app").unwrap().into_iter().map(|entry| entry.variable.value).collect();
        assert_eq!(values, ["general", "exact-value"]);
        assert_eq!(config.variables("other/app").unwrap().len(), 1);
        assert!(!format!("{config:?}").contains("exact-value"));
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_the_line() {
        let error = Config::parse("[kepe]\ndays = 1\n", PathBuf::from("ci.toml")).unwrap_err().to_string();
        assert!(error.contains("kepe") && error.contains("line 1"), "{error}");
    }
}
