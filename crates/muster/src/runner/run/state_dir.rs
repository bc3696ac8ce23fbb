//! Location of a manager's state. It never changes, so that restarts and upgrades find the state.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::paths;

const HASH_DIGITS: usize = 12;

/// Returns the state directory for a configuration file. Its name is `runner` for the default file, or else
/// `runner-<hash of the path>`.
///
/// Returns `None` if the user is not root, has no home directory, and has not set XDG_STATE_HOME.
pub(super) fn for_config(config: &Path) -> Option<PathBuf> {
    Some(base()?.join(name(config, &paths::default_config_file())))
}

fn name(config: &Path, default: &Path) -> String {
    let resolve = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if resolve(config) == resolve(default) {
        return "runner".to_owned();
    }
    // The hash is that of the unresolved path: the target of a ConfigMap's symlink changes with every update.
    format!("runner-{}", digest(config.as_os_str().as_encoded_bytes()))
}

pub(super) fn for_runner(runner: &str) -> Option<PathBuf> {
    Some(base()?.join(format!("single-{}", digest(runner.as_bytes()))))
}

fn digest(bytes: &[u8]) -> String {
    let digest = format!("{:x}", Sha256::digest(bytes));
    digest.get(..HASH_DIGITS).map_or(digest.clone(), str::to_owned)
}

fn base() -> Option<PathBuf> {
    if paths::is_root() {
        return Some(PathBuf::from("/var/lib/muster"));
    }
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    Some(state.or_else(|| paths::home().map(|home| home.join(".local/state")))?.join("muster"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_directory_is_stable_and_unique_per_file() {
        let home = tempfile::tempdir().unwrap();
        let (default, other) = (home.path().join("config.toml"), home.path().join("other.toml"));
        std::fs::write(&default, "").unwrap();
        std::os::unix::fs::symlink("config.toml", home.path().join("link.toml")).unwrap();
        assert_eq!(name(&default, &default), "runner");
        assert_eq!(
            name(&home.path().join("link.toml"), &default),
            "runner",
            "a link to the default file must have the same state"
        );
        assert_ne!(name(&other, &default), "runner");
        assert_eq!(name(&other, &default), name(&other, &default));
    }
}
