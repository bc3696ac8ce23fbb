//! Installs plugins from registries.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_oci::{
    Constraint, Descriptor, Digest, DigestError, DockerConfig, Entry, HostPlatform, LockFile, Reference, Registry,
    RegistryError, TagList, Unpacked, Version,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::error::InstallError;
use super::lock::FlockGuard;
use super::store::{Installed, STAGING_PREFIX, Store, move_to_trash, remove_leftovers, restore_from_trash};
use super::{EXECUTABLE, LOCK_FILE_MODE, plugin_archive};

/// Annotation that marks the layer that contains the plugin.
/// The value is the plugin's version (docs/spec/fleeting.md, section 6.3).
pub const LAYER_ANNOTATION: &str = "com.gitlab.fleeting.layer";
/// Maximum size of a plugin's compressed archive in bytes.
const MAX_LAYER_BYTES: u64 = 512 * 1024 * 1024;
/// Maximum number of versions or platforms that an error lists.
const MAX_LISTED: usize = 10;
/// Maximum time to wait for another process that downloads the same archive.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(3600);
/// Age after which an incomplete download is deleted instead of continued.
const MAX_PARTIAL_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Options of an installation.
#[derive(Debug, Clone, Copy, Default)]
pub struct InstallOptions {
    /// Query the registry even if a matching version is installed.
    pub upgrade: bool,
    /// Accept a new digest for a version that was installed before.
    /// Without `upgrade`, the registry is queried for the installed version. If its digest or its files differ, it is
    /// downloaded and replaced.
    pub accept_new_digest: bool,
}

/// Outcome of an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallOutcome {
    /// A matching version was already installed, and its files are unchanged. The registry was not queried.
    Present,
    /// The installed version is the one at the registry.
    Unchanged,
    /// The version was downloaded and installed.
    Installed,
    /// The installed version was replaced.
    /// Its files had changed, its new digest was accepted, or its digest was unknown.
    Repaired,
}

/// Result of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallResult {
    /// The installed version.
    pub installed: Installed,
    /// Outcome of the installation.
    pub outcome: InstallOutcome,
}

impl Store {
    /// Installs a plugin, or repairs an installed version whose files have changed.
    /// Uses docker's credentials for the registry.
    ///
    /// # Errors
    /// [`InstallError`].
    pub async fn install(
        &self,
        reference: &Reference,
        options: InstallOptions,
        credentials: Option<&DockerConfig>,
    ) -> Result<InstallResult, InstallError> {
        let mut reference = reference.clone();
        if let Some(installed) = self.find(&reference).filter(|_| !options.upgrade) {
            let changed = self.changes(&installed)?;
            if changed.is_empty() && !options.accept_new_digest {
                return Ok(InstallResult { installed, outcome: InstallOutcome::Present });
            }
            // A repair installs the same version again.
            reference.constraint = Constraint::Exact(installed.version);
        }
        let reference = &reference;
        let registry = connect_registry(reference, credentials).await?;
        let (version, layer) = select_layer(&registry, reference).await?;
        let executable = self.version_directory(&reference.repository, &version).join(EXECUTABLE);
        let installed = Installed { repository: reference.repository.clone(), version, executable };

        // The state is checked again after each wait, because another process may have installed the version.
        let installed_state = |lock: &LockFile| self.installed_state(lock, reference, &installed, &layer, options);
        let unchanged = || InstallResult { installed: installed.clone(), outcome: InstallOutcome::Unchanged };
        if installed_state(&LockFile::read(&self.lock_file())?)?.is_intact {
            return Ok(unchanged());
        }
        let archive = self.partial_download_path(reference, &layer)?;
        let _download_lock = FlockGuard::lock_deletable(&archive, DOWNLOAD_TIMEOUT).await?;
        if installed_state(&LockFile::read(&self.lock_file())?)?.is_intact {
            let _ = std::fs::remove_file(&archive);
            return Ok(unchanged());
        }
        let registry_error = |source| InstallError::from_registry(reference, source);
        registry.download(&layer, &archive).await.map_err(registry_error)?;

        let _store_lock = FlockGuard::lock_directory(self.directory()).await?;
        let mut lock = LockFile::read(&self.lock_file())?;
        let InstalledState { exists, is_intact } = installed_state(&lock)?;
        if is_intact {
            let _ = std::fs::remove_file(archive);
            return Ok(unchanged());
        }
        let directory = self.version_directory(&reference.repository, &installed.version);
        let (staging, files) = self.unpack(reference, archive.clone()).await?;
        // The digest is written before the files. After a crash in between, the next attempt accepts only this digest.
        lock.put(Entry {
            repository: reference.repository.to_string(),
            version: installed.version.to_string(),
            platform: HostPlatform::this().to_string(),
            layer: layer.digest.clone(),
            files: files.into_iter().map(|(name, file)| (name, file.digest.to_string())).collect(),
        });
        lock.write(&self.lock_file(), LOCK_FILE_MODE)?;
        activate(staging, &directory).map_err(|source| InstallError::Directory {
            path: directory.clone(),
            operation: "replace",
            source,
        })?;
        let _ = std::fs::remove_file(archive);
        let outcome = if exists { InstallOutcome::Repaired } else { InstallOutcome::Installed };
        Ok(InstallResult { installed, outcome })
    }

