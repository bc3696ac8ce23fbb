//! What tests need of the machine: programs that `scripts/test` installs or builds where it can.
//!
//! Where one is missing, a test says so and passes; with `MUSTER_TEST_REQUIRE=1` it fails instead, so that CI cannot be green
//! by what it leaves out. The same holds for what the machine itself must allow: cgroups, namespaces and mounts in them.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::Path;
use std::process::{Command, Stdio};

const REQUIRE: &str = "MUSTER_TEST_REQUIRE";
const SSHD: &str = "/usr/sbin/sshd";

/// This is not here: the calling test is skipped, or fails.
///
/// # Panics
/// With `MUSTER_TEST_REQUIRE=1`.
#[track_caller]
#[expect(clippy::print_stderr, reason = "what is skipped is told, and fails where that is asked for")]
pub fn missing(what: impl Display) {
    assert!(std::env::var_os(REQUIRE).is_none_or(|value| value != "1"), "{REQUIRE}=1, and {what}");
    eprintln!("skipped: {what}");
}

/// The value of a variable that `scripts/test` sets to what it has built.
#[track_caller]
#[must_use]
pub fn variable(name: &str, what: &str) -> Option<OsString> {
    let value = std::env::var_os(name);
    if value.is_none() {
        missing(format_args!("{name} does not name {what}: see what scripts/test says of it"));
    }
    value
}

/// Whether a program is on `PATH`, as it is told with this argument; `package` is Debian's.
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

/// Whether cgroups can be made, as the caller has found out.
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

/// Whether processes can have user and process namespaces of their own.
#[track_caller]
#[must_use]
pub fn namespaces() -> bool {
    can_unshare(&["--user", "--map-current-user", "--pid", "--fork", "true"], "user and process namespaces")
}

/// Whether file systems can be mounted in a user namespace. What is mounted to find out ends with that namespace.
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

/// Whether OpenSSH's server can be run.
#[track_caller]
#[must_use]
pub fn sshd() -> bool {
    let has = Path::new(SSHD).exists();
    if has {
        // It wants it, where it runs as root, and a package makes it only when the service starts.
        let _ = std::fs::create_dir("/run/sshd");
    } else {
        missing(format_args!("there is no {SSHD} (Debian: openssh-server)"));
    }
    has
}
