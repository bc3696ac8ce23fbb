//! `muster manager`: requests jobs from a coordinator and runs them on this host.

use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `muster manager`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Base URL of the coordinator, without `/api/v4`.
    #[arg(long)]
    url: url::Url,
    /// File with the runner's authentication token; a token never stands on the command line.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Directory of this manager: `state.db`, the agent's socket and spool.
    #[arg(long, value_name = "DIR")]
    state_dir: PathBuf,
    /// Directory below which jobs are checked out.
    #[arg(long, value_name = "DIR")]
    builds_dir: PathBuf,
    /// Directory of caches.
    #[arg(long, value_name = "DIR")]
    cache_dir: PathBuf,
    /// Jobs to run at the same time.
    #[arg(long, default_value_t = 1)]
    concurrent: usize,
    /// End when this process ends, and let the agent end then too.
    #[arg(long, value_name = "PID")]
    until_pid: Option<u32>,
    /// Shell of the jobs' scripts.
    #[arg(long, default_value = "bash")]
    shell: String,
    /// Name of this manager, as it stands in a job's log.
    #[arg(long, default_value = "muster")]
    name: String,
}

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> ExitCode {
    tracing::debug!(?args, "manager");
    ExitCode::FAILURE
}
