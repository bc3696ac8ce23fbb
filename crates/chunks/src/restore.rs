//! Restores files from their chunks.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::thread;

use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use muster_archive::{
    Entry, EntryKind, FileTarget, Limits, Meter, SkippedEntries, UnpackError, Workers, read_at, write_files,
};
use rustix::fs::OFlags;
use zstd::bulk::Decompressor;

use crate::Hash;
use crate::cut::cut_reader;
use crate::index::{Chunk, Index};
use crate::reference::Object;
use crate::spool::Spool;
use crate::store::Store;

/// Maximum number of open packs per thread.
const MAX_OPEN: usize = 16;
const BATCH_FILES: usize = 64;

/// A cache to restore.
pub struct Restore<'a> {
    /// Store with the packs.
    pub store: &'a Store,
    /// Files of the cache.
    pub index: &'a Index,
    /// Downloaded parts of packs that the store does not have.
    pub spool: Option<&'a Spool>,
    /// Limits for the files.
    pub limits: Limits,
    /// Called often. If it returns true, the restore ends with [`UnpackError::Stopped`].
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

impl std::fmt::Debug for Restore<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Restore").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Result of a restore.
#[derive(Debug)]
pub struct Restored {
    /// Entries that were skipped.
    pub skipped: SkippedEntries,
    /// Length in bytes of the chunks that were read from packs.
    pub loaded: u64,
}

/// Error of a restore.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RestoreError {
    /// Reason.
    #[source]
    pub error: UnpackError,
    /// Packs with damaged or missing chunks.
    pub damaged: Vec<Object>,
}

impl Restore<'_> {
    /// Writes the files below `into`. Keeps existing files with the same content.
    ///
    /// # Errors
    /// [`RestoreError`]. Files may then be unchanged, restored or removed.
    pub fn run(&self, into: &Dir) -> Result<Restored, RestoreError> {
        let meter = &Meter::new(self.limits, self.stop);
        meter.set_size(self.index.chunks.iter().map(|chunk| u64::from(chunk.packed)).sum());
        let loaded = &AtomicU64::new(0);
        let damaged = &Mutex::new(BTreeSet::new());
        let worker = || {
            let mut reader = ChunkReader::new(self.store, self.index.packs());
            reader.spool = self.spool;
            move |chunks: &Vec<u32>, target: &mut FileTarget<'_>| {
                let old = target.existing();
                let old = old.map(|file| OldFile::compare(file, self.index, chunks)).transpose().unwrap_or_default();
                if let Some(old) = old.as_ref().filter(|old| old.is_same) {
                    return target.keep(&old.file);
                }
                let chunks = chunks.iter();
                let mut content =
                    Content { restore: self, reader: &mut reader, old, chunks, at: 0, is_begun: false, loaded: 0 };
                let put = target.write(&mut meter.content(&mut content));
                loaded.fetch_add(content.loaded, Relaxed);
                damaged.lock().unwrap_or_else(PoisonError::into_inner).append(&mut reader.damaged);
                put
            }
        };
        let restored = write_files(into, meter, worker, |add| {
            self.index
                .for_each(|entry, chunks| {
                    meter.count_entry()?;
                    Ok(add(entry, chunks)?)
                })
                .map_err(|VisitError(error)| error)
        });
        match restored {
            Ok(skipped) => Ok(Restored { skipped, loaded: loaded.load(Relaxed) }),
            Err(error) => {
                let damaged = damaged.lock().unwrap_or_else(PoisonError::into_inner);
                let damaged = damaged.iter().filter_map(|pack| self.index.packs.get(*pack as usize).cloned());
                Err(RestoreError { error, damaged: damaged.collect() })
            }
        }
    }
}

/// Error of a visit of entries.
struct VisitError(UnpackError);

impl From<UnpackError> for VisitError {
    fn from(error: UnpackError) -> Self {
        Self(error)
    }
}

impl From<crate::ChunkError> for VisitError {
    fn from(error: crate::ChunkError) -> Self {
        Self(UnpackError::Broken(io::Error::other(error)))
    }
}

/// Existing file at the path of a file of the cache.
struct OldFile {
    file: File,
    length: u64,
    /// Whether the content is the same as in the cache.
    is_same: bool,
    /// Positions of its chunks, if the content differs.
    places: HashMap<Hash, u64>,
}

