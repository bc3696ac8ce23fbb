//! A directory tree, read once and written many times: what a job's checkout is copied from.
//!
//! Small files are kept in memory, so that writing one takes four system calls and no reading.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Timespec, Timestamps};

/// Files up to this size may be kept in memory,
const SMALL: u64 = 64 * 1024;
/// as long as all of a tree's together stay below this.
const KEPT: u64 = 16 * 1024 * 1024;

/// A tree, ready to be written elsewhere.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    /// A directory stands before what is in it.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    path: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Directory,
    Link(PathBuf),
    File { mode: u32, modified: Timespec, content: Option<Box<[u8]>> },
}

impl Tree {
    /// Reads the tree below `root`. It must not change while this lives.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let mut entries = Vec::new();
        let mut kept = 0;
        let mut walk = walkdir::WalkDir::new(root).min_depth(1).sort_by_file_name().into_iter();
        while let Some(entry) = walk.next().transpose()? {
            let path = entry.path().strip_prefix(root).map_err(io::Error::other)?.to_owned();
            let metadata = entry.metadata()?;
            let kind = if metadata.is_dir() {
                Kind::Directory
            } else if metadata.is_symlink() {
                Kind::Link(fs::read_link(entry.path())?)
            } else {
                let keep = metadata.len() <= SMALL && kept + metadata.len() <= KEPT;
                kept += if keep { metadata.len() } else { 0 };
                Kind::File {
                    mode: metadata.permissions().mode() & 0o777,
                    modified: Timespec { tv_sec: metadata.mtime(), tv_nsec: metadata.mtime_nsec() },
                    content: if keep { Some(fs::read(entry.path())?.into_boxed_slice()) } else { None },
                }
            };
            entries.push(Entry { path, kind });
        }
        Ok(Self { root: root.to_owned(), entries })
    }

    /// Writes the entries that `wanted` picks below `target`, which must exist and be empty. `go_on` is asked before
    /// each, and may end it.
    pub(super) fn write(
        &self,
        target: &Path,
        wanted: impl Fn(&Path) -> bool,
        go_on: impl Fn() -> bool,
    ) -> io::Result<()> {
        for entry in self.entries.iter().filter(|entry| wanted(&entry.path)) {
            if !go_on() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let path = target.join(&entry.path);
            match &entry.kind {
                Kind::Directory => fs::create_dir(&path)?,
                Kind::Link(to) => std::os::unix::fs::symlink(to, &path)?,
                Kind::File { mode, modified, content } => {
                    let mut file = File::options().write(true).create_new(true).mode(*mode).open(&path)?;
                    match content {
                        Some(content) => file.write_all(content)?,
                        None => copy(&File::open(self.root.join(&entry.path))?, &mut file)?,
                    }
                    let times = Timestamps { last_access: *modified, last_modification: *modified };
                    rustix::fs::futimens(&file, &times)?;
                }
            }
        }
        Ok(())
    }
}

/// Shares the blocks where the file system can, else copies inside the kernel.
fn copy(from: &File, to: &mut File) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(&*to, from).is_ok() {
        return Ok(());
    }
    io::copy(&mut &*from, to).map(|_| ())
}
