//! Writes the files of an archive with several threads.
//!
//! ```text
//! entries of the archive --> Tree (names, directories, links) --batches of files--> threads (read, unpack, write)
//!   --results--> the same Tree (records the skipped entries)
//! ```
//!
//! One thread resolves all paths: it checks names, and opens or creates directories. The other threads get an open
//! directory and a file name.
//!
//! Entries with conflicting paths are never in flight at the same time, so the result is the same as with one thread.
//! Names reveal all conflicts except below an existing link, where an entry can have a second name. Such an entry is
//! therefore unpacked alone.

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

const BATCH_FILES: usize = 32;
/// Maximum number of open directories per batch.
const BATCH_DIRECTORIES: usize = 4;
/// Number of unpacked bytes from which a batch is complete.
const BATCH_BYTES: u64 = 1 << 20;
/// Maximum number of files to compare with later entries.
const MAX_RECENT: usize = 8192;
/// Maximum length in bytes of the paths of recent files and their directories together. [`MAX_RECENT`] does not bound
/// this length well enough, because a single deep path has thousands of directories. At the maximum, the thread that
/// resolves paths waits until no file is in flight.
const MAX_RECENT_BYTES: usize = 16 << 20;

struct Planned<H> {
    place: FilePlace,
    /// Handle with which the worker finds the content.
    handle: H,
    entry: Entry,
    /// Position in the archive.
    order: u64,
}

type Written = Vec<(Entry, u64, Result<(), PutError>)>;

/// Writes entries below `into` with several threads, and replaces existing files.
///
/// `visit` calls its argument for each entry in order, with a handle for the content. `worker` is called for each
/// thread, and returns the function with which the thread writes files.
///
/// # Errors
/// [`UnpackError`], including errors of `visit`. Other entries may be written, but links and attributes of directories
/// may be missing.
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
    // Libraries wrap a stop or an exceeded limit in their own error, so the cause is returned instead.
    written.map_err(|error| meter.cause().unwrap_or(error))
}

struct Writing<'a, H> {
    tree: Tree<'a>,
    root: &'a Dir,
    /// Last directory for which [`Writing::is_behind_link`] was called, and the result.
    checked: Option<(PathBuf, bool)>,
    workers: Workers<Vec<Planned<H>>, Written>,
    batch: Vec<Planned<H>>,
    batch_bytes: u64,
    recent_files: HashSet<PathBuf>,
    /// Directories of these files, with their parents.
    recent_directories: HashSet<PathBuf>,
    /// Length of the paths in both sets in bytes.
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
        let Some(place) = self.tree.add_without_content(&entry, order)? else { return Ok(()) };
        // Parents of a known directory are known, too.
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

    /// Returns whether the path of a directory may contain an existing link. Links of the archive are created later.
    fn is_behind_link(&mut self, directory: &Path) -> bool {
        if directory.as_os_str().is_empty() {
            return false;
        }
        match &self.checked {
            Some((path, result)) if path == directory => *result,
            _ => {
                let opened = openat2(self.root, directory, OFlags::PATH, Mode::empty(), ResolveFlags::NO_SYMLINKS);
                // Without `openat2`, a link is assumed.
                let result = !matches!(opened, Ok(_) | Err(Errno::NOENT | Errno::NOTDIR));
                self.checked = Some((directory.to_owned(), result));
                result
            }
        }
    }

    /// Returns whether the entry and a recent file have the same path, or the path of one is below that of the other.
    fn conflicts(&self, entry: &Entry) -> bool {
        if self.recent_files.is_empty() {
            return false;
        }
        // The attributes of a directory are set at the end, so its entry does not conflict with files in it.
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

    /// Handles the results of the earliest batch. Returns whether there was one.
    fn receive(&mut self) -> Result<bool, UnpackError> {
        let Some(written) = self.workers.receive() else { return Ok(false) };
        for (entry, order, result) in written {
            self.tree.settle(&entry, order, result)?;
        }
        Ok(true)
    }
}
