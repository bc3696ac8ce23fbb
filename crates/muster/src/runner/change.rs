//! Changes the configuration file after requests to the server. Reads the file again, because others may have changed
//! it meanwhile.

use std::path::Path;

use muster_config::edit::{ConfigFile, EditError};
use muster_config::{HostFacts, Runner};
use muster_job::Secret;

/// Removes the entries of runners from the file. Skips runners that are no longer in it.
pub(super) fn remove(path: &Path, removed: &[Runner]) -> Result<(), EditError> {
    if removed.is_empty() {
        return Ok(());
    }
    let mut file = ConfigFile::open(path)?;
    let mut indexes: Vec<usize> =
        removed.iter().filter_map(|runner| find(&file, path, runner, &runner.token)).collect();
    indexes.sort_unstable();
    indexes.dedup();
    for index in indexes.into_iter().rev() {
        file.remove_runner(index)?;
    }
    file.save()?;
    tracing::info!("Updated {}", file.path().display());
    Ok(())
}

/// Returns the index of the entry with the runner's URL and name, and with `token`. If several entries match, prefers
/// the one at the runner's previous index.
pub(super) fn find(file: &ConfigFile, path: &Path, runner: &Runner, token: &Secret) -> Option<usize> {
    let runners = file.read(&HostFacts::of(path)).config?.runners;
    let is_same = |other: &&Runner| {
        other.url == runner.url && other.name == runner.name && other.token.expose() == token.expose()
    };
    runners.get(runner.index).filter(is_same).or_else(|| runners.iter().find(is_same)).map(|runner| runner.index)
}
