//! The lock file: digests of the content that was installed under each version.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::platform::HostPlatform;
use crate::reference::Repository;
use crate::version::Version;

/// Version of the format.
const FORMAT: u32 = 1;
const HEAD: &str =
    "# Digests of what was installed, kept by `muster`. A version that is installed again must be the same.\n";

/// Reason why the lock file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LockFileError {
    /// The file cannot be read or written.
    #[error("{}: cannot be {what}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The failed operation, as a participle.
        what: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The content of the file is invalid.
    #[error("{}: {what}; restore it, or remove it to trust the registries again", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with the content.
        what: String,
    },
}

/// One installed version for one platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Repository, as `registry/path`.
    pub repository: String,
    /// Version, as `MAJOR.MINOR.PATCH[-PRE]`.
    pub version: String,
    /// Platform of the machine that installed the version, as `os/architecture`.
    pub platform: String,
    /// Digest of the archive.
    pub layer: String,
    /// Digest of each unpacked file.
    pub files: BTreeMap<String, String>,
}

/// Content of the lock file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockFile {
    version: u32,
    #[serde(default, rename = "package")]
    entries: Vec<Entry>,
}

impl LockFile {
    /// Reads the file. A missing file is empty.
    ///
    /// # Errors
    /// [`LockFileError`].
    pub fn read(path: &Path) -> Result<Self, LockFileError> {
        let content = |what: String| LockFileError::Content { path: path.to_owned(), what };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(LockFileError::File { path: path.to_owned(), what: "read", source }),
        };
        let file: Self = toml::from_str(&text).map_err(|error| content(error.to_string().trim().to_owned()))?;
        if file.version != FORMAT {
            return Err(content(format!("its format is {}, and this program knows {FORMAT}", file.version)));
        }
        Ok(file)
    }

    /// Replaces the file atomically and durably.
    ///
    /// # Errors
    /// [`LockFileError::File`].
    pub fn write(&mut self, path: &Path) -> Result<(), LockFileError> {
        self.version = FORMAT;
        self.entries
            .sort_by(|a, b| (&a.repository, &a.version, &a.platform).cmp(&(&b.repository, &b.version, &b.platform)));
        let text = toml::to_string_pretty(self)
            .map_err(|error| LockFileError::Content { path: path.to_owned(), what: error.to_string() })?;
        let write = || {
            let folder = path.parent().unwrap_or(Path::new("."));
            let mut new = tempfile::Builder::new().prefix(".lock-").tempfile_in(folder)?;
            new.write_all(HEAD.as_bytes())?;
            new.write_all(text.as_bytes())?;
            // The content is not secret, and other users may verify what is installed.
            new.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
            new.as_file().sync_all()?;
            new.persist(path).map_err(|error| error.error)?;
            File::open(folder)?.sync_all()
        };
        write().map_err(|source| LockFileError::File { path: path.to_owned(), what: "written", source })
    }

    /// Returns the entry of a version for the platform of this machine.
    #[must_use]
    pub fn get(&self, repository: &Repository, version: &Version) -> Option<&Entry> {
        let key = key(repository, version);
        self.entries.iter().find(|entry| is(entry, &key))
    }

    /// Adds an entry and replaces an existing one for the same version and platform.
    pub fn put(&mut self, entry: Entry) {
        let key = (entry.repository.clone(), entry.version.clone(), entry.platform.clone());
        self.entries.retain(|entry| !is(entry, &key));
        self.entries.push(entry);
    }

    /// Removes the entry of a version for the platform of this machine.
    pub fn forget(&mut self, repository: &Repository, version: &Version) {
        let key = key(repository, version);
        self.entries.retain(|entry| !is(entry, &key));
    }
}

type Key = (String, String, String);

fn key(repository: &Repository, version: &Version) -> Key {
    (repository.to_string(), version.to_string(), HostPlatform::this().to_string())
}

fn is(entry: &Entry, (repository, version, platform): &Key) -> bool {
    entry.repository == *repository && entry.version == *version && entry.platform == *platform
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sample of format version 1.
    const FORMAT_1: &str = r#"# Digests of what was installed
version = 1

[[package]]
repository = "registry.gitlab.com/gitlab-org/fleeting/plugins/aws"
version = "1.2.3"
platform = "plan9/vax"
layer = "sha256:0a"

[package.files]
plugin = "sha256:0b"
"#;

    #[test]
    fn the_first_format_is_read_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("packages.lock");
        assert_eq!(LockFile::read(&path).unwrap(), LockFile::default(), "a file that is not there is empty");
        std::fs::write(&path, FORMAT_1).unwrap();
        let mut file = LockFile::read(&path).unwrap();
        assert_eq!(file.entries[0].files["plugin"], "sha256:0b");
        file.write(&path).unwrap();
        assert_eq!(LockFile::read(&path).unwrap(), file);

        std::fs::write(&path, "version = 2\n").unwrap();
        assert!(LockFile::read(&path).unwrap_err().to_string().contains("its format is 2"));
        std::fs::write(&path, "version = ").unwrap();
        assert!(LockFile::read(&path).unwrap_err().to_string().contains("remove it to trust the registries again"));
    }
}
