//! The agent's process: opens its spool, recovers its jobs, listens, and shuts down gracefully.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::agent::agent_server::AgentServer;
use muster_agent_api::agent::debugger_server::DebuggerServer;
use muster_agent_api::client::KeepAlive;
use muster_agent_api::step_runner::step_runner_server::StepRunnerServer;
use muster_builtins::{AgentResources, PreparedContainers, StepCache, Templates};
use muster_job::TerminationCause;
use muster_steps::process::{Containment, ProcessManager, Watched};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::connections::{ConnectionTracker, SocketFile};
use crate::panics::CatchPanics;
use crate::peers::{MAX_REQUEST_BYTES, TolerateNewerPeers};
use crate::recover::recover;
use crate::spool::{Spool, SpoolError};
use crate::tls::{TcpError, TcpOptions, TlsListener};

/// Keep-alive for a TCP address, so that a connection to a lost client does not count as open.
const TCP_KEEPALIVE: KeepAlive = KeepAlive { interval: Duration::from_secs(30), timeout: Duration::from_secs(60) };
const PRUNE_INTERVAL: Duration = Duration::from_secs(3600);
/// Time for which managers can still fetch results, after a shutdown has ended all jobs.
const RESULT_FETCH_GRACE: Duration = Duration::from_secs(3);
const TRASH_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time to remove prepared containers at the end of the agent. A busy engine needs seconds for each container.
const PREPARED_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum time for the shutdown of an earlier agent of the spool. Longer than [`PREPARED_TIMEOUT`].
const PREDECESSOR_EXIT_TIMEOUT: Duration = Duration::from_secs(14);
/// Maximum time to wait for an owner of the spool that is not shutting down. The owner may be a process that a killed
/// agent was starting, and which has inherited a copy of the agent's lock. It closes the copy within a shorter time.
const LOCK_COPY_TIMEOUT: Duration = Duration::from_secs(1);
const PREDECESSOR_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The kernel's limit, without the final null byte.
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Options of an agent.
#[derive(Debug)]
pub struct Options {
    /// Socket to listen on. If its directory is missing, the agent creates it with access only for the agent's user.
    pub socket: PathBuf,
    /// ID of the only user who may connect. `None` means every user with access to the socket.
    pub only_user: Option<u32>,
    /// Additional TCP address. Its clients can run jobs as the agent's user. `None` means only the socket.
    pub tcp: Option<TcpOptions>,
    /// Directory of the jobs' files.
    pub spool: PathBuf,
    /// Process with which the agent and its jobs end. `None` means no such process.
    pub exit_with_pid: Option<i32>,
    /// Notified when the socket accepts calls.
    pub ready: Option<oneshot::Sender<()>>,
    /// Time to keep a finished job that is not closed.
    pub retention: Duration,
    /// Maximum size in bytes of all jobs' requests and logs.
    pub spool_limit: u64,
    /// Boot ID of the system. Jobs with another boot ID have ended.
    pub boot_id: String,
    /// Way to find the processes of a job.
    pub containment: Containment,
    /// Maximum number of open files of a job's process. `None` means the limit of this process.
    pub job_nofile_limit: Option<u64>,
    /// Time without a connection after which an idle agent exits. An agent is idle if no job runs, and either all jobs
    /// were closed or managers can no longer connect. `None` means never.
    pub idle_timeout: Option<Duration>,
    /// Time without a connection after which the agent ends its jobs and exits. `None` means never.
    pub unattended_timeout: Option<Duration>,
    /// Stops the agent, as SIGTERM does.
    pub shutdown: CancellationToken,
}

