//! Writes the files of an archive with several threads.
//!
//! ```text
//! entries of the archive --> Tree (names, directories, links) --batches of files--> threads (read, unpack, write) --> Tree (skipped)
//! ```
//!
//! One thread reads the names, checks them, and opens or creates the directories. No other thread resolves paths. For each file, the
//! other threads get an open directory and a file name of one component.
//!
//! If an entry is written over or below another entry, the two are never in flight at the same time. The result is therefore the same as if
//! the entries were unpacked one after the other. Such a conflict is found by comparing the names of the entries. Below an existing link,
//! the names do not show all conflicts, because an entry there can have a second name. So an entry below an existing link is unpacked while
//! no other file is in flight.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::thread;

use cap_std::fs::Dir;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use crate::UnpackError;
use crate::meter::Meter;
use crate::place::{CHUNK, FilePlace, FileTarget, PutError};
use crate::read::{Entry, EntryKind};
use crate::skipped::SkippedEntries;
use crate::tree::Tree;
use crate::workers::Workers;

/// Maximum number of files in a batch.
const BATCH_FILES: usize = 32;
/// Maximum number of open directories of a batch.
const BATCH_DIRECTORIES: usize = 4;
/// Number of unpacked bytes from which a batch is complete.
const BATCH_BYTES: u64 = 1 << 20;
/// Maximum number of files whose names are compared with those of later entries.
const MAX_RECENT: usize = 8192;
/// Length of the paths of the recent files and of the directories above these files, in bytes, at which the reading thread waits until no
/// file is in flight. A deep path can have thousands of directories above it.
const MAX_RECENT_BYTES: usize = 16 << 20;

/// A file to write.
struct Planned<H> {
    place: FilePlace,
    /// Handle from which the worker finds the content.
    handle: H,
    entry: Entry,
    /// Position of the entry in the archive.
    order: u64,
}

/// Results of a batch.
type Written = Vec<(Entry, u64, Result<(), PutError>)>;

/// Writes entries below `into`. Existing files are replaced, and several threads write files.
///
/// `visit` calls its argument for each entry, in the order of the archive, with a handle from which a worker finds the content of a file.
/// `worker` is called once for each thread, and returns the function that writes the files of the thread.
///
/// # Errors
/// [`UnpackError`], including errors of `visit`. Some of the entries before and after the entry with the error may be written.
/// Links of the archive and attributes of directories may be missing.
pub fn write_files<H, W>(
    into: &Dir,
    meter: &Meter<'_>,
    worker: impl Fn() -> W,
    visit: impl FnOnce(&mut dyn FnMut(Entry, H) -> Result<(), UnpackError>) -> Result<(), UnpackError>,
) -> Result<SkippedEntries, UnpackError>
where
    H: Send,
    W: FnMut(&H, &mut FileTarget<'_>) -> Result<(), PutError> + Send,
{
    let written = thread::scope(|scope| {
        let batch_worker = || {
            let (mut write, mut buffer) = (worker(), vec![0; CHUNK]);
            move |batch: Vec<Planned<H>>| -> Written {
                let mut write = |planned: Planned<H>| {
                    let mut target = FileTarget { place: &planned.place, root: into, buffer: &mut buffer };
                    let written = write(&planned.handle, &mut target);
                    (planned.entry, planned.order, written)
                };
                batch.into_iter().map(&mut write).collect()
            }
        };
        let workers = Workers::start(scope, batch_worker).map_err(UnpackError::NoThread)?;
        let mut writing = Writing {
            tree: Tree::new(into, meter),
            root: into,
            checked: None,
            workers,
            batch: Vec::new(),
            batch_bytes: 0,
            recent_files: HashSet::new(),
            recent_directories: HashSet::new(),
            recent_bytes: 0,
        };
        let mut order = 0;
        visit(&mut |entry, handle| {
            order += 1;
            writing.add(entry, handle, order)
        })?;
        writing.wait()?;
        writing.tree.finish()
    });
    // The libraries see a stop or an exceeded limit as a read error, and return it as their own error.
    written.map_err(|error| meter.cause().unwrap_or(error))
}

struct Writing<'a, H> {
    tree: Tree<'a>,
    root: &'a Dir,
    /// The directory for which [`Writing::is_behind_link`] was called last, with the result.
    checked: Option<(PathBuf, bool)>,
    workers: Workers<Vec<Planned<H>>, Written>,
    batch: Vec<Planned<H>>,
    batch_bytes: u64,
    /// Files that may be in flight.
    recent_files: HashSet<PathBuf>,
    /// Directories above the recent files.
    recent_directories: HashSet<PathBuf>,
    /// Length of the paths in both sets, in bytes.
    recent_bytes: usize,
}

