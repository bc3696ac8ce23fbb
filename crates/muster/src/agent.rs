//! `muster agent`: the agent of a machine or a container, and its helper commands.

mod adopt;
mod block;
mod container;
mod listen;
mod relay;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use muster_agent_api::container::{MODE, MODE_CONTAINER};
use muster_executor::deploy::{self, ANSWER_PREFIX, CONNECTED, FAILED, OUTDATED};
use muster_executor::host::{HostOptions, READY_MARKER, SharedAgent, find_or_start_agent};
use muster_steps::process::Containment;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub(crate) use self::listen::ListenArgs;

/// Time to keep a finished job that no manager closes.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Subcommands of `muster agent`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Serve the agent's API on a Unix socket, and on a TCP address with TLS.
    Serve(ServeArgs),
    /// Connect stdin and stdout to the agent of a directory; start the agent if none is running.
    Connect(ConnectArgs),
    /// Serve the agent's API in the container of a job. Started by the entrypoint of the container's image.
    Container(container::ContainerArgs),
    /// Connect stdin and stdout to the agent of this container.
    Dial,
    /// Give the directories of a job to the user of this container.
    Adopt(adopt::AdoptArgs),
    /// Wait until one of several addresses accepts a connection.
    Probe(container::ProbeArgs),
    /// Make addresses unreachable in this container.
    Block(block::BlockArgs),
    /// Wait until addresses are blocked in this container, then run a command.
    Gate(block::GateArgs),
}

/// Arguments of `muster agent serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Unix socket to listen on.
    #[arg(long, value_name = "FILE")]
    socket: PathBuf,
    #[command(flatten)]
    listen: ListenArgs,
    /// Directory for logs and results.
    #[arg(long, value_name = "DIR")]
    spool: PathBuf,
    /// Maximum size of the logs of all jobs together, in MiB. A job that would exceed it fails.
    #[arg(long, value_name = "MIB", env = "MUSTER_SPOOL_LIMIT", default_value_t = 16 * 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    spool_limit: u64,
    /// Exit, and end all jobs, when the process with this ID exits.
    #[arg(long, value_name = "PID")]
    exit_with_pid: Option<i32>,
    /// Seconds after which an agent without connections, running jobs and unfetched results exits. Defaults to never.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    idle_timeout: Option<u64>,
    /// ID of the only user whose processes may connect. By default, every process that can reach the socket may connect.
    #[arg(long, value_name = "UID")]
    only_user: Option<u32>,
    /// Maximum number of open files for each process of a job. Defaults to the limit of this process at its start.
    #[arg(long, value_name = "NUMBER")]
    job_nofile_limit: Option<u64>,
    /// Do not create cgroups for jobs. By default, each job gets one if the system permits it.
    #[arg(long)]
    no_cgroups: bool,
}

/// Arguments of `muster agent connect`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConnectArgs {
    /// Directory of the agent, with its socket, spool, lock and log.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Returns the subcommand that the environment selects if there are no arguments.
///
/// Some images have an entrypoint that runs the program without its arguments.
pub(crate) fn from_environment(arguments: &[std::ffi::OsString]) -> Option<Command> {
    let selected = std::env::var_os(MODE).is_some_and(|mode| mode == MODE_CONTAINER);
    (arguments.len() <= 1 && selected).then(|| Command::Container(container::ContainerArgs::default()))
}

pub(crate) fn run(command: Command) -> ExitCode {
    match command {
        Command::Serve(args) => serve(args),
        Command::Connect(args) => connect(args),
        Command::Container(args) => container::serve(&args),
        Command::Dial => container::dial(),
        Command::Adopt(args) => adopt::adopt(&args),
        Command::Probe(args) => container::probe(&args),
        Command::Block(args) => block::block(&args),
        Command::Gate(args) => block::gate(&args),
    }
}

/// The first line of the output reports whether an agent was reached. The rest is the agent's output.
fn connect(args: ConnectArgs) -> ExitCode {
    crate::logging::init_service();
    crate::runtime::block_on_one_thread(async {
        let written = match connect_to_agent(args.dir).await {
            Ok(connected) => return report_and_bridge(connected),
            Err(error) => {
                writeln!(
                    std::io::stdout(),
                    "{ANSWER_PREFIX}{FAILED}{}",
                    muster_job::error_chain(&error).replace('\n', "; ")
                )
            }
        };
        // The reader may have closed the connection.
        drop(written);
        ExitCode::FAILURE
    })
}