impl OldFile {
    fn compare(file: File, index: &Index, chunks: &[u32]) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let mut old = Self { file, length, is_same: false, places: HashMap::new() };
        old.is_same = old.consists_of(index, chunks)?;
        if !old.is_same {
            let mut at = 0;
            for chunk in cut_reader(BufReader::with_capacity(1 << 18, &old.file)) {
                let chunk = chunk?;
                old.places.insert(*blake3::hash(&chunk).as_bytes(), at);
                at += chunk.len() as u64;
            }
        }
        Ok(old)
    }

    /// Returns whether the content is exactly these chunks, in this order.
    fn consists_of(&self, index: &Index, chunks: &[u32]) -> io::Result<bool> {
        let chunks: Vec<&Chunk> = chunks.iter().filter_map(|chunk| index.chunk(*chunk)).collect();
        if chunks.iter().map(|chunk| u64::from(chunk.length)).sum::<u64>() != self.length {
            return Ok(false);
        }
        let (mut at, mut buffer) = (0, Vec::new());
        for chunk in chunks {
            if !is_chunk(&self.file, at, chunk, &mut buffer)? {
                return Ok(false);
            }
            at += u64::from(chunk.length);
        }
        Ok(true)
    }
}

/// Reads bytes into `buffer`. Returns whether they are the chunk's content.
fn is_chunk(file: &File, at: u64, chunk: &Chunk, buffer: &mut Vec<u8>) -> io::Result<bool> {
    buffer.resize(chunk.length as usize, 0);
    Ok(read_at(file, buffer, at)? == buffer.len() && *blake3::hash(buffer).as_bytes() == chunk.hash)
}

/// Returns for each chunk whether a restore to `into` must load it, because the existing file at the path does not
/// contain it.
///
/// # Errors
/// [`UnpackError::Stopped`], [`UnpackError::NoThread`], or [`UnpackError::Broken`] if the index is invalid.
pub fn missing_chunks(index: &Index, into: &Dir, stop: &(dyn Fn() -> bool + Sync)) -> Result<Vec<bool>, UnpackError> {
    let mut missing = vec![false; index.chunks.len()];
    thread::scope(|scope| {
        let worker = || {
            |batch: Vec<(Entry, Vec<u32>)>| {
                batch
                    .into_iter()
                    .flat_map(|(entry, chunks)| missing_chunks_of(index, into, &entry, chunks))
                    .collect::<Vec<u32>>()
            }
        };
        let mut workers = Workers::start(scope, worker).map_err(UnpackError::NoThread)?;
        let mut receive = |chunks: Option<Vec<u32>>| {
            for chunk in chunks.into_iter().flatten() {
                missing.get_mut(chunk as usize).into_iter().for_each(|missing| *missing = true);
            }
        };
        let mut batch = Vec::new();
        let visited = index.for_each(|entry, chunks| {
            if stop() {
                return Err(VisitError(UnpackError::Stopped));
            }
            if entry.kind == EntryKind::File {
                batch.push((entry, chunks));
            }
            if batch.len() >= BATCH_FILES {
                if workers.is_full() {
                    receive(workers.receive());
                }
                workers.submit(std::mem::take(&mut batch));
            }
            Ok(())
        });
        visited.map_err(|VisitError(error)| error)?;
        while workers.is_full() {
            receive(workers.receive());
        }
        workers.submit(batch);
        while let Some(chunks) = workers.receive() {
            receive(Some(chunks));
        }
        Ok::<(), UnpackError>(())
    })?;
    Ok(missing)
}

fn missing_chunks_of(index: &Index, into: &Dir, entry: &Entry, chunks: Vec<u32>) -> Vec<u32> {
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.read(true).custom_flags(flags.bits().cast_signed());
    let file = into.open_with(&entry.path, &options).ok().map(cap_std::fs::File::into_std);
    let file = file.filter(|file| file.metadata().is_ok_and(|metadata| metadata.is_file()));
    match file.and_then(|file| OldFile::compare(file, index, &chunks).ok()) {
        Some(old) if old.is_same => Vec::new(),
        Some(old) => {
            let is_missing =
                |chunk: &u32| index.chunk(*chunk).is_none_or(|chunk| !old.places.contains_key(&chunk.hash));
            chunks.into_iter().filter(is_missing).collect()
        }
        None => chunks,
    }
}

