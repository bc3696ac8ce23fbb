//! Measures the disk space of directories that other users can change meanwhile.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, StatxAttributes, StatxFlags, fstat, openat, statat, statx,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Maximum number of levels to enter, because each keeps a file descriptor open.
const MAX_LEVELS: usize = 128;
/// Minimum number of bytes of each file or directory. Without it, empty files would never reach the limit.
const MIN_ENTRY_BYTES: u64 = 512;
/// Maximum number of files with several names to recognize. Others count once per name.
const MAX_LINKED_FILES: usize = 1_000_000;

/// Disk space of directories.
#[derive(Debug, Default)]
pub struct DiskUsage {
    /// Allocated space in bytes, at least 512 per file and directory. A file with several names counts once.
    pub bytes: u64,
    /// First directory that could not be measured, preferably with [`Unmeasured::is_own`]. `None` means that all were
    /// measured.
    pub unmeasured: Option<Unmeasured>,
    /// Device and inode numbers of files with several names.
    linked: HashSet<(u64, u64)>,
}

/// Directory that is not part of a [`DiskUsage`].
#[derive(Debug, thiserror::Error)]
#[error("failed to measure `{}`: {problem}", path.display())]
pub struct Unmeasured {
    /// Path of the directory.
    pub path: PathBuf,
    /// Reason.
    pub problem: io::Error,
    /// Whether the directory belongs to the user of this process, is the top directory, or is too deep.
    pub is_own: bool,
}

impl DiskUsage {
    /// Adds a directory with its content. Stops when the sum exceeds `limit`, or `is_stopped` returns true. Blocks the
    /// thread.
    ///
    /// Symbolic links are not followed, and other mounted file systems are excluded. Subvolumes of btrfs count. A
    /// missing directory has no content.
    pub fn add(&mut self, path: &Path, limit: u64, is_stopped: &dyn Fn() -> bool) {
        let top = open_directory(CWD, path).and_then(|directory| Ok((fstat(&directory)?, Dir::new(directory)?)));
        let (device, top) = match top {
            Ok((found, entries)) => {
                self.count(&found);
                (found.st_dev, entries)
            }
            Err(Errno::NOENT) => return,
            Err(error) => return self.skip(path.to_owned(), error, true),
        };
        let mut levels = vec![Level { path: path.to_owned(), entries: top, device, is_own: true }];
        while let Some(level) = levels.last_mut() {
            if self.bytes > limit || is_stopped() {
                return;
            }
            match level.next() {
                Ok(None) => drop(levels.pop()),
                Ok(Some(Found::Other)) => {}
                Ok(Some(Found::File(found))) => self.count(&found),
                Ok(Some(Found::Directory(path, found, opened))) => {
                    self.count(&found);
                    let (device, is_own) = (found.st_dev, found.st_uid == geteuid().as_raw());
                    match opened.and_then(Dir::new) {
                        _ if levels.len() > MAX_LEVELS => self.skip(path, Errno::NAMETOOLONG, true),
                        Ok(entries) => levels.push(Level { path, entries, device, is_own }),
                        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                        Err(error) => self.skip(path, error, is_own),
                    }
                }
                Err(error) => {
                    let (path, is_own) = (std::mem::take(&mut level.path), level.is_own);
                    levels.pop();
                    self.skip(path, error, is_own);
                }
            }
        }
    }

    fn count(&mut self, found: &Stat) {
        let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        if found.st_nlink > 1 && !is_directory && self.linked.len() < MAX_LINKED_FILES {
            let is_new = self.linked.insert((found.st_dev, found.st_ino));
            if !is_new {
                return;
            }
        }
        let blocks = u64::try_from(found.st_blocks).unwrap_or_default();
        self.bytes = self.bytes.saturating_add(blocks.saturating_mul(512).max(MIN_ENTRY_BYTES));
    }

    fn skip(&mut self, path: PathBuf, problem: Errno, is_own: bool) {
        // A directory of this user takes precedence over one of another user, even if it is found later.
        if self.unmeasured.as_ref().is_none_or(|known| is_own && !known.is_own) {
            self.unmeasured = Some(Unmeasured { path, problem: problem.into(), is_own });
        }
    }
}

struct Level {
    path: PathBuf,
    entries: Dir,
    device: u64,
    /// Whether it belongs to the user of this process, or is the top directory.
    is_own: bool,
}

enum Found {
    File(Stat),
    Directory(PathBuf, Stat, Result<OwnedFd, Errno>),
    Other,
}

impl Level {
    /// Returns the next entry, if there is one.
    fn next(&mut self) -> Result<Option<Found>, Errno> {
        let Some(entry) = self.entries.read() else { return Ok(None) };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            return Ok(Some(Found::Other));
        }
        let directory = self.entries.fd()?;
        let found = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if found.st_dev == self.device || is_in_same_mount(directory, name) => found,
            // The entry was deleted, or is a mount point. `ENOTCONN` means that the process of a FUSE mount has ended.
            Ok(_) | Err(Errno::NOENT | Errno::NOTCONN) => return Ok(Some(Found::Other)),
            Err(error) => return Err(error),
        };
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            return Ok(Some(Found::File(found)));
        }
        let name = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
        Ok(Some(Found::Directory(self.path.join(name), found, open_directory(directory, name))))
    }
}

