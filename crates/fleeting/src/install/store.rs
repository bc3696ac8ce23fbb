//! The directory of installed plugins.

use std::path::{Path, PathBuf};

use muster_oci::{Constraint, LockFile, Reference, Repository, Version};

use super::EXECUTABLE;
use super::error::InstallError;
use super::folder::FileLock;
use crate::layout::{escape, unescape};

/// Maximum number of segments in a repository's path.
const DEPTH_MAX: usize = 16;

/// A directory of installed plugins.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// An installed version of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Installed {
    /// Repository of the plugin.
    pub repository: Repository,
    /// Installed version.
    pub version: Version,
    /// Path of the plugin's executable.
    pub executable: PathBuf,
}

impl Store {
    /// Uses a directory of plugins.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Uses the user's directory: `FLEETING_PLUGIN_PATH`, or else `~/.config/fleeting/plugins`.
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

    /// Returns the path of the directory.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the lock file.
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

    /// Returns all installed versions of a plugin.
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

    /// Returns the highest installed version that matches.
    #[must_use]
    pub fn find(&self, reference: &Reference) -> Option<Installed> {
        let fits = |installed: &Installed| reference.constraint.matches(&installed.version);
        self.versions(&reference.repository).into_iter().filter(fits).max()
    }

    /// Returns the installed versions of all plugins.
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

    /// Removes all versions that match a reference; `:latest` or no constraint matches every version.
    /// Their digests are kept in the lock file unless `forget` is set.
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

/// Prefixes of directories next to the versions: for unpacking, and for deletion.
pub(super) const NEW: &str = ".new-";
const OLD: &str = ".old-";

/// Moves a version's directory into a temporary directory, which is deleted when it is dropped.
/// Returns `None` if there is no such version.
pub(super) fn set_aside(folder: &Path) -> std::io::Result<Option<tempfile::TempDir>> {
    let parent = folder.parent().unwrap_or(Path::new("."));
    let bin = tempfile::Builder::new().prefix(OLD).tempdir_in(parent)?;
    match std::fs::rename(folder, bin.path().join("old")) {
        Ok(()) => Ok(Some(bin)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes what killed processes left next to the versions.
/// The caller holds the store's lock, so no process uses it.
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

/// Returns the names of the directories in a directory, except hidden ones.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let entries = entries.filter_map(Result::ok).filter(|entry| entry.path().is_dir());
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| !name.starts_with('.')).collect()
}
