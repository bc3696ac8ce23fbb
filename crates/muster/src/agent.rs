//! `muster agent serve`: executes the steps of jobs; started by a manager's environment.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use muster_agent::Containment;
use muster_environment::host::READY_MARKER;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// A finished job that no manager asks for is kept for so long.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Subcommands of `muster agent`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Serve the agent's API on a unix socket.
    Serve(ServeArgs),
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
    /// End, with all jobs, when this process has ended.
    #[arg(long, value_name = "PID")]
    until_pid: Option<i32>,
    /// Give each job a cgroup where the system permits it: nothing escapes, and starting a process takes longer.
    #[arg(long)]
    cgroups: bool,
}

/// Runs the subcommand.
pub(crate) fn run(command: Command) -> ExitCode {
    let Command::Serve(args) = command;
    crate::logging::of_service();
    // Out of the manager's session: what a terminal or a supervisor sends to that one does not end the jobs. Fails only
    // where this process leads a group already, that is, where someone gave it one of its own.
    if let Err(error) = rustix::process::setsid() {
        tracing::debug!(%error, "the agent stays in its session");
    }
    crate::runtime::block_on(async {
        let (ready, is_ready) = oneshot::channel();
        let socket = args.socket.clone();
        let options = muster_agent::Options {
            socket: args.socket,
            spool: args.spool,
            until_pid: args.until_pid,
            ready: Some(ready),
            retention: RETENTION,
            spool_limit: args.spool_limit << 20,
            boot_id: muster_agent::boot_id(),
            containment: if args.cgroups { Containment::Cgroups } else { Containment::Descent },
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
                tracing::error!(error = crate::logging::chain(&error), "the agent ended");
                ExitCode::FAILURE
            }
        }
    })
}
