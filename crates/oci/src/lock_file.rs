//! The lock file: digests of the content that was installed under each version.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::platform::HostPlatform;
use crate::reference::Repository;
use crate::version::Version;

const FORMAT: u32 = 1;
const HEADER: &str = "# Digests of installed content, written by `muster`. A version that is installed again must have the same digest.\n";

/// Reason why the lock file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LockFileError {
    /// The file cannot be read or written.
    #[error("failed to {operation} {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The failed operation: `read` or `write`.
        operation: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The content of the file is invalid.
    #[error("failed to parse {}; restore the file, or delete it to accept the current content of the registries", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser.
        source: Box<toml::de::Error>,
    },
    /// The format version of the file is not supported.
    #[error(
        "{}: unsupported format version {found}, expected {FORMAT}; restore the file, or delete it to accept the current content of the registries",
        path.display()
    )]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// Format version of the file.
        found: u32,
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
    /// Digest of the layer that was unpacked.
    pub layer: String,
    /// Digest of each unpacked file, by its path.
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
    /// Reads the file. A missing file is an empty lock file.
    pub fn read(path: &Path) -> Result<Self, LockFileError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(LockFileError::File { path: path.to_owned(), operation: "read", source }),
        };
        let file: Self = toml::from_str(&text)
            .map_err(|error| LockFileError::Content { path: path.to_owned(), source: Box::new(error) })?;
        if file.version != FORMAT {
            return Err(LockFileError::Format { path: path.to_owned(), found: file.version });
        }
        Ok(file)
    }

    /// Replaces the file atomically and durably. `mode` has the permissions of the new file.
    ///
    /// # Errors
    /// [`LockFileError::File`].
    pub fn write(&mut self, path: &Path, mode: u32) -> Result<(), LockFileError> {
        self.version = FORMAT;
        self.entries
            .sort_by(|a, b| (&a.repository, &a.version, &a.platform).cmp(&(&b.repository, &b.version, &b.platform)));
        let write = || {
            let text = toml::to_string_pretty(self).map_err(io::Error::other)?;
            muster_files::replace(path, mode, format!("{HEADER}{text}").as_bytes())
        };
        write().map_err(|source| LockFileError::File { path: path.to_owned(), operation: "write", source })
    }

    /// Returns the entry of a version for this machine's platform.
    #[must_use]
    pub fn get(&self, repository: &Repository, version: &Version) -> Option<&Entry> {
        let key = key(repository, version);
        self.entries.iter().find(|entry| has_key(entry, &key))
    }

    /// Adds an entry, or replaces the entry for the same repository, version and platform.
    pub fn put(&mut self, entry: Entry) {
        let key = (entry.repository.clone(), entry.version.clone(), entry.platform.clone());
        self.entries.retain(|entry| !has_key(entry, &key));
        self.entries.push(entry);
    }

    /// Removes the entry of a version for this machine's platform.
    pub fn remove(&mut self, repository: &Repository, version: &Version) {
        let key = key(repository, version);
        self.entries.retain(|entry| !has_key(entry, &key));
    }
}

type Key = (String, String, String);

fn key(repository: &Repository, version: &Version) -> Key {
    (repository.to_string(), version.to_string(), HostPlatform::this().to_string())
}

fn has_key(entry: &Entry, (repository, version, platform): &Key) -> bool {
    entry.repository == *repository && entry.version == *version && entry.platform == *platform
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SAMPLE: &str = r#"# Digests of installed content
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
    fn lock_file_is_read_and_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("packages.lock");
        assert_eq!(LockFile::read(&path).unwrap(), LockFile::default(), "a missing file is read as an empty lock file");
        std::fs::write(&path, SAMPLE).unwrap();
        let mut file = LockFile::read(&path).unwrap();
        assert_eq!(file.entries[0].files["plugin"], "sha256:0b");
        file.write(&path, 0o600).unwrap();
        assert_eq!(LockFile::read(&path).unwrap(), file);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);

        std::fs::write(&path, "version = 2\n").unwrap();
        assert!(LockFile::read(&path).unwrap_err().to_string().contains("unsupported format version 2"));
        std::fs::write(&path, "version = ").unwrap();
        assert!(
            LockFile::read(&path)
                .unwrap_err()
                .to_string()
                .contains("delete it to accept the current content of the registries")
        );
    }
}
