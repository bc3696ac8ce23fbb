//! Blobs in files below the state directory.
//!
//! ```text
//! traces/JOB.log
//! artifacts/JOB/KIND/FILENAME
//! artifacts/.incoming/        content that is being received; emptied at the start
//! ```

mod traces;

use std::fs::{DirEntry, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use muster_job::JobId;
use muster_runner_api::service::ByteStream;
use tempfile::NamedTempFile;
use tokio::io::AsyncWriteExt;
use tokio_util::io::ReaderStream;

use super::{Appended, ArtifactName, BlobError, Blobs, Incoming, MAX_READ, blocking};

use traces::Traces;

const TRACES: &str = "traces";
const ARTIFACTS: &str = "artifacts";
const INCOMING: &str = ".incoming";
const UPLOAD_PREFIX: &str = ".upload-";

#[derive(Debug)]
pub(crate) struct DirectoryBlobs {
    traces: Traces,
    artifacts: PathBuf,
}

struct IncomingFile {
    temp_file: NamedTempFile,
    file: tokio::fs::File,
    artifacts: PathBuf,
}

impl DirectoryBlobs {
    /// Opens a state directory for writing, and deletes the incomplete uploads of the previous process.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(dir.join(TRACES))?;
        let incoming = dir.join(ARTIFACTS).join(INCOMING);
        std::fs::create_dir_all(&incoming)?;
        for entry in std::fs::read_dir(&incoming)?.flatten() {
            if let Err(error) = std::fs::remove_file(entry.path()) {
                tracing::warn!(file = %entry.path().display(), %error, "failed to delete an incomplete upload");
            }
        }
        Ok(Self::open_read_only(dir))
    }

    /// Opens a state directory. Unlike [`Self::open`], creates no directories and deletes no uploads.
    pub(crate) fn open_read_only(dir: &Path) -> Self {
        Self { traces: Traces::new(dir.join(TRACES)), artifacts: dir.join(ARTIFACTS) }
    }
}

fn path(artifacts: &Path, name: &ArtifactName) -> PathBuf {
    artifacts.join(name.job.to_string()).join(&name.kind).join(&name.filename)
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> BlobError + '_ {
    move |error| BlobError::new(format_args!("`{}`", path.display()), error)
}

fn open_if_exists(path: &Path) -> Result<Option<File>, BlobError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path)(error)),
    }
}

#[async_trait]
impl Blobs for DirectoryBlobs {
    async fn append_trace(&self, job: JobId, start: u64, bytes: Bytes, max_bytes: u64) -> Result<Appended, BlobError> {
        self.traces.append(job, start, bytes, max_bytes).await
    }

    async fn trace_checksum(&self, job: JobId) -> Result<(u64, u32), BlobError> {
        self.traces.checksum(job).await
    }

    async fn read_trace(&self, job: JobId, offset: u64) -> Result<Bytes, BlobError> {
        let path = self.traces.path(job);
        let read = move || {
            let Some(mut file) = open_if_exists(&path)? else { return Ok(Bytes::new()) };
            let mut bytes = Vec::new();
            let read = file.seek(SeekFrom::Start(offset)).and_then(|_| file.take(MAX_READ).read_to_end(&mut bytes));
            read.map_err(failed(&path))?;
            Ok(bytes.into())
        };
        blocking::<_, BlobError>(read).await
    }

    async fn open_trace(&self, job: JobId) -> Result<Option<File>, BlobError> {
        open_if_exists(&self.traces.path(job))
    }

    fn close_trace(&self, job: JobId) {
        self.traces.close(job);
    }

    async fn receive(&self) -> Result<Box<dyn Incoming>, BlobError> {
        let (artifacts, incoming) = (self.artifacts.clone(), self.artifacts.join(INCOMING));
        let begin = move || {
            let temp_file =
                tempfile::Builder::new().prefix(UPLOAD_PREFIX).tempfile_in(&incoming).map_err(failed(&incoming))?;
            let file = temp_file.reopen().map_err(failed(temp_file.path()))?;
            Ok(IncomingFile { temp_file, file: tokio::fs::File::from_std(file), artifacts })
        };
        Ok(Box::new(blocking::<_, BlobError>(begin).await?))
    }

