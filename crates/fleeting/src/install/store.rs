//! The directory of installed plugins.

use std::path::{Path, PathBuf};

use muster_oci::{Constraint, LockFile, Reference, Repository, Version};

use super::error::InstallError;
use super::lock::FlockGuard;
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
    /// [`InstallError`]. If the lock file cannot be written, nothing is removed. If a version cannot be removed, the versions before it
    /// are removed.
    pub async fn remove(&self, reference: &Reference, forget_digest: bool) -> Result<Vec<Installed>, InstallError> {
        let _store_lock = FlockGuard::lock_directory(&self.directory).await?;
        let lock = LockFile::read(&self.lock_file())?;
        let matches = |installed: &Installed| match reference.constraint {
            Constraint::Latest | Constraint::Any => true,
            _ => reference.constraint.matches(&installed.version),
        };
        let found: Vec<Installed> = self.versions(&reference.repository).into_iter().filter(matches).collect();
        if found.is_empty() {
            let (reference, directory) = (reference.to_string(), self.directory.clone());
            return Err(InstallError::NotInstalled { reference, directory });
        }
        remove_leftovers(&self.repository_directory(&reference.repository));
        self.remove_versions(found, forget_digest.then_some(lock), move_to_trash)
    }

    /// Removes versions with `move_to_trash`, and their digests from `lock`.
    fn remove_versions(
        &self,
        versions: Vec<Installed>,
        lock: Option<LockFile>,
        move_to_trash: impl Fn(&Path) -> std::io::Result<Option<tempfile::TempDir>>,
    ) -> Result<Vec<Installed>, InstallError> {
        let (mut removed, mut trashes, mut failure) = (Vec::new(), Vec::new(), None);
        for installed in versions {
            let path = self.version_directory(&installed.repository, &installed.version);
            match move_to_trash(&path) {
                Ok(trash) => {
                    removed.push(installed);
                    trashes.extend(trash.map(|trash| (trash, path)));
                }
                Err(source) => {
                    failure = Some(InstallError::Directory { path, operation: "delete", source });
                    break;
                }
            }
        }
        if let Some(mut lock) = lock {
            removed.iter().for_each(|installed| lock.remove(&installed.repository, &installed.version));
            if let Err(error) = lock.write(&self.lock_file(), LOCK_FILE_MODE) {
                // Otherwise the digests could not be forgotten later, because only an installed version can be removed.
                trashes.into_iter().for_each(|(trash, path)| restore_from_trash(trash, &path));
                return Err(error.into());
            }
        }
        for (trash, path) in trashes {
            if let Err(error) = trash.close() {
                tracing::warn!(path = %path.display(), %error, "failed to delete all files of a removed plugin; the next installation or removal retries");
            }
        }
        failure.map_or(Ok(removed), Err)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_oci::{Entry, HostPlatform};

    use super::*;

    /// Returns a store with the versions 1.0.0 and 2.0.0 of a plugin, these versions, and the content of the lock file.
    fn store_with_two_versions(directory: &Path) -> (Store, Vec<Installed>, LockFile) {
        let store = Store::new(directory);
        let repository = Repository { registry: "registry.example".to_owned(), path: "g/p".to_owned() };
        let mut lock = LockFile::default();
        for version in ["1.0.0", "2.0.0"] {
            let executable = store.version_directory(&repository, &version.parse().unwrap()).join(EXECUTABLE);
            std::fs::create_dir_all(executable.parent().unwrap()).unwrap();
            std::fs::write(executable, "").unwrap();
            lock.put(Entry {
                repository: repository.to_string(),
                version: version.to_owned(),
                platform: HostPlatform::this().to_string(),
                layer: "sha256:0a".to_owned(),
                files: BTreeMap::new(),
            });
        }
        lock.write(&store.lock_file(), LOCK_FILE_MODE).unwrap();
        let mut versions = store.versions(&repository);
        versions.sort();
        (store, versions, lock)
    }

    #[test]
    fn digest_of_removed_version_is_forgotten_if_the_next_version_cannot_be_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (store, versions, lock) = store_with_two_versions(directory.path());
        let move_first = |path: &Path| match path.ends_with("1.0.0") {
            true => move_to_trash(path),
            false => Err(std::io::ErrorKind::PermissionDenied.into()),
        };
        let error = store.remove_versions(versions.clone(), Some(lock), move_first).unwrap_err().to_string();
        assert!(error.starts_with("failed to delete ") && error.contains("2.0.0"), "{error}");
        let lock = LockFile::read(&store.lock_file()).unwrap();
        let has_digest = |installed: &Installed| lock.get(&installed.repository, &installed.version).is_some();
        let state = versions.iter().map(|installed| (installed.executable.exists(), has_digest(installed)));
        assert_eq!(state.collect::<Vec<_>>(), [(false, false), (true, true)]);
    }

    #[test]
    fn versions_are_restored_if_their_digests_cannot_be_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let (store, versions, lock) = store_with_two_versions(directory.path());
        // A directory cannot be replaced with a file.
        std::fs::remove_file(store.lock_file()).unwrap();
        std::fs::create_dir(store.lock_file()).unwrap();
        let error = store.remove_versions(versions.clone(), Some(lock), move_to_trash).unwrap_err();
        assert!(matches!(error, InstallError::LockFile(_)), "{error}");
        assert!(versions.iter().all(|installed| installed.executable.is_file()));
    }
}
