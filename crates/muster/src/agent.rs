//! `muster agent serve`: executes the steps of jobs; started by a manager's environment.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use muster_executor::deploy::{self, CONNECTED, FAILED, MARK, OUTDATED};
use muster_executor::host::{HostOptions, READY_MARKER, SharedAgent, find_or_start_agent};
use muster_steps::process::Containment;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// A finished job that no manager asks for is kept for so long.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Subcommands of `muster agent`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Serve the agent's API on a unix socket.
    Serve(ServeArgs),
    /// Connect stdin and stdout to the agent of a directory; where none runs, it is started, and stays.
    Connect(ConnectArgs),
}

/// Arguments of `muster agent serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The unix socket to listen on.
    #[arg(long, value_name = "FILE")]
    socket: PathBuf,
    /// Directory that keeps logs and results.
    #[arg(long, value_name = "DIR")]
    spool: PathBuf,
    /// MiB that the logs of all jobs may have together in that directory; a job that finds no room fails.
    #[arg(long, value_name = "MIB", env = "MUSTER_SPOOL_LIMIT", default_value_t = 16 * 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    spool_limit: u64,
    /// ID of the process with which the agent and all its jobs end.
    #[arg(long, value_name = "PID")]
    exit_with_pid: Option<i32>,
    /// Seconds without a connection after which the agent ends, unless a job runs or has a result to fetch. Without this flag it keeps running.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    idle_timeout: Option<u64>,
    /// Maximum number of open files per process of a job. Defaults to the limit with which this process was started.
    #[arg(long, value_name = "NUMBER")]
    job_nofile_limit: Option<u64>,
    /// Give jobs no cgroups. Without this flag each job gets one where the system permits it.
    #[arg(long)]
    no_cgroups: bool,
}

/// Arguments of `muster agent connect`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConnectArgs {
    /// The agent's directory: its socket, spool, lock and log.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Runs the subcommand.
pub(crate) fn run(command: Command) -> ExitCode {
    match command {
        Command::Serve(args) => serve(args),
        Command::Connect(args) => connect(args),
    }
}

/// The first line of the output says whether there is an agent; what follows is the agent's own.
fn connect(args: ConnectArgs) -> ExitCode {
    crate::logging::of_service();
    crate::runtime::block_on_one_thread(async {
        let said = match reach(args.dir).await {
            Ok(reached) => return relay(reached),
            Err(error) => writeln!(std::io::stdout(), "{MARK}{FAILED}{}", error.replace('\n', "; ")),
        };
        // Nobody may be there any more to read it.
        drop(said);
        ExitCode::FAILURE
    })
}

/// The agent, and where its jobs have their places.
struct Reached {
    socket: UnixStream,
    home: PathBuf,
    /// The agent is of another executable.
    is_outdated: bool,
}

/// Copies both ways until either end is closed. Blocks: nothing else is to be done in this process.
fn relay(Reached { socket, home, is_outdated }: Reached) -> ExitCode {
    let mut stdout = std::io::stdout();
    let answer = if is_outdated { OUTDATED } else { CONNECTED };
    let told = writeln!(stdout, "{MARK}{answer}{}", home.display()).and_then(|()| stdout.flush());
    let (Ok(()), Ok(mut to_agent)) = (told, socket.try_clone()) else { return ExitCode::FAILURE };
    // A thread that still waits for the other end ends with the process.
    let (over, is_over) = std::sync::mpsc::channel();
    let also_over = over.clone();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut to_agent);
        let _ = over.send(());
    });
    std::thread::spawn(move || {
        let _ = copy_at_once(socket, std::io::stdout());
        let _ = also_over.send(());
    });
    let _ = is_over.recv();
    ExitCode::SUCCESS
}

/// Copies, and holds nothing back: standard output by itself waits for the end of a line.
fn copy_at_once(mut from: UnixStream, mut to: std::io::Stdout) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            n => to.write_all(buffer.get(..n).unwrap_or_default()).and_then(|()| to.flush())?,
        }
    }
}

/// The agent of the directory and this user's home; jobs have their places below that.
async fn reach(dir: PathBuf) -> Result<Reached, String> {
    let text = |error: &dyn std::error::Error| muster_job::error_chain(error);
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let home = home.ok_or("this user has no home directory: set HOME, or give the user one")?;
    let dir = std::path::absolute(&dir).map_err(|error| text(&error))?;
    let executable = std::env::current_exe().map_err(|error| text(&error))?;
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
    let SharedAgent { stream, is_outdated } = find_or_start_agent(options).await.map_err(|error| text(&error))?;
    Ok(Reached { socket: stream, home, is_outdated })
}

fn serve(args: ServeArgs) -> ExitCode {
    crate::logging::of_service();
    // Out of the manager's session: what a terminal or a supervisor sends to that one does not end the jobs. Fails only
    // where this process leads a group already, that is, where someone gave it one of its own.
    if let Err(error) = rustix::process::setsid() {
        tracing::debug!(%error, "the agent stays in its session");
    }
    let open_files = crate::open_files::raise();
    crate::runtime::block_on(async {
        let (ready, is_ready) = oneshot::channel();
        let socket = args.socket.clone();
        let options = muster_agent::Options {
            socket: args.socket,
            spool: args.spool,
            exit_with_pid: args.exit_with_pid,
            ready: Some(ready),
            retention: RETENTION,
            spool_limit: args.spool_limit << 20,
            boot_id: muster_agent::boot_id(),
            job_nofile_limit: args.job_nofile_limit.or(open_files),
            idle_timeout: args.idle_timeout.map(Duration::from_secs),
            containment: if args.no_cgroups { Containment::ProcessTree } else { Containment::Cgroups },
            shutdown: CancellationToken::new(),
        };
        let announce = async {
            if is_ready.await.is_ok() {
                // Whoever waits on the other end may be gone by now: then nobody needs to know.
                let _ = writeln!(std::io::stdout(), "{READY_MARKER} {}", socket.display());
            }
        };
        let (served, ()) = tokio::join!(muster_agent::serve(options), announce);
        match served {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!(error = muster_job::error_chain(&error), "the agent ended");
                ExitCode::FAILURE
            }
        }
    })
}
