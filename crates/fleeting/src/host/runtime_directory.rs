//! The directory for sockets that only this user can access.
//!
//! /tmp is not a candidate, because another user could create a file of the same name there first.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::{env, io};

/// Maximum length of a socket's path in bytes on every supported system, without the terminating zero.
const MAX_SOCKET_PATH_BYTES: usize = 103;

/// No directory can be used for sockets. Each candidate is listed with the reason.
#[derive(Debug, thiserror::Error)]
#[error(
    "no private directory for sockets: {}; set XDG_RUNTIME_DIR to a short path that belongs to this user and that no other \
     user can write",
    list(.tried)
)]
pub struct NoRuntimeDirectory {
    tried: Vec<(PathBuf, io::Error)>,
}

impl NoRuntimeDirectory {
    /// Returns the first error number of the operating system among the reasons.
    pub(super) fn raw_os_error(&self) -> Option<i32> {
        self.tried.iter().find_map(|(_, error)| error.raw_os_error())
    }
}

fn list(tried: &[(PathBuf, io::Error)]) -> String {
    if tried.is_empty() {
        return "neither XDG_RUNTIME_DIR nor HOME is set".to_owned();
    }
    tried.iter().map(|(path, error)| format!("{}: {error}", path.display())).collect::<Vec<_>>().join("; ")
}

/// Returns a private directory of this user for sockets.
/// Names of sockets in it may have up to `name_bytes` bytes.
///
/// The candidates, in this order, are `muster` in XDG_RUNTIME_DIR, `/run/muster` for root, and `run` in Muster's state
/// directory. A candidate is skipped if its path is too long, if it cannot be created, or if another user can access or
/// replace it.
///
/// # Errors
/// [`NoRuntimeDirectory`] if no directory can be used.
pub fn runtime_directory(name_bytes: usize) -> Result<PathBuf, NoRuntimeDirectory> {
    let is_root = rustix::process::geteuid().is_root();
    first_private(candidates(is_root, |name| env::var_os(name)), name_bytes)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    path: PathBuf,
    /// Whether missing parents are created, as for the state directory.
    /// The parent of a runtime directory belongs to the system and is not created.
    with_parents: bool,
}

fn candidates(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Vec<Candidate> {
    let directory = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = if is_root {
        Some(PathBuf::from("/var/lib"))
    } else {
        directory("XDG_STATE_HOME").or_else(|| Some(directory("HOME")?.join(".local/state")))
    };
    let runtime = [directory("XDG_RUNTIME_DIR"), is_root.then(|| PathBuf::from("/run"))].into_iter().flatten();
    let runtime = runtime.map(|path| Candidate { path: path.join("muster"), with_parents: false });
    let state = state.map(|path| Candidate { path: path.join("muster/run"), with_parents: true });
    runtime.chain(state).collect()
}

fn first_private(candidates: Vec<Candidate>, name_bytes: usize) -> Result<PathBuf, NoRuntimeDirectory> {
    let mut tried = Vec::new();
    for candidate in candidates {
        match prepare(&candidate, name_bytes) {
            Ok(()) => return Ok(candidate.path),
            Err(error) => tried.push((candidate.path, error)),
        }
    }
    Err(NoRuntimeDirectory { tried })
}

/// Creates the directory if it is missing, and checks that no other user can reach or replace it.
fn prepare(Candidate { path, with_parents }: &Candidate, name_bytes: usize) -> io::Result<()> {
    let bytes = path.as_os_str().as_bytes().len() + 1 + name_bytes;
    if bytes > MAX_SOCKET_PATH_BYTES {
        let text = format!("too long: a socket path in it has {bytes} bytes, the maximum is {MAX_SOCKET_PATH_BYTES}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    if *with_parents {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    muster_files::own_directory(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn directory(mode: u32) -> tempfile::TempDir {
        let directory = tempfile::Builder::new().prefix("m").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(mode)).unwrap();
        directory
    }

    fn candidate(path: PathBuf) -> Candidate {
        Candidate { path, with_parents: false }
    }

    #[test]
    fn candidates_depend_on_the_user_and_the_variables() {
        let variables = |name: &str| match name {
            "XDG_RUNTIME_DIR" => Some("/run/user/7".into()),
            "HOME" => Some("/home/seven".into()),
            _ => None,
        };
        let paths = |candidates: Vec<Candidate>| {
            candidates.into_iter().map(|candidate| candidate.path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(paths(candidates(true, variables)), ["/run/user/7/muster", "/run/muster", "/var/lib/muster/run"]);
        assert_eq!(paths(candidates(false, variables)), ["/run/user/7/muster", "/home/seven/.local/state/muster/run"]);
        assert_eq!(paths(candidates(false, |_| None)), [""; 0]);
        let relative = |_: &str| Some("somewhere".into());
        assert_eq!(paths(candidates(false, relative)), [""; 0], "relative paths must be ignored");
    }

    #[test]
    fn state_directory_is_created_with_its_parents() {
        let home = directory(0o700);
        let path = home.path().join("state/muster/run");
        let chosen = first_private(vec![Candidate { path: path.clone(), with_parents: true }], 20).unwrap();
        assert_eq!((chosen, std::fs::metadata(&path).unwrap().permissions().mode() & 0o777), (path, 0o700));
    }

    #[test]
    fn shared_directories_are_skipped_and_the_error_says_why() {
        let [open, shared, linked, good] = [directory(0o755), directory(0o777), directory(0o1777), directory(0o700)];
        std::fs::create_dir(open.path().join("muster")).unwrap();
        std::fs::set_permissions(open.path().join("muster"), PermissionsExt::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(good.path(), linked.path().join("muster")).unwrap();
        let deep = good.path().join("d".repeat(90));
        let bad = [open.path(), shared.path(), linked.path(), &deep, Path::new("/proc/none")];
        let with_last = |last: &[&Path]| bad.iter().chain(last).map(|path| candidate(path.join("muster"))).collect();
        assert_eq!(first_private(with_last(&[good.path()]), 20).unwrap(), good.path().join("muster"));
        assert_eq!(std::fs::metadata(good.path().join("muster")).unwrap().permissions().mode() & 0o777, 0o700);
        let error = first_private(with_last(&[]), 20).unwrap_err().to_string();
        for reason in ["chmod 700", "another user can replace it", "too long", "No such file", "set XDG_RUNTIME_DIR"] {
            assert!(error.contains(reason), "{reason} is not in {error}");
        }
        assert!(first_private(Vec::new(), 20).unwrap_err().to_string().contains("nor HOME is set"));
    }
}
