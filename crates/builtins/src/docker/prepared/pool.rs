//! The waiting containers of an agent, and the task that prepares and removes them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use muster_agent_api::builtin::{DockerContainer, DockerEngine, PreparedPolicy};
use muster_job::TerminationCause;
use muster_steps::stop::StopToken;
use parking_lot::Mutex;
use rand::Rng;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::super::target::Container;
use super::super::{engine, stoppable};
use super::leftovers::{self, Record};
use super::template::{Owner, Template};
use super::usage::{Usage, shares};

/// Interval between checks for ended and expired containers.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
const RETRY_DELAY: Duration = Duration::from_secs(30);
/// Maximum number of attempts to remove containers. Together they take one to two hours.
const MAX_ATTEMPTS: u32 = 120;
const MAX_KINDS: usize = 200;
/// Maximum number of attempts to remove the containers of an engine when the agent ends.
const MAX_CLOSE_ATTEMPTS: u32 = 10;
const CLOSE_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Prepared containers of an agent (`[runners.docker.prepared_containers]`).
#[derive(Debug, Default)]
pub struct PreparedContainers {
    record: Record,
    stop: StopToken,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    kinds: BTreeMap<String, Kind>,
    waiting: Vec<Waiting>,
    /// Names of containers that jobs have taken and not yet renamed.
    taken: Vec<String>,
    removals: Vec<Removal>,
    /// Number of jobs that currently create containers.
    creating_jobs: usize,
    task: Option<JoinHandle<()>>,
    is_closed: bool,
}

/// Containers that are equal except for their names.
#[derive(Debug)]
struct Kind {
    template: Arc<Template>,
    usage: Usage,
    /// Job that was counted last. It is not counted again if it creates its container again.
    last_job: String,
}

#[derive(Debug)]
struct Waiting {
    key: String,
    name: String,
    since: Instant,
    engine: DockerEngine,
    container: Container,
}

#[derive(Debug, Clone)]
struct Removal {
    engine: DockerEngine,
    due: Instant,
    attempts: u32,
    /// Volumes of unused containers.
    volumes: Vec<String>,
}

/// Next action of the pool.
enum Action {
    Prepare(Arc<Template>),
    Remove(Removal, BTreeSet<String>),
    /// Waits for a change. `None` means no time limit.
    Wait(Option<Instant>),
    End,
}

/// A container that a job takes and renames. Until this value is dropped, the pool does not remove a container with the
/// old name, which the container had while it waited.
pub(super) struct Taken<'a> {
    pool: &'a PreparedContainers,
    name: String,
    engine: DockerEngine,
    /// Whether the container may still have its old name, and must then be removed.
    pub(super) has_old_name: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.taken.retain(|name| *name != self.name);
        if self.has_old_name {
            state.remove_soon(&self.engine, Instant::now(), &[]);
        }
        drop(state);
        self.pool.changed.notify_one();
    }
}

/// Pauses the preparation of containers while a job creates its containers.
pub(in super::super) struct Pause<'a>(&'a PreparedContainers);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.state.lock().creating_jobs -= 1;
        self.0.changed.notify_one();
    }
}

impl PreparedContainers {
    /// Creates an empty pool. Its record is at `path`. The next agent with the same record removes leftovers.
    #[must_use]
    pub fn recorded_in(path: PathBuf) -> Self {
        Self { record: Record::load(path), ..Self::default() }
    }

    /// Removes leftovers of an earlier agent in the background.
    pub fn remove_leftovers(self: &Arc<Self>) {
        let engines = self.record.engines();
        if engines.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for engine in &engines {
            state.remove_twice(engine, Instant::now());
        }
        self.run_in_background(&mut state);
    }

    /// Removes all containers, and ends the preparation.
    pub async fn close(&self) {
        let task = {
            let mut state = self.state.lock();
            state.is_closed = true;
            state.waiting.clear();
            state.task.take()
        };
        self.stop.stop(TerminationCause::ManagerShutdown);
        self.changed.notify_one();
        if let Some(task) = task {
            // After a panic of the task, its containers are still removed below.
            let _ = task.await;
        }
        join_all(self.record.engines().into_iter().map(|engine| self.remove_all(engine))).await;
    }

    /// Removes the containers of an engine when the agent ends. Tries again after an error, which may be temporary.
    async fn remove_all(&self, engine: DockerEngine) {
        for attempt in 1..=MAX_CLOSE_ATTEMPTS {
            if attempt > 1 {
                sleep(CLOSE_RETRY_DELAY).await;
            }
            match leftovers::remove(&engine, &self.record.prefix(), &BTreeSet::new(), &[]).await {
                Ok(()) => return self.record.remove(&engine),
                Err(error) => tracing::info!(error, attempt, "failed to remove prepared containers"),
            }
        }
        tracing::info!("failed to remove all prepared containers; the next agent will remove the others");
    }

