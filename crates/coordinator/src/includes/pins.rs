//! Pins record the content that each include from outside the project had when `muster ci vendor` fetched it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use muster_pipeline::context::{IncludeTarget, Origin};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A pinned file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// The include, such as `project group/lib@main:ci/a.yml`, `component host/group/kit/lint@1`, `remote https://...` or
    /// `template Jobs/Build.gitlab-ci.yml`. `tree group/lib@main` is the list of paths in that project.
    pub include: String,
    /// URL from which the file was fetched.
    pub from: String,
    /// Commit of the repository. `None` if the file is not from a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Tag that the version of a component refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// SHA-256 of the content, hexadecimal.
    pub sha256: String,
}

impl Pin {
    /// Returns a human-readable summary: `group/lib@main:ci/a.yml is 1a2b3c4d`.
    #[must_use]
    pub fn summary(&self) -> String {
        let name = self.include.split_once(' ').map_or(self.include.as_str(), |(_, name)| name);
        let id = self.version.as_deref().or(self.commit.as_deref().and_then(|commit| commit.get(..8)));
        format!("{name} is {}", id.or(self.sha256.get(..8)).unwrap_or_default())
    }
}

/// All pins of a project, and the directory with their contents. The name of each file is its digest.
#[derive(Debug, Clone, Default)]
pub struct Pins {
    directory: PathBuf,
    pins: BTreeMap<String, Pin>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum PinError {
    #[error("`{0}` is pinned, but its content is not on this machine; run `muster ci vendor` to fetch it")]
    Missing(String),
    #[error("the content of `{include}` at `{}` is not what was pinned; run `muster ci vendor` to fetch it again", path.display())]
    Changed { include: String, path: PathBuf },
    #[error("failed to read the pinned content of `{include}` at `{}`: {source}", path.display())]
    Unreadable { include: String, path: PathBuf, source: io::Error },
}

impl Pins {
    /// Returns pins with the directory of their contents.
    #[must_use]
    pub fn new(directory: PathBuf, pins: impl IntoIterator<Item = Pin>) -> Self {
        Self { directory, pins: pins.into_iter().map(|pin| (pin.include.clone(), pin)).collect() }
    }

    pub(super) fn get(&self, include: &str) -> Option<&Pin> {
        self.pins.get(include)
    }

    /// Reads the content of a pin, and checks its digest.
    pub(super) fn content(&self, pin: &Pin) -> Result<Vec<u8>, PinError> {
        let (include, path) = (pin.include.clone(), self.path_of(pin));
        match super::tree::read_file(&path) {
            Ok(Some(bytes)) if digest(&bytes) == pin.sha256 => Ok(bytes),
            Ok(Some(_)) => Err(PinError::Changed { include, path }),
            Ok(None) => Err(PinError::Missing(include)),
            Err(source) => Err(PinError::Unreadable { include, path, source }),
        }
    }

    /// Returns the path of a pin's content. For an invalid digest, returns a path that never exists.
    fn path_of(&self, pin: &Pin) -> PathBuf {
        let is_digest = pin.sha256.len() == 64 && pin.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.directory.join(if is_digest { pin.sha256.as_str() } else { "not-a-digest" })
    }
}

/// Returns a SHA-256 digest in the format of [`Pin::sha256`].
pub(super) fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Returns the name of the pin of an included file. `None` for files of the project itself.
pub(super) fn name_of(target: &IncludeTarget) -> Option<String> {
    Some(match target {
        IncludeTarget::Local { origin: Origin::Project { project, git_ref }, path }
        | IncludeTarget::Project { project, git_ref, path } => {
            format!("project {}:{path}", project_at_ref(project, git_ref))
        }
        IncludeTarget::Local { .. } => return None,
        IncludeTarget::Remote { url } => format!("remote {url}"),
        IncludeTarget::Template { name } => format!("template {name}"),
        IncludeTarget::Component { address, version } => format!("component {address}@{version}"),
    })
}

pub(super) fn name_of_tree(project: &str, git_ref: &Option<String>) -> String {
    format!("tree {}", project_at_ref(project, git_ref))
}

fn project_at_ref(project: &str, git_ref: &Option<String>) -> String {
    match git_ref {
        Some(git_ref) => format!("{project}@{git_ref}"),
        None => project.to_owned(),
    }
}

/// Writes a file so that it has either its old or its new content at any time. Creates its directory if necessary.
pub(super) fn write_atomically(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    let mut new = tempfile::NamedTempFile::new_in(directory)?;
    io::Write::write_all(&mut new, bytes)?;
    new.persist(file).map(drop).map_err(|error| error.error)
}
