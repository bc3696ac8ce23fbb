//! `cache-init`: makes the folders of a cache writable for the job's user, whoever that is.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `cache-init`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folders.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Runs the command. A folder that cannot be changed is told of and does not fail the command: the job may not need it.
pub(super) fn run(args: &Args) -> ExitCode {
    for path in &args.paths {
        if let Err(error) = std::fs::set_permissions(path, Permissions::from_mode(0o777)) {
            tracing::error!(%error, path = %path.display(), "failed to let everybody write to the folder of a cache");
        }
    }
    ExitCode::SUCCESS
}
