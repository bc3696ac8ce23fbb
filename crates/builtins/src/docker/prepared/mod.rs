//! Build containers that are prepared before a job needs them (`[runners.docker.prepared_containers]`).
//!
//! ```text
//! a job counts as a use of its Template --> Usage: number of containers of this kind that should wait
//!   --> Pool: creates and starts them while no job creates containers --> a job takes one, which gets the job's name
//! ```
//!
//! A waiting container runs only the agent. A job takes a container that equals the one that it would create, except
//! for names and the job's variables, which steps get from the agent.

mod leftovers;
mod pool;
mod template;
mod usage;

use std::time::Duration;

use bollard::Docker;
use bollard::query_parameters::RenameContainerOptions;
use muster_agent_api::builtin::{DockerContainer, DockerVolume};
use muster_agent_api::client::Reach;
use muster_agent_api::container::MIRROR_DIR;
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use muster_steps::style;
use tokio::time::timeout;

use super::agent_volume::AgentVolume;
use super::cleanup::Objects;
use super::engine::{inspect_container, reason};
use super::images::ResolvedImage;
use super::target::Container;
use super::{JobFacts, create, directories, network, print, stoppable};
pub use pool::PreparedContainers;
use template::Template;

/// Settings with which a job cannot use a prepared container.
///
/// Some of them take effect when the container starts, but a prepared container starts before a job needs it. Others
/// refer to another container, or change how the engine handles anonymous volumes.
const UNSUITABLE_SETTINGS: [&str; 5] = ["Runtime", "DeviceRequests", "VolumeDriver", "Links", "VolumesFrom"];
/// Settings that can refer to another container.
const NAMESPACE_SETTINGS: [&str; 2] = ["IpcMode", "PidMode"];
/// Prefix of a value that refers to another container.
const OTHER_CONTAINER: &str = "container:";
/// Maximum time for the engine to rename a waiting container. The agent of the container gets the same time to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns whether the inputs of a job permit a prepared container.
///
/// A created container cannot get further networks, mounts or host names, for example for services.
pub(super) fn is_suitable(job: &DockerContainer) -> bool {
    let is_enabled = job.prepared.is_some_and(|policy| policy.max_containers > 0);
    let settings = &job.build.host_config;
    let of_namespaces = NAMESPACE_SETTINGS.iter().filter_map(|name| settings.get(*name)?.as_str().map(str::to_owned));
    let depends_on_container = |mode: String| mode.starts_with(OTHER_CONTAINER);
    let needs_own_container = !job.services.is_empty()
        || !job.relay.is_empty()
        || job.keep_volumes
        || directories::is_read_only(job)
        || network::endpoint(&job.network, Vec::new(), &job.build.mac_address).is_some()
        || UNSUITABLE_SETTINGS.iter().any(|name| settings.contains_key(*name))
        || of_namespaces.chain(network::mode(&job.network)).any(depends_on_container);
    is_enabled && !needs_own_container && job.volumes.iter().all(is_suitable_volume)
}

/// Returns whether a prepared container can have a volume of the job.
///
/// It cannot have the view of a git mirror, which belongs to one job, or a temporary named volume with options, which
/// an anonymous volume cannot replace.
fn is_suitable_volume(volume: &DockerVolume) -> bool {
    let has_options = !volume.mode.is_empty() || !volume.driver.is_empty() || !volume.driver_options.is_empty();
    volume.destination != MIRROR_DIR && !(volume.temporary && create::is_named(volume) && has_options)
}

/// Counts the job, and returns a waiting container. `None` means that the job must create its container.
///
/// # Errors
/// [`Failure::Configuration`] if the settings of the container are invalid, or [`Failure::Stopped`]. The caller then
/// cleans up.
pub(super) async fn take(
    engine: &Docker,
    job: &DockerContainer,
    objects: &Objects,
    image: &ResolvedImage,
    agent: &AgentVolume,
    facts: &JobFacts<'_>,
    stop: &StopToken,
) -> Result<Option<Container>, Failure> {
    let policy = job.prepared.unwrap_or_default();
    let Some(template) = Template::new(job, image, agent)? else { return Ok(None) };
    let Some((mut taken, container)) = facts.prepared.take(template, policy, &job.build.name) else { return Ok(None) };
    // A stop does not interrupt the renaming, which the engine could otherwise finish after the cleanup.
    let checked = match rename(job, &container).await {
        Ok(()) => stoppable(stop, async { Ok(check(&container).await) }).await?,
        Err(reason) => Err(reason),
    };
    if let Err(reason) = checked {
        tracing::info!(
            container = container.id(),
            reason,
            "prepared container is not usable; the job creates its own one"
        );
        // The container may have either name. It is removed by the job's name here, and by its old name when `taken` is
        // dropped.
        drop(container);
        objects.remove_or_log(engine).await;
        return Ok(None);
    }
    taken.has_old_name = false;
    print(&*facts.log, &style::plain(&format!("Using prepared container for image {} ...", job.build.image.name)));
    Ok(Some(container.for_job(job, objects.clone())))
}

/// Gives a container the name of the job. The error is the reason as text.
async fn rename(job: &DockerContainer, container: &Container) -> Result<(), String> {
    let options = RenameContainerOptions { name: job.build.name.clone() };
    let renamed = timeout(ANSWER_TIMEOUT, container.engine().rename_container(container.id(), options)).await;
    let silent = |_| format!("the engine did not rename it within {} s", ANSWER_TIMEOUT.as_secs());
    renamed.map_err(silent)?.map_err(|error| reason(&error))
}

/// Checks that a container can be used. The error is the reason as text.
async fn check(container: &Container) -> Result<(), String> {
    let found = inspect_container(container.engine(), container.id()).await.map_err(|error| reason(&error))?;
    if found.state.unwrap_or_default().paused == Some(true) {
        return Err("it is paused".to_owned());
    }
    let answers = async {
        let connection = container.reach().await.map_err(|error| error.to_string())?;
        connection.check().await.map_err(|error| error.to_string())
    };
    let silent = |_| format!("its agent does not answer within {} s", ANSWER_TIMEOUT.as_secs());
    timeout(ANSWER_TIMEOUT, answers).await.map_err(silent)?
}
