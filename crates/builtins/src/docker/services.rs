//! Services of a job: containers beside the build container, each started by a step (docs/spec/job-execution.md,
//! section 5.10).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bollard::Docker;
use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{LogsOptions, StartContainerOptions, WaitContainerOptions};
use futures::StreamExt;
use futures::future::join_all;
use muster_agent_api::builtin::{DockerContainer, Inputs as _, ServiceContainer};
use muster_agent_api::container::{EXECUTABLE, PROBE};
use muster_agent_api::result::{StepNode, StepStatus};
use muster_steps::engine::StartTime;
use muster_steps::failure::Failure;
use muster_steps::log::{Log, Stream};
use muster_steps::process::Usage;
use muster_steps::stop::StopToken;
use muster_steps::style;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::agent_volume::AgentVolume;
use super::engine::{failed, inspect_container, reason};
use super::exec::{self, MAX_OUTPUT_BYTES};
use super::images::{Images, ResolvedImage};
use super::{JobFacts, block, create, fail_if_stopped, network, print};

/// Length of a short ID, which is a host name of its container.
const SHORT_ID: usize = 12;
/// Maximum number of ports to check, lowest first.
const MAX_PORTS: usize = 20;
/// Variable with the only port to check.
const HEALTH_CHECK_PORT: &str = "HEALTHCHECK_TCP_PORT";
/// Maximum number of lines in a warning.
const MAX_LOG_LINES: usize = 1000;
/// Maximum time for a report about a service, such as its state or its logs.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Service {
    id: String,
    name: String,
    title: String,
    start: StartTime,
    /// Reason why the service is unhealthy. `None` means that it is healthy or was not checked.
    unhealthy: Option<String>,
    aliases: Vec<String>,
    /// Address in the build container's network, if the service has one.
    address: Option<String>,
    /// Exit code of a service that was no longer running after its start, if known.
    early_exit: Option<i64>,
    ports: Vec<u16>,
}

/// Everything that a step needs to add the container of a service to a job. Exists while the job's containers are
/// created.
pub(crate) struct ServiceHost {
    engine: Docker,
    job: DockerContainer,
    images: Images,
    agent: AgentVolume,
    log: Arc<dyn Log>,
    /// Services in the order of their start.
    started: Mutex<Vec<Service>>,
}

impl ServiceHost {
    /// Starts a service. Pulls its image if necessary.
    ///
    /// # Errors
    /// [`Failure`] of the settings, the engine, the image or a stop. The cleanup of the job removes the service.
    pub(crate) async fn start(&self, service: &ServiceContainer, stop: &StopToken) -> Result<(), Failure> {
        let name = &service.container.name;
        if !self.job.services.contains(name) {
            return Err(Failure::Configuration(format!(
                "the container {name:?} of the service {} is not listed in `services` of builtin://{}",
                service.title,
                DockerContainer::BUILTIN
            )));
        }
        print(&*self.log, &style::plain(&format!("Starting service {}...", service.title)));
        let image = self.images.stopped_by(stop).ensure(&service.container.image).await?;
        fail_if_stopped(stop)?;
        let started = start_one(&self.engine, &self.job, service, &image, &self.agent).await?;
        self.started.lock().push(started);
        Ok(())
    }
}

/// Makes the [`ServiceHost`] available to steps until this guard is dropped.
struct Registration<'a>(&'a Mutex<Option<Arc<ServiceHost>>>);

