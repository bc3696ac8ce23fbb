//! The directory for a plugin's socket: of its own, so that nobody else can put a socket there.
//!
//! It is removed with the process. A host that was killed cannot do that: the next one does, where nobody has the lock of such
//! a directory any more.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use tempfile::TempDir;

const PREFIX: &str = "muster-plugin-";
/// Held by the host whose directory it is.
const LOCK: &str = ".lock";
/// A directory is younger than this while its lock is made.
const YOUNG: Duration = Duration::from_secs(60);
/// Directories of dead hosts that one start removes at most.
const LEFT_MAX: usize = 1000;

/// A directory of this host. Removed when it is dropped.
#[derive(Debug)]
pub(super) struct Sockets {
    directory: TempDir,
    _lock: File,
}

impl Sockets {
    pub(super) fn new() -> std::io::Result<Self> {
        static ONCE: Once = Once::new();
        let place = std::env::temp_dir();
        ONCE.call_once(|| clear(&place));
        Self::within(&place)
    }

    fn within(place: &Path) -> std::io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        let directory = builder.prefix(PREFIX).permissions(Permissions::from_mode(0o700)).tempdir_in(place)?;
        let lock = File::create(directory.path().join(LOCK)).and_then(|lock| lock.lock().map(|()| lock));
        match lock {
            Ok(lock) => Ok(Self { directory, _lock: lock }),
            Err(error) => {
                // Without its lock nobody would know it as left. Where no file can be opened, only this removes it.
                let _ = std::fs::remove_dir(directory.path());
                Err(error)
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes what hosts left here that are no more. What cannot be looked into is somebody else's.
fn clear(place: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    let ours = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    for left in ours.map(|entry| entry.path()).filter(is_left).take(LEFT_MAX) {
        tracing::debug!(directory = %left.display(), "a host that is no more left this; it is removed");
        // Whatever stays is looked at by the next host.
        let _ = std::fs::remove_dir_all(left);
    }
}

fn is_left(directory: &PathBuf) -> bool {
    let age = std::fs::symlink_metadata(directory).and_then(|metadata| metadata.modified()).ok();
    let is_young = age.and_then(|at| at.elapsed().ok()).is_none_or(|age| age < YOUNG);
    if is_young {
        return false;
    }
    match File::open(directory.join(LOCK)) {
        Ok(lock) => lock.try_lock().is_ok(),
        // A host of an earlier version made none; or it is not ours to look into.
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_host_left_is_removed_and_what_lives_stays() {
        let place = tempfile::tempdir().unwrap();
        let old = |sockets: &Sockets| {
            let at = std::time::SystemTime::now() - Duration::from_secs(3600);
            File::open(sockets.path()).unwrap().set_modified(at).unwrap();
        };
        let [lives, mut killed, young] = std::array::from_fn(|_| Sockets::within(place.path()).unwrap());
        let others = place.path().join("muster-plugin-others");
        std::fs::create_dir(&others).unwrap();
        std::fs::write(killed.path().join("plugin1"), "").unwrap();
        old(&lives);
        old(&killed);
        let left = killed.path().to_owned();
        // A kill closes the lock and removes nothing.
        killed.directory.disable_cleanup(true);
        drop(killed);
        // A process that another test is just starting has a copy of the lock for a moment.
        let since = std::time::Instant::now();
        while left.exists() && since.elapsed() < YOUNG {
            clear(place.path());
        }
        assert!(!left.exists());
        assert!(lives.path().exists() && young.path().exists() && others.exists());
    }
}
