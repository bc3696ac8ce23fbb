//! The agent's process: takes its spool, recovers it, listens, and ends in order.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::agent::agent_server::AgentServer;
use muster_agent_api::step_runner::step_runner_server::StepRunnerServer;
use muster_builtins::{Shared, Templates};
use muster_job::TerminationCause;
use muster_steps::process::{Containment, Host, Watched};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::door::{Door, Owned};
use crate::recover::recover;
use crate::spool::{Spool, SpoolError};

/// The largest request: a plan with its variables, file variables included.
const MAX_REQUEST: usize = 64 * 1024 * 1024;
/// How often old jobs are looked for. A net, not a clock: closing a job is what normally removes it.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
/// How long callers may take to fetch the results of jobs that a shutdown ended.
const FAREWELL: Duration = Duration::from_secs(3);
/// How long the removal of old workspaces may hold up the end.
const TRASH_LIMIT: Duration = Duration::from_secs(3);
/// How long the end of an earlier agent of the same spool is waited for, and between two looks: longer than its last acts
/// take.
const ENDING_LIMIT: Duration = Duration::from_secs(10);
/// How long a copy of the lock may outlive an agent that was killed.
const COPY_LIMIT: Duration = Duration::from_secs(1);
const ENDING_LOOK: Duration = Duration::from_millis(20);
/// The kernel's limit for the path of a socket.
const MAX_SOCKET_PATH: usize = 107;

/// How an agent is to run.
#[derive(Debug)]
pub struct Options {
    /// The socket to listen on. Its directory is made private where it has to be made.
    pub socket: PathBuf,
    /// Where jobs are kept.
    pub spool: PathBuf,
    /// The agent ends, with all its jobs, when this process has ended.
    pub until_pid: Option<i32>,
    /// Told once the socket takes calls.
    pub ready: Option<oneshot::Sender<()>>,
    /// How long a finished job that nobody closes is kept.
    pub retention: Duration,
    /// The bytes that the requests and logs of all jobs may have together.
    pub spool_limit: u64,
    /// Which start of the system this is: jobs of an earlier one died with it.
    pub boot_id: String,
    /// How the processes of a job are kept together.
    pub containment: Containment,
    /// Files that each process of a job may have open; none means as many as this process.
    pub job_open_files: Option<u64>,
    /// The agent ends when nobody was connected for so long and nothing is left that somebody could fetch; none means that
    /// it stays.
    pub idle_limit: Option<Duration>,
    /// Ends the agent, as SIGTERM does.
    pub shutdown: CancellationToken,
}

/// The system's own name for its present start; empty where it has none, and then all starts are one.
#[must_use]
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Why an agent could not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its spool.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// Another process listens on the socket.
    #[error("process {pid} listens on `{}` already: stop it first, or give this agent a socket of its own", path.display())]
    SocketTaken {
        /// The other process.
        pid: i32,
        /// The socket.
        path: PathBuf,
    },
    /// The path does not fit into a socket's address.
    #[error("the socket's path is longer than {MAX_SOCKET_PATH} bytes, more than the system allows: `{}`", .0.display())]
    SocketPath(PathBuf),
    /// The system.
    #[error("cannot {doing} `{}`", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The gRPC server.
    #[error("cannot serve calls")]
    Transport(#[from] tonic::transport::Error),
}

