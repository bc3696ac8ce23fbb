//! Compares the files of a cache with its archive. Archives have no checksums of files, so contents are compared.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use muster_archive::{Entry, EntryKind, Format, Limits, Meter, UnpackError};
use muster_steps::stop::StopToken;

use crate::restored_cache::{ChangeTime, Restored, change_time};

const PART_BYTES: usize = 64 * 1024;

/// Time at which the files of a cache were last known to be equal to the archive.
///
/// Equal sizes and modification times do not prove that a file is unchanged: reproducible builds, for example, give
/// all files the same modification time. So its change time, which only the system sets, must be before the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Baseline {
    /// Unknown. All contents are compared.
    #[default]
    Unknown,
    /// Time at which the archive was written. Used by the command `cache-archiver`.
    ArchiveWritten,
    /// Time at which this job restored the files.
    Restored(Restored),
}

impl Baseline {
    /// Returns the time of the baseline. `None` means that all contents are compared.
    fn time(self, archive: &Metadata) -> Option<ChangeTime> {
        match self {
            Self::Unknown => None,
            Self::ArchiveWritten => Some(change_time(archive)),
            Self::Restored(restored) => restored.end_for(archive),
        }
    }
}

/// Returns whether the archive contains exactly these files, whose paths are relative to `root`.
///
/// An archive that cannot be read counts as changed.
pub(super) fn is_unchanged(
    archive: &Path,
    (root, files): (&Path, &[PathBuf]),
    baseline: Baseline,
    limits: Limits,
    stop: &StopToken,
) -> bool {
    compare(archive, (root, files), baseline, limits, stop).unwrap_or(false)
}

fn compare(
    archive: &Path,
    (root, files): (&Path, &[PathBuf]),
    baseline: Baseline,
    limits: Limits,
    stop: &StopToken,
) -> Result<bool, UnpackError> {
    let mut content = muster_files::open(archive).map_err(|error| UnpackError::Broken(error.into()))?;
    let mut head = [0; 4];
    content.read_exact(&mut head).map_err(UnpackError::Broken)?;
    let format = Format::from_magic(&head).unwrap_or(Format::Zip);
    let equal_at = baseline.time(&content.metadata().map_err(UnpackError::Broken)?);
    let mut packed: HashMap<&Path, Metadata> = HashMap::new();
    for file in files {
        // Only these three kinds of files are packed.
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
                Some(metadata) => is_equal(entry, content, &root.join(&entry.path), &metadata, equal_at),
                None => false,
            };
            if is_same { Ok(()) } else { Err(UnpackError::Stopped) }
        },
    );
    match ended {
        Ok(()) => Ok(packed.is_empty()),
        Err(_) if !is_same => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether a file is equal to an entry. `equal_at` is a time at which both were equal, if known.
fn is_equal(entry: &Entry, content: &mut dyn Read, path: &Path, file: &Metadata, equal_at: Option<ChangeTime>) -> bool {
    let has_mode = || entry.mode.is_none_or(|mode| mode == file.permissions().mode() & 0o777);
    match &entry.kind {
        EntryKind::Directory => file.is_dir() && has_mode(),
        EntryKind::Link(target) => file.is_symlink() && fs::read_link(path).is_ok_and(|own| own == *target),
        EntryKind::File if !file.is_file() || !has_mode() || Some(file.len()) != entry.size => false,
        EntryKind::File => {
            let has_time = entry.modified.is_some_and(|time| time.unix_seconds() == file.mtime());
            // A file whose change time is exactly `equal_at` may have changed afterwards, so it does not count as old.
            let is_old = equal_at.is_some_and(|time| change_time(file) < time);
            (has_time && is_old) || has_same_content(path, content).unwrap_or(false)
        }
    }
}

fn has_same_content(path: &Path, content: &mut dyn Read) -> io::Result<bool> {
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

    struct Fixture {
        directory: tempfile::TempDir,
        files: Vec<PathBuf>,
        end: Restored,
    }

    impl Fixture {
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
            let found = fs::metadata(directory.path().join("cache.zip")).unwrap();
            let end = Restored::now(&found, directory.path()).unwrap();
            Self { directory, files, end }
        }

        fn root(&self) -> PathBuf {
            self.directory.path().join("root")
        }

        fn is_unchanged(&self) -> bool {
            let archive = self.directory.path().join("cache.zip");
            let is_unchanged = |baseline| {
                is_unchanged(&archive, (&self.root(), &self.files), baseline, Limits::default(), &StopToken::new())
            };
            let all = [Baseline::Unknown, Baseline::ArchiveWritten, Baseline::Restored(self.end)].map(is_unchanged);
            assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
            all[0]
        }
    }

    /// Checks whether a restored cache of each format counts as unchanged after `change`.
    fn check_each_format(change: impl Fn(&mut Fixture), expected: bool, description: &str) {
        for format in [ArchiveFormat::Zip, ArchiveFormat::ZipZstd, ArchiveFormat::TarZstd] {
            let mut restored = Fixture::new(format);
            assert!(restored.is_unchanged(), "{format:?}: the cache must be unchanged at first");
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
    fn changes_of_contents_modes_targets_and_the_list_of_files_are_found() {
        let root = |restored: &Fixture, name: &str| restored.root().join(name);
        check_each_format(|restored| fs::write(root(restored, "d/a"), "other").unwrap(), false, "same size");
        check_each_format(
            |restored| {
                fs::write(root(restored, "d/a"), "other").unwrap();
                set_file_mtime(root(restored, "d/a"), FileTime::from_unix_time(1_700_000_000, 0)).unwrap();
            },
            false,
            "the same size and the same time, as after a reproducible build",
        );
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
                // gitlab-runner does not detect an added file that is older than the archive.
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
