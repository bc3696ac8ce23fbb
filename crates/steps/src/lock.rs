//! Lock file of a repository, which pins the digests of its remote steps.

use serde::{Deserialize, Serialize};

use crate::remote::Source;

/// Name of the file, at the top of the repository.
pub const LOCK_FILE: &str = "muster-steps.lock";
const FORMAT: u32 = 1;
const HEADER: &str = "# Digests of the remote steps of this repository, written by `muster step lock`. Commit this file: jobs then run only these steps.\n";

/// Content of the lock file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepLock {
    version: u32,
    #[serde(default, rename = "step")]
    entries: Vec<LockedStep>,
}

/// Pinned source of steps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedStep {
    /// Source of the step, as [`Source`] displays it.
    pub source: String,
    /// Hash of the Git commit, or digest of the OCI index.
    pub digest: String,
}

/// Reason why the lock file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// The text is not a lock file.
    #[error("failed to parse {LOCK_FILE}: {0}; run `muster step lock` to write it again")]
    Content(String),
    /// The entries cannot be written as TOML.
    #[error("failed to write the entries of {LOCK_FILE} as TOML: {0}")]
    Entries(String),
    /// The file has another format version.
    #[error("{LOCK_FILE}: unsupported format version {0}, expected {FORMAT}; run `muster step lock` to write it again")]
    Format(u32),
}

impl Default for StepLock {
    fn default() -> Self {
        Self { version: FORMAT, entries: Vec::new() }
    }
}

impl StepLock {
    /// Parses the text of a lock file.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn parse(text: &str) -> Result<Self, LockError> {
        let lock: Self = toml::from_str(text).map_err(|error| LockError::Content(error.message().to_owned()))?;
        if lock.version != FORMAT {
            return Err(LockError::Format(lock.version));
        }
        Ok(lock)
    }

    /// Returns the text of the file, with the entries in the order of their sources.
    ///
    /// # Errors
    /// [`LockError::Entries`].
    pub fn to_text(&self) -> Result<String, LockError> {
        let mut sorted = self.clone();
        sorted.entries.sort();
        let text = toml::to_string(&sorted).map_err(|error| LockError::Entries(error.to_string()))?;
        Ok(format!("{HEADER}{text}"))
    }

    /// Returns the pinned digest of a source.
    #[must_use]
    pub fn digest(&self, source: &Source) -> Option<&str> {
        let name = source.to_string();
        self.entries.iter().find(|entry| entry.source == name).map(|entry| entry.digest.as_str())
    }

    /// Pins a source to a digest. Replaces an earlier digest.
    pub fn put(&mut self, source: &Source, digest: String) {
        let source = source.to_string();
        self.entries.retain(|entry| entry.source != source);
        self.entries.push(LockedStep { source, digest });
    }

    /// Returns the pinned sources.
    #[must_use]
    pub fn entries(&self) -> &[LockedStep] {
        &self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(revision: &str) -> Source {
        Source::Git { url: "https://u:secret@r.example/p".to_owned(), revision: revision.to_owned() }
    }

    #[test]
    fn lock_file_round_trips_in_order_and_without_credentials() {
        let mut lock = StepLock::default();
        lock.put(&git("v2"), "b".repeat(40));
        lock.put(&git("v1"), "c".repeat(40));
        lock.put(&git("v1"), "a".repeat(40));
        let text = lock.to_text().unwrap();
        assert!(!text.contains("secret"), "{text}");
        let read = StepLock::parse(&text).unwrap();
        let sources: Vec<_> = read.entries().iter().map(|entry| entry.source.as_str()).collect();
        assert_eq!(sources, ["https://r.example/p@v1", "https://r.example/p@v2"]);
        assert_eq!(read.digest(&git("v1")), Some("a".repeat(40).as_str()));
        assert_eq!(read.digest(&git("v3")), None);
    }

    #[test]
    fn invalid_file_is_rejected_with_the_command_that_repairs_it() {
        for text in ["version = ", "version = 2", "version = 1\n[[step]]\nsource = \"x\"", "version = 1\nother = 1"] {
            let error = StepLock::parse(text).unwrap_err().to_string();
            assert!(error.contains(LOCK_FILE) && error.contains("`muster step lock`"), "{text}: {error}");
        }
    }
}
