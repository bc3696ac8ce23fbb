//! Saves files: divides them into chunks, and stores new chunks.
//!
//! ```text
//! plan (reads metadata, divides large files) --parts--> threads (read, divide, hash, compress) --parts in order--> packs and index
//! ```
//!
//! Every file is read, because equal size and time do not mean equal content: package managers give all files the same
//! time.

mod packs;
mod parts;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use filetime::FileTime;
use muster_archive::{Entry, EntryKind, Workers};
use muster_files::{FileError, Problem};

use crate::ChunkError;
use crate::index::Index;
use crate::known::Known;
use crate::reference::{Object, Reference};
use crate::store::Store;

use packs::Packs;
use parts::{FileChunk, Part, PartResult, Plan};

/// Divisor that limits how much a save copies from old packs to new ones: at most the used bytes of all old packs
/// divided by this number. The copies keep the number of packs small.
const COMPACTION_DIVISOR: u64 = 100;

/// Error of a save.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The caller's `stop` function returned true.
    #[error("stopped")]
    Stopped,
    /// A file to save cannot be read.
    #[error("failed to read `{}`", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// No thread can be started, or compression failed.
    #[error("failed to compress files")]
    Compress(#[source] io::Error),
    /// Error of the store.
    #[error(transparent)]
    Store(#[from] ChunkError),
}

/// Files to save.
pub struct Save<'a> {
    /// Directory to which the paths are relative.
    pub root: &'a Path,
    /// Sorted paths of the files.
    pub files: &'a [PathBuf],
    /// Cache key.
    pub key: &'a str,
    /// Store of the objects.
    pub store: &'a Store,
    /// Chunks that need not be stored again.
    pub known: &'a Known,
    /// Current index of the key. If its files are the same, nothing is stored.
    pub current: Option<&'a Index>,
    /// Prefix of the names of new objects, which no other save may use.
    pub id: &'a str,
    /// Number of bytes from which a pack is complete.
    pub pack_bytes: u64,
    /// Maximum number of new packs. The last one has no size limit.
    pub max_packs: usize,
    /// Compression level of zstd.
    pub level: i32,
    /// Called often. If it returns true, the save ends with [`SaveError::Stopped`].
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

impl std::fmt::Debug for Save<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Save").field("key", &self.key).field("id", &self.id).finish_non_exhaustive()
    }
}

/// Result of a save. The caller must set the reference.
#[derive(Debug)]
pub struct Saved {
    /// New reference of the key. `None` means that the current one has the same files.
    pub reference: Option<Reference>,
    /// New packs.
    pub packs: Vec<Object>,
    /// Length of all files in bytes.
    pub bytes: u64,
}

impl Save<'_> {
    /// Stores the new chunks and the index.
    ///
    /// # Errors
    /// [`SaveError`]. A later collection deletes the packs that the failed save has stored.
    pub fn run(&self) -> Result<Saved, SaveError> {
        let mut writer = Writer { index: Index::default(), packs: Packs::new(self), large: None };
        thread::scope(|scope| {
            let worker = || {
                let mut parts = parts::Worker::new(self);
                move |part: Part| parts.work(part)
            };
            let mut workers = Workers::start(scope, worker).map_err(SaveError::Compress)?;
            for part in Plan::new(self) {
                if workers.is_full() {
                    workers.receive().map_or(Ok(()), |stored| writer.add(stored?))?;
                }
                workers.submit(part?);
            }
            while let Some(stored) = workers.receive() {
                writer.add(stored?)?;
            }
            Ok::<(), SaveError>(())
        })?;
        let Writer { mut index, mut packs, .. } = writer;
        let bytes = index.bytes();
        if packs.has_new() {
            self.compact(&mut packs)?;
        }
        let new = packs.finish()?;
        (index.packs, index.chunks) = packs.into_table();
        if new.is_empty() && self.current.is_some_and(|current| index.has_same_files(current)) {
            return Ok(Saved { reference: None, packs: new, bytes });
        }
        let object = index.encode(self.key, self.store.level()).map_err(SaveError::Compress)?;
        let name = format!("{}-index", self.id);
        let hash = blake3::hash(&object).to_hex().to_string();
        let described = self.store.write_object(&name, &object)?;
        let reference = Reference::new(self.key, self.store.level(), described, hash, index.packs);
        Ok(Saved { reference: Some(reference), packs: new, bytes })
    }

    /// Copies the used chunks of the least used old packs to new packs, within the limit of [`COMPACTION_DIVISOR`].
    fn compact(&self, packs: &mut Packs<'_>) -> Result<(), SaveError> {
        let used = packs.used_bytes_of_old_packs();
        let budget = used.iter().map(|(_, bytes)| bytes).sum::<u64>() / COMPACTION_DIVISOR;
        let mut sum = 0;
        let small = used.into_iter().take_while(|(_, bytes)| {
            sum += bytes;
            sum <= budget
        });
        for (pack, _) in small.collect::<Vec<_>>() {
            packs.copy_chunks_of(pack)?;
        }
        Ok(())
    }

    fn check_stop(&self) -> Result<(), SaveError> {
        if (self.stop)() { Err(SaveError::Stopped) } else { Ok(()) }
    }
}