    async fn open(&self, name: &ArtifactName) -> Result<Option<File>, BlobError> {
        open_if_exists(&path(&self.artifacts, name))
    }

    async fn stream(&self, name: &ArtifactName) -> Result<Option<(u64, ByteStream)>, BlobError> {
        let path = path(&self.artifacts, name);
        let Some(file) = open_if_exists(&path)? else { return Ok(None) };
        // Return the size of the open file, not the size in its row: the file may have been replaced after the row was written.
        let size = file.metadata().map_err(failed(&path))?.len();
        Ok(Some((size, ReaderStream::new(tokio::fs::File::from_std(file)).boxed())))
    }

    fn is_lost(&self, name: &ArtifactName) -> bool {
        !path(&self.artifacts, name).is_file()
    }

    async fn delete(&self, name: &ArtifactName) -> Result<(), BlobError> {
        let file = path(&self.artifacts, name);
        let delete = move || {
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&file)(error)),
                _ => {}
            }
            // Delete the directories of the kind and of the job if they are empty now.
            for directory in file.ancestors().skip(1).take(2) {
                if std::fs::remove_dir(directory).is_err() {
                    break;
                }
            }
            Ok(())
        };
        blocking(delete).await
    }

    async fn list(&self, job: JobId) -> Result<Vec<ArtifactName>, BlobError> {
        let directory = self.artifacts.join(job.to_string());
        let list = move || {
            let mut names = Vec::new();
            for kind in entries(&directory)? {
                for file in entries(&kind.path())? {
                    let (kind, filename) = (kind.file_name().into_string(), file.file_name().into_string());
                    // Names of artifacts are always valid UTF-8. Other files are not artifacts.
                    if let (Ok(kind), Ok(filename)) = (kind, filename) {
                        names.push(ArtifactName { job, kind, filename });
                    }
                }
            }
            Ok(names)
        };
        blocking::<_, BlobError>(list).await
    }
}

/// Returns the entries of a directory. Returns none if it does not exist, or is not a directory.
fn entries(directory: &Path) -> Result<Vec<DirEntry>, BlobError> {
    match std::fs::read_dir(directory).and_then(Iterator::collect) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        result => result.map_err(failed(directory)),
    }
}

#[async_trait]
impl Incoming for IncomingFile {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.file.write_all(bytes).await.map_err(failed(self.temp_file.path()))
    }

    async fn open(&mut self) -> Result<File, BlobError> {
        self.file.flush().await.map_err(failed(self.temp_file.path()))?;
        self.temp_file.reopen().map_err(failed(self.temp_file.path()))
    }

    async fn store(mut self: Box<Self>, name: &ArtifactName) -> Result<(), BlobError> {
        self.file.flush().await.map_err(failed(self.temp_file.path()))?;
        let (target, temp_file) = (path(&self.artifacts, name), self.temp_file);
        let store = move || {
            let directory = target.parent().unwrap_or(&target);
            std::fs::create_dir_all(directory).map_err(failed(directory))?;
            temp_file.persist(&target).map(drop).map_err(|error| failed(&target)(error.error))
        };
        blocking(store).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn content_is_deleted_when_dropped_before_it_is_stored() {
        let dir = tempfile::tempdir().expect("failed to create a directory");
        let blobs = DirectoryBlobs::open(dir.path()).expect("failed to open the blobs");
        let incoming_files = || entries(&dir.path().join(ARTIFACTS).join(INCOMING)).expect("failed to list").len();
        let mut incoming = blobs.receive().await.expect("failed to start receiving");
        incoming.write(b"half").await.expect("failed to write");
        assert_eq!(incoming_files(), 1);
        drop(incoming);
        assert_eq!(incoming_files(), 0);
    }

    #[tokio::test]
    async fn unreadable_directory_is_an_error_of_the_list() {
        let dir = tempfile::tempdir().expect("failed to create a directory");
        let blobs = DirectoryBlobs::open(dir.path()).expect("failed to open the blobs");
        std::os::unix::fs::symlink("1", dir.path().join(ARTIFACTS).join("1")).expect("failed to create a link");
        let error = blobs.list(JobId(1)).await.expect_err("a directory that is a loop of links was listed");
        assert!(error.to_string().contains("artifacts/1`"), "{error}");
    }
}