/// Returns the boot ID of the system. Empty if the system has none, so that all jobs count as started since the last
/// boot.
#[must_use]
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Reason why an agent could not start or could not serve calls.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The spool cannot be used.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// Another process listens on the socket.
    #[error("process {pid} already listens on {}; stop it, or use another socket", path.display())]
    SocketTaken {
        /// ID of the other process. 0 means unknown.
        pid: i32,
        /// Path of the socket.
        path: PathBuf,
    },
    /// The path of the socket is too long.
    #[error("the path of the socket is longer than {MAX_SOCKET_PATH_BYTES} bytes: {}; use a shorter path", .0.display())]
    SocketPath(PathBuf),
    /// A file, a directory or a signal handler cannot be used.
    #[error("failed to {action} {}", path.display())]
    Io {
        /// Failed operation, as a verb phrase before the path.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The TCP address cannot be used.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// The gRPC server failed.
    #[error("failed to serve calls")]
    Transport(#[from] tonic::transport::Error),
}

/// Runs an agent until it is stopped or idle.
///
/// SIGTERM, SIGINT, [`Options::shutdown`], [`Options::unattended_timeout`] and the end of [`Options::exit_with_pid`]
/// stop the agent, which then stops its jobs and waits for their results.
pub async fn serve(options: Options) -> Result<(), ServeError> {
    // The address is bound first, because the spool must not change if the agent cannot start.
    let tcp = match &options.tcp {
        Some(tcp) => Some(TlsListener::bind(tcp).await?),
        None => None,
    };
    let spool = open_spool(&options.spool, options.spool_limit).await?;
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ServeError::Io { action, path, source }
    };
    let (templates, steps) = (spool.templates(), spool.step_cache());
    let resources = AgentResources::new(
        Templates::new(templates.clone()).map_err(failed("empty the directory", &templates))?,
        StepCache::new(steps.clone()).map_err(failed("use the directory", &steps))?,
        PreparedContainers::recorded_in(spool.prepared_containers()),
    );
    resources.prepared.remove_leftovers();
    let agent = Arc::new(Agent::new(
        spool,
        resources,
        ProcessManager::new(options.containment, options.job_nofile_limit),
        options.boot_id,
    ));
    // Dropping these tasks ends them.
    let _removals = recover(&agent).await.map_err(failed("read the spool", &options.spool))?;

    let listener = bind(&options.socket)?;
    let socket = SocketFile::at(&options.socket).map_err(failed("read the metadata of the socket", &options.socket))?;
    let mut signals = Signals::new().map_err(failed("register signal handlers for the agent at", &options.socket))?;
    print_ready_lines(&options.socket, tcp.as_ref());
    if let Some(ready) = options.ready {
        let _ = ready.send(());
    }
    let listens_on_tcp = tcp.is_some();
    let is_reachable = || listens_on_tcp || socket.exists();
    let (closed, connections) = (CancellationToken::new(), Arc::new(ConnectionTracker::default()));
    let service = crate::service::Service(Arc::clone(&agent));
    let server = tonic::transport::Server::builder()
        .http2_keepalive_interval(tcp.as_ref().map(|_| TCP_KEEPALIVE.interval))
        .http2_keepalive_timeout(Some(TCP_KEEPALIVE.timeout))
        .layer(tower::layer::layer_fn(CatchPanics))
        .layer(tower::layer::layer_fn(TolerateNewerPeers))
        .add_service(StepRunnerServer::new(service.clone()).max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(AgentServer::new(service.clone()))
        .add_service(DebuggerServer::new(service))
        .serve_with_incoming_shutdown(
            Box::pin(Arc::clone(&connections).accept(listener, options.only_user, tcp)),
            closed.clone().cancelled_owned(),
        );
    let end = async {
        tokio::select! {
            () = options.shutdown.cancelled() => tracing::info!("shutting down"),
            name = signals.next() => tracing::info!(signal = name, "signal received, shutting down"),
            () = wait_for_process_end(options.exit_with_pid) => {
                tracing::info!("the process of --exit-with-pid has ended, shutting down");
            }
            () = wait_until_unattended(&connections, options.unattended_timeout) => {}
            () = prune_forever(&agent, options.retention) => {}
            () = wait_until_idle(&connections, &agent, is_reachable, options.idle_timeout) => return,
        }
        agent.drain(TerminationCause::ManagerShutdown).await;
        closed.cancel();
        tokio::time::sleep(RESULT_FETCH_GRACE).await;
    };
    let resources = Arc::clone(&agent.context.resources);
    let result = tokio::select! {
        result = server => result,
        () = end => Ok(()),
    };
    // The next agent now waits for the end of this agent.
    agent.context.spool.mark_shutting_down();
    // Another agent may have replaced the socket file.
    if socket.exists() {
        let _ = fs::remove_file(&options.socket);
    }
    if agent.context.spool.exists() {
        let _ = muster_files::remove_tree(&templates);
    }
    let prepared = Arc::clone(&resources.prepared);
    let removed = prepared.close();
    let emptied = tokio::task::spawn_blocking(move || resources.trash.close());
    let (emptied, removed) =
        tokio::join!(tokio::time::timeout(TRASH_TIMEOUT, emptied), tokio::time::timeout(PREPARED_TIMEOUT, removed));
    if emptied.is_err() {
        tracing::info!("failed to delete old workspaces in time; the next jobs in these directories will delete them");
    }
    if removed.is_err() {
        tracing::info!("failed to remove prepared containers in time; the next agent will remove them");
    }
    Ok(result?)
}

/// Opens the spool. Waits while its owner shuts down.
///
/// Waits briefly for any other owner, which may be a process that a killed agent was starting: such a process has
/// inherited a copy of the agent's lock.
async fn open_spool(path: &Path, limit: u64) -> Result<Spool, SpoolError> {
    let started = Instant::now();
    loop {
        match Spool::open(path, limit) {
            Err(SpoolError::InUse { is_shutting_down, .. })
                if started.elapsed() < if is_shutting_down { PREDECESSOR_EXIT_TIMEOUT } else { LOCK_COPY_TIMEOUT } =>
            {
                // No event announces a free lock.
                tokio::time::sleep(PREDECESSOR_POLL_INTERVAL).await;
            }
            opened => return opened,
        }
    }
}

/// Waits until the agent is idle, and then closes it for connections. If `idle_timeout` is `None`, waits forever.
/// `is_reachable` returns whether managers can connect.
async fn wait_until_idle(
    connections: &ConnectionTracker,
    agent: &Agent,
    is_reachable: impl Fn() -> bool,
    idle_timeout: Option<Duration>,
) {
    let Some(idle_timeout) = idle_timeout else { return std::future::pending().await };
    let is_idle = || {
        let is_idle = agent.is_idle(is_reachable());
        if is_idle {
            // The spool must be marked before the first refused connection, after which the manager starts the next
            // agent.
            agent.context.spool.mark_shutting_down();
        }
        is_idle
    };
    connections.close_when_idle(idle_timeout, is_idle).await;
    tracing::info!(idle_s = idle_timeout.as_secs(), "agent is idle, shutting down");
}

/// Waits until no connection was open for `unattended_timeout`, and then closes the agent for connections.
async fn wait_until_unattended(connections: &ConnectionTracker, unattended_timeout: Option<Duration>) {
    let Some(unattended_timeout) = unattended_timeout else { return std::future::pending().await };
    connections.close_when_idle(unattended_timeout, || true).await;
    tracing::warn!(unattended_s = unattended_timeout.as_secs(), "no manager is connected, shutting down");
}

/// Listens on a socket. Replaces an existing socket file on which no process listens.
fn bind(path: &Path) -> Result<UnixListener, ServeError> {
    if path.as_os_str().len() > MAX_SOCKET_PATH_BYTES {
        return Err(ServeError::SocketPath(path.to_owned()));
    }
    let failed = |action| move |source| ServeError::Io { action, path: path.to_owned(), source };
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        created.map_err(failed("create the directory of the socket"))?;
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

/// Prints the TCP address, and the line by which the host finds the socket (`docs/spec/steps.md`, section 6.11).
fn print_ready_lines(socket: &Path, tcp: Option<&TlsListener>) {
    if let Some(tcp) = tcp {
        let _ = writeln!(io::stderr(), "step-runner is listening on TCP address {}", tcp.address);
    }
    let _ = writeln!(io::stderr(), "step-runner is listening on socket {}", socket.display());
}

async fn wait_for_process_end(pid: Option<i32>) {
    match pid.map(Watched::open) {
        None => std::future::pending().await,
        Some(Ok(process)) => process.ended().await,
        Some(Err(error)) => tracing::info!(%error, "failed to open the process of --exit-with-pid, shutting down"),
    }
}

async fn prune_forever(agent: &Agent, retention: Duration) {
    let mut ticks = tokio::time::interval(PRUNE_INTERVAL);
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
