//! Running build container, with connections to its agent and detection of its end.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bollard::Docker;
use bollard::errors::Error as ApiError;
use bollard::query_parameters::{EventsOptions, WaitContainerOptions};
use futures::StreamExt;
use futures::future::join_all;
use muster_agent_api::builtin::DockerContainer;
use muster_agent_api::client::{AgentConnection, AgentError, Reach};
use muster_agent_api::container::{DIAL, EXECUTABLE};
use muster_agent_api::result::StepNode;
use muster_steps::builtin::OpenTarget;
use muster_steps::failure::Failure;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};

use super::cleanup::Objects;
use super::engine::{inspect_container, is_not_found, reason};
use super::exec;
use super::network;
use super::output::Output;
use super::relay::Relay;
use super::services::Service;
use super::socket::RunDirectory;

/// Delay between two queries of the state.
const RETRY_DELAY: std::time::Duration = std::time::Duration::from_secs(1);
/// Time without an answer of the engine or agent after which the container is considered lost.
///
/// A restart of an engine whose containers continue (`live-restore`) takes some seconds.
const SILENCE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Maximum time until the engine reports a killed process.
const EVENT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);
/// Exit code of a shell whose command was killed.
const KILLED_EXIT_CODE: i32 = 137;
const MEMORY_REMEDY: &str = "raise `memory` in [runners.docker], or let the job use less";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// The first process exited. If `code` is `None`, the exit code is unknown.
    Exited {
        code: Option<i64>,
        out_of_memory: bool,
    },
    /// Another program removed the container.
    Removed,
    EngineLost(String),
}

#[derive(Debug)]
pub(super) struct Container {
    engine: Docker,
    id: String,
    name: String,
    /// Image of the container as in the job.
    pub(super) image: String,
    project_dir: PathBuf,
    /// Whether the container has its own network namespace.
    has_own_network: bool,
    memory: Option<u64>,
    objects: Objects,
    pub(super) output: Output,
    /// Connection that was used last, if any.
    connection: Mutex<Option<AgentConnection>>,
    /// End of the container. `None` means that it runs.
    ended: watch::Receiver<Option<End>>,
    watching: JoinHandle<()>,
    /// Reports that a process exceeded the memory limit. `None` means no limit.
    out_of_memory: Option<OutOfMemory>,
    pub(super) services: Vec<Service>,
    /// Tasks that copy output of services to the log.
    service_logs: JoinSet<()>,
    /// Relay to this machine, if the job needs one.
    relay: Option<Relay>,
    /// Directory with the agent's socket, if the engine is local and reports it.
    run_dir: Option<RunDirectory>,
}

impl Drop for Container {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl Container {
    pub(super) fn watch(
        engine: Docker,
        id: String,
        job: &DockerContainer,
        objects: Objects,
        output: Output,
        run_dir: Option<RunDirectory>,
    ) -> Self {
        let (report, ended) = watch::channel(None);
        let (watched, watched_id) = (engine.clone(), id.clone());
        let watching = tokio::spawn(async move {
            let end = wait_for_end(&watched, &watched_id).await;
            report.send_replace(Some(end));
        });
        let memory = job.build.host_config.get("Memory").and_then(serde_json::Value::as_u64);
        let memory = memory.filter(|bytes| *bytes > 0);
        Self {
            out_of_memory: memory.map(|_| OutOfMemory::watch(&engine, &id)),
            engine,
            id,
            name: job.build.name.clone(),
            image: job.build.image.name.clone(),
            project_dir: job.project_dir.clone().into(),
            has_own_network: network::has_own_namespace(&job.network),
            memory,
            objects,
            output,
            connection: Mutex::default(),
            ended,
            watching,
            services: Vec::new(),
            service_logs: JoinSet::new(),
            relay: None,
            run_dir,
        }
    }

    /// Waits until the container has ended, and returns how it ended. Cancel-safe.
    pub(super) async fn wait_until_ended(&self) -> End {
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        end.unwrap_or_else(|| End::EngineLost("the container is no longer watched".to_owned()))
    }

    /// Adds tasks that copy output of services, and the relay. They end when this value is dropped.
    pub(super) fn with_helpers(mut self, service_logs: JoinSet<()>, relay: Option<Relay>) -> Self {
        (self.service_logs, self.relay) = (service_logs, relay);
        self
    }