impl<H: Send> Writing<'_, H> {
    fn add(&mut self, entry: Entry, handle: H, order: u64) -> Result<(), UnpackError> {
        if self.conflicts(&entry) || self.recent_files.len() >= MAX_RECENT || self.recent_bytes >= MAX_RECENT_BYTES {
            self.wait()?;
        }
        let parent = entry.path.parent().unwrap_or(Path::new(""));
        let is_alone = self.is_behind_link(if entry.kind == EntryKind::Directory { &entry.path } else { parent });
        if is_alone {
            self.wait()?;
        }
        let Some(place) = self.tree.place(&entry, order)? else { return Ok(()) };
        // In most cases, the set already contains the directory because of an earlier file.
        for above in parent.ancestors() {
            if !self.recent_directories.insert(above.to_owned()) {
                break;
            }
            self.recent_bytes += above.as_os_str().len();
        }
        self.recent_bytes += entry.path.as_os_str().len();
        self.recent_files.insert(entry.path.clone());
        self.batch_bytes = self.batch_bytes.saturating_add(entry.size.unwrap_or(0));
        self.batch.push(Planned { place, handle, entry, order });
        match () {
            () if is_alone => self.wait(),
            () if self.is_complete() => self.submit(),
            () => Ok(()),
        }
    }

    /// Returns whether the path of a directory contains an existing link, or may contain one. Links of the archive do not exist before the end.
    fn is_behind_link(&mut self, directory: &Path) -> bool {
        if directory.as_os_str().is_empty() {
            return false;
        }
        match &self.checked {
            Some((path, result)) if path == directory => *result,
            _ => {
                let opened = openat2(self.root, directory, OFlags::PATH, Mode::empty(), ResolveFlags::NO_SYMLINKS);
                // Without `openat2`, this is unknown, so a link is assumed.
                let result = !matches!(opened, Ok(_) | Err(Errno::NOENT | Errno::NOTDIR));
                self.checked = Some((directory.to_owned(), result));
                result
            }
        }
    }

    /// Returns whether a recent file has the path of the entry, or is above or below it.
    fn conflicts(&self, entry: &Entry) -> bool {
        if self.recent_files.is_empty() {
            return false;
        }
        // An entry for a directory above a recent file changes nothing until the end, when the attributes of directories are set.
        let is_above = entry.kind != EntryKind::Directory && self.recent_directories.contains(&entry.path);
        is_above || entry.path.ancestors().any(|path| self.recent_files.contains(path))
    }

    fn is_complete(&self) -> bool {
        let changes_directory = |pair: &[Planned<H>]| matches!(pair, [a, b] if !a.place.is_beside(&b.place));
        self.batch.len() >= BATCH_FILES
            || self.batch_bytes >= BATCH_BYTES
            || self.batch.windows(2).filter(|pair| changes_directory(pair)).count() + 1 >= BATCH_DIRECTORIES
    }

    fn submit(&mut self) -> Result<(), UnpackError> {
        if self.workers.is_full() {
            self.receive()?;
        }
        self.batch_bytes = 0;
        self.workers.submit(std::mem::take(&mut self.batch));
        Ok(())
    }

    /// Waits until no file is in flight.
    fn wait(&mut self) -> Result<(), UnpackError> {
        if !self.batch.is_empty() {
            self.submit()?;
        }
        while self.receive()? {}
        self.recent_files.clear();
        self.recent_directories.clear();
        self.recent_bytes = 0;
        Ok(())
    }

    /// Waits for the results of the earliest batch. Returns whether there was a batch.
    fn receive(&mut self) -> Result<bool, UnpackError> {
        let Some(written) = self.workers.receive() else { return Ok(false) };
        for (entry, order, result) in written {
            self.tree.settle(&entry, order, result)?;
        }
        Ok(true)
    }
}
