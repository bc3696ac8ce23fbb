//! Describes a job's containers and volumes to the engine, and creates them.

use std::collections::HashMap;
use std::path::PathBuf;

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig, Volume, VolumeCreateRequest};
use bollard::query_parameters::{CreateContainerOptions, RemoveContainerOptions};
use muster_agent_api::builtin::{ContainerSpec, DockerContainer, DockerVolume};
use muster_agent_api::container::RUN_DIR;
use muster_steps::failure::Failure;
use serde_json::Value;

use super::engine::{failed, is_conflict};
use super::network;

/// Label of each managed object, and its value (docs/spec/job-execution.md, section 5.11).
pub(super) const MANAGED: (&str, &str) = ("com.gitlab.gitlab-runner.managed", "true");

/// Returns the name of the volume for the files of the agent in the build container.
pub(super) fn run_volume_name(job: &DockerContainer) -> String {
    format!("{}-agent", job.build.name)
}

/// Returns whether the source of the volume is a name.
pub(super) fn is_named(volume: &DockerVolume) -> bool {
    !volume.source.is_empty() && !volume.source.starts_with('/')
}

/// Creates the named volumes of a job. Does not change existing volumes. Returns the directory of the run volume on the
/// engine's machine.
pub(super) async fn volumes(engine: &Docker, job: &DockerContainer) -> Result<PathBuf, Failure> {
    let mut directory = PathBuf::new();
    let run = DockerVolume { source: run_volume_name(job), destination: RUN_DIR.to_owned(), ..DockerVolume::default() };
    for volume in job.volumes.iter().filter(|volume| is_named(volume)).chain([&run]) {
        directory = self::volume(engine, job, volume).await?.mountpoint.into();
    }
    Ok(directory)
}

/// Creates a named volume. Does not change an existing volume.
pub(super) async fn volume(engine: &Docker, job: &DockerContainer, volume: &DockerVolume) -> Result<Volume, Failure> {
    let request = VolumeCreateRequest {
        name: Some(volume.source.clone()),
        labels: Some(labels(job, &volume.labels)),
        driver: Some(volume.driver.clone()).filter(|driver| !driver.is_empty()),
        driver_opts: Some(volume.driver_options.clone().into_iter().collect()),
        ..VolumeCreateRequest::default()
    };
    let created = engine.create_volume(request).await;
    created.map_err(failed(format!("failed to create the volume {}", volume.source)))
}

pub(super) fn labels<'a>(
    job: &'a DockerContainer,
    own: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> HashMap<String, String> {
    let managed = (MANAGED.0.to_owned(), MANAGED.1.to_owned());
    let given = job.labels.iter().chain(own).map(|(key, value)| (key.clone(), value.clone()));
    std::iter::once(managed).chain(given).collect()
}

/// Returns the description of a container with the job's volumes.
pub(super) fn body(job: &DockerContainer, spec: &ContainerSpec, image: &str) -> Result<ContainerCreateBody, Failure> {
    let invalid = |error| Failure::Configuration(format!("invalid settings of the container {}: {error}", spec.name));
    let settings: HostConfig = serde_json::from_value(Value::Object(spec.host_config.clone())).map_err(invalid)?;
    let (anonymous, bound): (Vec<_>, Vec<_>) = job.volumes.iter().partition(|volume| volume.source.is_empty());
    let network_mode = network::mode(&job.network);
    let optional = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    Ok(ContainerCreateBody {
        image: Some(image.to_owned()),
        hostname: optional(&spec.hostname),
        user: optional(&spec.user),
        env: Some(spec.env.clone()),
        entrypoint: spec.entrypoint.clone(),
        cmd: spec.command.clone(),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        labels: Some(labels(job, &spec.labels)),
        volumes: Some(anonymous.into_iter().map(|volume| volume.destination.clone()).collect()),
        host_config: Some(HostConfig { binds: Some(bound.into_iter().map(bind).collect()), network_mode, ..settings }),
        ..ContainerCreateBody::default()
    })
}

fn bind(volume: &DockerVolume) -> String {
    let mode = if volume.mode.is_empty() { String::new() } else { format!(":{}", volume.mode) };
    format!("{}:{}{mode}", volume.source, volume.destination)
}

/// Creates a container, and returns its ID. Replaces a container of an earlier attempt.
pub(super) async fn container(
    engine: &Docker,
    spec: &ContainerSpec,
    body: ContainerCreateBody,
) -> Result<String, Failure> {
    let options = || CreateContainerOptions { name: Some(spec.name.clone()), platform: spec.image.platform.clone() };
    let mut created = engine.create_container(Some(options()), body.clone()).await;
    if created.as_ref().is_err_and(is_conflict) {
        let force = RemoveContainerOptions { force: true, v: true, ..RemoveContainerOptions::default() };
        let removed = engine.remove_container(&spec.name, Some(force)).await;
        removed.map_err(failed(format!("failed to remove an old container with the name {}", spec.name)))?;
        created = engine.create_container(Some(options()), body).await;
    }
    let created = created.map_err(failed(format!("failed to create the container {}", spec.name)))?;
    created
        .warnings
        .iter()
        .for_each(|warning| tracing::info!(container = spec.name, warning, "engine returned a warning"));
    Ok(created.id)
}
