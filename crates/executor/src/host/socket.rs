//! Where the agent's socket is: the same place for every manager of one state directory.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use muster_fleeting::host::runtime_directory;

use crate::ExecutorError;

/// The system takes 107 bytes; some room is left for a temporary neighbour.
const PATH_MAX_BYTES: usize = 100;
/// Bytes of the longest name in the private directory: a hash of 16 digits, then `.operator.sock`.
const HASHED_NAME_BYTES: usize = 32;

/// The socket of agent `number` for `state_dir`: in it, or, where that path is too long, in a private directory of this user's.
///
/// # Errors
/// [`ExecutorError::File`] if no private directory can be used.
pub fn socket_path(state_dir: &Path, number: u32) -> Result<PathBuf, ExecutorError> {
    let dotted = if number == 0 { String::new() } else { format!(".{number}") };
    named(state_dir, &format!("agent{dotted}.sock"), &format!("{dotted}.sock"))
}

/// The socket at which the manager takes an operator's acts on instances, by the directory of their books: chosen as
/// [`socket_path`] is.
///
/// # Errors
/// As [`socket_path`].
pub fn operator_socket_path(books: &Path) -> Result<PathBuf, ExecutorError> {
    named(books, "operator.sock", ".operator.sock")
}

/// `near` in the directory, or what it is hashed to with `far` behind.
fn named(state_dir: &Path, near: &str, far: &str) -> Result<PathBuf, ExecutorError> {
    let near = state_dir.join(near);
    if near.as_os_str().as_bytes().len() <= PATH_MAX_BYTES {
        return Ok(near);
    }
    let directory = runtime_directory(HASHED_NAME_BYTES).map_err(|error| ExecutorError::File {
        action: "use a private directory for sockets instead of",
        path: state_dir.to_owned(),
        source: io::Error::other(error),
    })?;
    // The same hash in every start of the same build; another build's agent has another spool format anyway.
    let mut hasher = DefaultHasher::new();
    state_dir.as_os_str().as_bytes().hash(&mut hasher);
    Ok(directory.join(format!("{:016x}{far}", hasher.finish())))
}