    /// Stops preparing containers for the runner of a job, because its configuration no longer has a policy. The pool
    /// then removes the waiting ones.
    pub(in super::super) fn stop_preparing_for_runner_of(&self, job: &DockerContainer) {
        let mut state = self.state.lock();
        if !state.kinds.is_empty() {
            let owner = Owner::of(job);
            state.kinds.retain(|_, kind| kind.template.owner() != owner);
            self.changed.notify_one();
        }
    }

    /// Pauses the preparation until the returned value is dropped, because a job creates its containers.
    pub(in super::super) fn pause(&self) -> Pause<'_> {
        self.state.lock().creating_jobs += 1;
        Pause(self)
    }

    /// Counts a job, and returns a waiting container, if there is one.
    pub(super) fn take(
        self: &Arc<Self>,
        template: Template,
        policy: PreparedPolicy,
        job: &str,
    ) -> Option<(Taken<'_>, Container)> {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.is_closed {
            return None;
        }
        let key = template.key().to_owned();
        state.count(template, policy, job, now);
        let max_idle = Duration::from_millis(policy.max_idle_ms);
        let is_usable = |waiting: &Waiting| {
            waiting.key == key && !waiting.container.has_ended() && now.duration_since(waiting.since) < max_idle
        };
        let found = state.waiting.iter().position(is_usable).map(|index| state.waiting.remove(index));
        state.taken.extend(found.as_ref().map(|found| found.name.clone()));
        self.run_in_background(&mut state);
        drop(state);
        self.changed.notify_one();
        let Waiting { name, engine, container, .. } = found?;
        Some((Taken { pool: self, name, engine, has_old_name: true }, container))
    }

    fn run_in_background(self: &Arc<Self>, state: &mut State) {
        if !state.is_closed && state.task.as_ref().is_none_or(JoinHandle::is_finished) {
            state.task = Some(tokio::spawn(Arc::clone(self).run()));
        }
    }

    async fn run(self: Arc<Self>) {
        loop {
            let action = self.state.lock().next_action(Instant::now());
            match action {
                Action::Prepare(template) => self.prepare(&template).await,
                Action::Remove(removal, known) => self.remove(removal, &known).await,
                Action::Wait(None) => self.changed.notified().await,
                Action::Wait(Some(until)) => {
                    let _ = tokio::time::timeout_at(until, self.changed.notified()).await;
                }
                Action::End => return,
            }
        }
    }

    async fn prepare(&self, template: &Arc<Template>) {
        let since = Instant::now();
        let name = format!("{}{:08x}", self.record.prefix(), rand::rng().random::<u32>());
        let max_idle = self.state.lock().kinds.get(template.key()).map(|kind| kind.usage.max_idle());
        // A closed pool does not wait for an engine. `close` removes what the engine creates.
        let created = match self.record.add(template.engine()) {
            Ok(()) => {
                let creating = Box::pin(template.create(&name, max_idle.unwrap_or_default(), &self.stop));
                stoppable(&self.stop, creating).await.map_err(|failure| failure.to_string())
            }
            Err(error) => Err(format!("failed to write the record of the engines in the agent's spool: {error}")),
        };
        let (engine, key) = (template.engine().clone(), template.key().to_owned());
        let mut state = self.state.lock();
        match created {
            Ok(container) if !state.is_closed => {
                tracing::info!(container = name, "container prepared");
                state.waiting.push(Waiting { key, name, since, engine, container });
            }
            Ok(_) => {}
            Err(_) if state.is_closed => {}
            Err(error) => {
                tracing::warn!(
                    error,
                    container = name,
                    image = template.image_name(),
                    engine = engine::location(&engine),
                    "failed to prepare a container, trying again after further jobs"
                );
                state.kinds.remove(&key);
                // The engine may still carry out a call after its timeout.
                state.remove_twice(&engine, Instant::now());
            }
        }
    }

    async fn remove(&self, removal: Removal, known: &BTreeSet<String>) {
        let Removal { engine, attempts, volumes, .. } = removal;
        let Err(error) = leftovers::remove(&engine, &self.record.prefix(), known, &volumes).await else { return };
        let attempts = attempts + 1;
        if attempts >= MAX_ATTEMPTS {
            tracing::error!(error, "failed to remove prepared containers; remove them by hand");
            return;
        }
        tracing::info!(error, attempts, "failed to remove prepared containers, retrying");
        self.state.lock().removals.push(Removal { engine, due: Instant::now() + RETRY_DELAY, attempts, volumes });
    }
}

impl State {
    fn count(&mut self, template: Template, policy: PreparedPolicy, job: &str, now: Instant) {
        if self.kinds.len() >= MAX_KINDS && !self.kinds.contains_key(template.key()) {
            let oldest = self.kinds.iter().min_by_key(|(_, kind)| kind.usage.last()).map(|(key, _)| key.clone());
            oldest.map(|key| self.kinds.remove(&key));
        }
        let key = template.key().to_owned();
        let new = || Kind { template: Arc::new(template), usage: Usage::new(policy), last_job: String::new() };
        let kind = self.kinds.entry(key).or_insert_with(new);
        if kind.last_job != job {
            job.clone_into(&mut kind.last_job);
            kind.usage.add(policy, now);
        }
    }