    fn installed_state(
        &self,
        lock: &LockFile,
        reference: &Reference,
        installed: &Installed,
        layer: &Descriptor,
        options: InstallOptions,
    ) -> Result<InstalledState, InstallError> {
        let locked = lock.get(&installed.repository, &installed.version);
        if let Some(locked) = locked.filter(|locked| locked.layer != layer.digest && !options.accept_new_digest) {
            return Err(InstallError::Changed {
                reference: reference.to_string(),
                version: installed.version.to_string(),
                locked: locked.layer.clone(),
                found: layer.digest.clone(),
                lock_file: self.lock_file(),
            });
        }
        let exists = installed.executable.is_file();
        let directory = self.version_directory(&installed.repository, &installed.version);
        let is_unchanged = |locked: &Entry| locked.layer == layer.digest && is_intact(&directory, locked);
        Ok(InstalledState { exists, is_intact: exists && locked.is_some_and(is_unchanged) })
    }

    /// Returns the path to which the archive is downloaded.
    /// If the file exists, it contains the start of the archive.
    fn partial_download_path(&self, reference: &Reference, layer: &Descriptor) -> Result<PathBuf, InstallError> {
        let registry_error = |source| InstallError::from_registry(reference, source);
        let url = || reference.repository.to_string().as_str().into();
        let invalid = |error: DigestError| RegistryError::InvalidResponse { url: url(), source: error.into() };
        let digest: Digest = layer.digest.parse().map_err(|error| registry_error(invalid(error)))?;
        if layer.size > MAX_LAYER_BYTES {
            return Err(registry_error(RegistryError::TooLarge { url: url(), limit: MAX_LAYER_BYTES }));
        }
        let partial = self.directory().join(".partial");
        std::fs::create_dir_all(&partial).map_err(|source| InstallError::Directory {
            path: partial.clone(),
            operation: "create",
            source,
        })?;
        remove_old_downloads(&partial);
        Ok(partial.join(digest.to_string().replace(':', "-")))
    }

    async fn unpack(
        &self,
        reference: &Reference,
        archive: PathBuf,
    ) -> Result<(tempfile::TempDir, BTreeMap<String, Unpacked>), InstallError> {
        let parent = self.repository_directory(&reference.repository);
        let directory_error = |source| InstallError::Directory { path: parent.clone(), operation: "create", source };
        std::fs::create_dir_all(&parent).map_err(directory_error)?;
        remove_leftovers(&parent);
        let staging = tempfile::Builder::new().prefix(STAGING_PREFIX).tempdir_in(&parent).map_err(directory_error)?;
        let target_directory = staging.path().to_owned();
        let unpacked = tokio::task::spawn_blocking(move || {
            muster_oci::unpack(&archive, &target_directory, &plugin_archive::LIMITS, &plugin_archive::target)
        })
        .await;
        let unpacked = unpacked.unwrap_or_else(|error| Err(std::io::Error::other(error).into()));
        let files = unpacked.map_err(|source| InstallError::Unpack { reference: reference.to_string(), source })?;
        if !plugin_archive::has_executable(&files) {
            let problem = format!("the archive has no executable file plugin/{EXECUTABLE}");
            return Err(InstallError::NotAPlugin { reference: reference.to_string(), problem });
        }
        Ok((staging, files))
    }
}

