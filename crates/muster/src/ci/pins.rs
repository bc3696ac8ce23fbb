//! The project's pins: `muster-ci.lock`, which `muster ci vendor` writes.

use std::path::{Path, PathBuf};

use muster_coordinator::includes::{Pin, Pins};
use serde::{Deserialize, Serialize};

use super::error::CiError;
use super::read::whole_text;

/// The name of the file, at the top of the repository.
pub(super) const LOCK_FILE: &str = "muster-ci.lock";
/// The form of the file.
const VERSION: u32 = 1;
/// The first lines of the file.
const HEAD: &str =
    "# Written by `muster ci vendor`; commit it. `muster ci` uses these contents and asks no network for them.\n";

/// The file, as it is written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lock {
    version: u32,
    /// The folder of the contents in the repository. `None`: the cache of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) folder: Option<PathBuf>,
    /// The pins, by what they are for.
    #[serde(default, rename = "pin", skip_serializing_if = "Vec::is_empty")]
    pub(super) pins: Vec<Pin>,
}

impl Lock {
    /// A file of these pins.
    pub(super) fn new(folder: Option<PathBuf>, pins: Vec<Pin>) -> Self {
        Self { version: VERSION, folder, pins }
    }

    /// Reads the file of a repository; `None` if there is none.
    pub(super) fn read(worktree: &Path) -> Result<Option<Self>, CiError> {
        let path = worktree.join(LOCK_FILE);
        let text = match whole_text(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CiError::Read { path, source }),
        };
        let wrong = |what: String| {
            let text = format!("`{}` is not right; `muster ci vendor` writes it anew:\n{what}", path.display());
            CiError::Usage(text)
        };
        let lock: Self = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if lock.version != VERSION {
            return Err(wrong(format!("its version is {}, and this muster knows version {VERSION}", lock.version)));
        }
        let leads_out =
            |folder: &PathBuf| !folder.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if lock.folder.as_ref().is_some_and(leads_out) {
            return Err(wrong("`folder` has to be a path inside the repository".to_owned()));
        }
        Ok(Some(lock))
    }

    /// Writes the file.
    pub(super) fn write(&self, worktree: &Path) -> Result<(), CiError> {
        let path = worktree.join(LOCK_FILE);
        let text =
            toml::to_string(self).map_err(|error| CiError::Usage(format!("cannot write `{LOCK_FILE}`: {error}")))?;
        std::fs::write(&path, format!("{HEAD}{text}"))
            .map_err(CiError::system(format!("cannot write `{}`", path.display())))
    }

    /// The folder of the contents.
    pub(super) fn contents(&self, worktree: &Path, cache: &Path) -> PathBuf {
        match &self.folder {
            Some(folder) => worktree.join(folder),
            None => cache.join("pins"),
        }
    }

    /// The pins with their contents.
    pub(super) fn pins(self, worktree: &Path, cache: &Path) -> Pins {
        Pins::new(self.contents(worktree, cache), self.pins)
    }
}