/// Runs an agent until it is told to end, by SIGTERM, SIGINT, [`Options::shutdown`] or the end of
/// [`Options::until_pid`]. Then it takes no new jobs, ends those that run, and returns when all have their result. One that
/// nobody needs for [`Options::idle_limit`] returns by itself.
pub async fn serve(options: Options) -> Result<(), ServeError> {
    let spool = open_spool(&options.spool, options.spool_limit).await?;
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| ServeError::Io { doing, path, source }
    };
    let templates = spool.templates();
    let shared = Shared::new(Templates::new(templates.clone()).map_err(failed("empty", &templates))?);
    let agent =
        Arc::new(Agent::new(spool, shared, Host::new(options.containment, options.job_open_files), options.boot_id));
    recover(&agent).await.map_err(failed("read the spool", &options.spool))?;
    agent.prune(options.retention).await;

    let listener = bind(&options.socket)?;
    let socket = Owned::at(&options.socket).map_err(failed("look at the socket", &options.socket))?;
    let mut signals = Signals::new().map_err(failed("handle signals beside", &options.socket))?;
    announce(&options.socket);
    if let Some(ready) = options.ready {
        let _ = ready.send(());
    }
    let (closed, door) = (CancellationToken::new(), Arc::new(Door::default()));
    let service = crate::service::Service(Arc::clone(&agent));
    let server = tonic::transport::Server::builder()
        .add_service(StepRunnerServer::new(service.clone()).max_decoding_message_size(MAX_REQUEST))
        .add_service(AgentServer::new(service))
        .serve_with_incoming_shutdown(Box::pin(Arc::clone(&door).visits(listener)), closed.clone().cancelled_owned());
    let end = async {
        tokio::select! {
            () = options.shutdown.cancelled() => tracing::info!("the agent was told to end"),
            name = signals.next() => tracing::info!(signal = name, "the agent was told to end"),
            () = process_end(options.until_pid) => tracing::info!("the process that the agent serves has ended"),
            () = prune_forever(&agent, options.retention) => {}
            () = unneeded(&door, &agent, &socket, options.idle_limit) => return,
        }
        agent.drain(TerminationCause::ManagerShutdown).await;
        closed.cancel();
        tokio::time::sleep(FAREWELL).await;
    };
    let shared = Arc::clone(&agent.context.shared);
    let result = tokio::select! {
        result = server => result,
        () = end => Ok(()),
    };
    // The next agent waits for the end of this one from here on. What is not there any more may be another one's by now.
    agent.context.spool.say_ending();
    if socket.is_there() {
        let _ = fs::remove_file(&options.socket);
    }
    if agent.context.spool.is_there() {
        let _ = muster_files::remove_tree(&templates);
    }
    let emptied = tokio::task::spawn_blocking(move || shared.trash.close());
    if tokio::time::timeout(TRASH_LIMIT, emptied).await.is_err() {
        tracing::info!("old workspaces are left; the next jobs in their places remove them");
    }
    Ok(result?)
}

/// Takes the spool. One whose agent is about to end is waited for; so is, for a moment, any other: a process that a killed
/// agent was just starting has a copy of the lock.
async fn open_spool(path: &Path, limit: u64) -> Result<Spool, SpoolError> {
    let started = Instant::now();
    loop {
        match Spool::open(path, limit) {
            Err(SpoolError::Taken { is_ending, .. })
                if started.elapsed() < if is_ending { ENDING_LIMIT } else { COPY_LIMIT } =>
            {
                // Neither end is an event for this process.
                tokio::time::sleep(ENDING_LOOK).await;
            }
            opened => return opened,
        }
    }
}

/// Waits until nobody needs the agent; from then on nobody reaches it. For ever where there is no limit.
async fn unneeded(door: &Door, agent: &Agent, socket: &Owned, limit: Option<Duration>) {
    let Some(limit) = limit else { return std::future::pending().await };
    let is_idle = || {
        let is_idle = agent.is_idle(socket.is_there());
        if is_idle {
            // Before the first one is sent away, who then starts the next agent.
            agent.context.spool.say_ending();
        }
        is_idle
    };
    door.shut_when_idle(limit, is_idle).await;
    tracing::info!("nobody was connected for {} s, and no job is left: the agent ends", limit.as_secs());
}

/// Binds the socket so that only this user reaches it. A socket that nobody listens on is replaced.
fn bind(path: &Path) -> Result<UnixListener, ServeError> {
    if path.as_os_str().len() > MAX_SOCKET_PATH {
        return Err(ServeError::SocketPath(path.to_owned()));
    }
    let failed = |doing| move |source| ServeError::Io { doing, path: path.to_owned(), source };
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(failed("make the directory of the socket"))?;
    }
    if let Ok(stream) = std::os::unix::net::UnixStream::connect(path) {
        let pid = rustix::net::sockopt::socket_peercred(&stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
        return Err(ServeError::SocketTaken { pid, path: path.to_owned() });
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("replace the stale socket")(error)),
        _ => {}
    }
    muster_files::listen(path).and_then(UnixListener::from_std).map_err(failed("listen on the socket"))
}

/// The line by which a host finds the socket (steps 6.11).
fn announce(socket: &Path) {
    let _ = writeln!(io::stderr(), "step-runner is listening on socket {}", socket.display());
}

async fn process_end(pid: Option<i32>) {
    match pid.map(Watched::open) {
        None => std::future::pending().await,
        Some(Ok(process)) => process.ended().await,
        Some(Err(error)) => tracing::info!(%error, "the process that the agent was to serve is gone"),
    }
}

async fn prune_forever(agent: &Agent, retention: Duration) {
    let mut ticks = tokio::time::interval(PRUNE_EVERY);
    loop {
        ticks.tick().await;
        agent.prune(retention).await;
    }
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "TERM",
            _ = self.interrupt.recv() => "INT",
        }
    }
}
