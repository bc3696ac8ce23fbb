//! `muster agent serve`: executes the steps of jobs; started by a manager's environment.

use std::path::PathBuf;
use std::process::ExitCode;

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
    /// End when this process has ended.
    #[arg(long, value_name = "PID")]
    until_pid: Option<u32>,
}

/// Runs the subcommand.
pub(crate) fn run(command: Command) -> ExitCode {
    let Command::Serve(args) = command;
    tracing::debug!(?args, "agent");
    ExitCode::FAILURE
}
