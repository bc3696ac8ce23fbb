//! Prerequisites of tests: programs, which `scripts/test` installs or builds if possible, and permissions of the machine.
//!
//! If a prerequisite is missing, a test prints a message and passes. With `MUSTER_TEST_REQUIRE=1` it fails instead, so that CI cannot
//! pass by skipping tests. Permissions are those for cgroups, namespaces, and mounts in namespaces.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::Path;
use std::process::{Command, Stdio};

const REQUIRE: &str = "MUSTER_TEST_REQUIRE";
const SSHD: &str = "/usr/sbin/sshd";

/// Reports a missing prerequisite: the calling test is skipped or fails.
///
/// # Panics
/// With `MUSTER_TEST_REQUIRE=1`.
#[track_caller]
#[expect(clippy::print_stderr, reason = "a skipped test says so, and fails if MUSTER_TEST_REQUIRE is set")]
pub fn missing(what: impl Display) {
    assert!(std::env::var_os(REQUIRE).is_none_or(|value| value != "1"), "{REQUIRE}=1, and {what}");
    eprintln!("skipped: {what}");
}

/// Returns the value of a variable that `scripts/test` sets to the path of something that it has built.
#[track_caller]
#[must_use]
pub fn variable(name: &str, what: &str) -> Option<OsString> {
    let value = std::env::var_os(name);
    if value.is_none() {
        missing(format_args!("{name} does not name {what}: see what scripts/test says of it"));
    }
    value
}

/// Returns whether a program is on `PATH`: called with this argument, it must succeed. `package` is its package in Debian.
#[track_caller]
#[must_use]
pub fn program(name: &str, argument: &str, package: &str) -> bool {
    let asked = Command::new(name).arg(argument).stdin(Stdio::null()).output();
    let has = asked.is_ok_and(|output| output.status.success());
    if !has {
        missing(format_args!("there is no {name} (Debian: {package})"));
    }
    has
}

/// Returns whether cgroups can be created, which the caller has tried.
#[track_caller]
#[must_use]
pub fn cgroups(can_be_made: bool) -> bool {
    if !can_be_made {
        missing(
            "no cgroups can be made here: it takes root and a mounted cgroup file system, or a cgroup that is delegated",
        );
    }
    can_be_made
}

/// Returns whether processes can have their own user and process namespaces.
#[track_caller]
#[must_use]
pub fn namespaces() -> bool {
    can_unshare(&["--user", "--map-current-user", "--pid", "--fork", "true"], "user and process namespaces")
}

/// Returns whether file systems can be mounted in a user namespace. The mount that is tried ends with its namespace.
#[track_caller]
#[must_use]
pub fn mounts() -> bool {
    let place = std::env::temp_dir();
    can_unshare(&["-rm", "mount", "-t", "tmpfs", "none", &place.to_string_lossy()], "mounts in user namespaces")
}

#[track_caller]
fn can_unshare(arguments: &[&str], what: &str) -> bool {
    let tried = Command::new("unshare").args(arguments).stdin(Stdio::null()).output();
    let why = match tried {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    missing(format_args!("this machine allows no {what}: {why}"));
    false
}

/// Returns whether OpenSSH's server can be run.
#[track_caller]
#[must_use]
pub fn sshd() -> bool {
    let has = Path::new(SSHD).exists();
    if has {
        // As root, sshd requires this directory, which the package creates only when the service starts.
        let _ = std::fs::create_dir("/run/sshd");
    } else {
        missing(format_args!("there is no {SSHD} (Debian: openssh-server)"));
    }
    has
}
