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
//! If a prepared container cannot be used, the job creates its container itself.

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

/// Settings that exclude a job.
///
/// With such a setting, the engine reads the variables of a container when it starts, creates anonymous volumes differently, or looks up
/// another container.
const UNSUITABLE_SETTINGS: [&str; 5] = ["Runtime", "DeviceRequests", "VolumeDriver", "Links", "VolumesFrom"];
/// Settings whose value can name another container.
const NAMESPACE_SETTINGS: [&str; 2] = ["IpcMode", "PidMode"];
/// Beginning of a value that names another container.
const OTHER_CONTAINER: &str = "container:";
/// Maximum time for which the agent of a waiting container may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns whether a job may take a prepared container, as far as its inputs show.
///
/// A container cannot get further networks, mounts or host names after its creation. So jobs with services or a separate network, for
/// example, create their containers themselves.
pub(super) fn is_suitable(job: &DockerContainer) -> bool {
    let is_enabled = job.prepared.is_some_and(|policy| policy.max_containers > 0);
    let settings = &job.build.host_config;
    let of_namespaces = NAMESPACE_SETTINGS.iter().filter_map(|name| settings.get(*name)?.as_str().map(str::to_owned));
    let depends_on_container = |mode: String| mode.starts_with(OTHER_CONTAINER);
    let has_own_settings = !job.services.is_empty()
        || !job.relay.is_empty()
        || job.keep_volumes
        || directories::is_read_only(job)
        || network::endpoint(&job.network, Vec::new(), &job.build.mac_address).is_some()
        || UNSUITABLE_SETTINGS.iter().any(|name| settings.contains_key(*name))
        || of_namespaces.chain(network::mode(&job.network)).any(depends_on_container);
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
/// [`Failure::Configuration`] if the settings of the container are invalid, and the cause of a stop. The caller then removes what has the name
/// of the job.
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
    // A stop does not interrupt the renaming: the engine could rename the container after the cleanup has removed what has the job's name.
    let given = match rename(job, &container).await {
        Ok(()) => stoppable(stop, async { Ok(check(&container).await) }).await?,
        Err(reason) => Err(reason),
    };
    if let Err(reason) = given {
        tracing::info!(
            container = container.id(),
            reason,
            "prepared container is not usable; the job creates its own one"
        );
        // The answer to the renaming may have been lost, so the container is removed under both names: here under the name of the job, and
        // under its old name when `taken` is dropped.
        drop(container);
        objects.remove_or_log(engine).await;
        return Ok(None);
    }
    taken.has_old_name = false;
    print(&*facts.log, &style::plain(&format!("Using prepared container for image {} ...", job.build.image.name)));
    Ok(Some(container.for_job(job, objects.clone())))
}

/// Gives a container the name of the job. Returns the reason if the engine did not do so in time.
async fn rename(job: &DockerContainer, container: &Container) -> Result<(), String> {
    let options = RenameContainerOptions { name: job.build.name.clone() };
    let renamed = timeout(ANSWER_TIMEOUT, container.engine().rename_container(container.id(), options)).await;
    let silent = |_| format!("the engine did not rename it within {} s", ANSWER_TIMEOUT.as_secs());
    renamed.map_err(silent)?.map_err(|error| reason(&error))
}

/// Returns the reason if a container cannot be used.
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
