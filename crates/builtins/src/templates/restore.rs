//! Restores a directory to the state of a [`Tree`] with as few changes as possible.
//!
//! A file or directory is unchanged if its inode and ctime are, because programs cannot set the ctime. After a very
//! recent restore, a change could have the same ctime, so contents are compared.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::tree::{Content, Entry, Kind, Tree, permissions};
use crate::trash::Trash;

/// Time within which two changes can have the same ctime. The clock of the ctime has a resolution of up to 10 ms.
const CTIME_RESOLUTION: Duration = Duration::from_millis(20);

/// Identity and ctime of a file or directory, which reveal a later change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl FileStamp {
    fn new(metadata: &fs::Metadata) -> Self {
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        Self { device: metadata.dev(), inode: metadata.ino(), changed }
    }

    /// Returns whether changes after `now` get another ctime.
    fn is_stable(&self, now: SystemTime) -> bool {
        let limit = now.checked_sub(CTIME_RESOLUTION).and_then(|limit| limit.duration_since(UNIX_EPOCH).ok());
        let limit = limit.unwrap_or_default();
        self.changed < (i64::try_from(limit.as_secs()).unwrap_or(i64::MAX), i64::from(limit.subsec_nanos()))
    }
}

/// Stamps of the root and of each entry of a tree after a restore. `None` means unknown.
#[derive(Debug, Default)]
pub(super) struct FileStamps(Vec<Option<FileStamp>>);

pub(super) struct Restore<'a> {
    pub(super) tree: &'a Tree,
    /// Directory to restore. Its parent must exist.
    pub(super) target: &'a Path,
    /// Whether to restore only the repository without its index.
    pub(super) bare: bool,
    /// Receives directories that are not in the tree.
    pub(super) trash: &'a Trash,
    /// Called before each entry. The restore fails if it returns false.
    pub(super) should_continue: &'a dyn Fn() -> bool,
    /// Result of the last restore of the same tree, or empty.
    pub(super) last_stamps: FileStamps,
}

impl Restore<'_> {
    /// Restores the directory. Returns its state for the next restore.
    ///
    /// # Errors
    /// If a file cannot be used, or `should_continue` returned false. The directory is then incomplete.
    pub(super) fn run(self) -> io::Result<FileStamps> {
        let stamps = vec![None; self.tree.entries.len() + 1];
        let mut run =
            RestoreRun { uid: rustix::process::geteuid().as_raw(), stamps: FileStamps(stamps), restore: self };
        run.directory(0, run.restore.target.to_owned(), run.restore.tree.mode, false)?;
        let (mut stamps, time) = (run.stamps, SystemTime::now());
        // Until now, only this restore has changed the files, so each stamp belongs to the content of the tree. A stamp
        // is dropped if a later change could get the same ctime.
        for stamp in &mut stamps.0 {
            *stamp = stamp.filter(|stamp| stamp.is_stable(time));
        }
        Ok(stamps)
    }
}

/// State of a running restore. Index 0 of `stamps` is the root, and index 1 the first entry.
struct RestoreRun<'a> {
    restore: Restore<'a>,
    uid: u32,
    stamps: FileStamps,
}

