//! Compares the files of a cache with the archive from which they were restored.
//!
//! The archive is the only record of what was restored: a signed URL fixes the headers of an upload before its content is known, so no
//! fingerprint can be stored with the object, and archives of gitlab-runner have none.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use muster_archive::{Entry, EntryKind, Format, Limits, Meter, UnpackError};
use muster_steps::stop::StopToken;

/// Size of the parts in which contents are compared.
const PART_BYTES: usize = 64 * 1024;

/// Returns whether the archive contains exactly these files, whose paths are relative to `root`.
///
/// A file with the size and the modification time of its entry counts as unchanged, unless it is newer than the archive. The contents of
/// other files are compared. An archive that cannot be read counts as changed.
pub(super) fn is_unchanged(archive: &Path, root: &Path, files: &[PathBuf], limits: Limits, stop: &StopToken) -> bool {
    compare(archive, root, files, limits, stop).unwrap_or(false)
}

fn compare(
    archive: &Path,
    root: &Path,
    files: &[PathBuf],
    limits: Limits,
    stop: &StopToken,
) -> Result<bool, UnpackError> {
    let mut content = muster_files::open(archive).map_err(|error| UnpackError::Broken(error.into()))?;
    let mut head = [0; 4];
    content.read_exact(&mut head).map_err(UnpackError::Broken)?;
    let format = Format::from_magic(&head).unwrap_or(Format::Zip);
    let created = content.metadata().map_or((0, 0), |metadata| (metadata.mtime(), metadata.mtime_nsec()));
    let mut packed: HashMap<&Path, Metadata> = HashMap::new();
    for file in files {
        // A file that was removed, and a socket or a pipe, is not packed.
        let Ok(metadata) = fs::symlink_metadata(root.join(file)) else { continue };
        if metadata.is_file() || metadata.is_dir() || metadata.is_symlink() {
            packed.insert(file, metadata);
        }
    }
    let mut is_same = true;
    let ended = muster_archive::read(
        content,
        format,
        &Meter::new(limits, &|| stop.cause().is_some()),
        &mut |entry, content| {
            is_same = match packed.remove(entry.path.as_path()) {
                Some(metadata) => same(entry, content, &root.join(&entry.path), &metadata, created),
                None => false,
            };
            // An error ends the reading.
            if is_same { Ok(()) } else { Err(UnpackError::Stopped) }
        },
    );
    match ended {
        Ok(()) => Ok(packed.is_empty()),
        Err(_) if !is_same => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether a file is equal to its entry. `created` is the modification time of the archive.
fn same(entry: &Entry, content: &mut dyn Read, path: &Path, file: &Metadata, created: (i64, i64)) -> bool {
    let has_mode = || entry.mode.is_none_or(|mode| mode == file.permissions().mode() & 0o777);
    match &entry.kind {
        EntryKind::Directory => file.is_dir() && has_mode(),
        EntryKind::Link(target) => file.is_symlink() && fs::read_link(path).is_ok_and(|own| own == *target),
        EntryKind::File if !file.is_file() || !has_mode() || Some(file.len()) != entry.size => false,
        EntryKind::File => {
            let modified = (file.mtime(), file.mtime_nsec());
            let has_time = entry.modified.is_some_and(|time| time.unix_seconds() == file.mtime());
            (has_time && modified <= created) || has_content(path, content).unwrap_or(false)
        }
    }
}

/// Returns whether a file has this content.
fn has_content(path: &Path, content: &mut dyn Read) -> io::Result<bool> {
    let mut own = BufReader::with_capacity(PART_BYTES, muster_files::open(path).map_err(io::Error::from)?);
    let mut packed = BufReader::with_capacity(PART_BYTES, content);
    loop {
        let (left, right) = (own.fill_buf()?, packed.fill_buf()?);
        let length = left.len().min(right.len());
        if length == 0 {
            return Ok(left.is_empty() && right.is_empty());
        }
        if left.get(..length) != right.get(..length) {
            return Ok(false);
        }
        own.consume(length);
        packed.consume(length);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use filetime::{FileTime, set_file_mtime};

    use super::*;
    use crate::extraction::Extraction;
    use crate::files::format::{Format as ArchiveFormat, Level};
    use crate::files::pack::pack;

    /// A restored cache.
    struct Restored {
        directory: tempfile::TempDir,
        files: Vec<PathBuf>,
    }

    impl Restored {
        fn new(format: ArchiveFormat) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let source = directory.path().join("source");
            fs::create_dir_all(source.join("d/empty")).unwrap();
            fs::write(source.join("d/a"), "first").unwrap();
            fs::write(source.join("d/large"), vec![7; 3 * PART_BYTES]).unwrap();
            symlink("a", source.join("d/link")).unwrap();
            for name in ["d/a", "d/large"] {
                set_file_mtime(source.join(name), FileTime::from_unix_time(1_700_000_000, 0)).unwrap();
            }
            let files = ["d", "d/a", "d/empty", "d/large", "d/link"].map(PathBuf::from).to_vec();
            let archive = fs::File::create(directory.path().join("cache.zip")).unwrap();
            pack(format, &source, &files, Level::Default, &archive, &StopToken::new()).unwrap();
            let archive = fs::File::open(directory.path().join("cache.zip")).unwrap();
            Extraction::new(directory.path().join("root")).run(archive, &StopToken::new()).unwrap();
            Self { directory, files }
        }

        fn root(&self) -> PathBuf {
            self.directory.path().join("root")
        }

        fn is_unchanged(&self) -> bool {
            let archive = self.directory.path().join("cache.zip");
            is_unchanged(&archive, &self.root(), &self.files, Limits::default(), &StopToken::new())
        }
    }

    /// Changes a restored cache of each format, and checks whether it then counts as unchanged.
    fn check_each_format(change: impl Fn(&mut Restored), expected: bool, description: &str) {
        for format in [ArchiveFormat::Zip, ArchiveFormat::ZipZstd, ArchiveFormat::TarZstd] {
            let mut restored = Restored::new(format);
            assert!(restored.is_unchanged(), "{format:?}: nothing was changed");
            change(&mut restored);
            assert_eq!(restored.is_unchanged(), expected, "{format:?}: {description}");
        }
    }

    #[test]
    fn files_that_were_written_again_with_the_same_content_are_unchanged() {
        check_each_format(
            |restored| {
                fs::write(restored.root().join("d/a"), "first").unwrap();
                fs::write(restored.root().join("d/large"), vec![7; 3 * PART_BYTES]).unwrap();
                set_file_mtime(restored.root().join("d"), FileTime::now()).unwrap();
            },
            true,
            "same contents",
        );
    }

    #[test]
    fn every_other_change_is_found() {
        let root = |restored: &Restored, name: &str| restored.root().join(name);
        check_each_format(|restored| fs::write(root(restored, "d/a"), "other").unwrap(), false, "same size");
        check_each_format(
            |restored| {
                let mut content = vec![7; 3 * PART_BYTES];
                content[2 * PART_BYTES] = 8;
                fs::write(root(restored, "d/large"), content).unwrap();
            },
            false,
            "one byte in the middle",
        );
        check_each_format(
            |restored| {
                fs::write(root(restored, "d/a"), "longer").unwrap();
                set_file_mtime(root(restored, "d/a"), FileTime::from_unix_time(1_700_000_000, 0)).unwrap();
            },
            false,
            "another size with the old time",
        );
        check_each_format(
            |restored| {
                fs::remove_file(root(restored, "d/a")).unwrap();
                restored.files.retain(|file| file != Path::new("d/a"));
            },
            false,
            "a removed file",
        );
        check_each_format(
            |restored| {
                fs::write(root(restored, "d/b"), "").unwrap();
                // gitlab-runner does not find an old file that was added.
                set_file_mtime(root(restored, "d/b"), FileTime::from_unix_time(1, 0)).unwrap();
                restored.files.push("d/b".into());
            },
            false,
            "an added file",
        );
        check_each_format(
            |restored| {
                let mode = fs::Permissions::from_mode(0o700);
                fs::set_permissions(root(restored, "d/a"), mode).unwrap();
            },
            false,
            "another mode",
        );
        check_each_format(
            |restored| {
                fs::remove_file(root(restored, "d/link")).unwrap();
                symlink("large", root(restored, "d/link")).unwrap();
            },
            false,
            "another target of a link",
        );
        check_each_format(
            |restored| fs::write(restored.directory.path().join("cache.zip"), "PK").unwrap(),
            false,
            "no archive",
        );
    }
}