/// Returns whether an entry on another device belongs to the same mount.
///
/// Each subvolume of btrfs, and each lower layer of an overlay, has its own device number.
fn is_in_same_mount(directory: BorrowedFd<'_>, name: &CStr) -> bool {
    let found = statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    found.is_ok_and(|found| {
        let is_known = found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
        is_known && !found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
    })
}

fn open_directory(parent: impl AsFd, name: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    openat(parent, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn measured(path: &Path, limit: u64) -> DiskUsage {
        let mut usage = DiskUsage::default();
        usage.add(path, limit, &|| false);
        usage
    }

    #[test]
    fn allocated_space_counts_once_and_links_are_not_followed() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let empty = measured(dir.path(), u64::MAX).bytes;
        fs::write(outside.path().join("large"), vec![1; 4 << 20]).unwrap();
        fs::File::create(dir.path().join("sparse")).unwrap().set_len(1 << 40).unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/file"), vec![1; 2 << 20]).unwrap();
        fs::hard_link(dir.path().join("a/b/file"), dir.path().join("a/again")).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
        let all = measured(dir.path(), u64::MAX);
        let growth = all.bytes - empty;
        assert!((2 << 20..(2 << 20) + (1 << 18)).contains(&growth), "{growth} bytes more");
        assert!(all.unmeasured.is_none());
        assert_eq!(measured(&dir.path().join("none"), u64::MAX).bytes, 0);
        let mut stopped = DiskUsage::default();
        stopped.add(dir.path(), u64::MAX, &|| true);
        assert!(stopped.bytes <= empty, "no entries must be counted after a stop");
    }

    /// Lower layers of an overlay have other device numbers, like subvolumes of btrfs.
    #[test]
    fn other_devices_in_the_same_mount_are_counted_but_nested_mounts_are_not() {
        let test = "usage::tests::other_devices_in_the_same_mount_are_counted_but_nested_mounts_are_not";
        let script = "mount -t tmpfs tmpfs \"$1\" && cd \"$1\" && mkdir lower upper overlay && mount -t tmpfs tmpfs lower && \
                      mount -t tmpfs tmpfs upper && mkdir upper/files upper/work lower/mounted && \
                      dd if=/dev/zero of=lower/file bs=1M count=2 && \
                      mount -t overlay -o lowerdir=lower,upperdir=upper/files,workdir=upper/work overlay overlay && \
                      dd if=/dev/zero of=overlay/file2 bs=1M count=1 && mount -t tmpfs tmpfs overlay/mounted && \
                      dd if=/dev/zero of=overlay/mounted/file bs=1M count=8";
        let Some(dir) = muster_test_prerequisites::run_with_mounts(test, script) else { return };
        let all = measured(&dir.join("overlay"), u64::MAX).bytes;
        assert!((3 << 20..4 << 20).contains(&all), "{all} bytes");
    }

    #[test]
    fn empty_files_count_and_end_the_measurement() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..200 {
            fs::write(dir.path().join(number.to_string()), "").unwrap();
        }
        let empty_files = measured(dir.path(), u64::MAX).bytes;
        assert!(empty_files >= 200 * MIN_ENTRY_BYTES, "{empty_files}");
        let limited = measured(dir.path(), 50 * MIN_ENTRY_BYTES).bytes;
        assert!(limited < empty_files, "the measurement must end early: {limited} of {empty_files} bytes");
    }

    #[test]
    fn unmeasured_directories_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut deep = dir.path().to_owned();
        for _ in 0..=MAX_LEVELS {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        let unmeasured = measured(dir.path(), u64::MAX).unmeasured.unwrap();
        assert!(unmeasured.is_own && unmeasured.to_string().contains("/d/d`: File name too long"), "{unmeasured}");
        fs::write(dir.path().join("file"), "").unwrap();
        let unmeasured = measured(&dir.path().join("file"), u64::MAX).unmeasured.unwrap();
        assert!(unmeasured.to_string().contains("Not a directory"), "{unmeasured}");
    }

    #[test]
    fn unmeasured_directory_of_this_user_takes_precedence_over_one_of_another_user() {
        let mut usage = DiskUsage::default();
        usage.skip("other".into(), Errno::ACCESS, false);
        usage.skip("own".into(), Errno::ACCESS, true);
        usage.skip("later".into(), Errno::ACCESS, false);
        let unmeasured = usage.unmeasured.unwrap();
        assert_eq!((unmeasured.path, unmeasured.is_own), ("own".into(), true));
    }
}
