//! Writes entries of an archive.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use filetime::FileTime;
use rustix::fs::OFlags;

use crate::UnpackError;
use crate::meter::Meter;
use crate::place::{CHUNK, FilePlace, PutError, create_or_replace};
use crate::read::{Entry, EntryKind};
use crate::skipped::SkippedEntries;

/// Writes entries below an open directory. [`Tree::finish`] adds links and attributes of directories.
pub struct Tree<'a> {
    root: &'a Dir,
    /// Last used directory. `None` means the root.
    current: Option<(PathBuf, Arc<Dir>)>,
    /// Links of the archive with their targets, which are created at the end.
    links: BTreeMap<PathBuf, PathBuf>,
    /// Permissions and times of directories, which are set at the end, because a read-only directory cannot be filled.
    attributes: BTreeMap<PathBuf, (u32, Option<FileTime>)>,
    meter: &'a Meter<'a>,
    skipped: SkippedEntries,
    /// Position in the archive of the entry that was added last. [`Tree::finish`] gives the next numbers to links that
    /// it skips.
    last_order: u64,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Tree<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("links", &self.links).field("skipped", &self.skipped).finish_non_exhaustive()
    }
}

impl<'a> Tree<'a> {
    /// Returns a tree below `root`. The meter counts implied directories, and bytes that stay in memory.
    #[must_use]
    pub fn new(root: &'a Dir, meter: &'a Meter<'a>) -> Self {
        Self {
            root,
            current: None,
            links: BTreeMap::new(),
            attributes: BTreeMap::new(),
            meter,
            skipped: SkippedEntries::default(),
            last_order: 0,
            buffer: vec![0; CHUNK],
        }
    }

    /// Writes one entry. Skips it if it is below a link of the archive, conflicts with a directory, or has a name or
    /// permissions that the file system rejects.
    ///
    /// # Errors
    /// [`UnpackError::Io`] if writing fails, [`UnpackError::Broken`] if the content cannot be read, or the error of the
    /// meter.
    pub fn add(&mut self, entry: &Entry, content: &mut dyn Read) -> Result<(), UnpackError> {
        self.last_order += 1;
        let Some(place) = self.add_without_content(entry, self.last_order)? else { return Ok(()) };
        let mut buffer = std::mem::take(&mut self.buffer);
        let written = place.write(self.root, content, &mut buffer);
        self.buffer = buffer;
        self.settle(entry, self.last_order, written)
    }

    /// Adds one entry except a file's content. `order` is its position in the archive.
    ///
    /// Returns the place of a file. `None` means another kind of entry, or a skipped one.
    pub(crate) fn add_without_content(&mut self, entry: &Entry, order: u64) -> Result<Option<FilePlace>, UnpackError> {
        self.last_order = order;
        if let Some(link) = self.link_above(&entry.path) {
            let reason = format!("it is below the link `{}` of the archive", link.display());
            self.skipped.add(order, &entry.path, &reason);
            return Ok(None);
        }
        // The last of several entries with the same name is used.
        self.links.remove(&entry.path);
        match self.put(entry) {
            Ok(place) => Ok(place),
            Err(error) => self.settle(entry, order, Err(error)).map(|()| None),
        }
    }

    /// Handles the result of writing an entry. An entry with a conflict counts as skipped.
    ///
    /// # Errors
    /// Any other error.
    pub(crate) fn settle(
        &mut self,
        entry: &Entry,
        order: u64,
        written: Result<(), PutError>,
    ) -> Result<(), UnpackError> {
        match written {
            Err(PutError::Write(error)) if is_conflict(&error) => {
                self.skipped.add(order, &entry.path, &error);
                Ok(())
            }
            written => written.map_err(|error| error.into_unpack_error(&entry.path)),
        }
    }

    fn put(&mut self, entry: &Entry) -> Result<Option<FilePlace>, PutError> {
        if entry.kind == EntryKind::Directory {
            self.enter_directory(&entry.path, &entry.path)?;
            // Do not change the attributes of the root, which belongs to the caller.
            if !entry.path.as_os_str().is_empty() {
                self.meter.count_retained(entry.path.as_os_str().len())?;
                self.attributes.insert(entry.path.clone(), (entry.mode.unwrap_or(0o755), entry.modified));
            }
            return Ok(None);
        }
        let (parent, name) = split(&entry.path)?;
        self.enter_directory(parent, &entry.path)?;
        if let EntryKind::Link(target) = &entry.kind {
            self.meter.count_retained(entry.path.as_os_str().len() + target.as_os_str().len())?;
            self.links.insert(entry.path.clone(), target.clone());
            return Ok(None);
        }
        let dir = self.current.as_ref().map(|(_, dir)| Arc::clone(dir));
        Ok(Some(FilePlace::new(dir, name, entry.mode.unwrap_or(0o644), entry.modified)))
    }

    /// Returns the link of the archive above a path, if there is one.
    fn link_above(&self, path: &Path) -> Option<PathBuf> {
        if self.links.is_empty() {
            return None;
        }
        path.ancestors().skip(1).find(|above| self.links.contains_key(*above)).map(Path::to_owned)
    }