    /// Requests the removal of `volumes`, and of containers that neither wait nor were just taken.
    fn remove_soon(&mut self, engine: &DockerEngine, now: Instant, volumes: &[String]) {
        match self.removals.iter_mut().find(|removal| removal.engine == *engine) {
            Some(removal) => {
                (removal.due, removal.attempts) = (removal.due.min(now), 0);
                removal.volumes.extend_from_slice(volumes);
            }
            None => {
                let volumes = volumes.to_vec();
                self.removals.push(Removal { engine: engine.clone(), due: now, attempts: 0, volumes });
            }
        }
    }

    /// Requests a removal now and another one later, because the engine may still carry out a call after its timeout.
    fn remove_twice(&mut self, engine: &DockerEngine, now: Instant) {
        self.remove_soon(engine, now, &[]);
        let due = now + RETRY_DELAY;
        self.removals.push(Removal { engine: engine.clone(), due, attempts: 0, volumes: Vec::new() });
    }

    /// Returns the number of containers of each kind that should wait.
    fn wanted(&self, now: Instant) -> BTreeMap<String, usize> {
        let mut owners: BTreeMap<Owner, Vec<(&String, &Usage)>> = BTreeMap::new();
        for (key, kind) in &self.kinds {
            owners.entry(kind.template.owner()).or_default().push((key, &kind.usage));
        }
        let of_owner = |kinds: Vec<(&String, &Usage)>| {
            let (keys, usages): (Vec<_>, Vec<_>) = kinds.into_iter().unzip();
            keys.into_iter().cloned().zip(shares(&usages, now)).collect::<Vec<_>>()
        };
        owners.into_values().flat_map(of_owner).collect()
    }

    fn next_action(&mut self, now: Instant) -> Action {
        if self.is_closed {
            return Action::End;
        }
        // `prune` returns whether no recent jobs are left.
        self.kinds.retain(|_, kind| !kind.usage.prune(now));
        let mut wanted = self.wanted(now);
        self.drop_unwanted(&mut wanted, now);
        // `wanted` now contains the numbers of missing containers.
        if let Some(index) = self.removals.iter().position(|removal| removal.due <= now) {
            let known = self.waiting.iter().map(|waiting| &waiting.name).chain(&self.taken).cloned().collect();
            return Action::Remove(self.removals.swap_remove(index), known);
        }
        let missing = wanted.iter().max_by_key(|(_, missing)| **missing).filter(|(_, missing)| **missing > 0);
        if self.creating_jobs == 0
            && let Some(kind) = missing.and_then(|(key, _)| self.kinds.get(key))
        {
            return Action::Prepare(Arc::clone(&kind.template));
        }
        let check = (!self.waiting.is_empty()).then(|| now + CHECK_INTERVAL);
        Action::Wait(self.removals.iter().map(|removal| removal.due).chain(check).min())
    }

    /// Drops unusable and surplus containers. Subtracts the others from `wanted`.
    fn drop_unwanted(&mut self, wanted: &mut BTreeMap<String, usize>, now: Instant) {
        let kinds = &self.kinds;
        let mut is_wanted = |waiting: &Waiting| {
            let max_idle = kinds.get(&waiting.key).map(|kind| kind.usage.max_idle());
            let is_usable = !waiting.container.has_ended()
                && max_idle.is_some_and(|max_idle| now.duration_since(waiting.since) < max_idle);
            let missing = wanted.get_mut(&waiting.key).filter(|missing| is_usable && **missing > 0);
            missing.map(|missing| *missing -= 1).is_some()
        };
        let (kept, dropped): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting).into_iter().partition(&mut is_wanted);
        self.waiting = kept;
        for waiting in &dropped {
            self.remove_soon(&waiting.engine, now, waiting.container.volumes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::docker::engine::fake::{Answer, FakeEngine};

    #[tokio::test]
    async fn closing_pool_repeats_a_removal_that_the_engine_rejects_once() {
        let pool = PreparedContainers::default();
        let left = serde_json::json!([{ "Id": "left", "Names": [format!("/{}left", pool.record.prefix())] }]);
        let was_busy = AtomicBool::new(false);
        let fake = FakeEngine::start(move |call| match call {
            "GET /version" => Some(Answer::json(200, r#"{"Os":"linux"}"#)),
            "GET /containers/json" => Some(Answer::json(200, &left.to_string())),
            _ if !was_busy.swap(true, Ordering::Relaxed) => Some(Answer::json(500, r#"{"message":"busy"}"#)),
            _ => Some(Answer::json(204, "")),
        });
        let removal = format!("DELETE /containers/{}left", pool.record.prefix());
        pool.record.add(&DockerEngine { host: fake.host.clone(), ..DockerEngine::default() }).unwrap();
        pool.close().await;
        assert_eq!(fake.calls().iter().filter(|call| **call == removal).count(), 2, "{:?}", fake.calls());
        assert!(pool.record.engines().is_empty(), "the next agent must have nothing to remove");
    }
}
