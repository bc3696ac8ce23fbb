//! Programs that a test creates and then runs.
//!
//! A test must not write such a file itself. While the file is open for writing, another test of the same process may
//! start a child, which has the open file until it executes its own program. Until then, the new program cannot be
//! executed ("Text file busy", `ETXTBSY`).

#![expect(clippy::expect_used, reason = "a test whose program cannot be created fails")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Creates or replaces an executable file, through a separate process.
///
/// # Panics
/// If the file cannot be written.
#[track_caller]
pub fn create_program(path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
    install(Path::new("/dev/stdin"), path.as_ref(), content.as_ref());
}

/// Copies a file to `target`, through a separate process. Everyone may execute the copy.
///
/// # Panics
/// If the file cannot be copied.
#[track_caller]
pub fn copy_program(source: impl AsRef<Path>, target: impl AsRef<Path>) {
    install(source.as_ref(), target.as_ref(), &[]);
}

#[track_caller]
fn install(source: &Path, target: &Path, input: &[u8]) {
    let mut command = Command::new("install");
    command.args(["-m", "755", "--"]).args([source, target]).stdin(Stdio::piped());
    let mut child = command.spawn().expect("failed to run install (Debian: coreutils)");
    child.stdin.take().expect("the input is a pipe").write_all(input).expect("failed to write to install");
    let status = child.wait().expect("failed to wait for install");
    assert!(status.success(), "failed to write {}: install: {status}", target.display());
}
