//! A file of lines, which is compacted when most of them are obsolete.
//!
//! ```text
//! <CRC-32 of the text, 8 hexadecimal digits> <text>
//! ```
//!
//! A written line survives the death of any process, and a synced line also a loss of power. An incomplete or damaged line is ignored.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Length of checksum and space.
const HEAD_BYTES: usize = 9;
/// Default maximum size. Compaction keeps the file far below it.
const MAX_BYTES: u64 = 4 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineSpan {
    offset: u64,
    /// Length with checksum and line feed.
    bytes: u64,
}

impl LineSpan {
    pub(super) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns the position after [`Log::replace_with`].
    pub(super) fn relocated(self, offsets: &OffsetMap) -> Self {
        let in_tail = || offsets.tail_to + self.offset.saturating_sub(offsets.tail_from);
        Self { offset: offsets.lines.get(&self.offset).copied().unwrap_or_else(in_tail), ..self }
    }
}

/// Positions of lines in the compacted copy.
#[derive(Debug)]
pub(super) struct OffsetMap {
    /// Old and new offset of each copied line.
    lines: HashMap<u64, u64>,
    /// Offset in the old file. All bytes from there on were copied to `tail_to`.
    tail_from: u64,
    tail_to: u64,
}

#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: File,
    end: u64,
    limit: Arc<AtomicU64>,
}

impl Log {
    /// Passes each valid line to `read`. A missing file is created with the line `first`.
    pub(super) fn open(path: &Path, first: &str, mut read: impl FnMut(LineSpan, &str)) -> io::Result<Self> {
        let mut file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(path, first)?,
            file => file?,
        };
        let mut end = 0;
        let mut reader = BufReader::new(&mut file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            if line.last() != Some(&b'\n') {
                tracing::warn!(path = %path.display(), offset = end, "ignoring an incomplete last line");
                break;
            }
            let span = LineSpan { offset: end, bytes: line.len() as u64 };
            match text(&line) {
                Some(text) => read(span, text),
                None => {
                    tracing::error!(path = %path.display(), offset = end, "ignoring a damaged line: a job may be reported as lost, or an ended job may be restored; keep a copy of the file for analysis")
                }
            }
            end += span.bytes;
            line.clear();
        }
        file.set_len(end)?;
        let mut log = Self { path: path.to_owned(), file, end, limit: Arc::new(AtomicU64::new(MAX_BYTES)) };
        if end == 0 {
            // The file has no complete line: a loss of power followed its creation.
            log.append(first)?;
        }
        Ok(log)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the maximum size, which may be changed at any time.
    pub(super) fn limit(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.limit)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.end
    }

    /// Fails if the file was removed. It would still accept lines, but no later start would read them.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.file.metadata()?.nlink() > 0 {
            return Ok(());
        }
        let message = "the file was removed while the manager was running; restart the manager to create it again";
        Err(io::Error::new(io::ErrorKind::NotFound, message))
    }

    /// Appends a line completely or not at all.
    pub(super) fn append(&mut self, text: &str) -> io::Result<LineSpan> {
        self.check()?;
        let line = line(text);
        let limit = self.limit.load(Ordering::Relaxed);
        if self.end + line.len() as u64 > limit {
            let message = format!("the file has reached its limit of {limit} bytes");
            return Err(io::Error::new(io::ErrorKind::StorageFull, message));
        }
        if let Err(error) = self.file.write_all_at(&line, self.end) {
            // If this fails too, a part of the line remains. The next line overwrites it, or the next start ignores it.
            let _ = self.file.set_len(self.end);
            return Err(error);
        }
        let span = LineSpan { offset: self.end, bytes: line.len() as u64 };
        self.end += span.bytes;
        Ok(span)
    }

    pub(super) fn read(&self, span: LineSpan) -> io::Result<String> {
        let mut line = vec![0; usize::try_from(span.bytes).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut line, span.offset)?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, format!("the line at {} is damaged", span.offset));
        text(&line).map(str::to_owned).ok_or_else(damaged)
    }

    /// Returns a handle for a thread that syncs the file.
    pub(super) fn file_handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Returns a compactor that copies the lines at `spans` in this order, followed by a new line for each of `texts`.
    pub(super) fn compactor(&self, spans: Vec<LineSpan>, texts: Vec<String>) -> io::Result<Compactor> {
        self.check()?;
        Ok(Compactor { file: self.file.try_clone()?, part_path: part_path(&self.path), spans, texts, end: self.end })
    }

    /// Replaces the file with `copy`, to which it appends the lines that were written in the meantime.
    pub(super) fn replace_with(&mut self, copy: CompactedLog) -> io::Result<OffsetMap> {
        let CompactedLog { file, lines, end, source_end } = copy;
        let mut tail = vec![0; usize::try_from(self.end - source_end).map_err(io::Error::other)?];
        let part_path = part_path(&self.path);
        self.file
            .read_exact_at(&mut tail, source_end)
            .and_then(|()| file.write_all_at(&tail, end))
            .and_then(|()| std::fs::rename(&part_path, &self.path))
            .inspect_err(|_| remove_copy(&part_path))?;
        let offsets = OffsetMap { lines, tail_from: source_end, tail_to: end };
        self.end = end + tail.len() as u64;
        self.file = file;
        Ok(offsets)
    }
}

