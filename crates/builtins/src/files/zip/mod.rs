//! Writes zip archives with several threads.
//!
//! ```text
//! plan (reads metadata) --parts--> threads (read, compress) --parts in order--> write
//! ```
//!
//! A part is a batch of small files or one block of a large file. The bytes of the archive depend only on the files.

mod compress;
mod records;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use flate2::Crc;
use muster_archive::{Workers, read_at};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

pub(crate) use compress::ZipCompression;
use compress::{Compressor, checksum};
use records::{Method, Record};

use super::pack::{PathFailure, shown};

/// Size of the blocks of a large file in bytes.
const BLOCK_BYTES: u64 = 1 << 20;
/// Maximum number of files in a batch.
const BATCH_FILES: usize = 64;
/// File size in bytes from which an entry has 64-bit sizes. It is below 4 GiB, because deflate may enlarge a file.
const LARGE_FILE_BYTES: u64 = 2 << 30;

/// Packs `files` into `target`. The paths are relative to `root`.
pub(super) fn pack(
    root: &Path,
    files: &[PathBuf],
    compressing: ZipCompression,
    target: &File,
    stop: &StopToken,
) -> Result<(), Failure> {
    let mut writer = Writer::new(target, compressing);
    thread::scope(|scope| {
        let worker = || {
            let mut compressor = Compressor::new(compressing);
            let mut buffer = Vec::new();
            move |part: Part| match &mut compressor {
                Ok(compressor) => part.compress(root, compressor, &mut buffer, stop),
                Err(error) => Err(Failure::System(format!("failed to compress: {error}"))),
            }
        };
        let mut workers = Workers::start(scope, worker).map_err(Failure::io("failed to start a thread"))?;
        for part in (Plan { root, files: files.iter(), stop, next: None, blocks: None }) {
            if workers.is_full() {
                workers.receive().map_or(Ok(()), |packed| writer.write(packed?))?;
            }
            workers.submit(part?);
        }
        while let Some(packed) = workers.receive() {
            writer.write(packed?)?;
        }
        writer.finish().map_err(Failure::io("failed to write the archive"))
    })
}

enum Part {
    Batch(Vec<PlannedFile>),
    Block { planned: Arc<PlannedFile>, file: Arc<File>, offset: u64, is_last: bool },
}

struct PlannedFile {
    path: PathBuf,
    record: Record,
    size: u64,
}

enum PackedPart {
    Batch { bytes: Vec<u8>, entries: Vec<Entry> },
    Block { bytes: Vec<u8>, checksum: Crc, planned: Arc<PlannedFile>, is_first: bool, is_last: bool },
}

/// Entry of a batch, and its position there.
struct Entry {
    record: Record,
    offset: u64,
}

struct Plan<'a> {
    root: &'a Path,
    files: std::slice::Iter<'a, PathBuf>,
    stop: &'a StopToken,
    /// Large file after the current batch.
    next: Option<PlannedFile>,
    /// Large file, and the position of its next block.
    blocks: Option<(Arc<PlannedFile>, Arc<File>, u64)>,
}

impl Plan<'_> {
    /// Returns the next part, or `None` at the end.
    fn part(&mut self) -> Result<Option<Part>, Failure> {
        if let Some(cause) = self.stop.cause() {
            return Err(Failure::Stopped(cause));
        }
        if let Some(part) = self.block() {
            return Ok(Some(part));
        }
        if let Some(large) = self.next.take()
            && let Some(file) = muster_files::open(&self.root.join(&large.path))
                .map_err(io::Error::from)
                .unless_removed(&large.path, self.stop)?
        {
            self.blocks = Some((Arc::new(large), Arc::new(file), 0));
            return Ok(self.block());
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_FILES && bytes < BLOCK_BYTES {
            let Some(file) = self.files.next() else { break };
            let Some(planned) = plan(self.root, file).unless_removed(file, self.stop)?.flatten() else { continue };
            if planned.size > BLOCK_BYTES {
                self.next = Some(planned);
                break;
            }
            bytes += planned.size;
            batch.push(planned);
        }
        match &self.next {
            Some(_) if batch.is_empty() => self.part(),
            _ => Ok(Some(batch).filter(|batch| !batch.is_empty()).map(Part::Batch)),
        }
    }

    fn block(&mut self) -> Option<Part> {
        let (planned, file, offset) = self.blocks.take()?;
        let next = offset + BLOCK_BYTES;
        let is_last = next >= planned.size;
        if !is_last {
            self.blocks = Some((Arc::clone(&planned), Arc::clone(&file), next));
        }
        Some(Part::Block { planned, file, offset, is_last })
    }
}

impl Iterator for Plan<'_> {
    type Item = Result<Part, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        self.part().transpose()
    }
}

/// Returns a file with its header. `None` means a socket, a pipe or a device.
fn plan(root: &Path, file: &Path) -> io::Result<Option<PlannedFile>> {
    let metadata = fs::symlink_metadata(root.join(file))?;
    if !(metadata.is_file() || metadata.is_dir() || metadata.is_symlink()) {
        return Ok(None);
    }
    let mut name = zip_name(file)?.to_owned();
    if metadata.is_dir() {
        name.push('/');
    }
    let size = if metadata.is_file() { metadata.len() } else { 0 };
    let record = Record {
        name,
        mode: metadata.mode(),
        modified: metadata.mtime(),
        is_large: size >= LARGE_FILE_BYTES,
        method: Method::Stored,
        crc: 0,
        packed: 0,
        unpacked: 0,
    };
    Ok(Some(PlannedFile { path: file.to_owned(), record, size }))
}

