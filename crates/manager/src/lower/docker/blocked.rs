//! Addresses that the containers of a job must not reach (`blocked_addresses`).

use muster_agent_api::builtin::{ContainerSpec, DockerContainer, DockerNetwork, ServiceContainer};
use muster_config::settings::{ContainerSettings, DockerSettings};
use serde_json::{Value, json};

use super::super::LowerError;

/// Capability with which a container could send packets past the block. Engines give it to every container.
const NET_RAW: &str = "NET_RAW";

/// Ensures that the containers cannot undo the block. Does nothing if no addresses are blocked.
pub(super) fn prepare(
    container: &mut DockerContainer,
    services: &mut [ServiceContainer],
    docker: &DockerSettings,
) -> Result<(), LowerError> {
    if container.blocked_addresses.is_empty() {
        return Ok(());
    }
    if let DockerNetwork::Mode(mode) = &container.network
        && docker.uses_network_of_others()
    {
        return Err(conflict(&format!("`network_mode = \"{mode}\"`, a network that other programs use")));
    }
    drop_net_raw(&mut container.build, &docker.build)?;
    services.iter_mut().try_for_each(|service| drop_net_raw(&mut service.container, &docker.service))
}

/// Drops [`NET_RAW`]. Fails if the container could undo the block with another capability.
fn drop_net_raw(spec: &mut ContainerSpec, settings: &ContainerSettings) -> Result<(), LowerError> {
    let config = &mut spec.host_config;
    if config.get("Privileged") == Some(&Value::Bool(true)) {
        return Err(conflict(&format!("`privileged`, which the image {} may use", spec.image.name)));
    }
    if let Some(name) = settings.unblocking_capability() {
        return Err(conflict(&format!("the capability {name} of `cap_add`")));
    }
    match config.entry("CapDrop").or_insert_with(|| json!([])) {
        Value::Array(dropped) => dropped.push(json!(NET_RAW)),
        other => *other = json!([NET_RAW]),
    }
    Ok(())
}

fn conflict(setting: &str) -> LowerError {
    LowerError::configuration(format!(
        "the job is refused: the runner blocks addresses, which has no effect with {setting}; ask the operator of the runner to remove that setting, or to \
         set `blocked_addresses` of [runners.docker] to [] and block the addresses with a firewall of the engine's machine"
    ))
}