/// Copies the live lines in another thread.
#[derive(Debug)]
pub(super) struct Compactor {
    file: File,
    part_path: PathBuf,
    spans: Vec<LineSpan>,
    texts: Vec<String>,
    end: u64,
}

/// A compacted copy that has not replaced the file yet.
#[derive(Debug)]
pub(super) struct CompactedLog {
    file: File,
    lines: HashMap<u64, u64>,
    end: u64,
    source_end: u64,
}

impl Compactor {
    /// Writes and syncs the copy: `first`, then the lines. Removes an incomplete copy after an error.
    pub(super) fn copy(self, first: &str) -> io::Result<CompactedLog> {
        self.write_copy(first).inspect_err(|_| remove_copy(&self.part_path))
    }

    fn write_copy(&self, first: &str) -> io::Result<CompactedLog> {
        let mut copy = create_private_file(&self.part_path)?;
        let mut out = io::BufWriter::new(&mut copy);
        let head = line(first);
        out.write_all(&head)?;
        let mut end = head.len() as u64;
        let mut lines = HashMap::with_capacity(self.spans.len());
        for span in &self.spans {
            let mut line = vec![0; usize::try_from(span.bytes).map_err(io::Error::other)?];
            self.file.read_exact_at(&mut line, span.offset)?;
            out.write_all(&line)?;
            lines.insert(span.offset, end);
            end += span.bytes;
        }
        for text in &self.texts {
            out.write_all(&line(text))?;
            end += line_bytes(text);
        }
        out.flush()?;
        drop(out);
        copy.sync_data()?;
        Ok(CompactedLog { file: copy, lines, end, source_end: self.end })
    }
}

/// Creates a file with one line. Renames it to `path` after the line is written.
fn create(path: &Path, first: &str) -> io::Result<File> {
    let part_path = part_path(path);
    let mut file = create_private_file(&part_path)?;
    file.write_all(&line(first))?;
    std::fs::rename(&part_path, path)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

fn part_path(path: &Path) -> PathBuf {
    path.with_extension("part")
}

/// Frees the space of a copy that is not used.
fn remove_copy(part_path: &Path) {
    // If this fails, the next compaction overwrites the copy.
    let _ = std::fs::remove_file(part_path);
}

fn create_private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Returns the length of the line of `text`, with checksum and line feed.
pub(super) fn line_bytes(text: &str) -> u64 {
    (HEAD_BYTES + text.len() + 1) as u64
}

fn line(text: &str) -> Vec<u8> {
    let mut line = Vec::with_capacity(HEAD_BYTES + text.len() + 1);
    // Writing to memory cannot fail.
    let _ = write!(line, "{:08x} ", crc32fast::hash(text.as_bytes()));
    line.extend_from_slice(text.as_bytes());
    line.push(b'\n');
    line
}

/// `None` means that the line is damaged.
fn text(line: &[u8]) -> Option<&str> {
    let line = line.strip_suffix(b"\n")?;
    let (head, text) = line.split_at_checked(HEAD_BYTES)?;
    let digits = std::str::from_utf8(head).ok()?.strip_suffix(' ')?;
    let sum = u32::from_str_radix(digits, 16).ok()?;
    (crc32fast::hash(text) == sum).then(|| std::str::from_utf8(text).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_write_is_ignored_and_next_line_is_complete() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("log");
        let mut log = Log::open(&path, "first", |_, _| {}).unwrap();
        log.append("second").unwrap();
        let writable = std::mem::replace(&mut log.file, File::open(&path).unwrap());
        log.append("lost").unwrap_err();
        // A full disk leaves a part of the line.
        writable.write_all_at(b"00000000 lo", log.end).unwrap();
        log.file = writable;
        let span = log.append("third, which is longer").unwrap();
        assert_eq!(log.read(span).unwrap(), "third, which is longer");
        let mut lines = Vec::new();
        Log::open(&path, "first", |_, line| lines.push(line.to_owned())).unwrap();
        assert_eq!(lines, ["first", "second", "third, which is longer"]);
    }

    #[test]
    fn failed_copy_is_removed() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("log");
        let mut log = Log::open(&path, "first", |_, _| {}).unwrap();
        let missing = LineSpan { offset: 1000, bytes: 10 };
        log.compactor(vec![missing], Vec::new()).unwrap().copy("first").unwrap_err();
        assert!(!part_path(&path).exists());
        let copy = log.compactor(Vec::new(), Vec::new()).unwrap().copy("first").unwrap();
        assert!(part_path(&path).exists());
        // A copy cannot replace a directory.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        log.replace_with(copy).unwrap_err();
        assert!(!part_path(&path).exists());
    }
}
