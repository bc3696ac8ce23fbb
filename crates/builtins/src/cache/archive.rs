//! Packs the files of a cache into an archive on this machine.

use std::fs;
use std::io::Write;
use std::path::Path;

use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

use super::unchanged::{Baseline, is_unchanged};
use crate::blocking::blocking;
use crate::files::format::{Format, Level};
use crate::files::pack::pack;
use crate::files::select::{FileSelection, select};
use crate::transfer::TransferContext;

/// Message if no file has changed since the archive was written.
pub const UP_TO_DATE: &str = "Archive is up to date!";
/// Message if the patterns match no files.
pub const NO_FILES: &str = "No files to cache.";

/// Archive to write.
#[derive(Debug, Clone, Copy)]
pub struct Archive<'a> {
    /// Files to pack.
    pub files: FileSelection<'a>,
    /// Path of the archive.
    pub file: &'a Path,
    /// Path from which an archive is moved to `file`, if `file` does not exist.
    pub alternate: Option<&'a Path>,
    /// Format of the archive.
    pub format: Format,
    /// Compression level.
    pub level: Level,
    /// Time at which the files were last known to be equal to the archive.
    pub baseline: Baseline,
    /// Content of `metadata.json` beside the archive. `None` means that the file is not written.
    pub metadata: Option<&'a str>,
}

/// Result of writing an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveOutcome {
    /// The patterns match no files.
    NoFiles,
    /// The archive already contains exactly these files.
    UpToDate,
    /// A new archive was written.
    Written {
        /// Size of the archive in bytes.
        size: u64,
    },
}

impl Archive<'_> {
    /// Packs the files, unless the archive already contains exactly these files. Replaces the archive atomically.
    ///
    /// # Errors
    /// [`Failure`] if a file or the directory cannot be used, or the job was stopped.
    pub async fn write(&self, context: &dyn TransferContext, stop: &StopToken) -> Result<ArchiveOutcome, Failure> {
        let files = select(context, self.files, stop).await?;
        if files.is_empty() {
            return Ok(ArchiveOutcome::NoFiles);
        }
        let (root, watch) = (context.root().to_owned(), stop.clone());
        let (archive, alternate) = (self.file.to_owned(), self.alternate.map(Path::to_owned));
        let limits = context.extraction().limits;
        let (format, level, baseline) = (self.format, self.level, self.baseline);
        let metadata = self.metadata.map(str::to_owned);
        blocking(context, "packing the cache", stop, move || {
            adopt_alternate(alternate.as_deref(), &archive);
            if is_unchanged(&archive, (&root, &files), baseline, limits, &watch) {
                return Ok(ArchiveOutcome::UpToDate);
            }
            let write_failed = || Failure::io(format!("failed to write `{}`", archive.display()));
            let directory = archive.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(directory).map_err(write_failed())?;
            let temporary =
                tempfile::Builder::new().prefix("archive_").tempfile_in(directory).map_err(write_failed())?;
            pack(format, &root, &files, level, temporary.as_file(), &watch)?;
            let size = temporary.as_file().metadata().map_err(write_failed())?.len();
            temporary.persist(&archive).map_err(|error| write_failed()(error.error))?;
            if let Some(metadata) = metadata {
                // The existing file must not be opened, because another job may have put a FIFO or a symbolic link
                // there.
                let path = directory.join("metadata.json");
                let write_failed = || Failure::io(format!("failed to write `{}`", path.display()));
                let mut temporary =
                    tempfile::Builder::new().prefix("metadata_").tempfile_in(directory).map_err(write_failed())?;
                temporary.write_all(metadata.as_bytes()).map_err(write_failed())?;
                temporary.persist(&path).map_err(|error| write_failed()(error.error))?;
            }
            Ok(ArchiveOutcome::Written { size })
        })
        .await
    }
}

/// Moves the archive that is stored under the other form of the cache key (hashed or plain) to the path of the key.
fn adopt_alternate(alternate: Option<&Path>, archive: &Path) {
    let Some(alternate) = alternate.filter(|path| path.is_file() && !archive.exists()) else { return };
    let moved = archive.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::rename(alternate, archive));
    if let Err(error) = moved {
        tracing::warn!(%error, "failed to move the archive of a cache to the path of its key");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::transfer::test_support::RecordingContext;

    #[test]
    fn existing_metadata_file_is_replaced_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (root, cache, outside) = (dir.path().join("project"), dir.path().join("cache"), dir.path().join("outside"));
        let metadata = cache.join("metadata.json");
        fs::create_dir(&root).unwrap();
        fs::create_dir(&cache).unwrap();
        fs::write(root.join("file"), "text").unwrap();
        fs::write(&outside, "unchanged").unwrap();
        let fifo = || {
            rustix::fs::mknodat(rustix::fs::CWD, &metadata, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        };
        let link = || std::os::unix::fs::symlink(&outside, &metadata).unwrap();
        let replacements: [(&str, &dyn Fn()); 2] = [("a FIFO", &fifo), ("a link", &link)];
        for (description, create) in replacements {
            create();
            let (file, root) = (cache.join("cache.zip"), root.clone());
            let (done, written) = mpsc::channel();
            std::thread::spawn(move || {
                let paths = ["file".to_owned()];
                let archive = Archive {
                    files: FileSelection { paths: &paths, ..FileSelection::default() },
                    file: &file,
                    alternate: None,
                    format: Format::Zip,
                    level: Level::from_name(None),
                    baseline: Baseline::Unknown,
                    metadata: Some("{}"),
                };
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let written = runtime.block_on(archive.write(&RecordingContext::new(root), &StopToken::default()));
                done.send(written.unwrap()).unwrap();
            });
            let written = written.recv_timeout(Duration::from_secs(20));
            let written = written.unwrap_or_else(|_| panic!("{description} in place of the metadata must not block"));
            assert!(matches!(written, ArchiveOutcome::Written { .. }), "{description}: {written:?}");
            assert_eq!(fs::read_to_string(&outside).unwrap(), "unchanged", "{description}");
            assert!(fs::symlink_metadata(&metadata).unwrap().is_file(), "{description}");
            assert_eq!(fs::read_to_string(&metadata).unwrap(), "{}", "{description}");
            fs::remove_file(&metadata).unwrap();
            fs::remove_file(cache.join("cache.zip")).unwrap();
        }
    }
}
