//! `builtin://service`: starts a service for the job, such as a database, on this machine.
//!
//! ```text
//! port is free -> process starts in an empty directory -> port accepts a connection -> the job's steps -> process terminated
//! ```
//!
//! The processes of a service are recorded with the job, so that the next agent terminates them if this agent is
//! killed.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use muster_agent_api::builtin::HostService;
use muster_job::TerminationCause;
use muster_steps::builtin::Builtin;
use muster_steps::engine::StartTime;
use muster_steps::failure::Failure;
use muster_steps::log::Log;
use muster_steps::process::{Command, ProcessEnd};
use muster_steps::stop::StopToken;
use muster_steps::style;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::blocking::blocking;
use crate::context::Context;
use crate::running_service::{RunningService, Tail};
use crate::share;

const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(50);

#[async_trait]
impl Builtin<Context> for HostService {
    async fn run(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        // A stop of the job does not end the service, because `after_script` may use it. A service that is not ready in
        // time keeps running, because it may become ready later.
        let (running, ready) = start(self, StopToken::new(), context, stop).await?;
        context.services.lock().push(running);
        ready
    }
}

/// Starts a service for a step of the job, and waits until it is ready. The service runs until `stop` is stopped or the
/// job ends.
///
/// # Errors
/// [`Failure`] if the service cannot be started or is not ready in time. Its processes have then ended.
pub(crate) async fn start_for_step(
    service: &HostService,
    context: &Arc<Context>,
    stop: &StopToken,
) -> Result<(), Failure> {
    let (running, ready) = start(service, stop.child(), context, stop).await?;
    if ready.is_err() {
        running.stop.stop(TerminationCause::TimedOut);
        running.wait_until_ended().await;
    }
    context.services.lock().push(running);
    ready
}

/// Starts a service that runs until `end` is stopped. Also returns whether it is ready.
///
/// # Errors
/// [`Failure`] if no process was started.
async fn start(
    service: &HostService,
    end: StopToken,
    context: &Arc<Context>,
    stop: &StopToken,
) -> Result<(RunningService, Result<(), Failure>), Failure> {
    let HostService { title, port, .. } = service;
    context.print(&style::plain(&format!("Starting service {title}...")));
    if service.accepts_connection().await {
        return Err(Failure::System(format!(
            "port {port} of the service {title} is already in use on this machine; use another port, stop the other program, or let the runner \
             run one job at a time (`limit = 1`)"
        )));
    }
    let mut running = service.start(end, context, stop).await?;
    let ready = service.wait_until_ready(&running, stop).await;
    running.is_reported = ready.is_err();
    Ok((running, ready))
}

trait Start {
    async fn start(&self, end: StopToken, context: &Arc<Context>, stop: &StopToken) -> Result<RunningService, Failure>;
    async fn wait_until_ready(&self, service: &RunningService, stop: &StopToken) -> Result<(), Failure>;
    async fn accepts_connection(&self) -> bool;
}

impl Start for HostService {
    async fn start(&self, end: StopToken, context: &Arc<Context>, stop: &StopToken) -> Result<RunningService, Failure> {
        let [program, args @ ..] = self.command.as_slice() else {
            return Err(Failure::Configuration(format!("the service {} has no command", self.title)));
        };
        let work_dir = context.temp_dir.join(format!("service-{}", self.index));
        let created = work_dir.clone();
        blocking(&**context, "creating the directory of a service", stop, move || {
            fs::create_dir_all(&created).map_err(Failure::io("failed to create the directory of a service"))
        })
        .await?;
        let processes = context.processes.separate_set(&format!("service-{}", self.index));
        let processes = processes.map_err(Failure::io("failed to prepare the processes of a service"))?;
        let mut env = context.environment();
        env.extend(self.env.iter().map(|(key, value)| (key.into(), value.into())));
        let args = args.iter().map(Into::into).collect();
        let command = Command { program: program.into(), args, env, work_dir: Some(work_dir), ..Command::default() };
        let (report_end, ended) = watch::channel(None);
        let output = Arc::new(Tail::default());
        let (stopped, log, grace, owner) = (end.clone(), Arc::clone(&output), context.grace, Arc::clone(context));
        let start = StartTime::now();
        let watcher = tokio::spawn(async move {
            let log: Arc<dyn Log> = log;
            let end = match processes.run(command, &log, &stopped, grace).await {
                Ok(ProcessEnd::Exited(status)) => status.code().map_or_else(
                    || format!("it was terminated by {status}"),
                    |code| format!("it exited with code {code}"),
                ),
                Ok(ProcessEnd::Stopped(_)) => "it was terminated".to_owned(),
                Err(error) => Failure::from(error).to_string(),
            };
            processes.finish(grace).await;
            owner.delegated_usage.lock().push(share::usage(&processes, None, start.elapsed()));
            report_end.send_replace(Some(end));
        });
        let title = self.title.clone();
        Ok(RunningService { title, stop: end, output, ended, watcher, is_reported: false })
    }

    async fn wait_until_ready(&self, service: &RunningService, stop: &StopToken) -> Result<(), Failure> {
        if self.port == 0 {
            return Ok(());
        }
        let timeout = Duration::from_millis(self.timeout_ms);
        let connected = async {
            while !self.accepts_connection().await {
                tokio::time::sleep(CONNECT_RETRY_DELAY).await;
            }
        };
        let failed = |message: &str| Err(Failure::System(service.output.append_to(message)));
        tokio::select! {
            biased;
            cause = stop.stopped() => Err(Failure::Stopped(cause)),
            end = service.wait_until_ended() => failed(&end),
            ready = tokio::time::timeout(timeout, connected) => match ready {
                Ok(()) => Ok(()),
                Err(_) => {
                    failed(&format!("it did not accept a connection on port {} within {} s", self.port, timeout.as_secs()))
                }
            },
        }
    }

    async fn accepts_connection(&self) -> bool {
        self.port != 0 && TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.is_ok()
    }
}

/// Terminates the services of a job. Prints a warning for each that ended unexpectedly.
pub(crate) async fn terminate(context: &Context) {
    let services = std::mem::take(&mut *context.services.lock());
    for service in &services {
        let ended = service.ended.borrow().clone();
        if let Some(end) = ended.filter(|_| !service.is_reported && service.stop.cause().is_none()) {
            let message = format!("The service {} ended before the job: {end}", service.title);
            context.print(&style::warning(&service.output.append_to(&message)));
        }
        service.stop.stop(TerminationCause::ManagerShutdown);
    }
    for result in join_all(services.into_iter().map(|service| service.watcher)).await {
        if let Err(error) = result {
            tracing::error!(%error, "the task that watches a service panicked");
        }
    }
}
