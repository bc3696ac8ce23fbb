//! Pins: which content each include that is not of the project had when `muster ci vendor` fetched it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use muster_pipeline::context::{IncludeTarget, Origin};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// One file, pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// What an include asks for: `project group/lib@main:ci/a.yml`, `component host/group/kit/lint@1`, `remote https://...`,
    /// `template Jobs/Build.gitlab-ci.yml`; or `tree group/lib@main`, the list of that project's paths.
    pub include: String,
    /// The address that it was fetched from.
    pub from: String,
    /// The commit of that repository, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The tag that a component's version stood for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// SHA-256 of the content, hexadecimal.
    pub sha256: String,
}

impl Pin {
    /// `group/lib@main:ci/a.yml is 1a2b3c4d`, for people.
    #[must_use]
    pub fn summary(&self) -> String {
        let what = self.include.split_once(' ').map_or(self.include.as_str(), |(_, what)| what);
        let id = self.version.as_deref().or(self.commit.as_deref().and_then(|commit| commit.get(..8)));
        format!("{what} is {}", id.or(self.sha256.get(..8)).unwrap_or_default())
    }
}

/// All pins of a project, and the folder of their contents, where each is named by its digest.
#[derive(Debug, Clone, Default)]
pub struct Pins {
    folder: PathBuf,
    pins: BTreeMap<String, Pin>,
}

/// Why the content of a pin cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum PinError {
    #[error("`{0}` is pinned, but its content is not on this machine; `muster ci vendor` fetches it")]
    Missing(String),
    #[error("the content of `{include}` at `{}` is not what was pinned; `muster ci vendor` fetches it again", path.display())]
    Changed { include: String, path: PathBuf },
    #[error("cannot read the content of `{include}` at `{}`: {source}", path.display())]
    Unread { include: String, path: PathBuf, source: io::Error },
}

impl Pins {
    /// Pins with the folder of their contents.
    #[must_use]
    pub fn new(folder: PathBuf, pins: impl IntoIterator<Item = Pin>) -> Self {
        Self { folder, pins: pins.into_iter().map(|pin| (pin.include.clone(), pin)).collect() }
    }

    /// The pin of what is asked for.
    pub(super) fn get(&self, include: &str) -> Option<&Pin> {
        self.pins.get(include)
    }

    /// The content of a pin, which has its digest.
    pub(super) fn content(&self, pin: &Pin) -> Result<Vec<u8>, PinError> {
        let (include, path) = (pin.include.clone(), self.path_of(pin));
        match super::tree::read_file(&path) {
            Ok(Some(bytes)) if digest(&bytes) == pin.sha256 => Ok(bytes),
            Ok(Some(_)) => Err(PinError::Changed { include, path }),
            Ok(None) => Err(PinError::Missing(include)),
            Err(source) => Err(PinError::Unread { include, path, source }),
        }
    }

    /// Where the content of a pin lies. A digest that is none names no other file.
    fn path_of(&self, pin: &Pin) -> PathBuf {
        let is_digest = pin.sha256.len() == 64 && pin.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.folder.join(if is_digest { pin.sha256.as_str() } else { "not-a-digest" })
    }
}

/// SHA-256 as it stands in a pin.
pub(super) fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The name under which a target is pinned; `None` for files of the project itself.
pub(super) fn name_of(target: &IncludeTarget) -> Option<String> {
    Some(match target {
        IncludeTarget::Local { origin: Origin::Project { project, git_ref }, path }
        | IncludeTarget::Project { project, git_ref, path } => format!("project {}:{path}", at(project, git_ref)),
        IncludeTarget::Local { .. } => return None,
        IncludeTarget::Remote { url } => format!("remote {url}"),
        IncludeTarget::Template { name } => format!("template {name}"),
        IncludeTarget::Component { address, version } => format!("component {address}@{version}"),
    })
}

/// The name under which the list of a project's paths is pinned.
pub(super) fn name_of_tree(project: &str, git_ref: &Option<String>) -> String {
    format!("tree {}", at(project, git_ref))
}

fn at(project: &str, git_ref: &Option<String>) -> String {
    match git_ref {
        Some(git_ref) => format!("{project}@{git_ref}"),
        None => project.to_owned(),
    }
}

/// Writes a file whole or not at all.
pub(super) fn keep(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    io::Write::write_all(&mut new, bytes)?;
    new.persist(file).map(drop).map_err(|error| error.error)
}
