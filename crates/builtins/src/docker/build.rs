//! Creates and starts the build container, in which an agent runs the steps of the job.

use std::sync::Arc;
use std::time::Duration;

use bollard::Docker;
use bollard::models::ContainerCreateBody;
use muster_agent_api::builtin::DockerContainer;
use muster_agent_api::client::Reach;
use muster_agent_api::container::{AGENT_DIR, DIRECTORIES, EXECUTABLE, MODE, MODE_CONTAINER, RUN_DIR, SERVE};
use muster_steps::failure::Failure;
use muster_steps::log::Log;
use muster_steps::stop::StopToken;
use muster_steps::style;
use tokio::time::sleep;

use super::agent_volume::AgentVolume;
use super::cleanup::Objects;
use super::engine::inspect_container;
use super::images::ResolvedImage;
use super::output::{Output, Progress};
use super::relay::Relay;
use super::services::{self, Service};
use super::socket::RunDirectory;
use super::target::{Container, End};
use super::{block, create, network, print, start};

/// Maximum time until the agent in the started container accepts connections.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// Delay between two attempts to reach an agent that cannot announce that it is ready.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Warning if the engine could not be reached while the container started.
const LOST_OUTPUT: &str =
    "the connection to the engine was lost while the container started: output of the entrypoint may be missing";
/// Advice if the container failed to start while the engine could not be reached.
const LOST_OUTPUT_REMEDY: &str = "check the log of the engine, and run the job again";
/// Advice if the entrypoint possibly does not run its arguments.
const ENTRYPOINT_REMEDY: &str =
    "set `image: entrypoint: [\"\"]` in the job if the entrypoint does not run the command that it gets";

/// Returns the description of the build container.
///
/// Its agent creates `directories`. `None` means that they already exist.
pub(super) fn body(
    job: &DockerContainer,
    image: &ResolvedImage,
    agent: &AgentVolume,
    services: &[Service],
    relay: Option<&Relay>,
    directories: Option<&[String]>,
) -> Result<ContainerCreateBody, Failure> {
    let mut body = create::body(job, &job.build, &image.id)?;
    let command = [EXECUTABLE].into_iter().chain(SERVE).map(str::to_owned);
    body.cmd = Some(command.collect());
    let env = body.env.get_or_insert_default();
    env.push(format!("{MODE}={MODE_CONTAINER}"));
    env.extend(directories.map(|directories| format!("{DIRECTORIES}={}", directories.join("\n"))));
    let settings = body.host_config.get_or_insert_default();
    let binds = settings.binds.get_or_insert_default();
    binds.push(format!("{}:{AGENT_DIR}:ro", agent.name));
    // A prepared container has an anonymous volume for this directory.
    if !job.volumes.iter().any(|volume| volume.destination == RUN_DIR) {
        binds.push(format!("{}:{RUN_DIR}", create::run_volume_name(job)));
    }
    settings.extra_hosts.get_or_insert_default().extend(services::host_names(job, services));
    let aliases = vec!["build".to_owned(), job.build.name.clone()];
    body.networking_config = network::endpoint(&job.network, aliases, &job.build.mac_address);
    if let Some(relay) = relay {
        relay.add_to(&mut body);
    }
    block::add_gate(job, &mut body, image);
    Ok(body)
}

