//! Blocks addresses for the containers of a job (`blocked_addresses` of `[runners.docker]`), such as a cloud's metadata
//! service.
//!
//! In each container, the agent's gate starts first. It runs the image's entrypoint after a second container in the
//! same network has blocked the addresses.

use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as ApiError;
use bollard::models::{ContainerCreateBody, HealthConfig, HostConfig};
use bollard::query_parameters::{LogsOptions, RemoveContainerOptions, StartContainerOptions, WaitContainerOptions};
use futures::StreamExt;
use muster_agent_api::builtin::{ContainerSpec, DockerContainer};
use muster_agent_api::container::{AGENT_DIR, BLOCK, EXECUTABLE, GATE};
use muster_steps::failure::Failure;

use super::agent_volume::AgentVolume;
use super::images::ResolvedImage;
use super::{create, exec};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the names of the helper containers that block addresses: one for each container of the job.
pub(super) fn helper_names(job: &DockerContainer) -> impl Iterator<Item = String> {
    let targets = [&job.build.name].into_iter().chain(&job.services);
    targets.filter(|_| !job.blocked_addresses.is_empty()).map(|target| helper_name(target))
}

fn helper_name(target: &str) -> String {
    format!("{target}-block")
}

/// Puts the gate before the container's command, if the job has blocked addresses.
pub(super) fn add_gate(job: &DockerContainer, body: &mut ContainerCreateBody, image: &ResolvedImage) {
    if job.blocked_addresses.is_empty() {
        return;
    }
    let of_image = image.inspect.config.as_ref();
    let nonempty = |words: Option<Vec<String>>| words.filter(|words| !words.is_empty());
    let entrypoint = nonempty(body.entrypoint.take());
    let replaces_entrypoint = entrypoint.is_some();
    let entrypoint = entrypoint.or_else(|| of_image.and_then(|config| config.entrypoint.clone())).unwrap_or_default();
    let command = nonempty(body.cmd.take());
    // As in the engine, an entrypoint of the job also replaces the command of the image.
    let command = command.or_else(|| of_image.and_then(|config| config.cmd.clone()).filter(|_| !replaces_entrypoint));
    // An entrypoint of one empty word removes the image's entrypoint.
    let entrypoint = entrypoint.into_iter().filter(|word| !word.is_empty());
    let addresses = job.blocked_addresses.iter().map(|address| format!("--address={address}"));
    let gate = [EXECUTABLE].into_iter().chain(GATE).map(str::to_owned).chain(addresses).chain(["--".to_owned()]);
    // Health checks are disabled, because they would run beside the gate instead of after it.
    body.healthcheck = Some(no_health_check());
    body.entrypoint = Some(gate.collect());
    body.cmd = Some(entrypoint.chain(command.unwrap_or_default()).collect());
}

fn no_health_check() -> HealthConfig {
    HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }
}

/// Mounts the agent's executable for the gate, if the job has blocked addresses.
pub(super) fn mount_agent(job: &DockerContainer, body: &mut ContainerCreateBody, agent: &AgentVolume) {
    if !job.blocked_addresses.is_empty() {
        let binds = body.host_config.get_or_insert_default().binds.get_or_insert_default();
        binds.push(format!("{}:{AGENT_DIR}:ro", agent.name));
    }
}

/// Blocks the addresses in a started container, through a second container.
///
/// The cleanup of the job removes the second container if this function cannot.
///
/// # Errors
/// If the addresses cannot be blocked. The caller must then remove the container.
pub(super) async fn enforce(
    engine: &Docker,
    job: &DockerContainer,
    container: &str,
    spec: &ContainerSpec,
) -> Result<(), Failure> {
    if job.blocked_addresses.is_empty() {
        return Ok(());
    }
    let blocked = run(engine, job, container, spec).await;
    blocked.map_err(|problem| {
        Failure::System(format!(
            "failed to block the addresses of `blocked_addresses` for the container {}: {problem}",
            spec.name
        ))
    })
}

async fn run(engine: &Docker, job: &DockerContainer, container: &str, target: &ContainerSpec) -> Result<(), String> {
    let reason = |error| super::engine::reason(&error);
    let found = engine.inspect_container(container, None).await.map_err(reason)?;
    let command = [EXECUTABLE].into_iter().chain(BLOCK).map(str::to_owned);
    let host_config = HostConfig {
        network_mode: Some(format!("container:{container}")),
        volumes_from: Some(vec![format!("{container}:ro")]),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(vec!["NET_ADMIN".to_owned()]),
        ..HostConfig::default()
    };
    let body = ContainerCreateBody {
        image: found.image,
        user: Some("0:0".to_owned()),
        entrypoint: Some(command.collect()),
        cmd: Some(job.blocked_addresses.iter().map(ToString::to_string).collect()),
        healthcheck: Some(no_health_check()),
        labels: Some(create::labels(job, &target.labels)),
        host_config: Some(host_config),
        ..ContainerCreateBody::default()
    };
    let helper = ContainerSpec { name: helper_name(&target.name), ..ContainerSpec::default() };
    let id = create::container(engine, &helper, body).await.map_err(|failure| failure.to_string())?;
    let blocked = start_and_wait(engine, &id).await;
    let options = RemoveContainerOptions { force: true, ..RemoveContainerOptions::default() };
    if let Err(error) = engine.remove_container(&id, Some(options)).await {
        tracing::warn!(%error, container = helper.name, "failed to remove a helper container; the job's cleanup removes it");
    }
    blocked
}

