//! Parts of a save: batches of small files, and blocks of large ones.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;

use muster_archive::{Entry, EntryKind};
use zstd::bulk::Compressor;

use super::{Save, SaveError, entry, open};
use crate::Hash;
use crate::cut::{ReaderChunks, cut, cut_reader};
use crate::known::Known;

/// Size in bytes above which a file is divided into blocks for several threads.
const LARGE_FILE_BYTES: u64 = 1 << 20;
/// Number of bytes from which a batch or block is complete.
const PART_BYTES: usize = 1 << 20;
const BATCH_FILES: usize = 64;

pub(super) enum Part {
    /// Small files, directories and links.
    Files(Vec<Entry>),
    /// Consecutive chunks of a large file. Only the first block has the entry, in `start`.
    Block { start: Option<Entry>, chunks: Vec<Vec<u8>>, is_last: bool },
}

pub(super) enum PartResult {
    Files(Vec<(Entry, Vec<FileChunk>)>),
    Block { start: Option<Entry>, found: Vec<FileChunk>, is_last: bool },
}

pub(super) struct FileChunk {
    pub(super) hash: Hash,
    pub(super) length: u32,
    /// Bytes to write to a pack. `None` means that the chunk is already stored.
    pub(super) packed: Option<Vec<u8>>,
}

pub(super) struct Plan<'a> {
    save: &'a Save<'a>,
    files: std::slice::Iter<'a, PathBuf>,
    /// Large file after the current batch.
    next: Option<Entry>,
    /// Large file that is being read. The entry is set until its first block.
    blocks: Option<(Option<Entry>, PathBuf, ReaderChunks<BufReader<File>>)>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(save: &'a Save<'a>) -> Self {
        Self { save, files: save.files.iter(), next: None, blocks: None }
    }

    /// Returns the next part, or `None` at the end.
    fn part(&mut self) -> Result<Option<Part>, SaveError> {
        loop {
            self.save.check_stop()?;
            if self.blocks.is_some() {
                return self.block().map(Some);
            }
            if let Some(entry) = self.next.take() {
                let path = self.save.root.join(&entry.path);
                if let Some(file) = open(&path)? {
                    let content = BufReader::with_capacity(PART_BYTES, file);
                    self.blocks = Some((Some(entry), path, cut_reader(content)));
                }
                continue;
            }
            let batch = self.batch()?;
            if !batch.is_empty() {
                return Ok(Some(Part::Files(batch)));
            }
            if self.next.is_none() {
                return Ok(None);
            }
        }
    }

    /// Returns the next small files. Stores a large file after them in `next`.
    fn batch(&mut self) -> Result<Vec<Entry>, SaveError> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_FILES && bytes < PART_BYTES as u64 {
            let Some(path) = self.files.next() else { break };
            let Some(entry) = entry(self.save.root, path)? else { continue };
            let size = match entry.kind {
                EntryKind::File => self.save.root.join(path).symlink_metadata().map_or(0, |metadata| metadata.len()),
                _ => 0,
            };
            if size > LARGE_FILE_BYTES {
                self.next = Some(entry);
                break;
            }
            bytes += size;
            batch.push(entry);
        }
        Ok(batch)
    }

    fn block(&mut self) -> Result<Part, SaveError> {
        let Some((start, path, mut content)) = self.blocks.take() else {
            return Ok(Part::Files(Vec::new()));
        };
        let (mut chunks, mut bytes) = (Vec::new(), 0);
        for chunk in content.by_ref() {
            let chunk = chunk.map_err(|error| SaveError::Read(path.clone(), error))?;
            bytes += chunk.len();
            chunks.push(chunk);
            if bytes >= PART_BYTES {
                self.blocks = Some((None, path, content));
                return Ok(Part::Block { start, chunks, is_last: false });
            }
        }
        Ok(Part::Block { start, chunks, is_last: true })
    }
}

impl Iterator for Plan<'_> {
    type Item = Result<Part, SaveError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.part().transpose()
    }
}

pub(super) struct Worker<'a> {
    save: &'a Save<'a>,
    chunker: Chunker<'a>,
    buffer: Vec<u8>,
}

struct Chunker<'a> {
    known: &'a Known,
    compressor: io::Result<Compressor<'static>>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(save: &'a Save<'a>) -> Self {
        let chunker = Chunker { known: save.known, compressor: Compressor::new(save.level) };
        Self { save, chunker, buffer: Vec::new() }
    }

    pub(super) fn work(&mut self, part: Part) -> Result<PartResult, SaveError> {
        self.save.check_stop()?;
        match part {
            Part::Files(entries) => {
                let mut files = Vec::with_capacity(entries.len());
                for entry in entries {
                    if let Some(found) = self.file(&entry)? {
                        files.push((entry, found));
                    }
                }
                Ok(PartResult::Files(files))
            }
            Part::Block { start, chunks, is_last } => {
                let found = chunks.iter().map(|content| self.chunker.chunk(content)).collect::<Result<_, _>>()?;
                Ok(PartResult::Block { start, found, is_last })
            }
        }
    }

    /// Returns the chunks of a small file. `None` means that it was removed or replaced.
    fn file(&mut self, entry: &Entry) -> Result<Option<Vec<FileChunk>>, SaveError> {
        if entry.kind != EntryKind::File {
            return Ok(Some(Vec::new()));
        }
        let path = self.save.root.join(&entry.path);
        let Some(file) = open(&path)? else { return Ok(None) };
        self.buffer.clear();
        // Truncates a file that grows meanwhile.
        let read = file.take(2 * LARGE_FILE_BYTES).read_to_end(&mut self.buffer);
        read.map_err(|error| SaveError::Read(path, error))?;
        let content = self.buffer.as_slice();
        Ok(Some(cut(content).map(|piece| self.chunker.chunk(piece)).collect::<Result<_, _>>()?))
    }
}

impl Chunker<'_> {
    fn chunk(&mut self, content: &[u8]) -> Result<FileChunk, SaveError> {
        let hash = *blake3::hash(content).as_bytes();
        let length = u32::try_from(content.len()).map_err(|error| SaveError::Compress(io::Error::other(error)))?;
        if self.known.get(&hash).is_some_and(|(chunk, _)| chunk.length == length) {
            return Ok(FileChunk { hash, length, packed: None });
        }
        let compressed = match &mut self.compressor {
            Ok(compressor) => compressor.compress(content),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        let compressed = compressed.map_err(SaveError::Compress)?;
        let packed = if compressed.len() < content.len() { compressed } else { content.to_vec() };
        Ok(FileChunk { hash, length, packed: Some(packed) })
    }
}
