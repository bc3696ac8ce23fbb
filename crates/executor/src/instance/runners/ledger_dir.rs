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
use muster_job::{error_chain, without_user_info};
use muster_taskscaler::driver::{FileLedger, LedgerError};
use muster_taskscaler::fleet::{self, FleetFromDisk};
use muster_taskscaler::ledger::Row;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::instance::files;
use crate::instance::remaining::Remaining;

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
    pub(super) path: PathBuf,
    prefix: Option<String>,
}

/// A ledger that belongs to no configured runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OrphanedLedger {
    pub(super) ledger: PathBuf,
    /// Name of its former runner, or the runner's key if the runner had no name. Without a readable owner file, the
    /// names of the instance groups.
    pub(super) runner: String,
    /// What remains at the provider, or the reason why the ledger is unreadable.
    pub(super) remaining: Result<Remaining, String>,
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
    /// Does not adopt ledgers of the runners in `known`, which are configured or still have jobs or instances. If the
    /// ledger exists, it is used even if its owner file cannot be written.
    ///
    /// # Errors
    /// [`LedgerDirError`] if the runner has no ledger yet and a file cannot be read or written.
    pub(super) fn open_for(
        &self,
        runner: &RunnerSettings,
        known: &BTreeSet<RunnerKey>,
    ) -> Result<RunnerLedger, LedgerDirError> {
        let ledger = self.ledger(&runner.key);
        let mut owner_before = read_owner(&ledger);
        if !ledger.exists() {
            let directory = self.directory;
            muster_files::private_directory(directory).map_err(file_error("create directory", directory))?;
            owner_before = self.adopt_after_token_change(runner, known, &ledger)?.or(owner_before);
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
        let path = owner_path(&ledger);
        if owner_before.as_ref() != Some(&owner)
            && let Err(error) = write_owner(&path, &owner)
        {
            if !ledger.exists() {
                return Err(file_error("write", &path)(error));
            }
            let path = path.display();
            tracing::warn!(%path, %error, "failed to write the owner of a ledger; the next start of the manager writes it");
        }
        Ok(RunnerLedger { path: ledger, prefix })
    }

    /// Returns where the ledger of `runner` will be if opening it has failed so far.
    pub(super) fn unopened(&self, runner: &RunnerSettings) -> RunnerLedger {
        RunnerLedger { path: self.ledger(&runner.key), prefix: None }
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
                && without_user_info(&previous.url) == without_user_info(runner.coordinator_url())
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

    /// Returns the fleets with the names of their runners.
    ///
    /// # Errors
    /// [`LedgerError`] if the directory cannot be read.
    pub(super) fn fleets(&self, now_unix_s: i64) -> Result<Vec<FleetFromDisk>, LedgerError> {
        let mut fleets = fleet::read_fleets(self.directory, now_unix_s)?;
        for fleet in &mut fleets {
            if let Some(owner) = read_owner(&fleet.ledger) {
                fleet.report.runner = if owner.name.is_empty() { owner.key.to_string() } else { owner.name };
            }
        }
        Ok(fleets)
    }

    /// Returns the ledgers with instances or unanswered requests, and the unreadable ledgers, except those of the
    /// runners in `keys`.
    ///
    /// # Errors
    /// [`LedgerDirError`] if the directory cannot be read.
    pub(super) fn orphans<'r>(
        &self,
        keys: impl Iterator<Item = &'r RunnerKey>,
        now_unix_s: i64,
    ) -> Result<Vec<OrphanedLedger>, LedgerDirError> {
        let configured: BTreeSet<PathBuf> = keys.map(|key| self.ledger(key)).collect();
        let orphans = self.fleets(now_unix_s)?.into_iter().filter(|fleet| !configured.contains(&fleet.ledger));
        // As in the scaler, the instances of a create request are no longer expected after `written_off_until`.
        let is_expired =
            |row: &Row| matches!(row, Row::ScaleUp { written_off_until: Some(until), .. } if *until <= now_unix_s);
        let orphans = orphans.map(|FleetFromDisk { ledger, report }| {
            let remaining = FileLedger::rows(&ledger).map(|mut rows| {
                rows.retain(|_, row| !is_expired(row));
                Remaining::in_ledger(&rows)
            });
            OrphanedLedger { runner: report.runner, remaining: remaining.map_err(|error| error_chain(&error)), ledger }
        });
        Ok(orphans.filter(|orphan| orphan.remaining.as_ref().map_or(true, |known| !known.is_empty())).collect())
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

/// Reads the owner file of `ledger`. `None` means that the owner file is missing or unreadable, and must be written.
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
    use muster_taskscaler::ledger::RowKey;
    use serde_json::json;

    use super::*;

    fn runner(token: &str, id: i64, name: &str) -> Arc<RunnerSettings> {
        let short: String = token.chars().take(3).collect();
        let autoscaler = AutoscalerSettings {
            plugin_config: json!({ "prefix": format!("runner-{short}-") }),
            has_token_prefix: true,
            ..AutoscalerSettings::default()
        };
        let base = RunnerSettings::new("https://one.example/".parse().unwrap(), Secret::new(token), id);
        Arc::new(RunnerSettings { name: name.to_owned(), autoscaler: Some(Arc::new(autoscaler)), ..base })
    }

    fn write_ledger(ledger: &Path, instance: &str) {
        let key = json!({ "instance": { "group": "g", "id": instance } });
        let row = json!({ "instance": { "slots": [], "job_count": 0, "first_seen_at": 1, "intent": "serve" } });
        std::fs::write(ledger, format!("{{\"taskscaler_ledger\":1}}\n[[{key},{row}]]\n")).unwrap();
    }

    fn keys(runners: &[&Arc<RunnerSettings>]) -> BTreeSet<RunnerKey> {
        runners.iter().map(|runner| runner.key.clone()).collect()
    }

    fn prefix(ledger: &RunnerLedger, runner: &RunnerSettings) -> String {
        let settings = ledger.settings(runner.autoscaler.as_ref().unwrap());
        settings.plugin_config[PREFIX].as_str().unwrap().to_owned()
    }

    #[test]
    fn ledger_and_name_prefix_survive_a_token_change() {
        for id in [0, 7] {
            let dir = tempfile::tempdir().unwrap();
            let ledgers = LedgerDir { directory: &dir.path().join("instances") };
            let (old, new, other) = (runner("one-1", id, "a"), runner("two-2", id, "a"), runner("three", 0, "b"));
            let ledger = ledgers.open_for(&old, &keys(&[&old, &other])).unwrap();
            ledgers.open_for(&other, &keys(&[&old, &other])).unwrap();
            write_ledger(&ledger.path, "i-1");
            let runners = keys(&[&other, &new]);
            let (ledger, ledger_of_other) =
                (ledgers.open_for(&new, &runners).unwrap(), ledgers.open_for(&other, &runners).unwrap());
            assert!(std::fs::read_to_string(&ledger.path).unwrap().contains("i-1"), "id {id}");
            assert!(!ledger_of_other.path.exists());
            assert_eq!(
                (prefix(&ledger, &new), prefix(&ledger_of_other, &other)),
                ("runner-one-".into(), "runner-thr-".into())
            );
            assert_eq!(ledgers.open_for(&new, &runners).unwrap(), ledger, "a later start must use the same ledger");
            assert_eq!(ledgers.orphans(runners.iter(), 9).unwrap(), []);
        }
    }

    #[test]
    fn existing_ledger_is_used_even_if_its_owner_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let ledgers = LedgerDir { directory: dir.path() };
        let (runner, renamed) = (runner("one-1", 7, "a"), runner("one-1", 7, "b"));
        let ledger = ledgers.open_for(&runner, &keys(&[&runner])).unwrap();
        let obstacle = ledger.path.with_extension("owner.new");
        std::fs::create_dir(&obstacle).unwrap();
        let error = ledgers.open_for(&renamed, &keys(&[&renamed])).unwrap_err().to_string();
        assert!(error.starts_with("failed to write"), "a new ledger needs an owner: {error}");
        write_ledger(&ledger.path, "i-1");
        assert_eq!(ledgers.open_for(&renamed, &keys(&[&renamed])).unwrap(), ledger);
        std::fs::remove_dir(obstacle).unwrap();
        ledgers.open_for(&renamed, &keys(&[&renamed])).unwrap();
        assert_eq!(ledgers.fleets(9).unwrap().remove(0).report.runner, "b");
    }

    #[test]
    fn ledger_in_use_is_not_adopted_and_orphans_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let ledgers = LedgerDir { directory: dir.path() };
        let (old, new) = (runner("one-1", 0, "a"), runner("two-2", 0, "a"));
        let both = keys(&[&old, &new]);
        let ledger = ledgers.open_for(&old, &both).unwrap().path;
        write_ledger(&ledger, "i-1");
        assert!(!ledgers.open_for(&new, &both).unwrap().path.exists());
        let remaining = Remaining { instances: vec!["i-1".to_owned()], requests: 0 };
        let orphan = OrphanedLedger { ledger, runner: "a".to_owned(), remaining: Ok(remaining) };
        assert_eq!(ledgers.orphans([&new.key].into_iter(), 9).unwrap(), std::slice::from_ref(&orphan));
        std::fs::write(&orphan.ledger, "{\"taskscaler_ledger\":99}\n").unwrap();
        let error = ledgers.orphans([&new.key].into_iter(), 9).unwrap().remove(0).remaining.unwrap_err();
        assert!(error.contains(&orphan.ledger.display().to_string()), "{error}");
    }

    #[test]
    fn orphan_with_only_unanswered_requests_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let ledgers = LedgerDir { directory: dir.path() };
        let removed = runner("one", 0, "a");
        let ledger = ledgers.open_for(&removed, &keys(&[&removed])).unwrap().path;
        let orphans_with = |written_off_until: Option<i64>| {
            let key = RowKey::ScaleUp { group: "g".to_owned(), call: 1 };
            let row =
                Row::ScaleUp { requested: 2, outstanding: 2, requested_at: 1, accepted: false, written_off_until };
            let rows = serde_json::to_string(&[(key, row)]).unwrap();
            std::fs::write(&ledger, format!("{{\"taskscaler_ledger\":1}}\n{rows}\n")).unwrap();
            ledgers.orphans(std::iter::empty(), 9).unwrap()
        };
        let remaining = Ok(Remaining { instances: Vec::new(), requests: 1 });
        let orphan = OrphanedLedger { ledger: ledger.clone(), runner: "a".to_owned(), remaining };
        assert_eq!(orphans_with(None), std::slice::from_ref(&orphan));
        assert_eq!(orphans_with(Some(10)), [orphan]);
        assert_eq!(orphans_with(Some(9)), [], "no instance is expected anymore");
    }

    #[test]
    fn fleet_on_disk_has_the_name_of_its_runner() {
        let dir = tempfile::tempdir().unwrap();
        let ledgers = LedgerDir { directory: dir.path() };
        let runners = [runner("one", 0, "a"), runner("two", 7, "")];
        for runner in &runners {
            write_ledger(&ledgers.open_for(runner, &keys(&[&runners[0], &runners[1]])).unwrap().path, "i-1");
        }
        let names: BTreeSet<String> = ledgers.fleets(9).unwrap().into_iter().map(|fleet| fleet.report.runner).collect();
        assert_eq!(names, BTreeSet::from(["a".to_owned(), runners[1].key.to_string()]));
    }

    #[test]
    fn owner_file_is_deleted_with_its_ledger() {
        let dir = tempfile::tempdir().unwrap();
        let ledgers = LedgerDir { directory: dir.path() };
        let (configured, removed, with_ledger) =
            (runner("one", 0, "a"), runner("two", 0, "b"), runner("three", 0, "c"));
        let all = keys(&[&configured, &removed, &with_ledger]);
        let owner_file = |runner: &Arc<RunnerSettings>| owner_path(&ledgers.open_for(runner, &all).unwrap().path);
        let [owner_of_configured, owner_of_removed, owner_beside_ledger] =
            [&configured, &removed, &with_ledger].map(owner_file);
        write_ledger(&owner_beside_ledger.with_extension("ledger"), "i-1");
        ledgers.forget(&with_ledger.key);
        ledgers.remove_stale_owners([&configured.key].into_iter());
        assert_eq!(
            [&owner_of_configured, &owner_of_removed, &owner_beside_ledger].map(|path| path.exists()),
            [true, false, true]
        );
        std::fs::remove_file(owner_beside_ledger.with_extension("ledger")).unwrap();
        ledgers.forget(&with_ledger.key);
        assert!(!owner_beside_ledger.exists());
    }
}
