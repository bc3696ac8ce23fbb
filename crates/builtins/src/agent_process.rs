//! `builtin://agent/process`: runs steps at a second agent on this machine, with its own directory and environment.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::builtin::AgentProcess;
use muster_agent_api::client::{AgentConnection, AgentError, Reach};
use muster_steps::builtin::{BesideSteps, DelegateTarget, OpenTarget};
use muster_steps::failure::Failure;
use muster_steps::log::{Log, Stream};
use muster_steps::process::{Command, ProcessEnd};
use muster_steps::stop::StopToken;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::context::Context;

/// Maximum time until the second agent answers at its socket.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Time between TERM and KILL for the second agent.
const GRACE: Duration = Duration::from_millis(500);

struct RunningAgent {
    socket: PathBuf,
    project_dir: PathBuf,
    /// Connection that was used last, if any.
    connection: Mutex<Option<AgentConnection>>,
    /// Reason why the process ended. `None` means that it is running.
    ended: watch::Receiver<Option<String>>,
    stop: StopToken,
    watcher: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

/// Log that discards everything that is written to it.
pub(crate) struct DiscardedLog;

impl Log for DiscardedLog {
    fn write(&self, _: Stream, _: &[u8]) {}
}

#[async_trait]
impl DelegateTarget<Context> for AgentProcess {
    async fn open(
        &self,
        context: &Arc<Context>,
        beside: &dyn BesideSteps,
        stop: &StopToken,
    ) -> Result<Box<dyn OpenTarget>, Failure> {
        beside.run().await?;
        let [program, args @ ..] = self.command.as_slice() else {
            return Err(Failure::Configuration("the command that starts the agent of a step is empty".to_owned()));
        };
        let processes =
            context.processes.separate_set("agent").map_err(Failure::io("failed to prepare the agent of a step"))?;
        let mut env = processes.environment().to_vec();
        env.extend(self.env.iter().map(|(key, value)| (key.into(), value.into())));
        let command = Command {
            program: program.into(),
            args: args.iter().map(Into::into).collect(),
            env,
            work_dir: Some(self.work_dir.clone().into()),
            ..Command::default()
        };
        let (report_end, ended) = watch::channel(None);
        let agent_stop = StopToken::new();
        let process_stop = agent_stop.clone();
        let watcher = tokio::spawn(async move {
            let log: Arc<dyn Log> = Arc::new(DiscardedLog);
            let end = match processes.run(command, &log, &process_stop, GRACE).await {
                Ok(ProcessEnd::Exited(status)) => format!("its process ended: {status}"),
                Ok(ProcessEnd::Stopped(_)) => "its process was terminated".to_owned(),
                Err(error) => Failure::from(error).to_string(),
            };
            processes.finish(GRACE).await;
            report_end.send_replace(Some(end));
        });
        let agent = RunningAgent {
            socket: self.socket.clone().into(),
            project_dir: self.project_dir.clone().into(),
            connection: Mutex::default(),
            ended,
            stop: agent_stop,
            watcher: tokio::sync::Mutex::new(Some(watcher)),
        };
        let connected = async {
            while agent.reach().await.is_err() {
                tokio::time::sleep(CONNECT_RETRY_DELAY).await;
            }
        };
        let failed = tokio::select! {
            started = tokio::time::timeout(START_TIMEOUT, connected) => match started {
                Ok(()) => return Ok(Box::new(agent)),
                Err(_) => Failure::System(format!("the agent of a step did not start within {} s", START_TIMEOUT.as_secs())),
            },
            reason = agent.lost() => Failure::System(format!("the agent of a step did not start: {reason}")),
            cause = stop.stopped() => Failure::Stopped(cause),
        };
        agent.close().await;
        Err(failed)
    }
}

#[async_trait]
impl Reach for RunningAgent {
    async fn reach(&self) -> Result<AgentConnection, AgentError> {
        let known = self.connection.lock().clone().filter(|connection| !connection.is_suspect());
        if let Some(connection) = known {
            return Ok(connection);
        }
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| AgentError::NotReached(error.into()))?;
        let address = self.socket.display().to_string();
        let opened = AgentConnection::from_stream(address, stream).await;
        let connection = opened.map_err(|error| AgentError::NotReached(error.into()))?;
        *self.connection.lock() = Some(connection.clone());
        Ok(connection)
    }
}

#[async_trait]
impl OpenTarget for RunningAgent {
    fn project_dir(&self) -> &Path {
        &self.project_dir
    }

    async fn lost(&self) -> String {
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        end.unwrap_or_else(|| "its process is no longer watched".to_owned())
    }

    async fn close(&self) {
        self.stop.stop(muster_job::TerminationCause::ManagerShutdown);
        if let Some(watcher) = self.watcher.lock().await.take()
            && let Err(error) = watcher.await
        {
            tracing::error!(%error, "the task that watches the agent of a step panicked");
        }
    }
}
