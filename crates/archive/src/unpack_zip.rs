//! Unpacks zip archives with several threads.
//!
//! ```text
//! directory of the archive --> Tree (names, directories, links) --batches of files--> threads (read, unpack, write) --> Tree (skipped)
//! ```
//!
//! One thread reads the names, checks them, and opens or creates the directories. It is the only one that resolves paths. The other threads
//! get open directories with names of one component, and write files there. Two entries of which one is written over or below the other are
//! never in flight at the same time, so the result is the same as that of unpacking one entry after the other. Names show this, except below an
//! existing link, where an entry has a second name. Such an entry is unpacked alone.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;

use cap_std::fs::Dir;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use crate::UnpackError;
use crate::limits::Limits;
use crate::meter::Meter;
use crate::read::{Entry, EntryKind, Header, ZipFiles, visit_zip};
use crate::skipped::SkippedEntries;
use crate::tree::{CHUNK, FilePlace, PutError, Tree};
use crate::workers::Workers;

/// Maximum number of files in a batch.
const BATCH_FILES: usize = 32;
/// Maximum number of open directories of a batch.
const BATCH_DIRECTORIES: usize = 4;
/// Number of unpacked bytes from which a batch is complete.
const BATCH_BYTES: u64 = 1 << 20;
/// Maximum number of files whose names are compared with those of later entries.
const MAX_RECENT: usize = 8192;
/// Length of the paths of these files and of the directories above them, after which all threads are waited for. A deep path has thousands.
const MAX_RECENT_BYTES: usize = 16 << 20;

/// A file to unpack.
struct Planned {
    place: FilePlace,
    header: Header,
    entry: Entry,
    /// Position of the entry in the archive.
    order: u64,
}

/// Results of a batch.
type Written = Vec<(Entry, u64, Result<(), PutError>)>;

/// Unpacks a zip archive as [`crate::unpack`] does.
pub(crate) fn unpack(
    archive: &File,
    into: &Dir,
    limits: &Limits,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<SkippedEntries, UnpackError> {
    let meter = &Meter::new(*limits, stop);
    let unpacked = thread::scope(|scope| {
        let worker = || {
            let mut files = ZipFiles::new(archive, meter);
            let mut buffer = vec![0; CHUNK];
            move |batch: Vec<Planned>| -> Written {
                let mut write = |planned: Planned| {
                    let written =
                        files.unpack(&planned.header, |content| planned.place.write(into, content, &mut buffer));
                    let written = written.unwrap_or_else(|error| Err(UnpackError::Broken(error).into()));
                    (planned.entry, planned.order, written)
                };
                batch.into_iter().map(&mut write).collect()
            }
        };
        let no_thread = |source| UnpackError::Io { name: "the archive; no thread can be started".to_owned(), source };
        let workers = Workers::start(scope, worker).map_err(no_thread)?;
        let mut unpacking = Unpacking {
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
        visit_zip(archive, meter, &mut |entry, header| {
            order += 1;
            unpacking.add(entry, header, order)
        })?;
        unpacking.wait()?;
        unpacking.tree.finish()
    });
    // The libraries see a stop or an exceeded limit as a read error, and return it as an error of their own.
    unpacked.map_err(|error| meter.cause().unwrap_or(error))
}

struct Unpacking<'a> {
    tree: Tree<'a>,
    root: &'a Dir,
    /// The directory for which [`Unpacking::is_behind_link`] was called last, with the result.
    checked: Option<(PathBuf, bool)>,
    workers: Workers<Vec<Planned>, Written>,
    batch: Vec<Planned>,
    batch_bytes: u64,
    /// Files that may be in flight.
    recent_files: HashSet<PathBuf>,
    /// Directories above them.
    recent_directories: HashSet<PathBuf>,
    /// Length of the paths in both sets, in bytes.
    recent_bytes: usize,
}

impl Unpacking<'_> {
    fn add(&mut self, entry: Entry, header: Header, order: u64) -> Result<(), UnpackError> {
        if self.conflicts(&entry) || self.recent_files.len() >= MAX_RECENT || self.recent_bytes >= MAX_RECENT_BYTES {
            self.wait()?;
        }
        let parent = entry.path.parent().unwrap_or(Path::new(""));
        let is_alone = self.is_behind_link(if entry.kind == EntryKind::Directory { &entry.path } else { parent });
        if is_alone {
            self.wait()?;
        }
        let Some(place) = self.tree.place(&entry, order)? else { return Ok(()) };
        // The last batch has the directory already, in most cases.
        for above in parent.ancestors() {
            if !self.recent_directories.insert(above.to_owned()) {
                break;
            }
            self.recent_bytes += above.as_os_str().len();
        }
        self.recent_bytes += entry.path.as_os_str().len();
        self.recent_files.insert(entry.path.clone());
        self.batch_bytes = self.batch_bytes.saturating_add(header.unpacked);
        self.batch.push(Planned { place, header, entry, order });
        match () {
            () if is_alone => self.wait(),
            () if self.is_complete() => self.submit(),
            () => Ok(()),
        }
    }

    /// Returns whether the path of a directory has an existing link, or may have one. Links of the archive do not exist before the end.
    fn is_behind_link(&mut self, directory: &Path) -> bool {
        if directory.as_os_str().is_empty() {
            return false;
        }
        match &self.checked {
            Some((path, result)) if path == directory => *result,
            _ => {
                let opened = openat2(self.root, directory, OFlags::PATH, Mode::empty(), ResolveFlags::NO_SYMLINKS);
                // A system that has no `openat2` cannot tell.
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
        // A directory entry of a recent file's directory changes nothing before the end.
        let is_above = entry.kind != EntryKind::Directory && self.recent_directories.contains(&entry.path);
        is_above || entry.path.ancestors().any(|path| self.recent_files.contains(path))
    }

    fn is_complete(&self) -> bool {
        let is_other = |pair: &[Planned]| matches!(pair, [a, b] if !a.place.is_beside(&b.place));
        self.batch.len() >= BATCH_FILES
            || self.batch_bytes >= BATCH_BYTES
            || self.batch.windows(2).filter(|pair| is_other(pair)).count() + 1 >= BATCH_DIRECTORIES
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

    /// Waits for the earliest batch. Returns whether there was one.
    fn receive(&mut self) -> Result<bool, UnpackError> {
        let Some(written) = self.workers.receive() else { return Ok(false) };
        for (entry, order, result) in written {
            self.tree.settle(&entry, order, result)?;
        }
        Ok(true)
    }
}
