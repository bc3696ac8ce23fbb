//! `builtin://agent/process`: runs steps at a second agent on this machine, with its own working directory and environment.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::builtin::AgentProcess;
use muster_agent_api::client::{AgentConnection, AgentError, Reach};
use muster_steps::builtin::{OpenPlace, Place};
use muster_steps::failure::Failure;
use muster_steps::log::{Log, Stream};
use muster_steps::process::{Command, Ended};
use muster_steps::stop::Stop;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::context::Context;

/// Maximum time until the second agent answers at its socket.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Delay between two attempts to connect. The second agent does not announce that it is ready.
const START_LOOK: Duration = Duration::from_millis(20);

/// Time between TERM and KILL for the second agent. Its job has been closed or stopped by then.
const GRACE: Duration = Duration::from_millis(500);

/// Process of the second agent.
struct Running {
    socket: PathBuf,
    project_dir: PathBuf,
    /// Connection that was used last. `None` means that there was no connection yet.
    connection: Mutex<Option<AgentConnection>>,
    /// How the process ended. `None` means that it is running.
    ended: watch::Receiver<Option<String>>,
    stop: Stop,
    watching: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

/// Discards the output of the second agent. The log of its job does not come this way.
struct Silent;

impl Log for Silent {
    fn write(&self, _: Stream, _: &[u8]) {}
}

#[async_trait]
impl Place<Context> for AgentProcess {
    async fn open(&self, context: &Arc<Context>, stop: &Stop) -> Result<Box<dyn OpenPlace>, Failure> {
        let [program, args @ ..] = self.command.as_slice() else {
            return Err(Failure::Configuration("the command of an agent is empty".to_owned()));
        };
        let processes = context.processes.beside("agent").map_err(Failure::io("cannot prepare the agent of a step"))?;
        let mut env = processes.environment().to_vec();
        env.extend(self.env.iter().map(|(key, value)| (key.into(), value.into())));
        let command = Command {
            program: program.into(),
            args: args.iter().map(Into::into).collect(),
            env,
            work_dir: Some(self.work_dir.clone().into()),
            ..Command::default()
        };
        let (told, ended) = watch::channel(None);
        let own = Stop::new();
        let until = own.clone();
        let watching = tokio::spawn(async move {
            let log: Arc<dyn Log> = Arc::new(Silent);
            let end = match processes.run(command, &log, &until, GRACE).await {
                Ok(Ended::Exited(status)) => format!("its process ended: {status}"),
                Ok(Ended::Stopped(_)) => "its process was ended".to_owned(),
                Err(error) => Failure::from(error).to_string(),
            };
            processes.finish(GRACE).await;
            told.send_replace(Some(end));
        });
        let place = Running {
            socket: self.socket.clone().into(),
            project_dir: self.project_dir.clone().into(),
            connection: Mutex::default(),
            ended,
            stop: own,
            watching: tokio::sync::Mutex::new(Some(watching)),
        };
        let serves = async {
            while place.reach().await.is_err() {
                tokio::time::sleep(START_LOOK).await;
            }
        };
        let failed = tokio::select! {
            started = tokio::time::timeout(START_LIMIT, serves) => match started {
                Ok(()) => return Ok(Box::new(place)),
                Err(_) => Failure::System(format!("the agent of a step did not start within {} s", START_LIMIT.as_secs())),
            },
            why = place.lost() => Failure::System(format!("the agent of a step did not start: {why}")),
            cause = stop.stopped() => Failure::Stopped(cause),
        };
        place.close().await;
        Err(failed)
    }
}

#[async_trait]
impl Reach for Running {
    async fn reach(&self) -> Result<AgentConnection, AgentError> {
        let known = self.connection.lock().clone().filter(|connection| !connection.is_suspect());
        if let Some(connection) = known {
            return Ok(connection);
        }
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| AgentError::NotReached(error.into()))?;
        let place = self.socket.display().to_string();
        let opened = AgentConnection::from_stream(place, stream).await;
        let connection = opened.map_err(|error| AgentError::NotReached(error.into()))?;
        *self.connection.lock() = Some(connection.clone());
        Ok(connection)
    }
}

#[async_trait]
impl OpenPlace for Running {
    fn project_dir(&self) -> &Path {
        &self.project_dir
    }

    async fn lost(&self) -> String {
        let mut ended = self.ended.clone();
        let how = ended.wait_for(Option::is_some).await.ok().and_then(|how| how.clone());
        how.unwrap_or_else(|| "nothing watches over its process any more".to_owned())
    }

    async fn close(&self) {
        self.stop.stop(muster_job::TerminationCause::ManagerShutdown);
        if let Some(watching) = self.watching.lock().await.take()
            && let Err(error) = watching.await
        {
            tracing::error!(%error, "what watched over the agent of a step broke down");
        }
    }
}
