//! Ledgers of the fleets: one set of files per runner, named by a hash of the runner's key.
//!
//! The owner file beside a ledger names the runner. The key of a runner without an `id` is derived from its token. If
//! the token changes, the runner finds its ledger by URL and name, which are in the owner file.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_config::settings::{AutoscalerSettings, RunnerKey, RunnerSettings};
use muster_taskscaler::driver::LedgerError;
use muster_taskscaler::fleet;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::instance::files;

/// Number of digits of the hash of a runner's key in the name of its ledger.
const KEY_DIGITS: usize = 16;
/// Plugin setting with the prefix of its machines' names.
const PREFIX: &str = "prefix";

/// Owner of a ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Owner {
    version: u32,
    key: RunnerKey,
    #[serde(default)]
    name: String,
    url: String,
    #[serde(default)]
    id: i64,
    /// Prefix of the machines' names, if it was derived from the runner's first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct RunnerLedger {
    pub(super) ledger: PathBuf,
    prefix: Option<String>,
}

/// A ledger that belongs to no configured runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OrphanedLedger {
    pub(super) ledger: PathBuf,
    /// Name of its former runner, or the runner's key if the runner had no name. Without a readable owner file, the
    /// name of an instance group.
    pub(super) runner: String,
    /// IDs, or the reason why the ledger is unreadable.
    pub(super) instances: Result<Vec<String>, String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum LedgerDirError {
    #[error("failed to {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LedgerDirError {
    let path = path.to_owned();
    move |source| LedgerDirError::File { action, path, source }
}

pub(super) struct LedgerDir<'a> {
    pub(super) directory: &'a Path,
}

impl LedgerDir<'_> {
    /// Returns the ledger of a runner, and writes its owner file.
    ///
    /// Does not adopt ledgers of the runners in `known`, which are configured or still have jobs or instances.
    ///
    /// # Errors
    /// [`LedgerDirError`] if a file cannot be read or written.
    pub(super) fn open_for(
        &self,
        runner: &RunnerSettings,
        known: &BTreeSet<RunnerKey>,
    ) -> Result<RunnerLedger, LedgerDirError> {
        let directory = self.directory;
        muster_files::private_directory(directory).map_err(file_error("create directory", directory))?;
        let ledger = self.ledger(&runner.key);
        let mut owner_before = read_owner(&ledger);
        if !ledger.exists()
            && let Some(earlier) = self.adopt_after_token_change(runner, known, &ledger)?
        {
            owner_before = Some(earlier);
        }
        let prefix = runner.autoscaler.as_ref().filter(|settings| settings.has_token_prefix).and_then(|settings| {
            let first = owner_before.as_ref().and_then(|owner| owner.prefix.clone());
            first.or_else(|| Some(settings.plugin_config.get(PREFIX)?.as_str()?.to_owned()))
        });
        let owner = Owner {
            version: 1,
            key: runner.key.clone(),
            name: runner.name.clone(),
            url: runner.coordinator_url().to_owned(),
            id: runner.id,
            prefix: prefix.clone(),
        };
        if owner_before.as_ref() != Some(&owner) {
            let path = owner_path(&ledger);
            write_owner(&path, &owner).map_err(file_error("write", &path))?;
        }
        Ok(RunnerLedger { ledger, prefix })
    }

    /// Finds the ledger that `runner` used with its previous token, and renames it to `to`. Returns the previous owner.
    ///
    /// Only a runner with a name and without an ID adopts a ledger, because the key of a runner with an ID does not
    /// depend on its token.
    fn adopt_after_token_change(
        &self,
        runner: &RunnerSettings,
        known: &BTreeSet<RunnerKey>,
        to: &Path,
    ) -> Result<Option<Owner>, LedgerDirError> {
        if runner.id > 0 || runner.name.is_empty() {
            return Ok(None);
        }
        let directory = self.directory;
        let entries = std::fs::read_dir(directory).map_err(file_error("read", directory))?;
        for entry in entries.flatten().map(|entry| entry.path()) {
            let from = entry.with_extension("ledger");
            let previous = (entry.extension().is_some_and(|extension| extension == "owner") && from.exists())
                .then(|| read_owner(&from));
            let Some(previous) = previous.flatten() else { continue };
            if !known.contains(&previous.key)
                && previous.id == 0
                && previous.name == runner.name
                && previous.url == runner.coordinator_url()
            {
                tracing::info!(runner = runner.name, "token of the runner changed; its instances are kept");
                // The owner is written first, so that the ledger never lacks the prefix of the machines' names.
                write_owner(&owner_path(to), &previous).map_err(file_error("write", &owner_path(to)))?;
                files::rename(&from, to)?;
                let _ = std::fs::remove_file(entry);
                return Ok(Some(previous));
            }
        }
        Ok(None)
    }

    /// Returns the ledgers that contain instances or are unreadable, except those of the runners in `keys`.
    ///
    /// # Errors
    /// [`LedgerDirError`] if the directory cannot be read.
    pub(super) fn orphans<'r>(
        &self,
        keys: impl Iterator<Item = &'r RunnerKey>,
        now_unix_s: i64,
    ) -> Result<Vec<OrphanedLedger>, LedgerDirError> {
        let configured: BTreeSet<PathBuf> = keys.map(|key| self.ledger(key)).collect();
        let fleets = fleet::read_fleets(self.directory, now_unix_s)?;
        let orphans = fleets.into_iter().filter(|fleet| !configured.contains(&fleet.ledger)).map(|fleet| {
            let instances = match (fleet.report.status, fleet.report.unavailable_reason) {
                (Some(status), _) => Ok(status.instances.into_iter().map(|instance| instance.id).collect()),
                (None, reason) => Err(reason.unwrap_or_else(|| "it is incomplete".to_owned())),
            };
            let runner = match read_owner(&fleet.ledger) {
                Some(owner) if !owner.name.is_empty() => owner.name,
                Some(owner) => owner.key.to_string(),
                None => fleet.report.runner,
            };
            OrphanedLedger { ledger: fleet.ledger, runner, instances }
        });
        Ok(orphans.filter(|orphan| orphan.instances.as_ref().map_or(true, |known| !known.is_empty())).collect())
    }

    /// Deletes the owner file of a runner whose ledger was deleted.
    pub(super) fn forget(&self, key: &RunnerKey) {
        let ledger = self.ledger(key);
        if !ledger.exists() {
            remove_owner(&owner_path(&ledger));
        }
    }

    /// Deletes the owner files without a ledger, except those of the runners in `keys`.
    pub(super) fn remove_stale_owners<'r>(&self, keys: impl Iterator<Item = &'r RunnerKey>) {
        let configured: BTreeSet<PathBuf> = keys.map(|key| owner_path(&self.ledger(key))).collect();
        let entries = std::fs::read_dir(self.directory).into_iter().flatten().flatten().map(|entry| entry.path());
        entries
            .filter(|path| path.extension().is_some_and(|extension| extension == "owner") && !configured.contains(path))
            .filter(|path| !path.with_extension("ledger").exists())
            .for_each(|path| remove_owner(&path));
    }

    fn ledger(&self, key: &RunnerKey) -> PathBuf {
        let digest = format!("{:x}", Sha256::digest(key.as_str()));
        self.directory.join(format!("{}.ledger", digest.get(..KEY_DIGITS).unwrap_or(&digest)))
    }
}

