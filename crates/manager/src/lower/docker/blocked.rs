//! Addresses that the containers of a job must not reach (`blocked_addresses`).

use muster_agent_api::builtin::{ContainerSpec, DockerContainer, DockerNetwork, ServiceContainer};
use serde_json::{Value, json};

use super::super::LowerError;

/// Capabilities with which a container could undo the block. Their names have no prefix `CAP_`.
const UNBLOCKING: [&str; 4] = ["ALL", "NET_ADMIN", "NET_RAW", "SYS_ADMIN"];
/// Capability with which a container sends packets past the block. Engines give it to every container.
const NET_RAW: &str = "NET_RAW";

/// Prepares the containers of a job for blocked addresses. Does nothing if there are none.
///
/// # Errors
/// [`LowerError`] if the addresses cannot be blocked with the settings of the runner. The job must not run without the block.
pub(super) fn prepare(container: &mut DockerContainer, services: &mut [ServiceContainer]) -> Result<(), LowerError> {
    if container.blocked_addresses.is_empty() {
        return Ok(());
    }
    if let DockerNetwork::Mode(mode) = &container.network
        && (mode == "host" || mode.starts_with("container:"))
    {
        return Err(conflict(&format!("`network_mode = \"{mode}\"`, a network that other programs use")));
    }
    let services = services.iter_mut().map(|service| &mut service.container);
    for spec in std::iter::once(&mut container.build).chain(services) {
        drop_net_raw(spec)?;
    }
    Ok(())
}

/// Takes away the capability to send raw packets.
///
/// # Errors
/// [`LowerError`] if the container has a capability with which it could undo the block.
fn drop_net_raw(spec: &mut ContainerSpec) -> Result<(), LowerError> {
    let config = &mut spec.host_config;
    if config.get("Privileged") == Some(&Value::Bool(true)) {
        return Err(conflict(&format!("`privileged`, which the image {} may use", spec.image.name)));
    }
    let names = config.get("CapAdd").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let names = names.map(|name| name.to_uppercase().trim_start_matches("CAP_").to_owned());
    if let Some(name) = names.into_iter().find(|name| UNBLOCKING.contains(&name.as_str())) {
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
        "`blocked_addresses` of [runners.docker] has no effect with {setting}; remove one of the two settings, or block the addresses with a firewall of \
         the engine's machine"
    ))
}
