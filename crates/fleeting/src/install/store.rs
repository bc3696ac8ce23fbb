//! The directory of installed plugins.

use std::path::{Path, PathBuf};

use muster_oci::{Constraint, LockFile, Reference, Repository, Version};

use super::error::InstallError;
use super::lock::FileLock;
use super::{EXECUTABLE, LOCK_FILE_MODE};
use crate::layout::{escape, repository_directory, unescape};

/// Maximum number of segments in a repository's path.
const MAX_DEPTH: usize = 16;

/// A directory of installed plugins.
#[derive(Debug, Clone)]
pub struct Store {
    directory: PathBuf,
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
    /// Returns the store in a directory.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Returns the store in `FLEETING_PLUGIN_PATH`, or else in `~/.config/fleeting/plugins`.
    ///
    /// # Errors
    /// [`InstallError::NoDirectory`].
    pub fn from_environment() -> Result<Self, InstallError> {
        let variable = |key| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        let directory = variable("FLEETING_PLUGIN_PATH")
            .or_else(|| variable("HOME").map(|home| home.join(".config/fleeting/plugins")));
        let directory = directory.ok_or(InstallError::NoDirectory)?;
        Ok(Self::new(std::path::absolute(&directory).unwrap_or(directory)))
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of the lock file.
    #[must_use]
    pub fn lock_file(&self) -> PathBuf {
        self.directory.join("plugins.lock")
    }

    pub(super) fn repository_directory(&self, repository: &Repository) -> PathBuf {
        repository_directory(&self.directory, &repository.registry, &repository.path)
    }

    pub(super) fn version_directory(&self, repository: &Repository, version: &Version) -> PathBuf {
        self.repository_directory(repository).join(escape(&version.to_string()))
    }

    /// Returns all installed versions of a plugin.
    #[must_use]
    pub fn versions(&self, repository: &Repository) -> Vec<Installed> {
        let directory = self.repository_directory(repository);
        let versions =
            subdirectories(&directory).into_iter().filter_map(|name| unescape(&name)?.parse::<Version>().ok());
        let installed = versions.map(|version| Installed {
            executable: self.version_directory(repository, &version).join(EXECUTABLE),
            repository: repository.clone(),
            version,
        });
        installed.filter(|installed| installed.executable.is_file()).collect()
    }

    /// Returns the highest installed version that matches.
    #[must_use]
    pub fn find(&self, reference: &Reference) -> Option<Installed> {
        let matches = |installed: &Installed| reference.constraint.matches(&installed.version);
        self.versions(&reference.repository).into_iter().filter(matches).max()
    }

    /// Returns the installed versions of all plugins.
    #[must_use]
    pub fn list(&self) -> Vec<Installed> {
        let mut found = Vec::new();
        for registry in subdirectories(&self.directory) {
            let Some(registry_name) = unescape(&registry) else { continue };
            self.walk(&registry_name, &mut Vec::new(), &self.directory.join(&registry), &mut found);
        }
        found.sort();
        found
    }

    fn walk(&self, registry: &str, path: &mut Vec<String>, directory: &Path, found: &mut Vec<Installed>) {
        if !path.is_empty() {
            let repository = Repository { registry: registry.to_owned(), path: path.join("/") };
            found.extend(self.versions(&repository));
        }
        if path.len() == MAX_DEPTH {
            return;
        }
        for name in subdirectories(directory) {
            let subdirectory = directory.join(&name);
            let Some(segment) = unescape(&name).filter(|_| !subdirectory.join(EXECUTABLE).is_file()) else { continue };
            path.push(segment);
            self.walk(registry, path, &subdirectory, found);
            path.pop();
        }
    }

    /// Removes all versions that match a reference; `:latest` or no constraint matches every version.
    /// Their digests stay in the lock file unless `forget_digest` is set.
    ///
    /// # Errors
    /// [`InstallError`].
    pub async fn remove(&self, reference: &Reference, forget_digest: bool) -> Result<Vec<Installed>, InstallError> {
        let _lock = FileLock::of_directory(&self.directory).await?;
        let mut lock = LockFile::read(&self.lock_file())?;
        let matches = |installed: &Installed| match reference.constraint {
            Constraint::Latest | Constraint::Any => true,
            _ => reference.constraint.matches(&installed.version),
        };
        let removed: Vec<Installed> = self.versions(&reference.repository).into_iter().filter(matches).collect();
        if removed.is_empty() {
            let (reference, directory) = (reference.to_string(), self.directory.clone());
            return Err(InstallError::NotInstalled { reference, directory });
        }
        for installed in &removed {
            let directory = self.version_directory(&installed.repository, &installed.version);
            remove_leftovers(&self.repository_directory(&installed.repository));
            move_to_trash(&directory)
                .and_then(|trash| trash.map_or(Ok(()), tempfile::TempDir::close))
                .map_err(|source| InstallError::Directory { path: directory, operation: "delete", source })?;
            if forget_digest {
                lock.remove(&installed.repository, &installed.version);
            }
        }
        if forget_digest {
            lock.write(&self.lock_file(), LOCK_FILE_MODE)?;
        }
        Ok(removed)
    }
}

/// Prefix of a temporary directory next to the versions, for an archive that is being unpacked.
pub(super) const STAGING_PREFIX: &str = ".new-";
/// Prefix of a temporary directory next to the versions, for a version that is being deleted.
const TRASH_PREFIX: &str = ".old-";

/// Name that the directory of a version gets in the temporary directory with [`TRASH_PREFIX`].
const TRASHED: &str = "old";

/// Moves a version's directory into a temporary directory, which is deleted on drop.
/// Returns `None` if there is no such version.
pub(super) fn move_to_trash(directory: &Path) -> std::io::Result<Option<tempfile::TempDir>> {
    let parent = directory.parent().unwrap_or(Path::new("."));
    let trash = tempfile::Builder::new().prefix(TRASH_PREFIX).tempdir_in(parent)?;
    match std::fs::rename(directory, trash.path().join(TRASHED)) {
        Ok(()) => Ok(Some(trash)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Moves a version's directory back from its temporary directory. After a failure, the temporary directory remains until the next
/// installation or removal.
pub(super) fn restore_from_trash(trash: tempfile::TempDir, directory: &Path) {
    if let Err(error) = std::fs::rename(trash.path().join(TRASHED), directory) {
        let kept = trash.keep().join(TRASHED);
        tracing::error!(
            path = %directory.display(),
            kept = %kept.display(),
            %error,
            "failed to restore the installed version of a plugin; move the kept directory to the path, or install the version again"
        );
    }
}

/// Removes temporary directories that killed processes left next to the versions.
/// The caller holds the store's lock, so no other process uses them.
pub(super) fn remove_leftovers(directory: &Path) {
    for entry in directory.read_dir().into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        if [STAGING_PREFIX, TRASH_PREFIX].iter().any(|prefix| name.to_string_lossy().starts_with(prefix))
            && let Err(error) = std::fs::remove_dir_all(entry.path())
        {
            tracing::warn!(path = %entry.path().display(), %error, "failed to delete the leftovers of an earlier installation or removal");
        }
    }
}

/// Returns the names of the subdirectories, except hidden ones.
fn subdirectories(directory: &Path) -> Vec<String> {
    let Ok(entries) = directory.read_dir() else { return Vec::new() };
    let entries = entries.filter_map(Result::ok).filter(|entry| entry.path().is_dir());
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| !name.starts_with('.')).collect()
}
