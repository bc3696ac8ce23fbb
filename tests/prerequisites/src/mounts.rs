//! Runs a test again in a process that may mount file systems.

#![expect(clippy::expect_used, reason = "a test that cannot run again fails")]

use std::path::PathBuf;
use std::process::Command;

use crate::can_unshare;

/// Environment variable with the directory of the mounts, which is set only when a test runs again.
const DIRECTORY: &str = "MUSTER_TEST_MOUNTS";

/// Returns whether file systems can be mounted in a user namespace.
#[track_caller]
#[must_use]
pub fn mounts() -> bool {
    let directory = std::env::temp_dir();
    can_unshare(&["-rm", "mount", "-t", "tmpfs", "none", &directory.to_string_lossy()], "mounts in user namespaces")
}

/// Runs the calling test again, after a shell script has mounted file systems in the directory `$1`.
///
/// Returns the directory in the new process. Returns `None` in the first process, or if this machine does not permit
/// mounts. `test` is the full name of the calling test.
///
/// # Panics
/// If the script or the test fails, or there is no test of this name.
#[track_caller]
#[must_use]
pub fn run_with_mounts(test: &str, script: &str) -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return Some(directory.into());
    }
    if !mounts() {
        return None;
    }
    let directory = tempfile::tempdir().expect("failed to create a directory");
    let script = format!("{{ {script}; }} || exit 99; exec \"$0\" --exact {test} --nocapture");
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", &script]).arg(std::env::current_exe().expect("this program has no path"));
    let output =
        command.arg(directory.path()).env(DIRECTORY, directory.path()).output().expect("failed to run unshare");
    let log = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // If no test has this name, the run succeeds, too.
    assert!(output.status.success() && log.contains("1 passed"), "{log}");
    None
}
