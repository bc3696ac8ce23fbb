//! Changes of the file after talks with the server: what the file says now counts, not what it said before.

use std::path::Path;

use muster_config::edit::{ConfigFile, EditError};
use muster_config::{HostFacts, Runner};
use muster_job::Secret;

/// Removes these runners from the file, as far as they are still there.
pub(super) fn remove(path: &Path, gone: &[Runner]) -> Result<(), EditError> {
    if gone.is_empty() {
        return Ok(());
    }
    let mut file = ConfigFile::open(path)?;
    let mut indexes: Vec<usize> = gone.iter().filter_map(|runner| find(&file, path, runner, &runner.token)).collect();
    indexes.sort_unstable();
    indexes.dedup();
    for index in indexes.into_iter().rev() {
        file.remove_runner(index)?;
    }
    file.save()?;
    tracing::info!("Updated {}", file.path().display());
    Ok(())
}

/// Where the runner stands in the file now: where it stood, or else the first one that is the same.
pub(super) fn find(file: &ConfigFile, path: &Path, runner: &Runner, token: &Secret) -> Option<usize> {
    let now = file.read(&HostFacts::of(path)).config?.runners;
    let same = |other: &&Runner| {
        other.url == runner.url && other.name == runner.name && other.token.expose() == token.expose()
    };
    now.get(runner.index).filter(same).or_else(|| now.iter().find(same)).map(|runner| runner.index)
}
