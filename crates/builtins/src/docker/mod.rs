//! `builtin://docker/container`: runs steps in a container of a Docker or Podman engine (docs/spec/job-execution.md, section 5).
//!
//! ```text
//! connect to the engine -> create volumes and the network -> pull the images of the services, start the services
//!   -> pull the image of the build container, start the container, whose entrypoint runs the agent
//!   -> run the steps at this agent -> remove everything
//! ```
//!
//! The agent in the build container runs all steps. No other container runs code of Muster, and nothing on the engine's side follows
//! paths in a directory that a job can write to.
//!
//! All names of a job's objects are derived from the inputs of the step. So an agent that finds the inputs in its spool can remove the
//! objects that a killed agent left.

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
mod relay;
mod search;
mod services;
mod socket;
mod target;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker;
use muster_agent_api::builtin::{DockerContainer, LogLine};
use muster_agent_api::container::MIRROR_DIR;
use muster_steps::builtin::{DelegateTarget, OpenTarget};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use muster_steps::style;
use tokio::task::JoinSet;

use crate::context::Context;
use cleanup::Objects;
use images::Images;
use relay::Relay;
pub use search::{NoEngine, find_engine};
use socket::RunDirectory;
use target::Container;

/// Time that an engine gets, once it answers again, to finish a call that it left without an answer.
const PENDING_CALL_TIME: Duration = Duration::from_secs(5);

#[async_trait]
impl DelegateTarget<Context> for DockerContainer {
    async fn open(&self, context: &Arc<Context>, stop: &StopToken) -> Result<Box<dyn OpenTarget>, Failure> {
        let objects = Objects::from_job(self)?;
        let mut job = self.clone();
        if context.mirror_view.lock().is_none() {
            // An engine would create a directory in place of the view that could not be created, or would refuse the container.
            job.volumes.retain(|volume| volume.destination != MIRROR_DIR);
        }
        self.lines.iter().for_each(|line| context.print(&styled(line)));
        let connecting = async { Ok(engine::connect_to_create(&self.engine).await?) };
        let (engine, unanswered) = stoppable(stop, connecting).await?;
        match create_all(&job, &objects, &engine, context, stop).await {
            Ok(container) => Ok(Box::new(container)),
            Err(failure) => {
                agent_volume::forget_complete_volumes();
                engine::forget_checked_platforms();
                objects.remove_or_log(&engine).await;
                if unanswered.happened() {
                    // The engine may have carried out the call only after the removal.
                    tokio::time::sleep(PENDING_CALL_TIME).await;
                    objects.remove_or_log(&engine).await;
                }
                Err(failure)
            }
        }
    }

    async fn remove_leftovers(&self) -> Result<(), Failure> {
        let objects = Objects::from_job(self)?;
        Relay::remove_leftovers(self);
        objects.remove(&engine::connect(&self.engine).await?).await
    }
}

/// Creates the objects of a job, and waits until the agent in the build container answers. After a failure, the caller removes them.
async fn create_all(
    job: &DockerContainer,
    objects: &Objects,
    engine: &Docker,
    context: &Arc<Context>,
    stop: &StopToken,
) -> Result<Container, Failure> {
    let printing = Arc::clone(context);
    let print = move |line: &str| printing.print(line);
    let is_local = engine::is_local(&job.engine)?;
    let relay = Relay::start(job, is_local)?;
    let images = Images::new(engine, &job.credentials, &print, stop);
    let agent = agent_volume::create(engine, engine::location(&job.engine)).await?;
    let run_dir = Some(create::volumes(engine, job).await?).filter(|_| is_local).map(RunDirectory);
    fail_if_stopped(stop)?;
    network::create(engine, job).await?;
    let services = services::start(engine, job, &images, &agent, context, stop).await?;
    let resolved = images.ensure(&job.build.image).await?;
    let image = &resolved.id;
    fail_if_stopped(stop)?;
    let directories = directories::directories_for_agent(job, &resolved);
    let build =
        build::create(engine, job, &resolved, &agent, &services, relay.as_ref(), directories.as_deref()).await?;
    stoppable(stop, agent.fill(engine, &build, image)).await?;
    if directories.is_none() {
        directories::create(engine, job, &build, image).await?;
    }
    fail_if_stopped(stop)?;
    let service_logs = if job.log_services { services::copy_logs(engine, &services, context) } else { JoinSet::new() };
    let mut container =
        build::start(engine, job, objects, (build, run_dir), context, stop).await?.with_helpers(service_logs, relay);
    stoppable(stop, owner::adopt(engine, job, container.id(), &resolved, context)).await?;
    let checking = async { Ok(services::wait_until_healthy(engine, job, container.id(), services, context).await) };
    container.services = stoppable(stop, checking).await?;
    Ok(container)
}

fn styled(line: &LogLine) -> String {
    match line {
        LogLine::Plain(text) => style::plain(text),
        LogLine::Info(text) => style::info(text),
        LogLine::Warning(text) => style::warning(text),
    }
}

/// Returns the result of `work`, unless the step is stopped first.
///
/// A stop drops the work, so it must not create anything that the cleanup does not remove.
async fn stoppable<T>(stop: &StopToken, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::select! {
        biased;
        cause = stop.stopped() => Err(Failure::Stopped(cause)),
        done = work => done,
    }
}

/// Fails if the step was stopped. Calls that create something are not interrupted, so that the cleanup finds what they created.
fn fail_if_stopped(stop: &StopToken) -> Result<(), Failure> {
    stop.cause().map_or(Ok(()), |cause| Err(Failure::Stopped(cause)))
}
