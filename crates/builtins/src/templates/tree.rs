//! Directory tree from which checkouts are copied. It is read once and written many times, so small files are cached in
//! memory.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use muster_files::{Limit, open, read_open};
use rustix::fs::{Timespec, Timestamps};

/// Maximum size of a cached file in bytes.
const MAX_CACHED_FILE_BYTES: u64 = 64 * 1024;
/// Maximum size of all cached files of a tree in bytes.
const MAX_CACHED_BYTES: u64 = 16 * 1024 * 1024;
const CHUNK_BYTES: usize = 256 * 1024;

#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    /// Entries in depth-first order.
    pub(super) entries: Vec<Entry>,
    /// Permissions of the root.
    pub(super) mode: u32,
}

#[derive(Debug)]
pub(super) struct Entry {
    /// Path relative to the root.
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// `end` is the index after the last entry of the directory.
    Directory {
        mode: u32,
        end: usize,
    },
    Link(PathBuf),
    File(Content),
}

#[derive(Debug)]
pub(super) struct Content {
    pub(super) mode: u32,
    pub(super) modified: Timespec,
    pub(super) size: u64,
    /// Content in memory. `None` means that it is only in the template.
    cached: Option<Box<[u8]>>,
}

impl Tree {
    /// Reads the tree at `root`. Its files must not change while the result exists.
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut cached = 0;
        // Indexes of the directories whose `end` is not yet known.
        let mut open_directories: Vec<usize> = Vec::new();
        for entry in walkdir::WalkDir::new(root).min_depth(1).sort_by_file_name() {
            let entry = entry?;
            close_directories(&mut entries, &mut open_directories, entry.depth() - 1);
            let metadata = entry.metadata()?;
            let kind = if metadata.is_dir() {
                open_directories.push(entries.len());
                Kind::Directory { mode: permissions(&metadata), end: 0 }
            } else if metadata.is_symlink() {
                Kind::Link(fs::read_link(entry.path())?)
            } else {
                let is_cached = metadata.len() <= MAX_CACHED_FILE_BYTES && cached + metadata.len() <= MAX_CACHED_BYTES;
                cached += if is_cached { metadata.len() } else { 0 };
                Kind::File(Content {
                    mode: permissions(&metadata),
                    modified: Timespec { tv_sec: metadata.mtime(), tv_nsec: metadata.mtime_nsec() },
                    size: metadata.len(),
                    cached: if is_cached { Some(read_small_file(entry.path())?) } else { None },
                })
            };
            let path = entry.path().strip_prefix(root).map_err(io::Error::other)?.to_owned();
            entries.push(Entry { path, kind });
        }
        close_directories(&mut entries, &mut open_directories, 0);
        Ok(Self { root: root.to_owned(), entries, mode: permissions(&fs::metadata(root)?) })
    }

    /// Copies the file `entry` to `path`, which must not exist.
    pub(super) fn write(&self, entry: &Path, content: &Content, path: &Path) -> io::Result<File> {
        let mut file = File::options().write(true).create_new(true).mode(content.mode).open(path)?;
        match &content.cached {
            Some(bytes) => file.write_all(bytes)?,
            None => copy(&open(&self.root.join(entry))?, &mut file)?,
        }
        let times = Timestamps { last_access: content.modified, last_modification: content.modified };
        rustix::fs::futimens(&file, &times)?;
        Ok(file)
    }

    /// Returns whether the file at `path` has the content of `entry`, which must have the same size.
    pub(super) fn has_bytes(&self, entry: &Path, content: &Content, path: &Path) -> io::Result<bool> {
        let mut file = open(path)?;
        match &content.cached {
            Some(bytes) => {
                let mut found = vec![0; bytes.len()];
                file.read_exact(&mut found)?;
                Ok(*found == **bytes)
            }
            None => has_same_content(&mut file, &mut open(&self.root.join(entry))?),
        }
    }
}

fn read_small_file(path: &Path) -> io::Result<Box<[u8]>> {
    let limit = Limit { bytes: MAX_CACHED_FILE_BYTES, remedy: "it grew while it was read; start the job again" };
    Ok(read_open(open(path)?, path, limit)?.into_boxed_slice())
}

/// Sets `end` of the open directories that are deeper than `depth`, and removes them from the list.
fn close_directories(entries: &mut [Entry], open_directories: &mut Vec<usize>, depth: usize) {
    let next_index = entries.len();
    for index in open_directories.drain(depth.min(open_directories.len())..) {
        if let Some(Entry { kind: Kind::Directory { end, .. }, .. }) = entries.get_mut(index) {
            *end = next_index;
        }
    }
}

/// Returns the permission bits. For a directory, leaves out setuid, setgid and sticky.
pub(super) fn permissions(metadata: &fs::Metadata) -> u32 {
    metadata.permissions().mode() & if metadata.is_dir() { 0o777 } else { 0o7777 }
}

/// Copies a file by sharing its blocks if possible, or else in the kernel.
fn copy(from: &File, to: &mut File) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(&*to, from).is_ok() {
        return Ok(());
    }
    io::copy(&mut &*from, to).map(|_| ())
}

/// Returns whether two files of the same size are equal.
fn has_same_content(one: &mut File, other: &mut File) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    loop {
        let length = one.read(&mut left)?;
        if length == 0 {
            return Ok(true);
        }
        let (left, right) = (left.get(..length).unwrap_or_default(), right.get_mut(..length).unwrap_or_default());
        other.read_exact(right)?;
        if left != right {
            return Ok(false);
        }
    }
}
