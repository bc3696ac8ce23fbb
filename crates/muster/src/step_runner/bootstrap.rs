//! `muster step-runner bootstrap`: copies this executable.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const NAME: &str = "step-runner";

/// Arguments of `muster step-runner bootstrap`.
#[derive(Debug, clap::Args)]
pub(super) struct BootstrapArgs {
    /// Directory for the copy. Created if it does not exist.
    #[arg(value_name = "DESTINATION")]
    destination: PathBuf,
}

pub(super) fn run(args: &BootstrapArgs) -> ExitCode {
    copy_or_report(&args.destination.join(NAME))
}

pub(super) fn copy_or_report(target: &Path) -> ExitCode {
    match copy(target) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::fail(format!(
            "failed to copy this executable to {}: {error}; name a path that this user can write to, and that is not a directory",
            target.display()
        )),
    }
}

/// Copies this executable. The copy first has a temporary name, because an earlier copy may be running.
fn copy(target: &Path) -> io::Result<()> {
    let source = std::env::current_exe()?;
    let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let mut copy = tempfile::NamedTempFile::new_in(directory)?;
    io::copy(&mut fs::File::open(source)?, &mut copy)?;
    copy.as_file().set_permissions(fs::Permissions::from_mode(0o755))?;
    copy.persist(target).map(drop).map_err(|error| error.error)
}
