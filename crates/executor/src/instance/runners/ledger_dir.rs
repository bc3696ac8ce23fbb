//! Ledgers of the fleets: one set of files per runner, named by its key, with a file that names the owner.
//!
//! The key of a runner without an `id` is derived from its token. If the token changes, the runner finds its ledger by URL and name, which
//! are in the owner file. Its jobs are found in the same way.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_config::settings::{AutoscalerSettings, RunnerKey, RunnerSettings};
use muster_taskscaler::fleet;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::instance::files;

/// Number of hexadecimal digits of a runner's key in a file name.
const KEY_DIGITS: usize = 16;
/// Setting of a plugin that is the prefix of its machines' names.
const PREFIX: &str = "prefix";

/// Owner of a ledger. Version 1 of the file.
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

/// Ledger of one runner.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RunnerLedger {
    /// Path of the ledger. Its directory exists.
    pub(super) ledger: PathBuf,
    prefix: Option<String>,
}

/// A ledger that belongs to no configured runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OrphanedLedger {
    pub(super) ledger: PathBuf,
    /// Name of its former runner.
    pub(super) runner: String,
    /// Names of its instances.
    pub(super) instances: Vec<String>,
}

/// Directory of all ledgers.
pub(super) struct LedgerDir<'a> {
    pub(super) folder: &'a Path,
}

impl LedgerDir<'_> {
    /// Returns the ledger of a runner, and writes its owner file.
    ///
    /// Ledgers of the runners in `known` are not adopted: those runners are configured, or still have instances.
    ///
    /// # Errors
    /// Path and reason of a failed read or write, as a message.
    pub(super) fn open_for(
        &self,
        runner: &RunnerSettings,
        known: &BTreeSet<RunnerKey>,
    ) -> Result<RunnerLedger, String> {
        let folder = self.folder;
        muster_files::private_directory(folder)
            .map_err(|error| format!("cannot create directory {}: {error}", folder.display()))?;
        let ledger = self.ledger(&runner.key);
        let mut was = read_owner(&ledger);
        if !ledger.exists()
            && let Some(earlier) = self.adopt_after_token_change(runner, known, &ledger)?
        {
            was = Some(earlier);
        }
        let prefix = runner.autoscaler.as_ref().filter(|settings| settings.has_token_prefix).and_then(|settings| {
            let first = was.as_ref().and_then(|was| was.prefix.clone());
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
        if was.as_ref() != Some(&owner) {
            let path = owner_of(&ledger);
            write_owner(&path, &owner).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        Ok(RunnerLedger { ledger, prefix })
    }

    /// Adopts the ledger of a runner without an ID that was replaced by `runner` with a new token.
    fn adopt_after_token_change(
        &self,
        runner: &RunnerSettings,
        known: &BTreeSet<RunnerKey>,
        to: &Path,
    ) -> Result<Option<Owner>, String> {
        if runner.id > 0 || runner.name.is_empty() {
            return Ok(None);
        }
        let folder = self.folder;
        let entries =
            std::fs::read_dir(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
        for entry in entries.flatten().map(|entry| entry.path()) {
            let from = entry.with_extension("ledger");
            let was = (entry.extension().is_some_and(|end| end == "owner") && from.exists()).then(|| read_owner(&from));
            let Some(was) = was.flatten() else { continue };
            if !known.contains(&was.key)
                && was.id == 0
                && was.name == runner.name
                && was.url == runner.coordinator_url()
            {
                tracing::info!(runner = runner.name, "its token is new: its instances are taken over");
                // The owner is written first, so that the ledger never lacks the prefix of the machines' names, even after a crash.
                write_owner(&owner_of(to), &was).map_err(|error| format!("its owner cannot be written: {error}"))?;
                files::rename(&from, to).map_err(|error| format!("its ledger cannot be taken over: {error}"))?;
                // An owner file without a ledger means nothing.
                let _ = std::fs::remove_file(entry);
                return Ok(Some(was));
            }
        }
        Ok(None)
    }

    /// Returns the ledgers with instances that belong to none of these runners.
    ///
    /// # Errors
    /// A ledger cannot be read, as a message.
    pub(super) fn orphans<'r>(
        &self,
        keys: impl Iterator<Item = &'r RunnerKey>,
        unix: i64,
    ) -> Result<Vec<OrphanedLedger>, String> {
        let own: BTreeSet<PathBuf> = keys.map(|key| self.ledger(key)).collect();
        let fleets = fleet::read_fleets(self.folder, unix).map_err(|error| error.to_string())?;
        let orphans = fleets.into_iter().filter(|fleet| !own.contains(&fleet.ledger)).map(|fleet| {
            let status = fleet.report.status.map(|status| status.instances).unwrap_or_default();
            let runner = match read_owner(&fleet.ledger) {
                Some(owner) if !owner.name.is_empty() => owner.name,
                Some(owner) => owner.key.to_string(),
                None => fleet.report.runner,
            };
            OrphanedLedger {
                ledger: fleet.ledger,
                runner,
                instances: status.into_iter().map(|instance| instance.id).collect(),
            }
        });
        Ok(orphans.filter(|orphan| !orphan.instances.is_empty()).collect())
    }

    /// Deletes the owner file of a runner that was removed from the configuration, if its ledger was deleted.
    pub(super) fn forget(&self, key: &RunnerKey) {
        let ledger = self.ledger(key);
        if !ledger.exists() {
            remove_owner(&owner_of(&ledger));
        }
    }

    /// Deletes all other owner files without a ledger, which a killed manager left.
    pub(super) fn remove_stale_owners<'r>(&self, keys: impl Iterator<Item = &'r RunnerKey>) {
        let own: BTreeSet<PathBuf> = keys.map(|key| owner_of(&self.ledger(key))).collect();
        let entries = std::fs::read_dir(self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        entries
            .filter(|path| path.extension().is_some_and(|end| end == "owner") && !own.contains(path))
            .filter(|path| !path.with_extension("ledger").exists())
            .for_each(|path| remove_owner(&path));
    }

    fn ledger(&self, key: &RunnerKey) -> PathBuf {
        let digest = format!("{:x}", Sha256::digest(key.as_str()));
        self.folder.join(format!("{}.ledger", digest.get(..KEY_DIGITS).unwrap_or(&digest)))
    }
}

impl RunnerLedger {
    /// Returns the settings with the prefix of the machines that exist already.
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

fn owner_of(ledger: &Path) -> PathBuf {
    ledger.with_extension("owner")
}

/// Returns the owner of a ledger. `None` means that the file does not exist or is not readable; it is written again then.
fn read_owner(ledger: &Path) -> Option<Owner> {
    let path = owner_of(ledger);
    let text = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        text => text,
    };
    let owner = text.and_then(|text| serde_json::from_slice(&text).map_err(io::Error::from));
    owner
        .inspect_err(|error| tracing::warn!(path = %path.display(), %error, "it cannot be read whose ledger these are"))
        .ok()
}

fn remove_owner(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "it is left, and can be removed");
        }
        _ => {}
    }
}

