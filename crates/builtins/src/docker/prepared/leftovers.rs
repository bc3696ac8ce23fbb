//! Removes prepared containers that no agent uses anymore, and records which engines have prepared containers.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bollard::query_parameters::{ListContainersOptions, RemoveContainerOptions};
use muster_agent_api::builtin::DockerEngine;
use parking_lot::Mutex;
use rand::Rng;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use super::super::create::MANAGED;
use super::super::engine::{self, is_conflict, is_not_found, reason};
use super::template::EXPIRES;

/// Beginning of the names of all containers that wait for a job.
const PREFIX: &str = "muster-prepared-";
/// Time after its expiry from which an agent removes a container of another agent. The clocks of their machines may differ.
const EXPIRY_MARGIN: Duration = Duration::from_secs(300);

/// Record of the agent's containers, which outlives the agent.
#[derive(Debug)]
pub(super) struct Record {
    /// `None` means that the record is not stored.
    path: Option<PathBuf>,
    content: Mutex<Content>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Content {
    /// Part of the names of the agent's containers.
    owner: String,
    /// Engines that may have such containers.
    engines: Vec<DockerEngine>,
}

impl Content {
    fn new() -> Self {
        Self { owner: format!("{:08x}", rand::rng().random::<u32>()), engines: Vec::new() }
    }
}

impl Default for Record {
    fn default() -> Self {
        Self { path: None, content: Mutex::new(Content::new()) }
    }
}

impl Record {
    /// Returns the record in a file that only one agent uses at a time. If the file cannot be read, the record is empty.
    pub(super) fn load(path: PathBuf) -> Self {
        let content = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
            Err(error) => Err(error),
        };
        let content = content.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%error, path = %path.display(), "failed to read the record of prepared containers");
            }
            Content::new()
        });
        Self { path: Some(path), content: Mutex::new(content) }
    }

    /// Returns the beginning of the names of the agent's containers.
    pub(super) fn prefix(&self) -> String {
        format!("{PREFIX}{}-", self.content.lock().owner)
    }

    /// Returns the engines that may have containers of the agent.
    pub(super) fn engines(&self) -> Vec<DockerEngine> {
        self.content.lock().engines.clone()
    }

    /// Adds an engine, before it gets its first container.
    ///
    /// # Errors
    /// The record cannot be stored. Nothing may be created then.
    pub(super) fn add(&self, engine: &DockerEngine) -> io::Result<()> {
        let mut content = self.content.lock();
        if content.engines.contains(engine) {
            return Ok(());
        }
        let mut added = content.clone();
        added.engines.push(engine.clone());
        self.store(&added)?;
        *content = added;
        Ok(())
    }

    /// Removes an engine that has no containers of the agent.
    pub(super) fn remove(&self, engine: &DockerEngine) {
        let mut content = self.content.lock();
        content.engines.retain(|known| known != engine);
        if let Err(error) = self.store(&content) {
            tracing::info!(%error, "failed to write the record of prepared containers; the next agent checks the engine again");
        }
    }

    fn store(&self, content: &Content) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        muster_files::replace(path, 0o600, &serde_json::to_vec(content)?)
    }
}

/// Removes the agent's containers whose names are not in `known`, and containers of other agents that have expired.
///
/// # Errors
/// The reason why a container may remain.
pub(super) async fn remove(settings: &DockerEngine, own_prefix: &str, known: &BTreeSet<String>) -> Result<(), String> {
    let engine = engine::connect(settings).await.map_err(|error| error.to_string())?;
    let filters = [("name", PREFIX.to_owned()), ("label", format!("{}={}", MANAGED.0, MANAGED.1))];
    let filters: HashMap<_, _> = filters.map(|(name, value)| (name.to_owned(), vec![value])).into();
    let options = ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
    let found = engine.list_containers(Some(options)).await.map_err(|error| reason(&error))?;
    let oldest = (OffsetDateTime::now_utc() - EXPIRY_MARGIN).unix_timestamp();
    let mut problem = Ok(());
    for container in found {
        let names = container.names.unwrap_or_default();
        let Some(name) = names.iter().map(|name| name.trim_start_matches('/')).find(|name| name.starts_with(PREFIX))
        else {
            continue;
        };
        let expires = container.labels.as_ref().and_then(|labels| labels.get(EXPIRES)?.parse().ok());
        let is_left = if name.starts_with(own_prefix) {
            !known.contains(name)
        } else {
            expires.is_some_and(|expires: i64| expires < oldest)
        };
        let Some(id) = container.id.filter(|_| is_left) else { continue };
        let force = RemoveContainerOptions { force: true, v: true, ..RemoveContainerOptions::default() };
        match engine.remove_container(&id, Some(force)).await {
            Ok(()) => tracing::debug!(container = name, "prepared container removed"),
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => problem = Err(format!("{name}: {}", reason(&error))),
        }
    }
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_agent_of_a_spool_has_the_same_prefix_and_knows_the_engines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        let engine = DockerEngine { host: "unix:///a".to_owned(), ..DockerEngine::default() };
        let record = Record::load(path.clone());
        record.add(&engine).unwrap();
        let next = Record::load(path.clone());
        assert_eq!((next.prefix(), next.engines()), (record.prefix(), vec![engine.clone()]));
        next.remove(&engine);
        assert!(Record::load(path.clone()).engines().is_empty());
        std::fs::write(&path, "damaged").unwrap();
        assert!(Record::load(path).engines().is_empty());
    }
}