    fn current(&self) -> &Dir {
        self.current.as_ref().map_or(self.root, |(_, dir)| dir.as_ref())
    }

    /// Makes a directory the current one, and creates the missing directories of its path.
    ///
    /// The meter counts each created directory, except the one with the path `entry`: that entry of the archive was
    /// counted when it was read.
    fn enter_directory(&mut self, path: &Path, entry: &Path) -> Result<(), PutError> {
        if path.as_os_str().is_empty() {
            self.current = None;
        } else if self.current.as_ref().is_none_or(|(current, _)| current != path) {
            let dir = match self.root.open_dir(path) {
                Ok(dir) => dir,
                Err(_) => self.create_directories(path, entry)?,
            };
            self.current = Some((path.to_owned(), Arc::new(dir)));
        }
        Ok(())
    }

    fn create_directories(&self, path: &Path, entry: &Path) -> Result<Dir, PutError> {
        // The existing part of the path is opened from the root, because it may contain links. Each further directory
        // is opened from its parent, which is faster for a deep path.
        let existing = path.ancestors().skip(1).find_map(|above| Some((above, self.root.open_dir(above).ok()?)));
        let (existing, mut dir) = match existing {
            Some((above, dir)) if !above.as_os_str().is_empty() => (above, dir),
            _ => (Path::new(""), self.root.try_clone()?),
        };
        let mut missing = path.strip_prefix(existing).unwrap_or(path).components();
        while let Some(part) = missing.next() {
            let is_implied = path != entry || !missing.as_path().as_os_str().is_empty();
            dir = match dir.open_dir(part) {
                Ok(next) => next,
                Err(error) => {
                    match dir.symlink_metadata(part) {
                        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {}
                        Err(other) => return Err(other.into()),
                        Ok(metadata) if metadata.is_symlink() => {
                            let reason = "a link in its path leads out of the project, or does not lead to a directory";
                            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason).into());
                        }
                        Ok(metadata) if metadata.is_dir() => return Err(error.into()),
                        Ok(_) => dir.remove_file(part)?,
                    }
                    if is_implied {
                        self.meter.count_entry()?;
                    }
                    dir.create_dir(part)?;
                    dir.open_dir(part)?
                }
            };
        }
        Ok(dir)
    }

    /// Creates links, and sets attributes of directories. Returns the skipped entries.
    ///
    /// # Errors
    /// [`UnpackError::Io`] if writing fails, or the error of the meter.
    pub fn finish(mut self) -> Result<SkippedEntries, UnpackError> {
        // In reverse order, `a/b` is created before a link `a`, so no link is created through another one.
        for (path, target) in std::mem::take(&mut self.links).into_iter().rev() {
            self.meter.check_stop()?;
            match self.create_link(&path, &target) {
                // A link with an empty target fails with `NotFound`.
                Err(PutError::Write(error)) if is_conflict(&error) || error.kind() == io::ErrorKind::NotFound => {
                    self.last_order += 1;
                    self.skipped.add(self.last_order, &path, &error);
                }
                linked => linked.map_err(|error| error.into_unpack_error(&path))?,
            }
        }
        // In reverse order, because a parent's permissions may prevent access to its subdirectories.
        for (path, (mode, modified)) in std::mem::take(&mut self.attributes).into_iter().rev() {
            self.meter.check_stop()?;
            match self.set_attributes(&path, mode, modified) {
                // For example, the directory has another owner. Its files are unpacked nevertheless.
                Err(error) if is_conflict(&error) => {}
                set => set.map_err(|error| PutError::Write(error).into_unpack_error(&path))?,
            }
        }
        Ok(self.skipped)
    }

    fn create_link(&mut self, path: &Path, target: &Path) -> Result<(), PutError> {
        let (parent, name) = split(path)?;
        self.enter_directory(parent, path)?;
        let dir = self.current();
        Ok(create_or_replace(dir, name, || dir.symlink_contents(target, name))?)
    }

    fn set_attributes(&self, path: &Path, mode: u32, modified: Option<FileTime>) -> io::Result<()> {
        // A link may have replaced the directory, or another entry may have removed it.
        if !self.root.symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlags::DIRECTORY.bits().cast_signed());
        let dir = self.root.open_with(path, &options)?.into_std();
        if let Some(time) = modified {
            filetime::set_file_handle_times(&dir, None, Some(time))?;
        }
        dir.set_permissions(Permissions::from_mode(mode))
    }
}

fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    path.parent().zip(path.file_name()).ok_or_else(|| io::ErrorKind::InvalidFilename.into())
}

/// Returns whether an error is due to the entry's name or an existing file, instead of the machine.
fn is_conflict(error: &io::Error) -> bool {
    use io::ErrorKind::{
        AlreadyExists, DirectoryNotEmpty, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, PermissionDenied,
    };
    matches!(
        error.kind(),
        AlreadyExists
            | DirectoryNotEmpty
            | InvalidFilename
            | InvalidInput
            | IsADirectory
            | NotADirectory
            | PermissionDenied
    )
}
