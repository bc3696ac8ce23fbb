//! The user's `ci.toml`: local checkouts of other projects, and variables that GitLab would store in its settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_coordinator::includes::{IncludeConfig, Pins, RemotePolicy};
use muster_job::{Secret, Variable};
use muster_pipeline::context::ScopedVariable;
use serde::Deserialize;

use super::config_check;
use super::error::CiError;
use super::read::read_text_file;
use super::ui;
use crate::unpack::UnpackArgs;

/// Download URL of GitLab's own templates.
const TEMPLATE_URL: &str = "https://gitlab.com/gitlab-org/gitlab/-/raw/master/lib/gitlab/ci/templates";

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Config {
    /// Local checkouts, by project path.
    projects: BTreeMap<String, PathBuf>,
    /// Local checkouts, by component address without the component's name.
    components: BTreeMap<String, PathBuf>,
    templates: Templates,
    remote: Remote,
    pub(super) retention: Retention,
    #[serde(default)]
    pub(super) unpack: UnpackArgs,
    /// Patterns of protected branches and tags, besides the default branch. `*` matches any text.
    pub(super) protected: Vec<String>,
    variables: Vec<ConfiguredVariable>,
    /// Values for the `secrets` keyword.
    secrets: Vec<ConfiguredSecret>,
    /// Path of the file, whether or not it exists.
    #[serde(skip)]
    pub(super) file: PathBuf,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Templates {
    directory: Option<PathBuf>,
    /// URL from which `muster ci vendor` downloads templates.
    url: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Remote {
    /// Whether to work without the network, as with `--offline`.
    offline: bool,
    /// Timeout of all remote includes together, in seconds. `None` means the default of [`IncludeConfig`].
    timeout: Option<f64>,
    /// Local files by URL, and local directories by a URL prefix that ends with `/`.
    map: BTreeMap<String, PathBuf>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Retention {
    /// Maximum age of a run in days. Older runs are deleted.
    pub(super) max_days: u64,
    /// Maximum size of a project's runs in megabytes. The oldest runs are deleted first.
    pub(super) max_megabytes: u64,
    /// Number of newest runs to keep regardless of age and size.
    pub(super) min_runs: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self { max_days: 30, max_megabytes: 5000, min_runs: 10 }
    }
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ConfiguredVariable {
    key: String,
    value: Option<Secret>,
    /// File with the value, instead of `value`.
    value_file: Option<PathBuf>,
    /// Path of the project, or a pattern with `*`. Defaults to every project.
    #[serde(default = "match_all")]
    project: String,
    #[serde(default)]
    masked: bool,
    #[serde(default)]
    protected: bool,
    /// Whether jobs get the path of a file with the value.
    #[serde(default)]
    file: bool,
    #[serde(default = "default_true")]
    expand: bool,
    #[serde(default = "match_all")]
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
    #[serde(default = "match_all")]
    project: String,
}

fn match_all() -> String {
    "*".to_owned()
}

fn default_true() -> bool {
    true
}

impl Config {
    /// Reads the file. A missing file is an empty configuration.
    pub(super) fn load() -> Result<Self, CiError> {
        let directory = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let directory = directory.or_else(|| std::env::home_dir().map(|home| home.join(".config")));
        let file = directory.unwrap_or_default().join("muster/ci.toml");
        let text = match read_text_file(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(CiError::Read { path: file, source }),
        };
        Self::parse(&text, file)
    }

    /// Parses the text. All problems are reported together.
    fn parse(text: &str, file: PathBuf) -> Result<Self, CiError> {
        let problems = config_check::problems(text);
        if !problems.is_empty() {
            return Err(CiError::UserConfig { path: file, problems });
        }
        let mut config: Self = toml::from_str(text).map_err(|error| {
            // The error's own text quotes the line, which may contain the value of a secret.
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map(|before| format!("line {}: ", 1 + before.matches('\n').count())).unwrap_or_default();
            CiError::UserConfig { path: file.clone(), problems: vec![format!("{line}{}", error.message())] }
        })?;
        config.file = file;
        Ok(config)
    }

    pub(super) fn includes(&self, cache: PathBuf, pins: Pins, offline: bool) -> Result<IncludeConfig, CiError> {
        let expanded =
            |map: &BTreeMap<String, PathBuf>| map.iter().map(|(key, path)| (key.clone(), expand_home(path))).collect();
        let timeout = match self.remote.timeout {
            None => IncludeConfig::default().remote_timeout,
            Some(seconds) => {
                Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero()).ok_or_else(|| {
                    let file = self.file.display();
                    CiError::Failed(format!(
                        "`{file}`: `timeout` of [remote] must be a number of seconds above 0, not {seconds}"
                    ))
                })?
            }
        };
        Ok(IncludeConfig {
            projects: expanded(&self.projects),
            components: expanded(&self.components),
            templates: self.templates.directory.as_deref().map(expand_home),
            remotes: expanded(&self.remote.map),
            remote: if offline || self.remote.offline { RemotePolicy::Offline } else { RemotePolicy::Allowed },
            remote_timeout: timeout,
            on_wait: Some(Arc::new(report_wait)),
            cache: Some(cache),
            pins,
            config_file: self.file.clone(),
        })
    }

    pub(super) fn template_url(&self) -> String {
        let url = self.templates.url.as_deref().unwrap_or(TEMPLATE_URL);
        format!("{}/", url.trim_end_matches('/'))
    }

    /// Returns the variables of a project. More specific project patterns come later, and override earlier variables.
    pub(super) fn variables(&self, project: &str) -> Result<Vec<ScopedVariable>, CiError> {
        let mut found: Vec<_> = self.variables.iter().filter(|entry| matches(&entry.project, project)).collect();
        found.sort_by_key(|entry| specificity(&entry.project));
        found.into_iter().map(|entry| self.variable(entry)).collect()
    }

    fn variable(&self, entry: &ConfiguredVariable) -> Result<ScopedVariable, CiError> {
        let value = match (&entry.value, &entry.value_file) {
            (Some(value), None) => value.expose().to_owned(),
            (None, Some(path)) => {
                let path = expand_home(path);
                let text = read_text_file(&path).map_err(|source| CiError::Read { path, source })?;
                // Most editors add a final line break, which does not belong to the value.
                if entry.file { text } else { without_final_line_break(text) }
            }
            _ => {
                let (key, file) = (&entry.key, self.file.display());
                return Err(CiError::Failed(format!(
                    "`{file}`: variable `{key}` needs either `value` or `value-file`"
                )));
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

    /// Returns the secrets of a project. Those with more specific project patterns override others.
    pub(super) fn secrets(&self, project: &str) -> BTreeMap<String, Secret> {
        let mut found: Vec<_> = self.secrets.iter().filter(|secret| matches(&secret.project, project)).collect();
        found.sort_by_key(|secret| specificity(&secret.project));
        found.into_iter().map(|secret| (secret.name.clone(), secret.value.clone())).collect()
    }
}

/// Returns a number that is higher for a more specific pattern. Patterns without `*` are the most specific.
fn specificity(pattern: &str) -> (bool, usize) {
    (!pattern.contains('*'), pattern.len())
}

fn without_final_line_break(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

/// Prints which downloads a pipeline is waiting for, and the remaining time until their timeout.
fn report_wait(urls: &[String], remaining: Duration) {
    let urls = urls.iter().map(|url| ui::plain(url)).collect::<Vec<_>>().join(", ");
    ui::note(&format!("waiting for {urls} (at most {} more)", ui::duration(remaining)));
}

/// Expands `~/` at the start of a path to the home directory.
pub(super) fn expand_home(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::home_dir()) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

/// Returns whether a pattern matches the whole text. `*` matches any text.
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
    fn patterns_match_the_whole_text() {
        for (pattern, text, is_match) in [
            ("*", "a/b", true),
            ("group/*", "group/app", true),
            ("group/*", "other/app", false),
            ("*/app", "group/app", true),
            ("g*p", "gp", true),
            ("g*p", "g", false),
            ("a", "ab", false),
            ("r*/*x", "rel/a/x", true),
        ] {
            assert_eq!(matches(pattern, text), is_match, "{pattern} {text}");
        }
    }

    #[test]
    fn more_specific_variable_wins_and_debug_hides_secrets() {
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
            project = "group/app"
            [[secrets]]
            name = "DB"
            value = "general"
        "#;
        let config = Config::parse(text, PathBuf::from("ci.toml")).unwrap();
        let values: Vec<_> =
            config.variables("group/app").unwrap().into_iter().map(|entry| entry.variable.value).collect();
        assert_eq!(values, ["general", "exact-value"]);
        assert_eq!(config.variables("other/app").unwrap().len(), 1);
        let secret = |project: &str| config.secrets(project).remove("DB").unwrap().expose().to_owned();
        assert_eq!([secret("group/app"), secret("other/app")], ["exact-value", "general"]);
        assert!(!format!("{config:?}").contains("exact-value"));
    }

    #[test]
    fn final_line_break_of_a_value_file_is_removed_unless_the_variable_is_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let value = |content: &str, settings: &str| {
            let path = dir.path().join("value");
            std::fs::write(&path, content).unwrap();
            let text = format!("[[variables]]\nkey = \"TOKEN\"\nvalue-file = {path:?}\n{settings}");
            let config = Config::parse(&text, PathBuf::from("ci.toml")).unwrap();
            config.variables("app").unwrap().remove(0).variable.value
        };
        assert_eq!(value("secret\n", ""), "secret");
        assert_eq!(value("two\r\nlines\r\n", ""), "two\r\nlines");
        assert_eq!(value("secret", ""), "secret");
        assert_eq!(value("key\n", "file = true"), "key\n");
    }

    #[test]
    fn errors_name_the_file_and_all_problems() {
        let error = |text: &str| Config::parse(text, PathBuf::from("ci.toml")).unwrap_err().to_string();
        let text = error("[retentoin]\nmax_days = 1\n[unpack]\nmax_bytes = 0\n");
        assert!(
            text.starts_with("invalid configuration `ci.toml`:") && text.contains("line 1") && text.contains("line 4"),
            "{text}"
        );
        let text = error("[retention\n");
        assert!(text.contains("ci.toml") && text.contains("line 1"), "{text}");
        let text = error("[[secrets]]\nname = \"DB\"\nvalue = \"hidden-value\n");
        assert!(text.contains("line 3: ") && !text.contains("hidden-value"), "{text}");
    }
}
