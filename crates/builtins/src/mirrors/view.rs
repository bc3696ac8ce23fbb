use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::directory::Mirror;
use super::memory::{Mirrors, Refs};
use super::refspecs::write_refs;
use crate::named_lock::{self, Kind};
use crate::removal::remove_tree;
use crate::trash::Trash;

/// Extensions of a pack's files. `idx` is last, because git looks for it to find complete packs.
const PACK_FILES: [&str; 3] = ["pack", "rev", "idx"];

/// View of a mirror for one job: hard links to packs, and the refs that the job may fetch.
///
/// Later changes of the mirror do not affect it. All users can read it, so that a container can mount it.
#[derive(Debug)]
pub(crate) struct View {
    mirror: Mirror,
    name: String,
    /// Lock file, which shows other agents that the job runs.
    _lock: File,
    /// Seconds after which unused mirrors are removed. 0 means never.
    max_age_s: u64,
    /// Whether the content of the mirror must be removed, because a fetch from the view failed.
    is_broken: bool,
}

impl View {
    /// Creates the view. The caller must hold the lock of the mirror.
    pub(crate) fn create(mirror: Mirror, name: &str, refs: &Refs, max_age_s: u64) -> io::Result<Self> {
        let views = mirror.views();
        let lock = named_lock::try_lock(&views, name, Kind::Exclusive)?;
        let lock = lock.ok_or_else(|| io::Error::other("another job has a view of this name"))?;
        let dir = views.join(name);
        remove_tree(&dir)?;
        let packs = dir.join("repository/objects/pack");
        for path in [&dir, &dir.join("repository"), &dir.join("repository/objects"), &packs] {
            DirBuilder::new().mode(0o755).create(path)?;
            fs::set_permissions(path, Permissions::from_mode(0o755))?;
        }
        link_packs(&mirror.packs(), &packs)?;
        let list = dir.join("repository/packed-refs");
        fs::write(&list, write_refs(refs))?;
        fs::set_permissions(&list, Permissions::from_mode(0o644))?;
        Ok(Self { mirror, name: name.to_owned(), _lock: lock, max_age_s, is_broken: false })
    }

    /// Requests the removal of the mirror's content at the end of the job.
    pub(crate) fn set_broken(&mut self) {
        self.is_broken = true;
    }

    /// Removes this view, views of killed agents, unused mirrors, and the content of a broken mirror.
    pub(crate) fn close(self, mirrors: &Mirrors, trash: &Trash) {
        let Self { mirror, name, _lock, max_age_s, is_broken } = self;
        let views = mirror.views();
        let removed = remove_tree(&views.join(&name)).and_then(|()| named_lock::remove(&views, &name));
        if let Err(error) = removed {
            tracing::warn!(%error, name, "failed to remove the view of a git mirror");
        }
        mirror.remove_abandoned_views();
        if is_broken {
            mirror.discard_content(mirrors);
        }
        if max_age_s > 0 {
            mirror.remove_unused(mirrors, trash, Duration::from_secs(max_age_s));
        }
    }
}

fn link_packs(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let index: PathBuf = entry?.path();
        if index.extension().is_none_or(|end| end != "idx") {
            continue;
        }
        for file in PACK_FILES.map(|end| index.with_extension(end)) {
            let Some(name) = file.file_name() else { continue };
            match fs::symlink_metadata(&file) {
                // Old versions of git write no reverse index.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
                Ok(found) if !found.is_file() => {
                    return Err(io::Error::other(format!("{} is not a regular file", file.display())));
                }
                Ok(_) => {}
            }
            fs::set_permissions(&file, Permissions::from_mode(0o444))?;
            fs::hard_link(&file, to.join(name))?;
        }
    }
    Ok(())
}
