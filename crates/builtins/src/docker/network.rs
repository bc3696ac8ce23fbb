//! Network of a job's containers (docs/spec/job-execution.md, section 5.5).

use std::collections::HashMap;

use bollard::Docker;
use bollard::errors::Error as ApiError;
use bollard::models::{EndpointSettings, NetworkCreateRequest, NetworkingConfig};
use bollard::query_parameters::{InspectNetworkOptions, RemoveContainerOptions};
use muster_agent_api::builtin::{DockerContainer, DockerNetwork};
use muster_steps::failure::Failure;

use super::create::labels;
use super::engine::{failed, is_answer, is_not_found, reason};

/// Option of the bridge driver with the maximum transmission unit.
const MTU: &str = "com.docker.network.driver.mtu";
/// Prefixes of modes that name the network namespace of a container, path or pod.
const OTHER_NAMESPACES: [&str; 3] = ["container:", "ns:", "pod:"];
/// Modes in which the engine does not resolve names of containers.
const BUILT_IN: [&str; 5] = ["", "default", "bridge", "host", "none"];

/// Creates the network of the job, if it has its own.
pub(super) async fn create(engine: &Docker, job: &DockerContainer) -> Result<(), Failure> {
    let DockerNetwork::PerJob { name, ipv6, mtu } = &job.network else { return Ok(()) };
    // An earlier attempt may have left the network, and engines accept duplicate names.
    remove(engine, name).await.map_err(failed(format!("failed to remove an old network with the name {name}")))?;
    let options = (*mtu > 0).then(|| HashMap::from([(MTU.to_owned(), mtu.to_string())]));
    let request = NetworkCreateRequest {
        name: name.clone(),
        driver: Some("bridge".to_owned()),
        enable_ipv6: Some(*ipv6),
        options,
        labels: Some(labels(job, [])),
        ..NetworkCreateRequest::default()
    };
    engine.create_network(request).await.map_err(failed(format!("failed to create the network {name}")))?;
    Ok(())
}

/// Removes a network, with all containers in it. A network that does not exist is not an error.
pub(super) async fn remove(engine: &Docker, name: &str) -> Result<(), ApiError> {
    match engine.remove_network(name).await {
        Ok(()) => return Ok(()),
        Err(error) if is_not_found(&error) => return Ok(()),
        // The engine does not remove a network to which containers are attached.
        Err(error) if is_answer(&error) => {}
        Err(error) => return Err(error),
    }
    // A job with access to the engine can attach containers.
    let network = engine.inspect_network(name, None::<InspectNetworkOptions>).await?;
    for container in network.containers.unwrap_or_default().into_keys() {
        let options = RemoveContainerOptions { force: true, v: true, ..RemoveContainerOptions::default() };
        if let Err(error) = engine.remove_container(&container, Some(options)).await {
            tracing::warn!(
                container,
                network = name,
                error = reason(&error),
                "failed to remove a container from the network of a job"
            );
        }
    }
    engine.remove_network(name).await
}

/// Returns the network mode of the containers. `None` means the engine's default.
pub(super) fn mode(network: &DockerNetwork) -> Option<String> {
    match network {
        DockerNetwork::Bridge => None,
        DockerNetwork::Mode(mode) => Some(mode.clone()),
        DockerNetwork::PerJob { name, .. } => Some(name.clone()),
    }
}

/// Returns whether the engine resolves names of containers.
fn resolves_names(network: &DockerNetwork) -> bool {
    match network {
        DockerNetwork::Bridge => false,
        DockerNetwork::Mode(mode) => !BUILT_IN.contains(&mode.as_str()) && !mode.contains(':'),
        DockerNetwork::PerJob { .. } => true,
    }
}

/// Returns whether the names of services must be written to `/etc/hosts`.
pub(super) fn needs_host_names(network: &DockerNetwork) -> bool {
    match network {
        DockerNetwork::Bridge => true,
        DockerNetwork::Mode(mode) => mode == "bridge" || mode == "default" || mode.is_empty(),
        DockerNetwork::PerJob { .. } => false,
    }
}

pub(super) fn is_host(network: &DockerNetwork) -> bool {
    *network == DockerNetwork::Mode("host".to_owned())
}

/// Returns whether a container has its own network namespace.
pub(super) fn has_own_namespace(network: &DockerNetwork) -> bool {
    match network {
        DockerNetwork::Bridge | DockerNetwork::PerJob { .. } => true,
        DockerNetwork::Mode(mode) => {
            mode != "host" && !OTHER_NAMESPACES.iter().any(|beginning| mode.starts_with(beginning))
        }
    }
}

/// Returns the settings to attach a container. `None` means that it has no MAC address, and that the engine does not
/// resolve aliases in this network.
pub(super) fn endpoint(network: &DockerNetwork, aliases: Vec<String>, mac_address: &str) -> Option<NetworkingConfig> {
    let aliases = resolves_names(network).then_some(aliases);
    let mac_address = Some(mac_address.to_owned()).filter(|address| !address.is_empty());
    if aliases.is_none() && mac_address.is_none() {
        return None;
    }
    let name = mode(network).filter(|mode| !mode.is_empty()).unwrap_or_else(|| "bridge".to_owned());
    let settings = EndpointSettings { aliases, mac_address, ..EndpointSettings::default() };
    Some(NetworkingConfig { endpoints_config: Some(HashMap::from([(name, settings)])) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_has_its_own_namespace_unless_the_mode_names_another_one() {
        let mode = |mode: &str| DockerNetwork::Mode(mode.to_owned());
        let per_job = DockerNetwork::PerJob { name: "net".to_owned(), ipv6: false, mtu: 0 };
        for own in [DockerNetwork::Bridge, per_job] {
            assert!(has_own_namespace(&own), "{own:?}");
        }
        for own in ["bridge", "none", "of-the-operator", "slirp4netns:mtu=1500", "pasta:-T,auto"] {
            assert!(has_own_namespace(&mode(own)), "{own}");
        }
        for shared in [mode("host"), mode("container:db"), mode("ns:/run/netns/a"), mode("pod:a")] {
            assert!(!has_own_namespace(&shared), "{shared:?}");
        }
    }
}