/// Returns the name for an entry.
///
/// # Errors
/// [`io::ErrorKind::InvalidFilename`] if it is not UTF-8. It is not converted, because the result could equal the name
/// of another entry.
fn zip_name(name: &Path) -> io::Result<&str> {
    name.to_str().ok_or_else(|| {
        let message = format!(
            "`{}` is not UTF-8, but a zip archive can contain only UTF-8 names: rename the file, or exclude it with `exclude`; for a \
             cache, you can also set CACHE_COMPRESSION_FORMAT to tarzstd",
            shown(name)
        );
        io::Error::new(io::ErrorKind::InvalidFilename, message)
    })
}

impl Part {
    fn compress(
        self,
        root: &Path,
        compressor: &mut Compressor,
        buffer: &mut Vec<u8>,
        stop: &StopToken,
    ) -> Result<PackedPart, Failure> {
        if let Some(cause) = stop.cause() {
            return Err(Failure::Stopped(cause));
        }
        match self {
            Self::Batch(batch) => {
                let (mut bytes, mut entries) = (Vec::new(), Vec::with_capacity(batch.len()));
                for planned in batch {
                    let offset = bytes.len();
                    let packed = add(root, &planned, compressor, buffer, &mut bytes);
                    match packed.unless_removed(&planned.path, stop)? {
                        Some(record) => entries.push(Entry { record, offset: offset as u64 }),
                        None => bytes.truncate(offset),
                    }
                }
                Ok(PackedPart::Batch { bytes, entries })
            }
            Self::Block { planned, file, offset, is_last } => {
                let length = BLOCK_BYTES.min(planned.size - offset);
                let mut bytes = Vec::new();
                let packed = read(&file, offset, length, buffer)
                    .and_then(|()| compressor.add_block(buffer, is_last, &mut bytes));
                packed.map_err(super::failure(format!("failed to pack `{}`", shown(&planned.path)), stop))?;
                Ok(PackedPart::Block { bytes, checksum: checksum(buffer), planned, is_first: offset == 0, is_last })
            }
        }
    }
}

fn add(
    root: &Path,
    planned: &PlannedFile,
    compressor: &mut Compressor,
    buffer: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> io::Result<Record> {
    const FILE_TYPE_MASK: u32 = 0o170_000;
    let path = root.join(&planned.path);
    buffer.clear();
    match planned.record.mode & FILE_TYPE_MASK {
        0o120_000 => buffer.extend(zip_name(&fs::read_link(&path)?)?.as_bytes()),
        0o040_000 => {}
        _ => read(&muster_files::open(&path)?, 0, planned.size, buffer)?,
    }
    let header = planned.record.local_header().len();
    let start = out.len();
    out.resize(start + header, 0);
    let method = compressor.add_file(buffer, out)?;
    let record = Record {
        method,
        crc: checksum(buffer).sum(),
        packed: (out.len() - start - header) as u64,
        unpacked: buffer.len() as u64,
        ..planned.record.clone()
    };
    if let Some(reserved) = out.get_mut(start..start + header) {
        reserved.copy_from_slice(&record.local_header());
    }
    Ok(record)
}

/// Fills the buffer with a part of a file, which is shorter than `length` if the file has shrunk.
fn read(file: &File, offset: u64, length: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
    let filled = read_at(file, buffer, offset)?;
    buffer.truncate(filled);
    Ok(())
}

struct Writer<'a> {
    out: BufWriter<&'a File>,
    position: u64,
    directory: Vec<u8>,
    entries: u64,
    compressing: ZipCompression,
    /// Large file that is being written, its checksum so far, and the position of its header.
    large: Option<(Record, Crc, u64)>,
}

impl<'a> Writer<'a> {
    fn new(target: &'a File, compressing: ZipCompression) -> Self {
        let out = BufWriter::with_capacity(256 * 1024, target);
        Self { out, position: 0, directory: Vec::new(), entries: 0, compressing, large: None }
    }

    fn write(&mut self, packed: PackedPart) -> Result<(), Failure> {
        let written = match packed {
            PackedPart::Batch { bytes, entries } => {
                for entry in entries {
                    entry.record.add_to_directory(&mut self.directory, self.position + entry.offset);
                    self.entries += 1;
                }
                self.append(&bytes)
            }
            PackedPart::Block { bytes, checksum, planned, is_first, is_last } => {
                self.add_block(&bytes, &checksum, &planned, is_first, is_last)
            }
        };
        written.map_err(Failure::io("failed to write the archive"))
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn add_block(
        &mut self,
        bytes: &[u8],
        checksum: &Crc,
        planned: &PlannedFile,
        is_first: bool,
        is_last: bool,
    ) -> io::Result<()> {
        if is_first {
            let record = Record { method: self.compressing.method(), ..planned.record.clone() };
            let header = record.local_header();
            self.large = Some((record, Crc::new(), self.position));
            self.append(&header)?;
        }
        self.append(bytes)?;
        let Some((record, crc, offset)) = &mut self.large else { return Ok(()) };
        record.packed += bytes.len() as u64;
        record.unpacked += u64::from(checksum.amount());
        crc.combine(checksum);
        if is_last {
            record.crc = crc.sum();
            record.add_to_directory(&mut self.directory, *offset);
            self.entries += 1;
            // Sizes and checksum are known only now.
            self.out.flush()?;
            self.out.get_ref().write_all_at(&record.local_header(), *offset)?;
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        let (offset, directory) = (self.position, std::mem::take(&mut self.directory));
        self.append(&directory)?;
        self.append(&records::end(self.entries, directory.len() as u64, offset))?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests;