    /// Assigns the container, which already has the job's name, to a job.
    pub(super) fn for_job(mut self, job: &DockerContainer, objects: Objects) -> Self {
        self.name.clone_from(&job.build.name);
        self.image.clone_from(&job.build.image.name);
        self.project_dir = job.project_dir.clone().into();
        self.objects = objects.with_objects_of(&self.objects);
        self
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Returns the names of the container's own volumes.
    pub(super) fn volumes(&self) -> &[String] {
        self.objects.volumes()
    }

    pub(super) fn engine(&self) -> &Docker {
        &self.engine
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) async fn stop_watching(mut self) {
        self.watching.abort();
        let _ = (&mut self.watching).await;
    }

    /// Connects to the agent's socket. `None` means that this process cannot use the socket.
    async fn connect_to_socket(&self) -> Option<UnixStream> {
        match self.run_dir.as_ref()?.connect().await {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::debug!(%error, container = self.name, "failed to open the agent's socket, using exec");
                None
            }
        }
    }

    pub(super) fn describe(&self, end: &End) -> String {
        match end {
            End::Exited { out_of_memory: true, .. } => match self.memory {
                Some(bytes) => format!(
                    "the job's container was killed because it exceeded its memory limit of {}; {MEMORY_REMEDY}",
                    mebibytes(bytes)
                ),
                None => "the job's container was killed because the engine's machine ran out of memory".to_owned(),
            },
            End::Exited { code, out_of_memory: false } => {
                let code = code.map_or_else(|| "an unknown code".to_owned(), |code| format!("code {code}"));
                let tail = self.output.tail();
                let tail = if tail.is_empty() { tail } else { format!("; the end of its output: {tail}") };
                format!("the job's container exited with {code}{tail}")
            }
            End::Removed => format!("the job's container {} was removed", self.name),
            End::EngineLost(reason) => format!("the Docker engine does not answer: {reason}"),
        }
    }
}

/// Receives the engine's report that a process exceeded the memory limit.
#[derive(Debug)]
struct OutOfMemory {
    reported: watch::Receiver<bool>,
    watching: JoinHandle<()>,
}

impl Drop for OutOfMemory {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl OutOfMemory {
    fn watch(engine: &Docker, id: &str) -> Self {
        let filters =
            [("container", id), ("event", "oom")].map(|(key, value)| (key.to_owned(), vec![value.to_owned()]));
        let options = EventsOptions { filters: Some(filters.into()), ..EventsOptions::default() };
        let (report, reported) = watch::channel(false);
        let mut events = Box::pin(engine.events(Some(options)));
        let watching = tokio::spawn(async move {
            if let Some(Ok(_)) = events.next().await {
                report.send_replace(true);
            }
        });
        Self { reported, watching }
    }

    /// Returns whether a process was killed. Waits briefly, because the report may be late.
    async fn is_reported(&self) -> bool {
        let mut reported = self.reported.clone();
        let waiting = reported.wait_for(|reported| *reported);
        tokio::time::timeout(EVENT_TIMEOUT, waiting).await.is_ok_and(|reported| reported.is_ok())
    }
}

fn mebibytes(bytes: u64) -> String {
    const MEBIBYTE: u64 = 1024 * 1024;
    if bytes.is_multiple_of(MEBIBYTE) { format!("{} MiB", bytes / MEBIBYTE) } else { format!("{bytes} bytes") }
}

async fn wait_for_end(engine: &Docker, id: &str) -> End {
    // Start of the first failed query since the last answer. The call that waits does not count as silence, because it
    // takes as long as the container runs.
    let mut silent_since = None;
    loop {
        // This call may return early with Podman, and its answer may be lost, so the state is queried, too.
        let waited = engine.wait_container(id, None::<WaitContainerOptions>).next().await;
        let asked = Instant::now();
        match inspect_container(engine, id).await {
            Ok(found) => {
                silent_since = None;
                let state = found.state.unwrap_or_default();
                if state.running != Some(true) {
                    return End::Exited { code: state.exit_code, out_of_memory: state.oom_killed == Some(true) };
                }
            }
            Err(error) if is_not_found(&error) => return End::Removed,
            Err(error) => {
                if silent_since.get_or_insert(asked).elapsed() >= SILENCE_TIMEOUT {
                    return End::EngineLost(reason(&error));
                }
                tracing::warn!(%error, container = id, "failed to query the state of a container, retrying");
            }
        }
        if !matches!(waited, Some(Err(ApiError::RequestTimeoutError))) {
            sleep(RETRY_DELAY).await;
        }
    }
}

#[async_trait]
impl Reach for Container {
    async fn reach(&self) -> Result<AgentConnection, AgentError> {
        let known = self.connection.lock().clone().filter(|connection| !connection.is_suspect());
        if let Some(connection) = known {
            return Ok(connection);
        }
        let location = format!("container {}", self.name);
        let opened = match self.connect_to_socket().await {
            Some(socket) => AgentConnection::from_stream(location, socket).await,
            None => {
                let command = [EXECUTABLE].into_iter().chain(DIAL).map(str::to_owned);
                let dialed = exec::connect(&self.engine, &self.id, command.collect()).await;
                let dialed = dialed.map_err(|error| AgentError::NotReached(reason(&error).into()))?;
                AgentConnection::from_stream(location, dialed).await
            }
        };
        let connection = opened.map_err(|error| AgentError::NotReached(error.into()))?;
        *self.connection.lock() = Some(connection.clone());
        Ok(connection)
    }
}

#[async_trait]
impl OpenTarget for Container {
    fn project_dir(&self) -> &Path {
        &self.project_dir
    }

