//! `cache-init`: makes the directories of a cache writable for every user, because jobs may run as any user.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `gitlab-runner cache-init`.
#[derive(Debug, clap::Args)]
pub(crate) struct CacheInitArgs {
    /// Directories to make writable.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Logs an error for each directory that cannot be changed, but succeeds: the job may not need that directory.
pub(super) fn run(args: &CacheInitArgs) -> ExitCode {
    for path in &args.paths {
        if let Err(error) = std::fs::set_permissions(path, Permissions::from_mode(0o777)) {
            tracing::error!(%error, path = %path.display(), "failed to make the cache directory writable");
        }
    }
    ExitCode::SUCCESS
}