/// Builds the index and packs from the parts.
struct Writer<'a> {
    index: Index,
    packs: Packs<'a>,
    /// Large file that is being added, and its chunks so far.
    large: Option<(Entry, Vec<u32>)>,
}

impl Writer<'_> {
    fn add(&mut self, result: PartResult) -> Result<(), SaveError> {
        match result {
            PartResult::Files(files) => {
                for (mut entry, found) in files {
                    let chunks = self.chunks(&mut entry, found)?;
                    self.index.add(&entry, chunks);
                }
            }
            PartResult::Block { start, found, is_last } => {
                if let Some(entry) = start {
                    self.large = Some((entry, Vec::new()));
                }
                let Some((mut entry, mut all)) = self.large.take() else { return Ok(()) };
                all.extend(self.chunks(&mut entry, found)?);
                if is_last {
                    self.index.add(&entry, all);
                } else {
                    self.large = Some((entry, all));
                }
            }
        }
        Ok(())
    }

    /// Stores new chunks of a file, and returns the positions of all its chunks. Adds their lengths to the size of the
    /// entry.
    fn chunks(&mut self, entry: &mut Entry, found: Vec<FileChunk>) -> Result<Vec<u32>, SaveError> {
        let mut chunks = Vec::with_capacity(found.len());
        for found in found {
            entry.size = Some(entry.size.unwrap_or(0) + u64::from(found.length));
            chunks.push(self.packs.chunk(&found)?);
        }
        Ok(chunks)
    }
}

/// Returns the entry of a file. `None` means that it was removed, or is a socket, a pipe or a device.
fn entry(root: &Path, path: &Path) -> Result<Option<Entry>, SaveError> {
    use std::os::unix::fs::MetadataExt;
    let full = root.join(path);
    let Some(metadata) = unless_removed(full.symlink_metadata(), &full)? else { return Ok(None) };
    let kind = match metadata.file_type() {
        kind if kind.is_file() => EntryKind::File,
        kind if kind.is_dir() => EntryKind::Directory,
        kind if kind.is_symlink() => {
            let Some(target) = unless_removed(full.read_link(), &full)? else { return Ok(None) };
            EntryKind::Link(target)
        }
        _ => return Ok(None),
    };
    Ok(Some(Entry {
        path: path.to_owned(),
        kind,
        mode: Some(metadata.mode() & 0o777),
        modified: Some(FileTime::from_last_modification_time(&metadata)),
        size: None,
    }))
}

/// Opens a regular file. `None` means that it was removed, or replaced by another kind of file.
fn open(path: &Path) -> Result<Option<File>, SaveError> {
    match muster_files::open(path) {
        Err(FileError { problem: Problem::NotRegular(_), .. }) => Ok(None),
        opened => unless_removed(opened.map_err(io::Error::from), path),
    }
}

/// Returns `None` if the file, or a directory of its path, was removed.
fn unless_removed<T>(result: io::Result<T>, path: &Path) -> Result<Option<T>, SaveError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(SaveError::Read(path.to_owned(), error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_was_removed_or_replaced_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("file"), "content").unwrap();
        std::fs::create_dir(path("directory")).unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        assert!(open(&path("file")).unwrap().is_some());
        for name in ["missing", "link", "directory", "file/below"] {
            assert!(open(&path(name)).unwrap().is_none(), "{name}");
        }
    }
}