/// State of an installed version.
struct InstalledState {
    exists: bool,
    /// Whether all files match their digests and come from the archive that the registry has now.
    is_intact: bool,
}

/// Moves a version to its final directory.
/// Running processes keep using the old version. The directory always contains either the old or the new version if the file system can
/// exchange directories.
fn activate(staging: tempfile::TempDir, directory: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(staging.path(), std::fs::Permissions::from_mode(0o755))?;
    let old = match renameat_with(CWD, staging.path(), CWD, directory, RenameFlags::EXCHANGE) {
        // The old version is in the temporary directory now, which is deleted below.
        Ok(()) => Some(staging),
        // There was no old version, or the file system cannot exchange directories.
        Err(_) => replace(staging, directory)?,
    };
    if let Some(parent) = directory.parent() {
        std::fs::File::open(parent)?.sync_all()?;
    }
    old.map_or(Ok(()), tempfile::TempDir::close)
}

/// Moves the old version away, and then the new version to its final directory. Returns the old version.
/// If the new version cannot be moved, the old version is restored.
fn replace(staging: tempfile::TempDir, directory: &Path) -> std::io::Result<Option<tempfile::TempDir>> {
    let old = move_to_trash(directory)?;
    if let Err(error) = std::fs::rename(staging.path(), directory) {
        if let Some(old) = old {
            restore_from_trash(old, directory);
        }
        return Err(error);
    }
    // The directory is no longer temporary.
    let _ = staging.keep();
    Ok(old)
}

async fn connect_registry(reference: &Reference, credentials: Option<&DockerConfig>) -> Result<Registry, InstallError> {
    let registry = &reference.repository.registry;
    let credentials = match credentials {
        Some(config) => config.get(registry).await,
        None => Ok(None),
    };
    let credentials = credentials.map_err(|source| InstallError::Credentials { registry: registry.clone(), source })?;
    Registry::new(reference.repository.clone(), credentials)
        .map_err(|source| InstallError::from_registry(reference, source))
}

/// Lists the matching versions at the registry, the lowest first.
///
/// # Errors
/// [`InstallError`], also if the registry does not list its tags.
pub async fn available(
    reference: &Reference,
    credentials: Option<&DockerConfig>,
) -> Result<Vec<Version>, InstallError> {
    let registry_error = |source| InstallError::from_registry(reference, source);
    let TagList::Tags(tags) = connect_registry(reference, credentials).await?.tags().await.map_err(registry_error)?
    else {
        let reason = "the registry does not list its versions".to_owned();
        return Err(InstallError::NoVersion { reference: reference.to_string(), available: reason });
    };
    let versions = tags.iter().filter_map(|tag| tag.parse().ok());
    let mut versions: Vec<Version> = versions.filter(|version| reference.constraint.matches(version)).collect();
    versions.sort();
    versions.dedup();
    Ok(versions)
}

