//! Removes unused prepared containers, and records which engines have such containers.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bollard::Docker;
use bollard::query_parameters::{ListContainersOptions, RemoveContainerOptions, RemoveVolumeOptions};
use futures::future::join_all;
use muster_agent_api::builtin::DockerEngine;
use parking_lot::Mutex;
use rand::Rng;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::super::create::MANAGED;
use super::super::engine::{self, is_not_found, reason, time_at_engine};
use super::template::MAX_IDLE;

/// Prefix of the names of containers that no job has taken.
const PREFIX: &str = "muster-prepared-";
/// Seconds between the expiry of another agent's container and its removal. A running agent removes its containers
/// earlier.
const EXPIRY_MARGIN_S: i64 = 300;
/// Maximum time to remove the containers of an engine.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);

/// Record of the engines that may have containers of the agent, for the next agent.
#[derive(Debug)]
pub(super) struct Record {
    /// Path of the file. `None` means that the record is only in memory.
    path: Option<PathBuf>,
    content: Mutex<Content>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Content {
    /// Random ID of the agent, which is part of the names of its containers. The next agent keeps it.
    owner: String,
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
    /// Returns the record in a file of one agent. A file that cannot be read is an empty record.
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

    /// Returns the prefix of the names of the agent's containers.
    pub(super) fn prefix(&self) -> String {
        format!("{PREFIX}{}-", self.content.lock().owner)
    }

    pub(super) fn engines(&self) -> Vec<DockerEngine> {
        self.content.lock().engines.clone()
    }

    /// Adds an engine, before it gets its first container.
    ///
    /// # Errors
    /// If the record cannot be stored. The caller must then create nothing.
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

/// Removes `volumes`, expired containers of other agents, and the agent's own containers other than `known`.
///
/// Containers are removed by name, because a job may have renamed and taken one.
///
/// # Errors
/// If a container may remain. The text names the engine.
pub(super) async fn remove(
    settings: &DockerEngine,
    own_prefix: &str,
    known: &BTreeSet<String>,
    volumes: &[String],
) -> Result<(), String> {
    let attempt = timeout(ATTEMPT_TIMEOUT, try_remove(settings, own_prefix, known, volumes)).await;
    let late = |_| format!("the engine did not answer within {} s", ATTEMPT_TIMEOUT.as_secs());
    let removed = attempt.map_err(late).and_then(|removed| removed);
    removed.map_err(|problem| {
        let location = engine::location(settings);
        format!("containers with the prefix {own_prefix} at the engine {location} may remain: {problem}")
    })
}

async fn try_remove(
    settings: &DockerEngine,
    own_prefix: &str,
    known: &BTreeSet<String>,
    volumes: &[String],
) -> Result<(), String> {
    let engine = engine::connect(settings).await.map_err(|error| error.to_string())?;
    let filters = [("name", PREFIX.to_owned()), ("label", format!("{}={}", MANAGED.0, MANAGED.1))];
    let filters: HashMap<_, _> = filters.map(|(name, value)| (name.to_owned(), vec![value])).into();
    let options = ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
    let found = engine.list_containers(Some(options)).await.map_err(|error| reason(&error))?;
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for container in found {
        let names = container.names.unwrap_or_default();
        let Some(name) = names.iter().map(|name| name.trim_start_matches('/')).find(|name| name.starts_with(PREFIX))
        else {
            continue;
        };
        let max_idle = container.labels.as_ref().and_then(|labels| labels.get(MAX_IDLE)?.parse::<i64>().ok());
        let expires = container.created.zip(max_idle).map(|(created, max_idle)| created.saturating_add(max_idle));
        if name.starts_with(own_prefix) {
            own.extend((!known.contains(name)).then(|| name.to_owned()));
        } else {
            others.extend(expires.map(|expires| (name.to_owned(), expires)));
        }
    }
    let mut removed = join_all(own.iter().map(|name| remove_container(&engine, name))).await;
    for volume in volumes {
        // The engine removes a volume with its container, but another program may have removed only the container.
        let _ = engine.remove_volume(volume, None::<RemoveVolumeOptions>).await;
    }
    // A busy engine takes seconds to report its time. The agent may be shutting down, and end before that.
    if !others.is_empty() {
        let now = time_at_engine(&engine).await?.unix_timestamp();
        let has_expired = |(_, expires): &(String, i64)| expires.saturating_add(EXPIRY_MARGIN_S) < now;
        others.retain(has_expired);
        removed.extend(join_all(others.iter().map(|(name, _)| remove_container(&engine, name))).await);
    }
    let problems: Vec<_> = removed.into_iter().filter_map(Result::err).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join(", ")) }
}

