//! The project's pinned includes: `muster-ci.lock`, which `muster ci vendor` writes.

use std::path::{Path, PathBuf};

use muster_coordinator::includes::{Pin, Pins};
use serde::{Deserialize, Serialize};

use super::error::CiError;
use super::read::read_text_file;

/// Name of the file, at the top of the repository.
pub(super) const LOCK_FILE: &str = "muster-ci.lock";
const VERSION: u32 = 1;
const HEADER: &str =
    "# Written by `muster ci vendor`; commit it. `muster ci` uses these files instead of downloading them.\n";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LockFile {
    version: u32,
    /// Directory in the repository with the included files. `None` means the cache of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) directory: Option<PathBuf>,
    #[serde(default, rename = "pin", skip_serializing_if = "Vec::is_empty")]
    pub(super) pins: Vec<Pin>,
}

impl LockFile {
    pub(super) fn new(directory: Option<PathBuf>, pins: Vec<Pin>) -> Self {
        Self { version: VERSION, directory, pins }
    }

    /// Reads the file of a repository. Returns `None` if it does not exist.
    pub(super) fn read(worktree: &Path) -> Result<Option<Self>, CiError> {
        let path = worktree.join(LOCK_FILE);
        let text = match read_text_file(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CiError::Read { path, source }),
        };
        let invalid = |problem: String| {
            let path = path.display();
            CiError::Failed(format!(
                "`{path}` is invalid; delete it, and run `muster ci vendor` to create it again:\n{problem}"
            ))
        };
        let file: Self = toml::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        if file.version != VERSION {
            return Err(invalid(format!(
                "it has version {}, but this version of Muster supports version {VERSION}",
                file.version
            )));
        }
        let is_outside =
            |directory: &PathBuf| !directory.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if file.directory.as_ref().is_some_and(is_outside) {
            return Err(invalid("`directory` must be a relative path inside the repository".to_owned()));
        }
        Ok(Some(file))
    }

    pub(super) fn write(&self, worktree: &Path) -> Result<(), CiError> {
        let path = worktree.join(LOCK_FILE);
        let text = toml::to_string(self)
            .map_err(|error| CiError::Failed(format!("failed to write `{LOCK_FILE}`: {error}")))?;
        std::fs::write(&path, format!("{HEADER}{text}")).map_err(CiError::system(format!("write `{}`", path.display())))
    }

    pub(super) fn contents_directory(&self, worktree: &Path, cache: &Path) -> PathBuf {
        match &self.directory {
            Some(directory) => worktree.join(directory),
            None => cache.join("pins"),
        }
    }

    pub(super) fn pins(self, worktree: &Path, cache: &Path) -> Pins {
        Pins::new(self.contents_directory(worktree, cache), self.pins)
    }
}
