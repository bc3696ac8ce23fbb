//! Build containers that are prepared before a job needs them (`[runners.docker.prepared_containers]`).
//!
//! ```text
//! a job counts as a use of its Template --> Usage: how many containers of this kind should wait
//!   --> Pool: creates and starts them, one at a time, while no job creates containers --> a job takes one, which gets the job's name
//! ```
//!
//! A waiting container runs only the agent. A job takes a container only if it would have created exactly the same one, apart from its name,
//! the labels that name the job, and the variables of the job, which its steps get from the agent. Each container is taken by one job, and is
//! removed with this job. From the renaming on, the container is an ordinary one for the cleanup and for a later agent.
//!
//! Failures never reach a job: it then creates its container itself.

mod leftovers;
mod pool;
mod template;
mod usage;

use std::sync::Arc;

use bollard::Docker;
use bollard::query_parameters::RenameContainerOptions;
use muster_agent_api::builtin::{DockerContainer, DockerVolume};
use muster_agent_api::container::MIRROR_DIR;
use muster_steps::failure::Failure;
use muster_steps::log::Log;
use muster_steps::style;

use super::agent_volume::AgentVolume;
use super::cleanup::Objects;
use super::engine::{inspect_container, reason};
use super::images::ResolvedImage;
use super::target::Container;
use super::{create, directories, network, print};
pub use pool::PreparedContainers;
use template::Template;

/// Settings with which the engine reads the variables of a container when it starts, or creates anonymous volumes in its own way.
const UNSUITABLE_SETTINGS: [&str; 3] = ["Runtime", "DeviceRequests", "VolumeDriver"];

/// Returns whether a job may take a prepared container, as far as its inputs show.
///
/// A container cannot get further networks, mounts or host names after its creation. So jobs with services or a separate network, for
/// example, create their containers themselves.
pub(super) fn is_suitable(job: &DockerContainer) -> bool {
    let is_enabled = job.prepared.is_some_and(|policy| policy.max_containers > 0);
    let has_own_settings = !job.services.is_empty()
        || !job.relay.is_empty()
        || job.keep_volumes
        || directories::is_read_only(job)
        || network::endpoint(&job.network, Vec::new(), &job.build.mac_address).is_some()
        || UNSUITABLE_SETTINGS.iter().any(|name| job.build.host_config.contains_key(*name));
    is_enabled && !has_own_settings && job.volumes.iter().all(is_suitable_volume)
}

/// Returns whether a volume of a job can be an anonymous one, or is the same for the next job.
fn is_suitable_volume(volume: &DockerVolume) -> bool {
    let has_options = !volume.mode.is_empty() || !volume.driver.is_empty() || !volume.driver_options.is_empty();
    volume.destination != MIRROR_DIR && !(volume.temporary && create::is_named(volume) && has_options)
}

/// Counts the job, and returns a container that waits for such a job. `None` means that the job must create its container.
///
/// # Errors
/// [`Failure::Configuration`] if the settings of the container are invalid.
pub(super) async fn take(
    engine: &Docker,
    job: &DockerContainer,
    objects: &Objects,
    image: &ResolvedImage,
    agent: &AgentVolume,
    pool: &Arc<PreparedContainers>,
    log: &dyn Log,
) -> Result<Option<Container>, Failure> {
    let policy = job.prepared.unwrap_or_default();
    let Some(template) = Template::new(job, image, agent)? else { return Ok(None) };
    let Some(mut taken) = pool.take(template, policy) else { return Ok(None) };
    let Some(container) = taken.container.take() else { return Ok(None) };
    if let Err(reason) = give_to(job, &container).await {
        tracing::info!(
            container = container.id(),
            reason,
            "prepared container is not usable; the job creates its own one"
        );
        // The container has either name, even if the answer of the engine was lost.
        drop(container);
        objects.remove_or_log(engine).await;
        return Ok(None);
    }
    taken.has_old_name = false;
    print(log, &style::plain(&format!("Using prepared container for image {} ...", job.build.image.name)));
    Ok(Some(container.for_job(job, objects.clone())))
}

/// Gives a container the name of the job. Returns the reason if the container cannot be used.
async fn give_to(job: &DockerContainer, container: &Container) -> Result<(), String> {
    let (engine, id) = (container.engine(), container.id());
    let renamed = engine.rename_container(id, RenameContainerOptions { name: job.build.name.clone() }).await;
    renamed.map_err(|error| reason(&error))?;
    let found = inspect_container(engine, id).await.map_err(|error| reason(&error))?;
    let state = found.state.unwrap_or_default();
    let is_running = state.running == Some(true) && state.paused != Some(true);
    if is_running { Ok(()) } else { Err("it does not run".to_owned()) }
}