struct ConnectedAgent {
    socket: UnixStream,
    home: PathBuf,
    /// Whether the agent runs an older executable than this one.
    is_outdated: bool,
}

fn report_and_bridge(ConnectedAgent { socket, home, is_outdated }: ConnectedAgent) -> ExitCode {
    let mut stdout = std::io::stdout();
    let answer = if is_outdated { OUTDATED } else { CONNECTED };
    let written = writeln!(stdout, "{ANSWER_PREFIX}{answer}{}", home.display()).and_then(|()| stdout.flush());
    if written.is_err() {
        return ExitCode::FAILURE;
    }
    bridge(socket)
}

/// Copies stdin to the socket, and the socket to stdout, until one of the two ends. Blocks the thread.
pub(crate) fn bridge(socket: UnixStream) -> ExitCode {
    let Ok(mut to_agent) = socket.try_clone() else { return ExitCode::FAILURE };
    // Do not join the threads: after the first has ended, the other may be blocked in a read.
    let (done, first_done) = std::sync::mpsc::channel();
    let also_done = done.clone();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut to_agent);
        let _ = done.send(());
    });
    std::thread::spawn(move || {
        let _ = copy_unbuffered(socket, std::io::stdout());
        let _ = also_done.send(());
    });
    let _ = first_done.recv();
    ExitCode::SUCCESS
}

/// Copies and flushes after each read, because standard output is buffered by line.
fn copy_unbuffered(mut from: UnixStream, mut to: std::io::Stdout) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            n => to.write_all(buffer.get(..n).unwrap_or_default()).and_then(|()| to.flush())?,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("this user has no home directory; set HOME, or create a home directory for the user")]
    NoHome,
    #[error("failed to resolve the path {}", path.display())]
    Path { path: PathBuf, source: std::io::Error },
    #[error("failed to determine the path of this executable")]
    Executable(#[source] std::io::Error),
    #[error(transparent)]
    Agent(#[from] muster_executor::ExecutorError),
}

/// Connects to the agent of a directory, and starts it if none is running.
async fn connect_to_agent(dir: PathBuf) -> Result<ConnectedAgent, ConnectError> {
    let home = std::env::home_dir().filter(|home| home.is_absolute()).ok_or(ConnectError::NoHome)?;
    let dir = std::path::absolute(&dir).map_err(|source| ConnectError::Path { path: dir, source })?;
    let executable = std::env::current_exe().map_err(ConnectError::Executable)?;
    let options = HostOptions {
        state_dir: dir,
        directories: deploy::directories(&home),
        slots: 0,
        executable,
        exit_with_pid: None,
        user: None,
        hidden_variables: Vec::new(),
        nofile_limit: None,
    };
    let SharedAgent { stream, is_outdated } = find_or_start_agent(options).await?;
    Ok(ConnectedAgent { socket: stream, home, is_outdated })
}

fn serve(args: ServeArgs) -> ExitCode {
    crate::logging::init_service();
    // Signals from the manager's terminal or supervisor must not end the jobs. Fails only if this process already leads
    // a process group.
    if let Err(error) = rustix::process::setsid() {
        tracing::debug!(%error, "failed to leave the session of the parent process");
    }
    let open_files = crate::open_files::raise();
    crate::runtime::block_on(async {
        let (ready, is_ready) = oneshot::channel();
        let socket = args.socket.clone();
        let options = muster_agent::Options {
            socket: args.socket,
            tcp: args.listen.options(),
            spool: args.spool,
            exit_with_pid: args.exit_with_pid,
            ready: Some(ready),
            only_user: args.only_user,
            retention: RETENTION,
            spool_limit: args.spool_limit << 20,
            boot_id: muster_agent::boot_id(),
            job_nofile_limit: args.job_nofile_limit.or(open_files),
            unattended_timeout: None,
            idle_timeout: args.idle_timeout.map(Duration::from_secs),
            containment: if args.no_cgroups { Containment::ProcessTree } else { Containment::Cgroups },
            shutdown: CancellationToken::new(),
        };
        let announce = async {
            if is_ready.await.is_ok() {
                // An error means that the parent process, which reads the line, has exited.
                let _ = writeln!(std::io::stdout(), "{READY_MARKER} {}", socket.display());
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