impl RestoreRun<'_> {
    /// Restores a directory with its content. Returns whether it was created.
    ///
    /// `parent_is_new` means that the directory cannot exist.
    fn directory(&mut self, stamp_index: usize, path: PathBuf, mode: u32, parent_is_new: bool) -> io::Result<bool> {
        let found = if parent_is_new { None } else { metadata_if_exists(&path)? };
        let found = match found {
            Some(found) if found.is_dir() && found.uid() == self.uid => Some(found),
            Some(_) => {
                self.discard(&path)?;
                None
            }
            None => None,
        };
        let is_new = found.is_none();
        let mut changed = is_new;
        if let Some(found) = &found {
            if permissions(found) != mode {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
                changed = true;
            }
            if !self.is_unchanged(stamp_index, found) {
                changed |= self.remove_untracked(&path, stamp_index)?;
            }
        } else {
            fs::DirBuilder::new().mode(mode).create(&path)?;
        }
        for child in self.children(stamp_index) {
            changed |= self.entry(child, is_new)?;
        }
        let current = match found {
            Some(found) if !changed => FileStamp::new(&found),
            _ => FileStamp::new(&fs::symlink_metadata(&path)?),
        };
        self.record(stamp_index, current);
        Ok(is_new)
    }

    fn entry(&mut self, index: usize, parent_is_new: bool) -> io::Result<bool> {
        if !(self.restore.should_continue)() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let tree = self.restore.tree;
        let Some(entry) = tree.entries.get(index) else { return Ok(false) };
        let path = self.restore.target.join(&entry.path);
        match &entry.kind {
            Kind::Directory { mode, .. } => self.directory(index + 1, path, *mode, parent_is_new),
            Kind::Link(to) => self.link(&path, to, parent_is_new),
            Kind::File(content) => self.file(index + 1, &path, (&entry.path, content), parent_is_new),
        }
    }

    fn link(&self, path: &Path, to: &Path, parent_is_new: bool) -> io::Result<bool> {
        if !parent_is_new && let Some(found) = metadata_if_exists(path)? {
            if found.is_symlink() && fs::read_link(path)? == to {
                return Ok(false);
            }
            self.discard(path)?;
        }
        std::os::unix::fs::symlink(to, path)?;
        Ok(true)
    }

    fn file(
        &mut self,
        stamp_index: usize,
        path: &Path,
        (name, content): (&Path, &Content),
        parent_is_new: bool,
    ) -> io::Result<bool> {
        if !parent_is_new && let Some(found) = metadata_if_exists(path)? {
            let is_intact = self.has_same_metadata(content, &found)
                && (self.is_unchanged(stamp_index, &found) || self.restore.tree.has_bytes(name, content, path)?);
            if is_intact {
                self.record(stamp_index, FileStamp::new(&found));
                return Ok(false);
            }
            self.discard(path)?;
        }
        let file = self.restore.tree.write(name, content, path)?;
        self.record(stamp_index, FileStamp::new(&file.metadata()?));
        Ok(true)
    }

    /// Returns whether everything except the content equals the tree.
    ///
    /// Returns false for several hard links, because the file can change through another path.
    fn has_same_metadata(&self, content: &Content, found: &fs::Metadata) -> bool {
        found.is_file()
            && found.nlink() == 1
            && found.uid() == self.uid
            && found.len() == content.size
            && permissions(found) == content.mode
            && (found.mtime(), found.mtime_nsec()) == (content.modified.tv_sec, content.modified.tv_nsec)
    }

    fn is_unchanged(&self, stamp_index: usize, found: &fs::Metadata) -> bool {
        self.restore.last_stamps.0.get(stamp_index).copied().flatten() == Some(FileStamp::new(found))
    }

    fn record(&mut self, stamp_index: usize, current: FileStamp) {
        if let Some(slot) = self.stamps.0.get_mut(stamp_index) {
            *slot = Some(current);
        }
    }

    /// Removes entries that are not in the tree. Returns whether there were any.
    fn remove_untracked(&self, path: &Path, stamp_index: usize) -> io::Result<bool> {
        let entries = &self.restore.tree.entries;
        let children = self.children(stamp_index);
        let known: HashSet<&OsStr> =
            children.iter().filter_map(|child| entries.get(*child)?.path.file_name()).collect();
        let mut removed = false;
        for found in fs::read_dir(path)? {
            let found = found?;
            if !known.contains(&*found.file_name()) {
                self.discard(&found.path())?;
                removed = true;
            }
        }
        Ok(removed)
    }

    /// Returns the indexes of the direct entries of a directory.
    fn children(&self, stamp_index: usize) -> Vec<usize> {
        let entries = &self.restore.tree.entries;
        let range: Range<usize> = match stamp_index.checked_sub(1).and_then(|index| entries.get(index)) {
            // The first child follows the directory in `entries`, so its index there is `stamp_index`.
            Some(Entry { kind: Kind::Directory { end, .. }, .. }) => stamp_index..*end,
            _ => 0..entries.len(),
        };
        let mut children = Vec::new();
        let mut index = range.start;
        while let Some(entry) = entries.get(index).filter(|_| range.contains(&index)) {
            if !self.restore.bare || is_repository(&entry.path) {
                children.push(index);
            }
            index = match entry.kind {
                Kind::Directory { end, .. } => end.max(index + 1),
                _ => index + 1,
            };
        }
        children
    }

    fn discard(&self, path: &Path) -> io::Result<()> {
        if fs::symlink_metadata(path)?.is_dir() {
            self.restore.trash.discard_from(path, self.restore.target)
        } else {
            fs::remove_file(path)
        }
    }
}

/// Returns whether a bare checkout includes a path.
fn is_repository(path: &Path) -> bool {
    path.starts_with(".git") && path != Path::new(".git/index")
}

fn metadata_if_exists(path: &Path) -> io::Result<Option<fs::Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