/// Starts the build container, and waits for its agent. Until then, `log` gets the output of the image's entrypoint.
pub(super) async fn start(
    engine: &Docker,
    job: &DockerContainer,
    objects: &Objects,
    (id, run_dir): (String, Option<RunDirectory>),
    log: Arc<dyn Log>,
    stop: &StopToken,
) -> Result<Container, Failure> {
    let warning_log = Arc::clone(&log);
    let output = Output::attach(engine, &id, log).await?;
    let name = &job.build.name;
    start::container(engine, &id, name, stop).await?;
    block::enforce(engine, job, &id, &job.build).await?;
    let container = Container::watch(engine.clone(), id, job, objects.clone(), output, run_dir);
    let serves = async {
        if container.output.wait_for(Progress::Ready).await {
            return container.reach().await;
        }
        // The container has ended, which `end` reports, or its output was lost, and with it the agent's announcement.
        loop {
            sleep(RETRY_DELAY).await;
            if outlives_its_output(&container).await {
                container.output.mark_lost();
            }
            if let Ok(connection) = container.reach().await {
                print(&*warning_log, &style::warning(LOST_OUTPUT));
                return Ok(connection);
            }
        }
    };
    let failure = tokio::select! {
        biased;
        cause = stop.stopped() => Failure::Stopped(cause),
        reached = tokio::time::timeout(START_TIMEOUT, serves) => match reached {
            Ok(Ok(_)) => return Ok(container),
            Ok(Err(error)) => Failure::System(format!("failed to connect to the agent in the container {name}: {error}")),
            Err(_) => not_started(&container.output, &container.image, &format!("did not start within {} s", START_TIMEOUT.as_secs())),
        },
        end = container.wait_until_ended() => ended(&container, &end),
    };
    container.stop_watching().await;
    Err(failure)
}

/// Returns the failure of a container that ended before its agent was ready.
fn ended(container: &Container, end: &End) -> Failure {
    match end {
        End::Exited { code: Some(code), out_of_memory: false } => not_started(
            &container.output,
            &container.image,
            &format!("did not start: its container exited with code {code}"),
        ),
        end => Failure::System(format!("the agent in the build container did not start: {}", container.describe(end))),
    }
}

async fn outlives_its_output(container: &Container) -> bool {
    match inspect_container(container.engine(), container.id()).await {
        Ok(found) => found.state.and_then(|state| state.running) == Some(true),
        Err(_) => true,
    }
}

/// Returns the failure of a container whose agent did not become ready. In the message, `how` follows "the agent".
fn not_started(output: &Output, image: &str, how: &str) -> Failure {
    Failure::System(match output.progress() {
        Progress::Entrypoint | Progress::Started if output.is_lost() => format!(
            "the agent in the build container {how}; the connection to the engine was lost while the container started, so its output, \
             which may contain the cause, is missing; {LOST_OUTPUT_REMEDY}"
        ),
        Progress::Entrypoint => {
            format!("the entrypoint of the image {image} did not run the agent, which {how}; {ENTRYPOINT_REMEDY}")
        }
        Progress::Started | Progress::Ready => format!("the agent in the build container {how}: {}", output.tail()),
    })
}

#[cfg(test)]
mod tests {
    use bollard::container::LogOutput;
    use bollard::errors::Error as ApiError;
    use muster_agent_api::container::STARTED;

    use super::*;
    use crate::agent_process::DiscardedLog;

    async fn message(chunks: Vec<Result<LogOutput, ApiError>>) -> String {
        let output = Output::read(Box::pin(futures::stream::iter(chunks)), Arc::new(DiscardedLog));
        assert!(!output.wait_for(Progress::Ready).await);
        not_started(&output, "app", "did not start: its container exited with code 1").to_string()
    }

    #[tokio::test]
    async fn entrypoint_is_blamed_only_if_the_output_is_complete() {
        let line = |text: &str| Ok(LogOutput::StdOut { message: format!("{text}\n").into() });
        let lost = || Err(ApiError::RequestTimeoutError);
        let complete = message(vec![line("usage: app FILE")]).await;
        assert!(complete.contains("the entrypoint of the image app did not run the agent"), "{complete}");
        for chunks in [vec![lost()], vec![line(STARTED), lost()]] {
            let incomplete = message(chunks).await;
            assert!(incomplete.contains("the connection to the engine was lost"), "{incomplete}");
            assert!(!incomplete.contains("entrypoint"), "{incomplete}");
        }
        let failed = message(vec![line(STARTED), line("no space left")]).await;
        assert!(failed.ends_with("exited with code 1: no space left"), "{failed}");
    }
}
