//! Agent that runs only for one `muster step` command.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_agent_api::client::{AgentConnection, AgentError, Unreachable};
use muster_agent_api::result::{JobResult, MAX_FULL_RESULT_BYTES};
use muster_agent_api::step_runner::RunRequest;
use muster_executor::host::{HostOptions, find_or_start_agent};
use muster_executor::{Directories, ExecutorError};
use muster_steps::process::Watched;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

/// Maximum time for the agent to exit after SIGTERM. The agent is then killed.
const END_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub(super) enum LocalError {
    #[error("failed to create a temporary directory; set TMPDIR to a directory with free space")]
    TempDir(#[source] io::Error),
    #[error("failed to determine the path of this executable")]
    Executable(#[source] io::Error),
    #[error("failed to start an agent")]
    Start(#[from] ExecutorError),
    #[error("failed to connect to the agent")]
    Connect(#[source] io::Error),
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    #[error(transparent)]
    Call(#[from] AgentError),
    #[error("failed to watch for signals")]
    Signals(#[source] io::Error),
}

pub(super) struct LocalAgent {
    dir: TempDir,
    pub(super) connection: AgentConnection,
}

impl LocalAgent {
    pub(super) async fn start() -> Result<Self, LocalError> {
        let dir = tempfile::Builder::new().prefix("muster-step-").tempdir().map_err(LocalError::TempDir)?;
        let path = dir.path().canonicalize().map_err(LocalError::TempDir)?;
        let options = HostOptions {
            directories: Directories { builds: path.join("builds"), cache: path.join("cache"), shared: false },
            state_dir: path,
            slots: 0,
            executable: std::env::current_exe().map_err(LocalError::Executable)?,
            exit_with_pid: Some(rustix::process::getpid().as_raw_nonzero().get()),
            user: None,
            hidden_variables: Vec::new(),
            nofile_limit: None,
        };
        let stream = find_or_start_agent(options).await?.stream;
        stream.set_nonblocking(true).map_err(LocalError::Connect)?;
        let mut stream = Some(UnixStream::from_std(stream).map_err(LocalError::Connect)?);
        let dial = move || std::future::ready(stream.take().ok_or_else(|| io::ErrorKind::BrokenPipe.into()));
        let connection = AgentConnection::open("the agent of this command".to_owned(), dial).await?;
        Ok(Self { dir, connection })
    }

    /// Returns a directory for temporary files. It is removed with the agent.
    pub(super) fn temp_dir(&self) -> &Path {
        self.dir.path()
    }

    pub(super) async fn run(&self, request: RunRequest, mut log: impl FnMut(&[u8])) -> Result<JobResult, LocalError> {
        let id = request.id.clone();
        self.connection.run(request).await?;
        let mut chunks = self.connection.follow(&id, 0).await?;
        while let Some(chunk) = chunks.message().await.map_err(AgentError::from)? {
            log(&chunk.data);
        }
        Ok(self.connection.wait(&id, MAX_FULL_RESULT_BYTES).await?)
    }

    /// Ends the agent, with everything that it still runs.
    pub(super) async fn stop(self) {
        let Some(pid) = i32::try_from(self.connection.identity().pid).ok().and_then(Pid::from_raw) else { return };
        let Ok(process) = Watched::open(pid.as_raw_nonzero().get()) else { return };
        drop(self.connection);
        for sent in [Signal::TERM, Signal::KILL] {
            let _ = kill_process(pid, sent);
            if tokio::time::timeout(END_TIMEOUT, process.ended()).await.is_ok() {
                break;
            }
        }
    }
}

/// Cancels a job at the first SIGINT or SIGTERM, and stops the job at the next signal. Returns only on errors.
pub(super) async fn cancel_on_interrupt(connection: &AgentConnection, id: &str) -> LocalError {
    let watch_signals =
        || -> io::Result<_> { Ok((signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)) };
    let (mut interrupt, mut terminate) = match watch_signals() {
        Ok(signals) => signals,
        Err(error) => return LocalError::Signals(error),
    };
    let mut is_canceled = false;
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        let sent = match std::mem::replace(&mut is_canceled, true) {
            false => connection.cancel(id).await,
            true => connection.stop(id, muster_job::TerminationCause::CanceledByUser).await,
        };
        if let Err(error) = sent {
            return error.into();
        }
    }
}

/// Returns an absolute path. A path that does not exist is accepted.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
