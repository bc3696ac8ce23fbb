//! Prerequisites of tests: programs, which `scripts/test` installs or builds if possible, and permissions of the
//! machine.
//!
//! If a prerequisite is missing, a test passes with a message. With `MUSTER_TEST_REQUIRE=1`, it fails.

mod docker;
mod images;
mod mounts;
mod openbao;
mod podman;
mod programs;
mod registry;
mod remote;

pub mod object_stores;

use std::ffi::OsString;
use std::fmt::Display;
use std::path::Path;
use std::process::{Command, Stdio};

pub use docker::DockerEngine;
pub use images::{bash_root, busybox_root, shellless_root};
pub use mounts::{mounts, run_with_mounts};
pub use openbao::OpenBao;
pub use podman::PodmanUser;
pub use programs::{copy_program, create_program};
pub use registry::{DockerRegistry, REGISTRY_PASSWORD, REGISTRY_USER};
pub use remote::{RemoteEngine, certificates};

const REQUIRE: &str = "MUSTER_TEST_REQUIRE";
const SSHD: &str = "/usr/sbin/sshd";

/// Reports a missing prerequisite. The caller then returns from its test.
///
/// # Panics
/// If `MUSTER_TEST_REQUIRE=1` is set.
#[track_caller]
#[expect(clippy::print_stderr, reason = "a skipped test prints why")]
pub fn missing(message: impl Display) {
    assert!(std::env::var_os(REQUIRE).is_none_or(|value| value != "1"), "{REQUIRE}=1, but {message}");
    eprintln!("skipped: {message}");
}

/// Reports a property of the machine that no installation can change. The caller then returns from its test.
#[expect(clippy::print_stderr, reason = "a skipped test prints why")]
pub fn unsuitable(message: impl Display) {
    eprintln!("skipped: {message}");
}

/// Returns a variable that `scripts/test` sets to the path of a program that it has built. `description` names the
/// program.
#[track_caller]
#[must_use]
pub fn variable(name: &str, description: &str) -> Option<OsString> {
    let value = std::env::var_os(name);
    if value.is_none() {
        missing(format_args!("{name} is not set to the path of {description}; scripts/test prints why"));
    }
    value
}

/// Returns whether a program is on `PATH` and succeeds with this argument. `package` is its Debian package.
#[track_caller]
#[must_use]
pub fn program(name: &str, argument: &str, package: &str) -> bool {
    let output = Command::new(name).arg(argument).stdin(Stdio::null()).output();
    let works = output.is_ok_and(|output| output.status.success());
    if !works {
        missing(format_args!("{name} is not installed (Debian: {package})"));
    }
    works
}

/// Returns `can_be_created`, and reports missing permissions for cgroups if it is false.
#[track_caller]
#[must_use]
pub fn cgroups(can_be_created: bool) -> bool {
    if !can_be_created {
        missing(
            "cgroups cannot be created: this requires root and a mounted cgroup file system, or a delegated cgroup",
        );
    }
    can_be_created
}

/// Returns whether user and process namespaces can be created.
#[track_caller]
#[must_use]
pub fn namespaces() -> bool {
    can_unshare(&["--user", "--map-current-user", "--pid", "--fork", "true"], "user and process namespaces")
}

#[track_caller]
fn can_unshare(arguments: &[&str], description: &str) -> bool {
    let output = Command::new("unshare").args(arguments).stdin(Stdio::null()).output();
    let reason = match output {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    missing(format_args!("this machine does not permit {description}: {reason}"));
    false
}

/// Returns whether the OpenSSH server is installed.
#[track_caller]
#[must_use]
pub fn sshd() -> bool {
    let exists = Path::new(SSHD).exists();
    if exists {
        // sshd requires this directory if it runs as root. The package creates it only when the service starts.
        let _ = std::fs::create_dir("/run/sshd");
    } else {
        missing(format_args!("{SSHD} does not exist (Debian: openssh-server)"));
    }
    exists
}