/// Content of a file of the cache. Each chunk is verified before its first byte is returned.
struct Content<'r, 'a> {
    restore: &'r Restore<'a>,
    reader: &'r mut ChunkReader<'a>,
    old: Option<OldFile>,
    chunks: std::slice::Iter<'r, u32>,
    /// Number of returned bytes of the current chunk.
    at: usize,
    /// Whether `reader.content` has a chunk of this file.
    is_begun: bool,
    /// Length in bytes of the chunks that were read from packs.
    loaded: u64,
}

impl Read for Content<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let rest = if self.is_begun { self.reader.content.get(self.at..).unwrap_or_default() } else { &[] };
            if !rest.is_empty() {
                let length = rest.len().min(buffer.len());
                if let (Some(to), Some(from)) = (buffer.get_mut(..length), rest.get(..length)) {
                    to.copy_from_slice(from);
                }
                self.at += length;
                return Ok(length);
            }
            let Some(chunk) = self.chunks.next().and_then(|chunk| self.restore.index.chunk(*chunk)) else {
                return Ok(0);
            };
            let old = self.old.as_ref().and_then(|old| Some((&old.file, *old.places.get(&chunk.hash)?)));
            // The file may change meanwhile, so the chunk is verified again.
            let is_old =
                old.is_some_and(|(file, at)| is_chunk(file, at, chunk, &mut self.reader.content).unwrap_or(false));
            if !is_old {
                self.reader.load(chunk)?;
                self.loaded += u64::from(chunk.length);
            }
            (self.at, self.is_begun) = (0, true);
        }
    }
}

pub(crate) struct ChunkReader<'a> {
    store: &'a Store,
    packs: &'a [Object],
    spool: Option<&'a Spool>,
    open: HashMap<u32, File>,
    decompressor: Option<Decompressor<'static>>,
    packed: Vec<u8>,
    content: Vec<u8>,
    damaged: BTreeSet<u32>,
}

impl<'a> ChunkReader<'a> {
    pub(crate) fn new(store: &'a Store, packs: &'a [Object]) -> Self {
        Self {
            store,
            packs,
            spool: None,
            open: HashMap::new(),
            decompressor: None,
            packed: Vec::new(),
            content: Vec::new(),
            damaged: BTreeSet::new(),
        }
    }

    /// Returns the packed bytes of a chunk after its verification.
    pub(crate) fn read_packed(&mut self, chunk: &Chunk) -> io::Result<Vec<u8>> {
        self.load(chunk)?;
        Ok(self.packed.clone())
    }

    fn load(&mut self, chunk: &Chunk) -> io::Result<()> {
        self.try_load(chunk).map_err(|error| {
            self.damaged.insert(chunk.pack);
            let pack = self.packs.get(chunk.pack as usize).map(|pack| pack.name.as_str()).unwrap_or_default();
            io::Error::new(error.kind(), format!("failed to read a chunk of the pack `{pack}`: {error}"))
        })
    }

    fn try_load(&mut self, chunk: &Chunk) -> io::Result<()> {
        self.packed.resize(chunk.packed as usize, 0);
        let read = match self.spool.and_then(|spool| spool.locate(chunk)) {
            Some((file, at)) => read_at(file, &mut self.packed, at)?,
            None => {
                if !self.open.contains_key(&chunk.pack) {
                    let pack = self.packs.get(chunk.pack as usize).ok_or(io::ErrorKind::NotFound)?;
                    let file = muster_files::open(&self.store.object(&pack.name))?;
                    if self.open.len() >= MAX_OPEN {
                        self.open.clear();
                    }
                    self.open.insert(chunk.pack, file);
                }
                let file = self.open.get(&chunk.pack).ok_or(io::ErrorKind::NotFound)?;
                read_at(file, &mut self.packed, chunk.offset)?
            }
        };
        if read != self.packed.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if chunk.packed == chunk.length {
            self.content.clone_from(&self.packed);
        } else {
            let decompressor = match &mut self.decompressor {
                Some(decompressor) => decompressor,
                none => none.insert(Decompressor::new()?),
            };
            self.content.resize(chunk.length as usize, 0);
            let length = decompressor.decompress_to_buffer(&self.packed, self.content.as_mut_slice())?;
            self.content.truncate(length);
        }
        let is_same =
            self.content.len() == chunk.length as usize && *blake3::hash(&self.content).as_bytes() == chunk.hash;
        if is_same { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidData, "its hash differs")) }
    }
}