/// Starts a container, and waits for the end of its command. Fails if the command fails.
async fn start_and_wait(engine: &Docker, container: &str) -> Result<(), String> {
    let reason = |error| super::engine::reason(&error);
    engine.start_container(container, None::<StartContainerOptions>).await.map_err(reason)?;
    let mut end = engine.wait_container(container, None::<WaitContainerOptions>);
    let ended = tokio::time::timeout(TIMEOUT, end.next()).await;
    let end = match ended.map_err(|_| format!("the command did not end within {} s", TIMEOUT.as_secs()))? {
        Some(Ok(_)) => return Ok(()),
        Some(Err(ApiError::DockerContainerWaitError { code, .. })) => format!("the command exited with code {code}"),
        Some(Err(error)) => reason(error),
        None => "the engine did not report how the command ended".to_owned(),
    };
    let options = LogsOptions { stdout: true, stderr: true, ..LogsOptions::default() };
    let output = exec::collect(Box::pin(engine.logs(container, Some(options)))).await.map_err(reason)?;
    Err(with_output(end, &output))
}

/// Appends the output of a command to the description of its end.
fn with_output(end: String, output: &[u8]) -> String {
    match String::from_utf8_lossy(output).trim() {
        "" => end,
        output => format!("{end}: {output}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use bollard::models::{ImageConfig, ImageInspect};
    use muster_agent_api::builtin::DockerVolume;

    use super::*;
    use crate::docker::cleanup::Objects;
    use crate::docker::engine::fake::{Answer, FakeEngine};

    /// Maximum time for a cleanup that succeeds at the second attempt.
    const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn cleanup_removes_a_container_that_could_not_be_removed_before() {
        let (exists, was_busy) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
        let helper_exists = Arc::clone(&exists);
        let engine = FakeEngine::start(move |call| {
            let (status, body) = match call {
                "GET /containers/target/json" => (200, r#"{"Id":"target","Image":"sha256:1"}"#),
                "POST /containers/create" => {
                    exists.store(true, Ordering::Relaxed);
                    (201, r#"{"Id":"helper","Warnings":[]}"#)
                }
                "POST /containers/helper/wait" => (200, r#"{"StatusCode":0}"#),
                "DELETE /containers/helper" if !was_busy.swap(true, Ordering::Relaxed) => {
                    (500, r#"{"message":"the device is busy"}"#)
                }
                "DELETE /containers/helper" | "DELETE /containers/job-web-block" => {
                    exists.store(false, Ordering::Relaxed);
                    (204, "")
                }
                "DELETE /volumes/job-cache" if exists.load(Ordering::Relaxed) => {
                    (409, r#"{"message":"volume is in use"}"#)
                }
                _ => (204, ""),
            };
            Some(Answer::json(status, body))
        });
        let web = ContainerSpec { name: "job-web".to_owned(), ..ContainerSpec::default() };
        let cache = DockerVolume { source: "job-cache".to_owned(), temporary: true, ..DockerVolume::default() };
        let job = DockerContainer {
            build: ContainerSpec { name: "job".to_owned(), ..ContainerSpec::default() },
            services: vec![web.name.clone()],
            volumes: vec![cache],
            blocked_addresses: vec!["169.254.169.254".parse().unwrap()],
            ..DockerContainer::default()
        };
        enforce(&engine.client, &job, "target", &web).await.unwrap();
        let query = engine.query("POST /containers/create").unwrap();
        assert!(query.split('&').any(|part| part == "name=job-web-block"), "{query}");
        assert!(helper_exists.load(Ordering::Relaxed), "the engine rejected the first removal");
        let objects = Objects::from_job(&job).unwrap();
        let removed = tokio::time::timeout(CLEANUP_TIMEOUT, objects.remove(&engine.client)).await;
        removed.expect("the helper must not keep the volume in use").unwrap();
        assert!(!helper_exists.load(Ordering::Relaxed), "{:?}", engine.calls());
    }

    #[test]
    fn message_tells_how_the_command_ended_and_contains_its_output() {
        let end = || "the command exited with code 137".to_owned();
        assert_eq!(with_output(end(), b"\n"), end());
        assert_eq!(with_output(end(), b"no route\n"), "the command exited with code 137: no route");
    }

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the command after the gate. The image has the entrypoint `/entry` and the command `serve`.
    fn gated(entrypoint: Option<Vec<String>>, command: Option<Vec<String>>) -> Vec<String> {
        let job = DockerContainer {
            blocked_addresses: vec!["169.254.169.254".parse().unwrap()],
            ..DockerContainer::default()
        };
        let config =
            ImageConfig { entrypoint: Some(words("/entry")), cmd: Some(words("serve")), ..ImageConfig::default() };
        let inspect = ImageInspect { config: Some(config), ..ImageInspect::default() };
        let mut body = ContainerCreateBody { entrypoint, cmd: command, ..ContainerCreateBody::default() };
        add_gate(&job, &mut body, &ResolvedImage { id: "sha256:1".to_owned(), inspect });
        assert_eq!(body.entrypoint.unwrap(), words("/.muster/muster-agent agent gate --address=169.254.169.254 --"));
        body.cmd.unwrap()
    }

    #[test]
    fn gate_runs_the_command_that_the_engine_would_run() {
        assert_eq!(gated(None, None), words("/entry serve"));
        assert_eq!(gated(None, Some(words("other"))), words("/entry other"));
        assert_eq!(gated(Some(words("/bin/sh -c")), None), words("/bin/sh -c"));
        assert_eq!(gated(Some(words("/bin/sh -c")), Some(words("true"))), words("/bin/sh -c true"));
        assert_eq!(gated(Some(vec![String::new()]), Some(words("agent"))), words("agent"));
        assert_eq!(gated(Some(Vec::new()), None), words("/entry serve"));
    }
}
