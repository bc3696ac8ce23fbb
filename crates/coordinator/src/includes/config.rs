//! Where includes that are not files of the project come from: the user's `ci.toml` and the project's pins say it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::pins::Pins;
use super::remote::{TOTAL_LIMIT, Waits};

/// What stands in for other projects, components, templates and URLs.
#[derive(Clone)]
pub struct IncludeConfig {
    /// Local folders by project path, `group/app`.
    pub projects: BTreeMap<String, PathBuf>,
    /// Local folders by component address without the name, `host/group/app`.
    pub components: BTreeMap<String, PathBuf>,
    /// The folder that `include:template` names are looked up in.
    pub templates: Option<PathBuf>,
    /// Local files by URL, and local folders by the start of URLs, which ends with `/`.
    pub remotes: BTreeMap<String, PathBuf>,
    /// Whether URLs are fetched.
    pub remote: RemotePolicy,
    /// How long all URLs of a pipeline may take together. Defaults to 30 seconds.
    pub remote_limit: Duration,
    /// Is called where URLs are waited for.
    pub waits: Option<Waits>,
    /// Where fetched files are kept, for times without a network.
    pub cache: Option<PathBuf>,
    /// What `muster ci vendor` pinned.
    pub pins: Pins,
    /// The name of the file that the user can write all this to, for messages.
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
            remote_limit: TOTAL_LIMIT,
            waits: None,
            cache: None,
            pins: Pins::default(),
            config_file: PathBuf::new(),
        }
    }
}

impl IncludeConfig {
    /// The folder of a project, which may be named as that of its components.
    pub(super) fn folder_of(&self, project: &str) -> Option<&PathBuf> {
        let of_components = || {
            let mut all = self.components.iter();
            all.find(|(base, _)| base.split_once('/').is_some_and(|(_, path)| path == project))
                .map(|(_, folder)| folder)
        };
        self.projects.get(project).or_else(of_components)
    }

    /// The local file that stands in for a URL.
    pub(super) fn mapped(&self, url: &str) -> Option<PathBuf> {
        if let Some(file) = self.remotes.get(url) {
            return Some(file.clone());
        }
        let folders = self.remotes.iter().filter(|(start, _)| start.ends_with('/'));
        let fitting =
            folders.filter_map(|(start, folder)| Some((start.len(), folder, url.strip_prefix(start.as_str())?)));
        let (_, folder, rest) = fitting.max_by_key(|(length, ..)| *length)?;
        let is_below =
            std::path::Path::new(rest).components().all(|part| matches!(part, std::path::Component::Normal(_)));
        is_below.then(|| folder.join(rest))
    }
}

/// What happens to `include:remote`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RemotePolicy {
    /// Fetched; if that fails, the kept file is used.
    #[default]
    Allowed,
    /// Only kept files are used.
    Offline,
}
