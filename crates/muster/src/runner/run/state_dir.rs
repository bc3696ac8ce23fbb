//! Where the state of the manager of one configuration is: always the same place for the same file, so that a restart
//! and an upgrade find it, and another one for each file.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::paths;

/// Hexadecimal digits of the path's hash.
const DIGITS: usize = 12;

/// `runner` below the base for the default file, `runner-<hash of the path>` for others. None where the user has no home.
pub(super) fn of(config: &Path) -> Option<PathBuf> {
    Some(base()?.join(name(config, &paths::default_config_file())))
}

fn name(config: &Path, default: &Path) -> String {
    let same = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if same(config) == same(default) {
        return "runner".to_owned();
    }
    // The path and not what its links lead to: a ConfigMap leads elsewhere after each change.
    format!("runner-{}", digest(config.as_os_str().as_encoded_bytes()))
}

/// The state of a runner that is in no file: by what it is known as at its server.
pub(super) fn of_runner(runner: &str) -> Option<PathBuf> {
    Some(base()?.join(format!("single-{}", digest(runner.as_bytes()))))
}

fn digest(bytes: &[u8]) -> String {
    let digest = format!("{:x}", Sha256::digest(bytes));
    digest.get(..DIGITS).map_or(digest.clone(), str::to_owned)
}

/// /var/lib/muster for root, else the user's state directory.
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
    fn each_file_has_a_place_of_its_own_that_stays() {
        let home = tempfile::tempdir().unwrap();
        let (default, other) = (home.path().join("config.toml"), home.path().join("other.toml"));
        std::fs::write(&default, "").unwrap();
        std::os::unix::fs::symlink("config.toml", home.path().join("link.toml")).unwrap();
        assert_eq!(name(&default, &default), "runner");
        assert_eq!(name(&home.path().join("link.toml"), &default), "runner", "it is the same file");
        assert_ne!(name(&other, &default), "runner");
        assert_eq!(name(&other, &default), name(&other, &default));
    }
}