    fn image(&self) -> &str {
        &self.image
    }

    fn has_own_network(&self) -> bool {
        self.has_own_network
    }

    fn silence_timeout(&self) -> std::time::Duration {
        SILENCE_TIMEOUT
    }

    async fn lost(&self) -> String {
        self.describe(&self.wait_until_ended().await)
    }

    async fn explain(&self, failure: &Failure) -> Option<String> {
        let is_killed = failure.exit_code() == Some(KILLED_EXIT_CODE);
        let (bytes, out_of_memory) = self.memory.zip(self.out_of_memory.as_ref()).filter(|_| is_killed)?;
        out_of_memory.is_reported().await.then(|| {
            format!(
                "a process of the job was killed because the job's container exceeded its memory limit of {}; {MEMORY_REMEDY}",
                mebibytes(bytes)
            )
        })
    }

    async fn beside_nodes(&self) -> Vec<StepNode> {
        join_all(self.services.iter().map(|service| service.node(&self.engine))).await
    }

    async fn close(&self) {
        self.watching.abort();
        *self.connection.lock() = None;
        self.objects.remove_or_log(&self.engine).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::docker::engine::fake::{Answer, FakeEngine};

    const WAIT: &str = "POST /containers/a/wait";
    /// An invalid HTTP response, as if the connection broke.
    const BROKEN: u16 = 0;
    const RUNNING: &str = r#"{"Id":"a","State":{"Running":true}}"#;
    const EXITED: &str = r#"{"Id":"a","State":{"Running":false,"ExitCode":3}}"#;

    /// Returns an engine that answers the queries of the state with `answer`, which gets the number of earlier queries.
    /// `wait` is its answer to calls that wait for the end.
    fn engine(wait: Option<Answer>, answer: impl Fn(usize) -> Answer + Send + Sync + 'static) -> FakeEngine {
        let queries = AtomicUsize::new(0);
        FakeEngine::start(move |call| match call {
            WAIT => wait.clone(),
            _ => Some(answer(queries.fetch_add(1, Ordering::Relaxed))),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn short_outage_of_the_engine_does_not_end_a_container_that_has_run_for_long() {
        // The calls that wait end after the timeout of the client, so the container is older than the permitted silence.
        let engine = engine(None, |query| match query {
            0 => Answer::json(200, RUNNING),
            1 => Answer::json(BROKEN, ""),
            _ => Answer::json(200, EXITED),
        });
        let begin = Instant::now();
        let end = wait_for_end(&engine.client, "a").await;
        assert_eq!(end, End::Exited { code: Some(3), out_of_memory: false });
        assert!(begin.elapsed() > SILENCE_TIMEOUT, "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn engine_is_lost_only_after_a_silence_without_an_answer() {
        let broken = || Answer::json(BROKEN, "");
        // An outage of 40 seconds, an answer, and then an outage without an end.
        let engine = engine(Some(broken()), move |query| match query {
            40 => Answer::json(200, RUNNING),
            _ => broken(),
        });
        let begin = Instant::now();
        let end = wait_for_end(&engine.client, "a").await;
        assert!(matches!(end, End::EngineLost(_)), "{end:?}");
        let seconds = begin.elapsed().as_secs();
        assert!((101..=103).contains(&seconds), "{seconds} s");
    }
}
