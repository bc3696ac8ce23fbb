//! The agent in a job's container, and connections to it from outside the container.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use muster_agent_api::container::{DIRECTORIES, MODE, READY, RELAY, SERVE, SOCKET, SPOOL, STARTED};
use muster_steps::process::Containment;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{RETENTION, bridge, relay};

const SPOOL_LIMIT: u64 = 16 << 30;
const SHARED_MODE: u32 = 0o777;
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay between two attempts to connect to a service. Services do not report when they are ready, so the command tries
/// repeatedly.
const PROBE_DELAY: Duration = Duration::from_millis(100);
/// Time without connections after which the agent exits. Its exit ends the job and the container.
const UNATTENDED_TIMEOUT: Duration = Duration::from_secs(600);

/// Arguments of `muster agent container`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ContainerArgs {
    /// Loopback address to listen on. Connections are forwarded to the machine of the agent that created the container.
    #[arg(long, value_name = "HOST:PORT")]
    relay: Option<String>,
    /// Directory to create, and to make writable for every user.
    #[arg(long, value_name = "DIR")]
    directory: Vec<PathBuf>,
}

pub(super) fn serve(args: &ContainerArgs) -> ExitCode {
    if std::env::var_os(MODE).is_some() {
        return exec_without_variables();
    }
    // On each stream, the output before `STARTED` is from the entrypoint of the image.
    let started = writeln!(std::io::stdout(), "{STARTED}").and_then(|()| writeln!(std::io::stderr(), "{STARTED}"));
    if started.is_err() {
        return ExitCode::FAILURE;
    }
    crate::logging::init_service();
    args.directory.iter().for_each(|directory| create_shared(directory));
    let open_files = crate::open_files::raise();
    crate::runtime::block_on(async {
        let _relay = match relay::start(args.relay.as_deref()).await {
            Ok(relay) => relay,
            Err(error) => {
                // The agent that created the container shows this line in the log of the job.
                let _ = writeln!(std::io::stderr(), "{error}");
                return ExitCode::FAILURE;
            }
        };
        let (ready, is_ready) = oneshot::channel();
        let options = muster_agent::Options {
            socket: SOCKET.into(),
            tcp: None,
            spool: SPOOL.into(),
            exit_with_pid: None,
            ready: Some(ready),
            only_user: None,
            retention: RETENTION,
            spool_limit: SPOOL_LIMIT,
            boot_id: muster_agent::boot_id(),
            job_nofile_limit: open_files,
            idle_timeout: None,
            unattended_timeout: Some(UNATTENDED_TIMEOUT),
            // The cgroup of the container already contains all processes of the job.
            containment: Containment::ProcessTree,
            shutdown: CancellationToken::new(),
        };
        let announce = async {
            if is_ready.await.is_ok() {
                // If this fails, the agent that created the container has closed the stream and removes the container.
                let _ = writeln!(std::io::stdout(), "{READY}");
            }
        };
        let (served, ()) = tokio::join!(muster_agent::serve(options), announce);
        match served {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!(error = muster_job::error_chain(&error), "agent failed");
                ExitCode::FAILURE
            }
        }
    })
}

/// Creates a directory that every user can write to. If this fails, logs the error.
fn create_shared(directory: &Path) {
    let created = std::fs::create_dir_all(directory).and_then(|()| {
        let mode = std::fs::metadata(directory)?.permissions().mode();
        std::fs::set_permissions(directory, Permissions::from_mode(mode | SHARED_MODE))
    });
    if let Err(error) = created {
        tracing::warn!(%error, directory = %directory.display(), "failed to create a directory of the job");
    }
}

/// Restarts this program in the same process without the agent's environment variables, which jobs would inherit.
fn exec_without_variables() -> ExitCode {
    let error = match std::env::current_exe() {
        Ok(own) => {
            let relay = std::env::var_os(RELAY).into_iter().flat_map(|address| [OsString::from("--relay"), address]);
            let directories = std::env::var(DIRECTORIES).unwrap_or_default();
            let directories = directories.lines().map(|directory| format!("--directory={directory}"));
            let mut command = Command::new(own);
            command.args(SERVE).args(relay).args(directories);
            command.env_remove(MODE).env_remove(RELAY).env_remove(DIRECTORIES).exec()
        }
        Err(error) => error,
    };
    // Standard error becomes part of the job's log.
    let _ = writeln!(std::io::stderr(), "failed to start the agent in the container: {error}");
    ExitCode::FAILURE
}

pub(super) fn dial() -> ExitCode {
    match UnixStream::connect(SOCKET) {
        Ok(socket) => bridge(socket),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "failed to connect to {SOCKET}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Arguments of `muster agent probe`.
#[derive(Debug, clap::Args)]
pub(crate) struct ProbeArgs {
    /// Milliseconds after which the command fails if no address accepted a connection.
    timeout_ms: u64,
    /// Addresses, such as `172.17.0.2:5432`.
    #[arg(required = true)]
    addresses: Vec<SocketAddr>,
}

/// Succeeds as soon as one of the addresses accepts a connection.
pub(super) fn probe(args: &ProbeArgs) -> ExitCode {
    crate::runtime::block_on_one_thread(async {
        let attempts = args.addresses.iter().map(|address| Box::pin(connect_until_accepted(*address)));
        let connected = futures::future::select_all(attempts);
        let connected = tokio::time::timeout(Duration::from_millis(args.timeout_ms), connected).await;
        if connected.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    })
}

/// Returns as soon as the address accepts. Prints an error only if it differs from the previous error.
async fn connect_until_accepted(address: SocketAddr) {
    let mut last = String::new();
    // The reader may have closed the output already.
    let print = |line: &str| drop(writeln!(std::io::stdout(), "{line}"));
    print(&format!("waiting for a connection to {address}"));
    loop {
        let error = match tokio::time::timeout(DIAL_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(_)) => return print(&format!("connected to {address}")),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", DIAL_TIMEOUT.as_secs()),
        };
        if error != last {
            print(&format!("failed to connect to {address}: {error}"));
            last = error;
        }
        tokio::time::sleep(PROBE_DELAY).await;
    }
}
