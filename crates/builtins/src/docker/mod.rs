//! Containers of the step `docker/container`, which runs steps in a container of a Docker or Podman engine
//! (docs/spec/job-execution.md, section 5).
//!
//! ```text
//! connect to the engine -> create volumes and the network -> run the steps that pull and start the services
//!   -> pull the image of the build container -> start the container, whose entrypoint runs the agent
//!   -> run the steps at this agent -> remove everything
//! ```
//!
//! In containers other than the build container, Muster runs code only to block network addresses ([`block`]). The
//! engine never follows paths in a directory that a job can write to.
//!
//! All names of objects follow from the inputs of the step, so that another agent can remove the objects of a killed
//! agent.

mod agent_volume;
mod block;
mod build;
mod cleanup;
mod create;
mod directories;
mod engine;
mod exec;
pub(crate) mod images;
mod network;
mod output;
mod owner;
pub(crate) mod prepared;
mod relay;
mod search;
mod services;
mod socket;
mod start;
mod target;

use std::sync::Arc;
use std::time::Duration;

use bollard::Docker;
use muster_agent_api::builtin::{DockerContainer, LogLine};
use muster_agent_api::container::MIRROR_DIR;
use muster_steps::builtin::{BesideSteps, OpenTarget};
use muster_steps::failure::Failure;
use muster_steps::log::{Log, Stream};
use muster_steps::stop::StopToken;
use muster_steps::style;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use cleanup::Objects;
use images::Images;
use prepared::PreparedContainers;
use relay::Relay;
pub use search::{NoEngine, find_engine};
pub(crate) use services::ServiceHost;
use socket::RunDirectory;
use target::Container;

/// Time that an engine gets to finish a call that it did not answer, before the job's objects are removed again.
const PENDING_CALL_TIME: Duration = Duration::from_secs(5);

pub(crate) struct JobFacts<'a> {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) prepared: &'a Arc<PreparedContainers>,
    /// Whether the job has a view of a git mirror.
    pub(crate) has_mirror_view: bool,
    /// Steps that start services.
    pub(crate) service_steps: &'a dyn BesideSteps,
    /// Set while the containers are created, for the steps that start services.
    pub(crate) service_host: &'a Mutex<Option<Arc<ServiceHost>>>,
}

/// Creates the containers of a job. If this fails, removes what was created.
///
/// # Errors
/// [`Failure`] of the settings, the engine, an image or a stop.
pub(crate) async fn open(
    job: &DockerContainer,
    facts: &JobFacts<'_>,
    stop: &StopToken,
) -> Result<Box<dyn OpenTarget>, Failure> {
    let objects = Objects::from_job(job)?;
    let mut job = job.clone();
    if !facts.has_mirror_view {
        // Without the view, the source of the volume does not exist, so an engine would create an empty directory or
        // reject the container.
        job.volumes.retain(|volume| volume.destination != MIRROR_DIR);
    }
    job.lines.iter().for_each(|line| print(&*facts.log, &styled(line)));
    let _pause = facts.prepared.pause();
    let connecting = async { Ok(engine::connect_to_create(&job.engine).await?) };
    let (engine, unanswered) = stoppable(stop, connecting).await?;
    match Box::pin(create_all(&job, &objects, &engine, facts, stop)).await {
        Ok(container) => Ok(Box::new(container)),
        Err(failure) => {
            agent_volume::forget_complete_volumes();
            engine::forget_checked_platforms();
            objects.remove_or_log(&engine).await;
            if unanswered.happened() {
                // The engine may carry out the call after the removal.
                tokio::time::sleep(PENDING_CALL_TIME).await;
                objects.remove_or_log(&engine).await;
            }
            Err(failure)
        }
    }
}

/// Removes what a killed agent left of a job's containers.
///
/// # Errors
/// If objects may remain.
pub(crate) async fn remove_leftovers(job: &DockerContainer) -> Result<(), Failure> {
    let objects = Objects::from_job(job)?;
    Relay::remove_leftovers(job);
    objects.remove(&engine::connect(&job.engine).await?).await
}

/// Creates the objects of a job, and waits for the agent in the build container. The caller cleans up after a failure.
async fn create_all(
    job: &DockerContainer,
    objects: &Objects,
    engine: &Docker,
    facts: &JobFacts<'_>,
    stop: &StopToken,
) -> Result<Container, Failure> {
    let log = &facts.log;
    let printing = Arc::clone(log);
    let print = Arc::new(move |line: &str| print(&*printing, line));
    let is_local = engine::is_local(&job.engine)?;
    let relay = Relay::start(job, is_local)?;
    let images = Images::new(engine, &job.credentials, print, stop);
    let agent = agent_volume::create(engine, engine::location(&job.engine)).await?;
    let mut resolved = None;
    if job.prepared.is_none() {
        facts.prepared.stop_preparing_for_runner_of(job);
    }
    if prepared::is_suitable(job) {
        let image = images.ensure(&job.build.image).await?;
        fail_if_stopped(stop)?;
        let taken = prepared::take(engine, job, objects, &image, &agent, facts, stop).await?;
        fail_if_stopped(stop)?;
        if let Some(container) = taken {
            stoppable(stop, owner::adopt(engine, job, container.id(), &image, &**log)).await?;
            return Ok(container);
        }
        resolved = Some(image);
    }
    let run_dir = Some(create::volumes(engine, job).await?).filter(|_| is_local).map(RunDirectory);
    fail_if_stopped(stop)?;
    network::create(engine, job).await?;
    let services = services::start(engine, job, &images, &agent, facts).await?;
    let resolved = match resolved {
        Some(resolved) => resolved,
        None => images.ensure(&job.build.image).await?,
    };
    let image = &resolved.id;
    fail_if_stopped(stop)?;
    let directories = directories::directories_for_agent(job, &resolved);
    let body = build::body(job, &resolved, &agent, &services, relay.as_ref(), directories.as_deref())?;
    let build = create::container(engine, &job.build, body).await?;
    stoppable(stop, agent.fill(engine, &build, image)).await?;
    if directories.is_none() {
        directories::create(engine, job, &build, image).await?;
    }
    fail_if_stopped(stop)?;
    let service_logs = if job.log_services { services::copy_logs(engine, &services, log) } else { JoinSet::new() };
    let mut container = build::start(engine, job, objects, (build, run_dir), Arc::clone(log), stop)
        .await?
        .with_helpers(service_logs, relay);
    stoppable(stop, owner::adopt(engine, job, container.id(), &resolved, &**log)).await?;
    let checking = async { Ok(services::wait_until_healthy(engine, job, container.id(), services, &**log).await) };
    container.services = stoppable(stop, checking).await?;
    Ok(container)
}

fn print(log: &dyn Log, line: &str) {
    log.write(Stream::Runner, line.as_bytes());
}

fn styled(line: &LogLine) -> String {
    match line {
        LogLine::Plain(text) => style::plain(text),
        LogLine::Info(text) => style::info(text),
        LogLine::Warning(text) => style::warning(text),
    }
}

/// Returns the result of `work`, unless the step is stopped.
///
/// A stop drops `work`, which must therefore create only objects that the cleanup removes.
async fn stoppable<T>(stop: &StopToken, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::select! {
        biased;
        cause = stop.stopped() => Err(Failure::Stopped(cause)),
        done = work => done,
    }
}

/// Fails if the step was stopped. Used between calls that create objects and must not be interrupted.
fn fail_if_stopped(stop: &StopToken) -> Result<(), Failure> {
    stop.cause().map_or(Ok(()), |cause| Err(Failure::Stopped(cause)))
}