fn write_owner(path: &Path, owner: &Owner) -> io::Result<()> {
    let beside = path.with_extension("owner.new");
    let mut options = std::fs::OpenOptions::new();
    let file = options.create(true).write(true).truncate(true).mode(0o600).open(&beside)?;
    serde_json::to_writer(&file, owner)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
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

    fn one_row(ledger: &Path, instance: &str) {
        let instance = json!([[[{ "instance": { "group": "g", "id": instance } },
            { "instance": { "slots": [], "job_count": 0, "first_seen_at": 1, "intent": "serve" } }]]]);
        let text = format!("{{\"taskscaler_ledger\":1}}\n{}\n", instance[0]);
        std::fs::write(ledger, text).unwrap();
    }

    fn keys(runners: &[&Arc<RunnerSettings>]) -> BTreeSet<RunnerKey> {
        runners.iter().map(|runner| runner.key.clone()).collect()
    }

    fn prefix(own: &RunnerLedger, runner: &RunnerSettings) -> String {
        let settings = own.settings(runner.autoscaler.as_ref().unwrap());
        settings.plugin_config[PREFIX].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_new_token_keeps_the_books_and_the_names_of_the_machines() {
        for id in [0, 7] {
            let place = tempfile::tempdir().unwrap();
            let ledgers = LedgerDir { folder: &place.path().join("instances") };
            let (old, new, other) = (runner("one-1", id, "a"), runner("two-2", id, "a"), runner("three", 0, "b"));
            let own = ledgers.open_for(&old, &keys(&[&old, &other])).unwrap();
            ledgers.open_for(&other, &keys(&[&old, &other])).unwrap();
            one_row(&own.ledger, "i-1");
            let runners = keys(&[&other, &new]);
            let (own, others) =
                (ledgers.open_for(&new, &runners).unwrap(), ledgers.open_for(&other, &runners).unwrap());
            assert!(std::fs::read_to_string(&own.ledger).unwrap().contains("i-1"), "id {id}");
            assert!(!others.ledger.exists());
            assert_eq!((prefix(&own, &new), prefix(&others, &other)), ("runner-one-".into(), "runner-thr-".into()));
            assert_eq!(ledgers.open_for(&new, &runners).unwrap(), own, "and so at each later start");
            assert_eq!(ledgers.orphans(runners.iter(), 9).unwrap(), []);
        }
    }

    #[test]
    fn books_of_a_runner_that_is_in_the_file_or_has_jobs_are_not_taken_over_and_those_of_nobody_are_told() {
        let place = tempfile::tempdir().unwrap();
        let ledgers = LedgerDir { folder: place.path() };
        let (old, new) = (runner("one-1", 0, "a"), runner("two-2", 0, "a"));
        let both = keys(&[&old, &new]);
        let ledger = ledgers.open_for(&old, &both).unwrap().ledger;
        one_row(&ledger, "i-1");
        assert!(!ledgers.open_for(&new, &both).unwrap().ledger.exists());
        let orphan = OrphanedLedger { ledger, runner: "a".to_owned(), instances: vec!["i-1".to_owned()] };
        assert_eq!(ledgers.orphans([&new.key].into_iter(), 9).unwrap(), [orphan]);
    }

    #[test]
    fn whose_books_they_were_is_forgotten_with_the_books_and_not_before() {
        let place = tempfile::tempdir().unwrap();
        let ledgers = LedgerDir { folder: place.path() };
        let (stays, gone, with_books) = (runner("one", 0, "a"), runner("two", 0, "b"), runner("three", 0, "c"));
        let all = keys(&[&stays, &gone, &with_books]);
        let take = |runner: &Arc<RunnerSettings>| owner_of(&ledgers.open_for(runner, &all).unwrap().ledger);
        let [of_stays, of_gone, of_books] = [&stays, &gone, &with_books].map(take);
        one_row(&of_books.with_extension("ledger"), "i-1");
        ledgers.forget(&with_books.key);
        ledgers.remove_stale_owners([&stays.key].into_iter());
        assert_eq!([&of_stays, &of_gone, &of_books].map(|path| path.exists()), [true, false, true]);
        std::fs::remove_file(of_books.with_extension("ledger")).unwrap();
        ledgers.forget(&with_books.key);
        assert!(!of_books.exists());
    }
}
