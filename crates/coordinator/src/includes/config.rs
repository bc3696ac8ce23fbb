//! Configuration of includes from outside the project. It consists of the user's `ci.toml` and the project's pins.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::pins::Pins;
use super::remote::{TOTAL_TIMEOUT, WaitCallback};

/// Sources for files of other projects, components, templates and URLs.
#[derive(Clone)]
pub struct IncludeConfig {
    /// Local directories, by project path `group/app`.
    pub projects: BTreeMap<String, PathBuf>,
    /// Local directories, by component address without the name, `host/group/app`.
    pub components: BTreeMap<String, PathBuf>,
    /// Directory of the files for `include:template`.
    pub templates: Option<PathBuf>,
    /// Local files by URL, and local directories by URL prefix. A prefix ends with `/`.
    pub remotes: BTreeMap<String, PathBuf>,
    /// Whether URLs are fetched.
    pub remote: RemotePolicy,
    /// Maximum time for fetching all URLs of a configuration. Defaults to 30 seconds.
    pub remote_timeout: Duration,
    /// Called if fetching URLs takes longer than one fifteenth of the timeout, at most once for all URLs that are fetched together.
    pub on_wait: Option<WaitCallback>,
    /// Directory of fetched files, for use without a network. `None` caches no files.
    pub cache: Option<PathBuf>,
    /// Pins that `muster ci vendor` created.
    pub pins: Pins,
    /// Path of the configuration file, for messages.
    pub config_file: PathBuf,
}

impl Default for IncludeConfig {
    fn default() -> Self {
        Self {
            projects: BTreeMap::new(),
            components: BTreeMap::new(),
            templates: None,
            remotes: BTreeMap::new(),
            remote: RemotePolicy::default(),
            remote_timeout: TOTAL_TIMEOUT,
            on_wait: None,
            cache: None,
            pins: Pins::default(),
            config_file: PathBuf::new(),
        }
    }
}

impl IncludeConfig {
    pub(super) fn directory_of(&self, project: &str) -> Option<&PathBuf> {
        let of_components = || {
            let mut all = self.components.iter();
            all.find(|(base, _)| base.split_once('/').is_some_and(|(_, path)| path == project))
                .map(|(_, directory)| directory)
        };
        self.projects.get(project).or_else(of_components)
    }

    pub(super) fn local_replacement(&self, url: &str) -> Option<PathBuf> {
        if let Some(file) = self.remotes.get(url) {
            return Some(file.clone());
        }
        let directories = self.remotes.iter().filter(|(start, _)| start.ends_with('/'));
        let matching = directories
            .filter_map(|(start, directory)| Some((start.len(), directory, url.strip_prefix(start.as_str())?)));
        let (_, directory, rest) = matching.max_by_key(|(length, ..)| *length)?;
        let is_below =
            std::path::Path::new(rest).components().all(|part| matches!(part, std::path::Component::Normal(_)));
        is_below.then(|| directory.join(rest))
    }
}

/// How files of `include:remote` are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RemotePolicy {
    /// Files are fetched. If the network fails, a cached copy is used.
    #[default]
    Allowed,
    /// Only cached copies are used.
    Offline,
}