impl RunnerLedger {
    /// Returns `settings` with the name prefix of the existing machines, even if the runner's token has changed.
    pub(super) fn settings(&self, settings: &Arc<AutoscalerSettings>) -> Arc<AutoscalerSettings> {
        let mut settings = Arc::clone(settings);
        if settings.has_token_prefix
            && let Some(prefix) = &self.prefix
            && let Some(config) = Arc::make_mut(&mut settings).plugin_config.as_object_mut()
        {
            config.insert(PREFIX.to_owned(), prefix.clone().into());
        }
        settings
    }
}

fn owner_path(ledger: &Path) -> PathBuf {
    ledger.with_extension("owner")
}

/// `None` means that the file is missing or unreadable, and must be written again.
fn read_owner(ledger: &Path) -> Option<Owner> {
    let path = owner_path(ledger);
    let text = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        text => text,
    };
    let owner = text.and_then(|text| serde_json::from_slice(&text).map_err(io::Error::from));
    owner
        .inspect_err(|error| tracing::warn!(path = %path.display(), %error, "failed to read the owner of a ledger"))
        .ok()
}

fn remove_owner(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "failed to delete the owner file of a deleted ledger; delete the file");
        }
        _ => {}
    }
}

fn write_owner(path: &Path, owner: &Owner) -> io::Result<()> {
    let new = path.with_extension("owner.new");
    let mut options = std::fs::OpenOptions::new();
    let file = options.create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    serde_json::to_writer(&file, owner)?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use muster_job::Secret;
    use serde_json::json;

    use super::*;

    fn runner(token: &str, id: i64, name: &str) -> Arc<RunnerSettings> {
        let short: String = token.chars().take(3).collect();
        let autoscaler = AutoscalerSettings {
            plugin_config: json!({ "prefix": format!("runner-{short}-") }),
            has_token_prefix: true,
            ..AutoscalerSettings::default()
        };
        let own = RunnerSettings::new("https://one.example/".parse().unwrap(), Secret::new(token), id);
        Arc::new(RunnerSettings { name: name.to_owned(), autoscaler: Some(Arc::new(autoscaler)), ..own })
    }

    fn write_ledger(ledger: &Path, instance: &str) {
        let key = json!({ "instance": { "group": "g", "id": instance } });
        let row = json!({ "instance": { "slots": [], "job_count": 0, "first_seen_at": 1, "intent": "serve" } });
        std::fs::write(ledger, format!("{{\"taskscaler_ledger\":1}}\n[[{key},{row}]]\n")).unwrap();
    }

    fn keys(runners: &[&Arc<RunnerSettings>]) -> BTreeSet<RunnerKey> {
        runners.iter().map(|runner| runner.key.clone()).collect()
    }

    fn prefix(own: &RunnerLedger, runner: &RunnerSettings) -> String {
        let settings = own.settings(runner.autoscaler.as_ref().unwrap());
        settings.plugin_config[PREFIX].as_str().unwrap().to_owned()
    }

    #[test]
    fn ledger_and_name_prefix_survive_a_token_change() {
        for id in [0, 7] {
            let dir = tempfile::tempdir().unwrap();
            let ledgers = LedgerDir { directory: &dir.path().join("instances") };
            let (old, new, other) = (runner("one-1", id, "a"), runner("two-2", id, "a"), runner("three", 0, "b"));
            let own = ledgers.open_for(&old, &keys(&[&old, &other])).unwrap();
            ledgers.open_for(&other, &keys(&[&old, &other])).unwrap();
            write_ledger(&own.ledger, "i-1");
            let runners = keys(&[&other, &new]);
            let (own, of_other) =
                (ledgers.open_for(&new, &runners).unwrap(), ledgers.open_for(&other, &runners).unwrap());
            assert!(std::fs::read_to_string(&own.ledger).unwrap().contains("i-1"), "id {id}");
            assert!(!of_other.ledger.exists());
            assert_eq!((prefix(&own, &new), prefix(&of_other, &other)), ("runner-one-".into(), "runner-thr-".into()));
            assert_eq!(ledgers.open_for(&new, &runners).unwrap(), own, "a later start must use the same ledger");
            assert_eq!(ledgers.orphans(runners.iter(), 9).unwrap(), []);
        }
    }

    #[test]
    fn ledger_in_use_is_not_adopted_and_orphans_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let ledgers = LedgerDir { directory: dir.path() };
        let (old, new) = (runner("one-1", 0, "a"), runner("two-2", 0, "a"));
        let both = keys(&[&old, &new]);
        let ledger = ledgers.open_for(&old, &both).unwrap().ledger;
        write_ledger(&ledger, "i-1");
        assert!(!ledgers.open_for(&new, &both).unwrap().ledger.exists());
        let orphan = OrphanedLedger { ledger, runner: "a".to_owned(), instances: Ok(vec!["i-1".to_owned()]) };
        assert_eq!(ledgers.orphans([&new.key].into_iter(), 9).unwrap(), std::slice::from_ref(&orphan));
        std::fs::write(&orphan.ledger, "{\"taskscaler_ledger\":99}\n").unwrap();
        let error = ledgers.orphans([&new.key].into_iter(), 9).unwrap().remove(0).instances.unwrap_err();
        assert!(error.contains(&orphan.ledger.display().to_string()), "{error}");
    }

    #[test]
    fn owner_file_is_deleted_with_its_ledger() {
        let dir = tempfile::tempdir().unwrap();
        let ledgers = LedgerDir { directory: dir.path() };
        let (configured, removed, with_ledger) =
            (runner("one", 0, "a"), runner("two", 0, "b"), runner("three", 0, "c"));
        let all = keys(&[&configured, &removed, &with_ledger]);
        let owner_file = |runner: &Arc<RunnerSettings>| owner_path(&ledgers.open_for(runner, &all).unwrap().ledger);
        let [of_configured, of_removed, of_ledger] = [&configured, &removed, &with_ledger].map(owner_file);
        write_ledger(&of_ledger.with_extension("ledger"), "i-1");
        ledgers.forget(&with_ledger.key);
        ledgers.remove_stale_owners([&configured.key].into_iter());
        assert_eq!([&of_configured, &of_removed, &of_ledger].map(|path| path.exists()), [true, false, true]);
        std::fs::remove_file(of_ledger.with_extension("ledger")).unwrap();
        ledgers.forget(&with_ledger.key);
        assert!(!of_ledger.exists());
    }
}
