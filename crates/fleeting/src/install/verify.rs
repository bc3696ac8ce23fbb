//! Verifies the files of installed plugins.

use std::collections::BTreeSet;

use muster_oci::{Digest, Entry, LockFile};

use super::error::InstallError;
use super::store::{Installed, Store};

/// Result of verifying an installed version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The installed version.
    pub installed: Installed,
    /// Result of the verification.
    pub outcome: VerifyOutcome,
}

/// Whether the files of a version are unchanged since the installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerifyOutcome {
    /// The files are unchanged.
    Intact,
    /// The lock file has no entry for the version, for example because another program installed it.
    NotLocked,
    /// Files were changed, removed or added, or cannot be read. Each case is described.
    Changed(Vec<String>),
}

impl Store {
    /// Compares the files of these versions with their digests.
    ///
    /// # Errors
    /// The lock file cannot be read.
    pub fn verify(&self, installed: Vec<Installed>) -> Result<Vec<Finding>, InstallError> {
        let lock = LockFile::read(&self.lock_file())?;
        let finding = |installed: Installed| {
            let outcome = match lock.get(&installed.repository, &installed.version) {
                None => VerifyOutcome::NotLocked,
                Some(entry) => self.compare(&installed, entry),
            };
            Finding { installed, outcome }
        };
        Ok(installed.into_iter().map(finding).collect())
    }

    /// Describes how the files of an installed version have changed.
    ///
    /// The result is empty if the files are unchanged, or if the lock file has no entry for the version.
    ///
    /// # Errors
    /// The lock file cannot be read.
    pub fn changes(&self, installed: &Installed) -> Result<Vec<String>, InstallError> {
        let findings = self.verify(vec![installed.clone()])?;
        Ok(findings
            .into_iter()
            .flat_map(|finding| match finding.outcome {
                VerifyOutcome::Changed(changes) => changes,
                VerifyOutcome::Intact | VerifyOutcome::NotLocked => Vec::new(),
            })
            .collect())
    }

    fn compare(&self, installed: &Installed, entry: &Entry) -> VerifyOutcome {
        let directory = self.version_directory(&installed.repository, &installed.version);
        let entries = directory.read_dir().into_iter().flatten().filter_map(Result::ok);
        let present: BTreeSet<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        let mut changed = Vec::new();
        for (name, expected) in &entry.files {
            match Digest::of_file(&directory.join(name)) {
                Ok(found) if found.to_string() == *expected => {}
                Ok(found) => changed.push(format!("{name} has the digest {found}, expected {expected}")),
                Err(error) => changed.push(format!("failed to read {name}: {error}")),
            }
        }
        let added = present.iter().filter(|name| !entry.files.contains_key(*name));
        changed.extend(added.map(|name| format!("{name} was added")));
        if changed.is_empty() { VerifyOutcome::Intact } else { VerifyOutcome::Changed(changed) }
    }
}