impl<'a> Registration<'a> {
    fn new(service_host: &'a Mutex<Option<Arc<ServiceHost>>>, host: &Arc<ServiceHost>) -> Self {
        *service_host.lock() = Some(Arc::clone(host));
        Self(service_host)
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// Runs the steps that start services, and returns the services.
pub(super) async fn start(
    engine: &Docker,
    job: &DockerContainer,
    images: &Images,
    agent: &AgentVolume,
    facts: &JobFacts<'_>,
) -> Result<Vec<Service>, Failure> {
    let host = Arc::new(ServiceHost {
        engine: engine.clone(),
        job: job.clone(),
        images: images.clone(),
        agent: agent.clone(),
        log: Arc::clone(&facts.log),
        started: Mutex::default(),
    });
    let registration = Registration::new(facts.service_host, &host);
    facts.service_steps.run().await?;
    drop(registration);
    let started = std::mem::take(&mut *host.started.lock());
    Ok(started)
}

async fn start_one(
    engine: &Docker,
    job: &DockerContainer,
    service: &ServiceContainer,
    image: &ResolvedImage,
    agent: &AgentVolume,
) -> Result<Service, Failure> {
    let (spec, start) = (&service.container, StartTime::now());
    let mut body = create::body(job, spec, &image.id)?;
    let aliases = service.aliases.iter().chain([&spec.name]).cloned().collect();
    body.networking_config = network::endpoint(&job.network, aliases, &spec.mac_address);
    block::add_gate(job, &mut body, image);
    block::mount_agent(job, &mut body, agent);
    let id = create::container(engine, spec, body).await?;
    if !job.blocked_addresses.is_empty() {
        agent.fill(engine, &id, &image.id).await?;
    }
    let started = engine.start_container(&id, None::<StartContainerOptions>).await;
    started.map_err(failed(format!("failed to start the service {}", service.title)))?;
    block::enforce(engine, job, &id, spec).await?;
    let found = inspect_container(engine, &id).await;
    let found = found.map_err(failed(format!("failed to inspect the service {}", service.title)))?;
    Ok(Service {
        id,
        name: spec.name.clone(),
        title: service.title.clone(),
        start,
        unhealthy: None,
        aliases: service.aliases.clone(),
        address: if network::is_host(&job.network) { Some("127.0.0.1".to_owned()) } else { address(&found) },
        early_exit: found.state.as_ref().filter(|state| state.running == Some(false)).and_then(|state| state.exit_code),
        ports: ports(&spec.env, &found),
    })
}

fn address(found: &ContainerInspectResponse) -> Option<String> {
    let endpoints = found.network_settings.as_ref()?.networks.as_ref()?.values();
    let addresses = endpoints.flat_map(|endpoint| [&endpoint.ip_address, &endpoint.global_ipv6_address]);
    addresses.flatten().find(|address| !address.is_empty()).cloned()
}

fn ports(env: &[String], found: &ContainerInspectResponse) -> Vec<u16> {
    let mut chosen =
        env.iter().filter_map(|entry| entry.strip_prefix(HEALTH_CHECK_PORT)?.strip_prefix('=')?.parse().ok());
    if let Some(port) = chosen.next_back() {
        return vec![port];
    }
    let exposed = found.config.as_ref().and_then(|config| config.exposed_ports.as_deref()).unwrap_or_default();
    let mut ports: Vec<u16> = exposed.iter().filter_map(|port| port.strip_suffix("/tcp")?.parse().ok()).collect();
    ports.sort_unstable();
    ports.truncate(MAX_PORTS);
    ports
}

/// Returns entries of `/etc/hosts` for the services, as `name:address`.
pub(super) fn host_names(job: &DockerContainer, services: &[Service]) -> Vec<String> {
    if !network::needs_host_names(&job.network) {
        return Vec::new();
    }
    let entries = services.iter().filter_map(|service| {
        let address = service.address.as_ref()?;
        let short = service.id.get(..SHORT_ID).unwrap_or(&service.id);
        let names = service.aliases.iter().map(String::as_str).chain([short]);
        Some(names.map(|name| format!("{name}:{address}")).collect::<Vec<_>>())
    });
    entries.flatten().collect()
}

/// Waits until each service accepts a connection from the build container, or until the timeout.
///
/// Returns the services with the results. An unhealthy service causes a warning.
pub(super) async fn wait_until_healthy(
    engine: &Docker,
    job: &DockerContainer,
    build: &str,
    mut services: Vec<Service>,
    log: &dyn Log,
) -> Vec<Service> {
    let timeout = Duration::from_millis(job.service_timeout_ms);
    if timeout.is_zero() || services.is_empty() {
        return services;
    }
    let seconds = timeout.as_secs();
    print(log, &style::plain(&format!("Waiting for services to be up and running (timeout {seconds} seconds)...")));
    join_all(services.iter_mut().map(async |service| {
        if let Err(error) = service.check(engine, build, timeout).await {
            let logs = service.logs(engine).await;
            print(log, &error.warning_text(&service.name, &logs));
            service.unhealthy = Some(error.message);
        }
    }))
    .await;
    services
}

/// Reason why a service is unhealthy.
#[derive(Debug)]
struct Unhealthy {
    message: String,
    /// Output of the check, if it ended in time.
    check_output: Option<String>,
}

impl Unhealthy {
    fn without_output(message: String) -> Self {
        Self { message, check_output: None }
    }

    /// Returns the warning, with gitlab-runner's wording.
    fn warning_text(&self, name: &str, service_logs: &str) -> String {
        let warning = format!("{}*** WARNING:{}", style::YELLOW, style::RESET);
        let checked =
            self.check_output.as_ref().map(|logs| format!("\nHealth check container logs:\n{}\n", logs.trim_end()));
        format!(
            "\n{warning} Service {name} probably didn't start properly.\n\nHealth check error:\n{}\n{}\nService container logs:\n{}\n\n\
             {}*********{}\n\n",
            self.message,
            checked.unwrap_or_default(),
            service_logs.trim_end(),
            style::YELLOW,
            style::RESET
        )
    }
}

impl Service {
    /// Waits until the service accepts a connection from the build container.
    async fn check(&self, engine: &Docker, build: &str, timeout: Duration) -> Result<(), Unhealthy> {
        let name = &self.name;
        let exited = |code| Unhealthy::without_output(format!("service \"{name}\" exited with code {code}"));
        if let Some(code) = self.early_exit {
            return Err(exited(code));
        }
        // The operator chose a network in which the service has no address.
        let Some(address) = &self.address else { return Ok(()) };
        if self.ports.is_empty() {
            let message = format!(
                "service \"{name}\" has no exposed ports; set {HEALTH_CHECK_PORT} in its variables to the port to check"
            );
            return Err(Unhealthy::without_output(message));
        }
        let ip =
            address.parse().map_err(|_| Unhealthy::without_output(format!("{address:?} is not a valid address")))?;
        let targets = self.ports.iter().map(|port| SocketAddr::new(ip, *port).to_string());
        let command: Vec<String> = [EXECUTABLE].into_iter().chain(PROBE).map(str::to_owned).collect();
        let command = [command, vec![timeout.as_millis().to_string()], targets.collect()].concat();
        let checking = tokio::time::timeout(timeout + REPORT_TIMEOUT, exec::run(engine, build, "", command));
        let checked = tokio::select! {
            checked = checking => checked,
            code = self.wait_for_exit(engine) => return Err(exited(code)),
        };
        match checked {
            Ok(Ok(checked)) if checked.succeeded => Ok(()),
            Ok(Ok(checked)) => Err(Unhealthy {
                message: format!("service \"{name}\" timeout"),
                check_output: Some(String::from_utf8_lossy(&checked.output).into_owned()),
            }),
            Ok(Err(error)) => Err(Unhealthy::without_output(reason(&error))),
            Err(_) => Err(Unhealthy::without_output(format!("service \"{name}\" timeout"))),
        }
    }

    /// Waits for the exit code of the service. Never returns if the engine cannot report it.
    async fn wait_for_exit(&self, engine: &Docker) -> i64 {
        use bollard::errors::Error::DockerContainerWaitError;
        match engine.wait_container(&self.id, None::<WaitContainerOptions>).next().await {
            Some(Ok(end)) => end.status_code,
            Some(Err(DockerContainerWaitError { code, .. })) => code,
            Some(Err(_)) | None => std::future::pending().await,
        }
    }

    /// Returns the service's node of the result tree. After a failure, its message contains the end of the output.
    pub(super) async fn node(&self, engine: &Docker) -> StepNode {
        let inspected = tokio::time::timeout(REPORT_TIMEOUT, inspect_container(engine, &self.id)).await;
        let state = inspected.ok().and_then(Result::ok).and_then(|found| found.state).unwrap_or_default();
        let code = state.exit_code.filter(|_| state.running == Some(false));
        let mut node = self.start.node(&format!("service {}", self.title), None.into(), Usage::default(), Vec::new());
        let reason = match (code, &self.unhealthy) {
            (Some(code), _) if code != 0 => format!("it exited with code {code}"),
            (_, Some(unhealthy)) => unhealthy.clone(),
            (Some(_) | None, None) => return node,
        };
        let logs = self.logs(engine).await;
        node.status = StepStatus::Failure;
        node.exit_code = code.and_then(|code| i32::try_from(code).ok());
        node.message = format!("{reason}; the end of its output: {}", end_of(logs.trim_end()));
        node
    }

    /// Returns the end of the output. If earlier output is left out, the first line says so.
    async fn logs(&self, engine: &Docker) -> String {
        // One more line reveals whether earlier lines exist.
        let tail = (MAX_LOG_LINES + 1).to_string();
        let options = LogsOptions { stdout: true, stderr: true, tail, ..LogsOptions::default() };
        let reading = exec::collect_end(Box::pin(engine.logs(&self.id, Some(options))));
        match tokio::time::timeout(REPORT_TIMEOUT, reading).await {
            Ok(Ok((bytes, is_cut))) => end_of_log(&String::from_utf8_lossy(&bytes), is_cut),
            Ok(Err(error)) => format!("failed to read the logs: {}", reason(&error)),
            Err(_) => format!("failed to read the logs within {} s", REPORT_TIMEOUT.as_secs()),
        }
    }
}

/// Returns the last [`MAX_LOG_LINES`] lines of a log. If `is_cut` is set, the incomplete first line is dropped.
fn end_of_log(log: &str, is_cut: bool) -> String {
    let log = if is_cut { log.split_once('\n').map_or(log, |(_, rest)| rest) } else { log };
    let lines: Vec<&str> = log.split_inclusive('\n').collect();
    let surplus = lines.len().saturating_sub(MAX_LOG_LINES);
    let shown: String = lines.into_iter().skip(surplus).collect();
    if is_cut || surplus > 0 {
        let kib = MAX_OUTPUT_BYTES / 1024;
        return format!(
            "[earlier output is left out: only the last {kib} KiB or {MAX_LOG_LINES} lines are shown]\n{shown}"
        );
    }
    shown
}

/// Returns the last 2000 bytes of a text.
fn end_of(text: &str) -> &str {
    const MAX_BYTES: usize = 2000;
    let start = text.len().saturating_sub(MAX_BYTES);
    let start = (start..text.len()).find(|start| text.is_char_boundary(*start)).unwrap_or(text.len());
    text.get(start..).unwrap_or_default()
}

/// Copies the output of services to the log until the returned tasks are dropped (`CI_DEBUG_SERVICES`).
pub(super) fn copy_logs(engine: &Docker, services: &[Service], log: &Arc<dyn Log>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for service in services {
        let options =
            LogsOptions { follow: true, stdout: true, stderr: true, timestamps: true, ..LogsOptions::default() };
        let mut output = Box::pin(engine.logs(&service.id, Some(options)));
        let (prefix, log) = (service.aliases.join("-"), Arc::clone(log));
        tasks.spawn(async move {
            let mut incomplete = Vec::new();
            while let Some(Ok(chunk)) = output.next().await {
                incomplete.extend_from_slice(&chunk.into_bytes());
                while let Some(end) = incomplete.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = incomplete.drain(..=end).collect();
                    log.write(Stream::Output, &debug_line(&prefix, &line));
                }
                if incomplete.len() > MAX_OUTPUT_BYTES {
                    log.write(Stream::Output, &debug_line(&prefix, &std::mem::take(&mut incomplete)));
                }
            }
            // The last line of a service that crashed may have no line break.
            if !incomplete.is_empty() {
                log.write(Stream::Output, &debug_line(&prefix, &incomplete));
            }
        });
    }
    tasks
}

fn debug_line(prefix: &str, line: &[u8]) -> Vec<u8> {
    format!("\x1b[0;37m[service:{prefix}] {}{}\n", String::from_utf8_lossy(line.trim_ascii_end()), style::RESET)
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docker::engine::fake::{Answer, FakeEngine};

    #[derive(Debug, Default)]
    struct RecordingLog(Mutex<String>);

    impl Log for RecordingLog {
        fn write(&self, _: Stream, bytes: &[u8]) {
            self.0.lock().push_str(&String::from_utf8_lossy(bytes));
        }
    }

    #[tokio::test]
    async fn last_line_of_a_service_is_copied_without_a_line_break() {
        let output = "first\nlast";
        let frame = format!("\x01\0\0\0\0\0\0{}{output}", char::from(u8::try_from(output.len()).unwrap()));
        let engine = FakeEngine::start(move |_| Some(Answer::json(200, &frame)));
        let service = Service {
            id: "a".to_owned(),
            name: "db".to_owned(),
            title: "db".to_owned(),
            start: StartTime::now(),
            unhealthy: None,
            aliases: vec!["db".to_owned()],
            address: None,
            early_exit: None,
            ports: Vec::new(),
        };
        let recorded = Arc::<RecordingLog>::default();
        let log: Arc<dyn Log> = recorded.clone();
        copy_logs(&engine.client, &[service], &log).join_all().await;
        let lines = ["first", "last"].map(|line| format!("\x1b[0;37m[service:db] {line}\x1b[0;m\n"));
        assert_eq!(*recorded.0.lock(), lines.concat());
    }
}
