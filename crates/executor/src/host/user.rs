//! Runs the agent, and with it the jobs, as another user (`docs/spec/job-execution.md`, section 4.6).

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Gid, Uid};

use super::HostOptions;
use crate::ExecutorError;

/// Returns the working directory of the agent, with its spool and socket.
pub(super) fn agent_dir(options: &HostOptions) -> PathBuf {
    match &options.user {
        Some(user) => options.state_dir.join(format!("agent-{user}")),
        None => options.state_dir.clone(),
    }
}

/// User and group that own the agent's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) user: Uid,
    pub(super) group: Gid,
}

impl Owner {
    /// Returns the IDs of the user `name` and of the user's group, even if only a directory service knows the user.
    pub(super) fn lookup(name: &str) -> Result<Self, ExecutorError> {
        let fail = |message: String| ExecutorError::User { name: name.to_owned(), message };
        // Such names could be an option of `id`, or lead out of the state directory.
        if name.is_empty() || name.starts_with('-') || name.contains(['/', '\0']) {
            return Err(fail("invalid user name".to_owned()));
        }
        let id = |flag: &str| {
            let output = Command::new("id").args([flag, name]).output().map_err(|error| fail(error.to_string()))?;
            let number = String::from_utf8_lossy(&output.stdout).trim().parse::<u32>();
            number.map_err(|_| fail(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
        };
        Ok(Self { user: Uid::from_raw(id("-u")?), group: Gid::from_raw(id("-g")?) })
    }
}

/// Lets other users reach their directories below this directory.
pub(super) fn allow_traversal(path: &Path) -> io::Result<()> {
    let directory = File::open(path)?;
    let mode = directory.metadata()?.permissions().mode();
    directory.set_permissions(Permissions::from_mode(mode | 0o111))
}

/// Wraps a command in `su`, so that it runs with all groups of `user`, as after a login.
pub(super) fn as_user(user: &str, command: &Command) -> Command {
    let mut line = OsString::from("exec");
    for word in std::iter::once(command.get_program()).chain(command.get_args()) {
        line.push(" ");
        line.push(quote(word.as_bytes()));
    }
    let mut su = Command::new("su");
    su.args(["-s", "/bin/sh", user, "-c"]).arg(line);
    su
}

fn quote(word: &[u8]) -> OsString {
    let mut out = vec![b'\''];
    for byte in word {
        match byte {
            b'\'' => out.extend_from_slice(br"'\''"),
            byte => out.push(*byte),
        }
    }
    out.push(b'\'');
    OsString::from_vec(out)
}