/// Selects the highest matching version, and its archive for this platform.
/// An alias tag, such as `latest` or `1.2`, is used only if the registry does not list its tags.
async fn select_layer(registry: &Registry, reference: &Reference) -> Result<(Version, Descriptor), InstallError> {
    let reference_text = || reference.to_string();
    let registry_error = |source| InstallError::from_registry(reference, source);
    let tag = match &reference.constraint {
        Constraint::Exact(version) => version.to_string(),
        constraint => match registry.tags().await.map_err(registry_error)? {
            TagList::Tags(tags) => {
                let versions = || tags.iter().filter_map(|tag| Some((tag.parse::<Version>().ok()?, tag)));
                let best = versions().filter(|(version, _)| constraint.matches(version)).max();
                let tag = best.map(|(_, tag)| tag.clone());
                tag.ok_or_else(|| InstallError::NoVersion {
                    reference: reference_text(),
                    available: available_versions(versions().map(|(v, _)| v).collect()),
                })?
            }
            TagList::Unlisted => match constraint {
                Constraint::Range(_) => {
                    let reason =
                        "the registry does not list its versions, which a range requires; name an exact version"
                            .to_owned();
                    return Err(InstallError::NoVersion { reference: reference_text(), available: reason });
                }
                alias => alias.to_string(),
            },
        },
    };
    let index = registry.index(&tag).await.map_err(registry_error)?;
    let host = HostPlatform::this();
    let Some(entry) = host.select(&index.manifests) else {
        let platforms = index.manifests.iter().filter_map(|entry| entry.platform.as_ref().map(ToString::to_string));
        let listed = platforms.take(MAX_LISTED).collect::<Vec<_>>().join(", ");
        // The end of the error text "not available for this platform, ...".
        let available =
            if listed.is_empty() { "and its index names no platform".to_owned() } else { format!("only for {listed}") };
        return Err(InstallError::NoPlatform { reference: reference_text(), platform: host.to_string(), available });
    };
    let manifest = registry.manifest(entry).await.map_err(registry_error)?;
    let annotated = manifest.layers.iter().find_map(|layer| Some((layer, layer.annotations.get(LAYER_ANNOTATION)?)));
    let Some((layer, version)) = annotated else {
        let problem = format!("no layer has the annotation {LAYER_ANNOTATION}");
        return Err(InstallError::NotAPlugin { reference: reference_text(), problem });
    };
    let version: Version = version
        .parse()
        .map_err(|error| InstallError::NotAPlugin { reference: reference_text(), problem: format!("{error}") })?;
    if !reference.constraint.matches(&version) {
        let reason = format!("the tag {tag} points to version {version}");
        return Err(InstallError::NoVersion { reference: reference_text(), available: reason });
    }
    Ok((version, layer.clone()))
}

fn available_versions(mut versions: Vec<Version>) -> String {
    versions.sort();
    let shown: Vec<String> = versions.iter().rev().take(MAX_LISTED).map(ToString::to_string).collect();
    match (shown.is_empty(), versions.len().saturating_sub(MAX_LISTED)) {
        (true, _) => "the registry has no versions".to_owned(),
        (false, 0) => format!("the registry has {}", shown.join(", ")),
        (false, 1) => format!("the registry has {}, and 1 older version", shown.join(", ")),
        (false, more) => format!("the registry has {}, and {more} older versions", shown.join(", ")),
    }
}

fn is_intact(directory: &Path, entry: &Entry) -> bool {
    let matches = |(name, expected): (&String, &String)| {
        Digest::of_file(&directory.join(name)).is_ok_and(|found| found.to_string() == *expected)
    };
    entry.files.iter().all(matches)
}

fn remove_old_downloads(partial: &Path) {
    for entry in partial.read_dir().into_iter().flatten().filter_map(Result::ok) {
        let age = entry.metadata().and_then(|meta| meta.modified()).map(|time| time.elapsed().unwrap_or_default());
        if age.is_ok_and(|age| age > MAX_PARTIAL_AGE) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_version_is_restored_if_the_new_one_cannot_be_moved() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("1.0.0");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join(EXECUTABLE), "old").unwrap();
        let staging = || tempfile::tempdir_in(parent.path()).unwrap();
        let missing = staging();
        std::fs::remove_dir(missing.path()).unwrap();
        replace(missing, &directory).unwrap_err();
        assert_eq!(std::fs::read_to_string(directory.join(EXECUTABLE)).unwrap(), "old");
        assert_eq!(
            parent.path().read_dir().unwrap().count(),
            1,
            "the temporary directory of the old version must be deleted"
        );
        drop(replace(staging(), &directory).unwrap());
        assert!(!directory.join(EXECUTABLE).exists());
    }
}
