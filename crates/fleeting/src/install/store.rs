//! The folder of installed plugins.

use std::path::{Path, PathBuf};

use muster_oci::{Constraint, LockFile, Reference, Repository, Version};

use super::EXECUTABLE;
use super::error::InstallError;
use super::folder::FileLock;
use crate::layout::{escape, unescape};

/// Segments of a repository's name.
const DEPTH_MAX: usize = 16;

/// A folder of plugins.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// One version of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Installed {
    /// Which plugin.
    pub repository: Repository,
    /// Which version.
    pub version: Version,
    /// Its executable.
    pub executable: PathBuf,
}

impl Store {
    /// A folder of one's own.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The user's: `FLEETING_PLUGIN_PATH`, else `.config/fleeting/plugins` in the home directory.
    ///
    /// # Errors
    /// [`InstallError::NoFolder`].
    pub fn of_environment() -> Result<Self, InstallError> {
        let set = |key| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder =
            set("FLEETING_PLUGIN_PATH").or_else(|| set("HOME").map(|home| home.join(".config/fleeting/plugins")));
        let folder = folder.ok_or(InstallError::NoFolder)?;
        Ok(Self::new(std::path::absolute(&folder).unwrap_or(folder)))
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of digests.
    #[must_use]
    pub fn lock_file(&self) -> PathBuf {
        self.folder.join("plugins.lock")
    }

    pub(super) fn repository_folder(&self, repository: &Repository) -> PathBuf {
        self.folder.join(escape(&repository.registry)).join(escape(&repository.path))
    }

    pub(super) fn version_folder(&self, repository: &Repository, version: &Version) -> PathBuf {
        self.repository_folder(repository).join(escape(&version.to_string()))
    }

    /// All versions of a plugin that are here.
    #[must_use]
    pub fn versions(&self, repository: &Repository) -> Vec<Installed> {
        let folder = self.repository_folder(repository);
        let versions = names(&folder).into_iter().filter_map(|name| unescape(&name)?.parse::<Version>().ok());
        let installed = versions.map(|version| Installed {
            executable: self.version_folder(repository, &version).join(EXECUTABLE),
            repository: repository.clone(),
            version,
        });
        installed.filter(|installed| installed.executable.is_file()).collect()
    }

    /// The highest version here that will do.
    #[must_use]
    pub fn find(&self, reference: &Reference) -> Option<Installed> {
        let fits = |installed: &Installed| reference.constraint.matches(&installed.version);
        self.versions(&reference.repository).into_iter().filter(fits).max()
    }

    /// Everything that is here.
    #[must_use]
    pub fn list(&self) -> Vec<Installed> {
        let mut found = Vec::new();
        for registry in names(&self.folder) {
            let Some(registry_name) = unescape(&registry) else { continue };
            self.walk(&registry_name, &mut Vec::new(), &self.folder.join(&registry), &mut found);
        }
        found.sort();
        found
    }

    fn walk(&self, registry: &str, path: &mut Vec<String>, folder: &Path, found: &mut Vec<Installed>) {
        if !path.is_empty() {
            let repository = Repository { registry: registry.to_owned(), path: path.join("/") };
            found.extend(self.versions(&repository));
        }
        if path.len() == DEPTH_MAX {
            return;
        }
        for name in names(folder) {
            let below = folder.join(&name);
            let Some(segment) = unescape(&name).filter(|_| !below.join(EXECUTABLE).is_file()) else { continue };
            path.push(segment);
            self.walk(registry, path, &below, found);
            path.pop();
        }
    }

    /// Removes the versions that a reference names: all that fit, `:latest` and no constraint meaning every one. Their
    /// digests are still remembered, unless they are to be forgotten.
    ///
    /// # Errors
    /// [`InstallError`].
    pub async fn remove(&self, reference: &Reference, forget: bool) -> Result<Vec<Installed>, InstallError> {
        let _held = FileLock::of_folder(&self.folder).await?;
        let mut lock = LockFile::read(&self.lock_file())?;
        let fits = |installed: &Installed| match reference.constraint {
            Constraint::Latest | Constraint::Any => true,
            _ => reference.constraint.matches(&installed.version),
        };
        let removed: Vec<Installed> = self.versions(&reference.repository).into_iter().filter(fits).collect();
        if removed.is_empty() {
            let (reference, folder) = (reference.to_string(), self.folder.clone());
            return Err(InstallError::NotInstalled { reference, folder });
        }
        for installed in &removed {
            let folder = self.version_folder(&installed.repository, &installed.version);
            clear(&self.repository_folder(&installed.repository));
            set_aside(&folder)
                .and_then(|old| old.map_or(Ok(()), tempfile::TempDir::close))
                .map_err(|source| InstallError::Folder { path: folder, what: "removed", source })?;
            if forget {
                lock.forget(&installed.repository, &installed.version);
            }
        }
        if forget {
            lock.write(&self.lock_file())?;
        }
        Ok(removed)
    }
}

/// What is unpacked, and what is being removed, beside the versions.
pub(super) const NEW: &str = ".new-";
const OLD: &str = ".old-";

/// Puts a version's folder, where it is there, out of sight, into one that is removed with what is returned.
pub(super) fn set_aside(folder: &Path) -> std::io::Result<Option<tempfile::TempDir>> {
    let parent = folder.parent().unwrap_or(Path::new("."));
    let bin = tempfile::Builder::new().prefix(OLD).tempdir_in(parent)?;
    match std::fs::rename(folder, bin.path().join("old")) {
        Ok(()) => Ok(Some(bin)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes what killed processes left beside the versions. Under the folder's lock, so that it is nobody's.
pub(super) fn clear(folder: &Path) {
    for entry in folder.read_dir().into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        if [NEW, OLD].iter().any(|prefix| name.to_string_lossy().starts_with(prefix))
            && let Err(error) = std::fs::remove_dir_all(entry.path())
        {
            tracing::warn!(path = %entry.path().display(), %error, "a folder that an earlier install left cannot be removed");
        }
    }
}

/// Names of folders in a folder, but hidden ones.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let entries = entries.filter_map(Result::ok).filter(|entry| entry.path().is_dir());
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| !name.starts_with('.')).collect()
}