async fn remove_container(engine: &Docker, name: &str) -> Result<(), String> {
    let force = RemoveContainerOptions { force: true, v: true, ..RemoveContainerOptions::default() };
    match engine.remove_container(name, Some(force)).await {
        Ok(()) => tracing::debug!(container = name, "prepared container removed"),
        Err(error) if is_not_found(&error) => {}
        Err(error) => return Err(format!("{name} ({})", reason(&error))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docker::engine::fake::{Answer, FakeEngine};

    /// Returns an engine whose clock shows noon, with these containers: name, creation time in seconds after noon, and
    /// maximum idle time.
    fn engine_with(containers: &'static [(&str, i64, i64)]) -> FakeEngine {
        engine_with_time(containers, "1970-01-01T12:00:00Z")
    }

    fn engine_with_time(containers: &'static [(&str, i64, i64)], time: &'static str) -> FakeEngine {
        FakeEngine::start(move |call| {
            let body = match call {
                "GET /version" => r#"{"Os":"linux"}"#.to_owned(),
                "GET /info" => serde_json::json!({ "SystemTime": time }).to_string(),
                "GET /containers/json" => {
                    let noon = 12 * 60 * 60;
                    let list = containers.iter().map(|(name, created, max_idle)| {
                        let labels = serde_json::json!({ (MAX_IDLE): max_idle.to_string() });
                        serde_json::json!({ "Id": name, "Names": [format!("/{name}")], "Created": noon + created, "Labels": labels })
                    });
                    list.collect::<serde_json::Value>().to_string()
                }
                "DELETE /containers/muster-prepared-own-stuck" => return None,
                _ => return Some(Answer::json(204, "")),
            };
            Some(Answer::json(200, &body))
        })
    }

    fn settings(engine: &FakeEngine) -> DockerEngine {
        DockerEngine { host: engine.host.clone(), ..DockerEngine::default() }
    }

    #[tokio::test]
    async fn own_containers_and_expired_containers_of_others_are_removed_by_name() {
        let engine = engine_with(&[
            ("muster-prepared-own-known", -10, 600),
            ("muster-prepared-own-left", -10, 600),
            ("muster-prepared-other-expired", -1000, 600),
            ("muster-prepared-other-in-margin", -800, 600),
            ("muster-prepared-other-fresh", -10, 600),
            ("other-name", -10_000, 600),
        ]);
        let known = BTreeSet::from(["muster-prepared-own-known".to_owned()]);
        remove(&settings(&engine), "muster-prepared-own-", &known, &["volume".to_owned()]).await.unwrap();
        let mut removed: Vec<_> = engine.calls().into_iter().filter(|call| call.starts_with("DELETE")).collect();
        removed.sort();
        let expected = [
            "DELETE /containers/muster-prepared-other-expired",
            "DELETE /containers/muster-prepared-own-left",
            "DELETE /volumes/volume",
        ];
        assert_eq!(removed, expected);
    }

    #[tokio::test]
    async fn own_containers_are_removed_even_if_the_time_of_the_engine_is_unknown() {
        let engine = engine_with_time(
            &[("muster-prepared-own-left", -10, 600), ("muster-prepared-other-expired", -1000, 600)],
            "unknown",
        );
        let error = remove(&settings(&engine), "muster-prepared-own-", &BTreeSet::new(), &[]).await.unwrap_err();
        assert!(error.contains("\"unknown\" is not a valid time"), "{error}");
        let removed: Vec<_> = engine.calls().into_iter().filter(|call| call.starts_with("DELETE")).collect();
        assert_eq!(removed, ["DELETE /containers/muster-prepared-own-left"]);
    }

    #[tokio::test]
    async fn engine_that_stops_answering_is_named() {
        let engine = engine_with(&[("muster-prepared-own-stuck", -10, 600)]);
        let settings = settings(&engine);
        // Connecting while the clock is paused would time out.
        engine::connect(&settings).await.unwrap();
        tokio::time::pause();
        let error = remove(&settings, "muster-prepared-own-", &BTreeSet::new(), &[]).await.unwrap_err();
        assert!(error.contains("muster-prepared-own-") && error.contains(&engine.host), "{error}");
    }

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
