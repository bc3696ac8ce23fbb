//! Where the agent's socket is: the same place for every manager of one state directory.

use std::fs::DirBuilder;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{env, io};

use crate::EnvironmentError;

/// The system takes 107 bytes; some room is left for a temporary neighbour.
const PATH_MAX_BYTES: usize = 100;

/// The socket of agent `number` for `state_dir`: in it, or, where that path is too long, in a private directory of this user's.
///
/// # Errors
/// [`EnvironmentError::File`] where that directory cannot be made, or belongs to someone else.
pub fn socket_path(state_dir: &Path, number: u32) -> Result<PathBuf, EnvironmentError> {
    let dotted = if number == 0 { String::new() } else { format!(".{number}") };
    named(state_dir, &format!("agent{dotted}.sock"), &format!("{dotted}.sock"))
}

/// The socket at which the manager takes an operator's acts on instances, by the directory of their books: chosen as
/// [`socket_path`] is.
///
/// # Errors
/// As [`socket_path`].
pub fn operator_socket_path(books: &Path) -> Result<PathBuf, EnvironmentError> {
    named(books, "operator.sock", ".operator.sock")
}

/// `near` in the directory, or what it is hashed to with `far` behind.
fn named(state_dir: &Path, near: &str, far: &str) -> Result<PathBuf, EnvironmentError> {
    let near = state_dir.join(near);
    if near.as_os_str().as_bytes().len() <= PATH_MAX_BYTES {
        return Ok(near);
    }
    let user = rustix::process::geteuid().as_raw();
    let directory = match env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(runtime) => runtime.join("muster"),
        None => PathBuf::from(format!("/tmp/muster-{user}")),
    };
    private_directory(&directory, user).map_err(|source| EnvironmentError::File {
        action: "use, as a private directory for sockets,",
        path: directory.clone(),
        source,
    })?;
    // The same hash in every start of the same build; another build's agent has another spool format anyway.
    let mut hasher = DefaultHasher::new();
    state_dir.as_os_str().as_bytes().hash(&mut hasher);
    Ok(directory.join(format!("{:016x}{far}", hasher.finish())))
}

/// Makes the directory, or checks that it is this user's and closed to others: /tmp is everyone's.
fn private_directory(path: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = std::fs::symlink_metadata(path)?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is open to other users, or belongs to one"))
}
