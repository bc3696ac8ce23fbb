//! Paths of the sockets of a manager and its agents.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use muster_fleeting::host::runtime_directory;
use sha2::{Digest as _, Sha256};

use crate::ExecutorError;

/// Maximum length of a socket's path in bytes. The system allows 107.
const MAX_PATH_BYTES: usize = 100;
/// Maximum length in bytes of a name in the private directory: 16 digits and `.operator.sock`.
const HASHED_NAME_BYTES: usize = 32;
/// Number of hexadecimal digits of a hash.
const HASH_DIGITS: usize = 16;

/// Returns the path of the socket of agent `number`.
///
/// The socket is in `state_dir`, or in a private directory if that path is too long.
///
/// # Errors
/// [`ExecutorError::File`] if no private directory can be used.
pub fn socket_path(state_dir: &Path, number: u32) -> Result<PathBuf, ExecutorError> {
    let dotted = if number == 0 { String::new() } else { format!(".{number}") };
    path_or_hash(state_dir, &format!("agent{dotted}.sock"), &format!("{dotted}.sock"))
}

/// Returns the path of the socket that accepts operator actions.
///
/// `ledgers` is the directory of the instances' ledgers. The path is chosen as in [`socket_path`].
///
/// # Errors
/// [`ExecutorError::File`] if no private directory can be used.
pub fn operator_socket_path(ledgers: &Path) -> Result<PathBuf, ExecutorError> {
    path_or_hash(ledgers, "operator.sock", ".operator.sock")
}

/// Returns the path of `name` in `state_dir`. If that path is too long, returns a path in the private directory, whose
/// file name is a hash of `state_dir` followed by `suffix`.
fn path_or_hash(state_dir: &Path, name: &str, suffix: &str) -> Result<PathBuf, ExecutorError> {
    let path = state_dir.join(name);
    if path.as_os_str().as_bytes().len() <= MAX_PATH_BYTES {
        return Ok(path);
    }
    let directory = runtime_directory(HASHED_NAME_BYTES).map_err(|error| ExecutorError::File {
        action: "create a private directory for sockets instead of",
        path: state_dir.to_owned(),
        source: io::Error::other(error),
    })?;
    // All versions must compute the same hash, because a manager finds the agent of an earlier version by this path.
    let hash = format!("{:x}", Sha256::digest(state_dir.as_os_str().as_bytes()));
    Ok(directory.join(format!("{}{suffix}", hash.get(..HASH_DIGITS).unwrap_or(&hash))))
}
