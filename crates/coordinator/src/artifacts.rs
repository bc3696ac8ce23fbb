//! Artifacts: files that jobs upload, one per job and kind.
//!
//! A file is streamed to a name of its own, checked, and renamed into its place; its row is written after that, and what
//! has no row then is deleted. So a row means a whole file, and a file without a row is a leftover of a process that was
//! killed: the next one deletes it when it opens.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use muster_archive::{Exceeded, Limit, UnpackError};
use muster_job::JobId;
use muster_pipeline::duration;
use muster_runner_api::service::{ArtifactQuery, ByteStream, ServiceError};
use tempfile::NamedTempFile;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::dotenv;
use crate::error::write_failed;
use crate::options::Limits;
use crate::traces::blocking;

/// The folder below the state folder.
const FOLDER: &str = "artifacts";
/// The kind that later jobs download.
pub(crate) const ARCHIVE: &str = "archive";
/// The kind whose content becomes variables.
pub(crate) const DOTENV: &str = "dotenv";
/// The kinds that there are, in order (pipeline-yaml 1.3, runner-api 5.1). Since there is one file per kind, the list is
/// also the bound of how many files a job may leave.
const KINDS: &[&str] = &[
    "accessibility",
    "annotations",
    "api_fuzzing",
    ARCHIVE,
    "browser_performance",
    "cobertura",
    "codequality",
    "container_scanning",
    "coverage_fuzzing",
    "cyclonedx",
    "dast",
    "dependency_scanning",
    DOTENV,
    "jacoco",
    "junit",
    "license_management",
    "license_scanning",
    "load_performance",
    "lsif",
    "metadata",
    "metrics",
    "metrics_referee",
    "network_referee",
    "repository_xray",
    "requirements",
    "sarif",
    "sast",
    "secret_detection",
    "terraform",
];
/// Bytes of an unpacked dotenv report that are looked at; its parser allows far fewer.
const DOTENV_READ_MAX: u64 = 64 * 1024;
/// What the names of unfinished uploads begin with.
const UNFINISHED: &str = ".upload-";
/// Locks for all jobs together.
const LOCKS: usize = 64;
/// Bytes of a file name.
const NAME_MAX: usize = 200;

/// What became of an upload.
#[derive(Debug)]
pub(crate) enum Upload {
    /// It is whole, and not in its place yet.
    Received(NamedTempFile, NewArtifact),
    /// It is a report that cannot be used, and why.
    Refused(String),
}

/// A file that lies in its place already.
#[derive(Debug, Clone)]
pub(crate) struct NewArtifact {
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) filename: String,
    pub(crate) size: u64,
    pub(crate) expire_in: Option<String>,
    /// Content of a dotenv report.
    pub(crate) dotenv: Vec<(String, String)>,
}

/// Where an artifact lies below a state folder.
pub(crate) fn path(dir: &Path, job: JobId, kind: &str, filename: &str) -> PathBuf {
    dir.join(FOLDER).join(job.to_string()).join(kind).join(filename)
}

/// Makes the folder.
pub(crate) fn prepare(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir.join(FOLDER))
}

/// Keeps uploads and expiry of one job apart. It is held from before a file is put in its place until the row is there,
/// or the file is gone again; so who holds it sees rows and files agree.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<[Arc<Mutex<()>>]>);

impl Default for Places {
    fn default() -> Self {
        Self((0..LOCKS).map(|_| Arc::default()).collect())
    }
}

impl Places {
    fn of(&self, job: JobId) -> Arc<Mutex<()>> {
        self.0.get(self.number(job)).cloned().unwrap_or_default()
    }

    /// The number of a job's lock: several jobs have the same.
    pub(crate) fn number(&self, job: JobId) -> usize {
        usize::try_from(job.0).unwrap_or(0) % LOCKS
    }

    /// Whether nobody has the files of a job.
    pub(crate) fn is_free(&self, job: JobId) -> bool {
        self.0.get(self.number(job)).is_none_or(|lock| lock.try_lock().is_ok())
    }

    /// Waits for the files of a job.
    pub(crate) async fn lock(&self, job: JobId) -> OwnedMutexGuard<()> {
        self.of(job).lock_owned().await
    }

    /// The files of a job, if nobody has them.
    pub(crate) fn try_lock(&self, job: JobId) -> Option<OwnedMutexGuard<()>> {
        self.of(job).try_lock_owned().ok()
    }
}

/// Deletes what a process that was killed has left of these jobs: unfinished uploads, and files that are not among `known`.
pub(crate) fn sweep(dir: &Path, jobs: &[JobId], known: &HashSet<PathBuf>) {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folder = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    for job in jobs.iter().map(|job| dir.join(FOLDER).join(job.to_string())) {
        for kind in entries(&job).filter(folder) {
            for file in entries(&kind.path()).filter(|entry| !folder(entry) && !known.contains(&entry.path())) {
                match std::fs::remove_file(file.path()) {
                    Ok(()) => tracing::debug!(file = %file.path().display(), "a leftover is deleted"),
                    Err(error) => {
                        tracing::warn!(file = %file.path().display(), %error, "a leftover cannot be deleted");
                    }
                }
            }
            // Fails where something is in it.
            let _ = std::fs::remove_dir(kind.path());
        }
        let _ = std::fs::remove_dir(job);
    }
}

/// Puts a received file in its place.
///
/// # Errors
/// Those of the disk.
pub(crate) fn put(dir: &Path, job: JobId, part: NamedTempFile, artifact: &NewArtifact) -> Result<(), ServiceError> {
    let place = path(dir, job, &artifact.kind, &artifact.filename);
    part.persist(&place).map(drop).map_err(|error| write_failed(&place, &error.error))
}

/// Takes an upload in: streams it to disk and checks it. A report that cannot be used is not kept.
///
/// # Errors
/// [`ServiceError::BadRequest`] for what is not an archive although it says so, [`ServiceError::TooLarge`], and those of the disk.
pub(crate) async fn store(
    dir: &Path,
    job: JobId,
    query: ArtifactQuery,
    filename: &str,
    body: ByteStream,
    limits: &Limits,
) -> Result<Upload, ServiceError> {
    let kind = query.artifact_type.filter(|kind| !kind.is_empty()).unwrap_or_else(|| ARCHIVE.to_owned());
    let format = query.artifact_format.filter(|format| !format.is_empty()).unwrap_or_else(|| "zip".to_owned());
    check_names(&kind, &format)?;
    // Before it takes the place of another file.
    expiry(query.expire_in.as_deref())?;
    let filename = safe_name(filename);
    let place = path(dir, job, &kind, &filename);
    let folder = place.parent().unwrap_or(dir).to_owned();
    tokio::fs::create_dir_all(&folder).await.map_err(|error| write_failed(&folder, &error))?;
    let part = {
        let folder = folder.clone();
        blocking(move || {
            tempfile::Builder::new()
                .prefix(UNFINISHED)
                .tempfile_in(&folder)
                .map_err(|error| write_failed(&folder, &error))
        })
        .await?
    };
    let size = receive(part.path(), body, limits.artifact_bytes).await?;
    let (of_kind, of_format, unpack) = (kind.clone(), format.clone(), limits.unpack);
    let checked = blocking(move || {
        check_archive(part.path(), &of_format, &unpack)?;
        let report = if of_kind == DOTENV { variables(part.path(), &of_format)? } else { Ok(Vec::new()) };
        // What is of no use goes here.
        Ok(report.map(|dotenv| (dotenv, part)))
    });
    Ok(match checked.await? {
        Ok((dotenv, part)) => {
            Upload::Received(part, NewArtifact { kind, format, filename, size, expire_in: query.expire_in, dotenv })
        }
        Err(why) => Upload::Refused(why),
    })
}

/// Deletes a file that has expired, was replaced or came too late, and the folders that it leaves empty. What others keep open they can still read.
pub(crate) fn delete(dir: &Path, job: JobId, kind: &str, filename: &str) {
    let file = path(dir, job, kind, filename);
    match std::fs::remove_file(&file) {
        Ok(()) => tracing::info!(%job, kind, "a file of a job is deleted"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => tracing::warn!(%job, kind, %error, "a file of a job cannot be deleted"),
    }
    for folder in file.ancestors().skip(1).take(2) {
        if std::fs::remove_dir(folder).is_err() {
            return;
        }
    }
}

/// After which time an upload expires.
pub(crate) fn expiry(expire_in: Option<&str>) -> Result<Option<Duration>, ServiceError> {
    let text = expire_in.filter(|text| !text.is_empty());
    let after = text.map(duration::parse_or_never).transpose();
    after.map(Option::flatten).map_err(|error| ServiceError::BadRequest(format!("expire_in: {error}")))
}

/// Kind and format become parts of paths and rows.
fn check_names(kind: &str, format: &str) -> Result<(), ServiceError> {
    if KINDS.binary_search(&kind).is_err() {
        return Err(ServiceError::BadRequest(format!("artifact_type does not have a valid value: `{kind}`")));
    }
    if !matches!(format, "zip" | "gzip" | "raw") {
        return Err(ServiceError::BadRequest(format!("artifact_format does not have a valid value: `{format}`")));
    }
    Ok(())
}

/// The last part of a name, without what could lead elsewhere.
fn safe_name(name: &str) -> String {
    let base = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let clean: String = base.chars().filter(|letter| !letter.is_control()).collect();
    let mut end = clean.len().min(NAME_MAX);
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    match clean.get(..end).unwrap_or_default() {
        "" | "." | ".." => "artifact".to_owned(),
        // A leading dot is kept for files that are being uploaded.
        name => name.strip_prefix(UNFINISHED).unwrap_or(name).to_owned(),
    }
}

async fn receive(part: &Path, mut body: ByteStream, bytes_max: u64) -> Result<u64, ServiceError> {
    let failed = |error: &io::Error| write_failed(part, error);
    let mut file = tokio::fs::OpenOptions::new().write(true).open(part).await.map_err(|error| failed(&error))?;
    let mut size = 0_u64;
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|error| ServiceError::BadRequest(format!("the upload broke off: {error}")))?;
        size = size.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        if size > bytes_max {
            return Err(ServiceError::TooLarge(format!("an artifact may have {bytes_max} bytes")));
        }
        file.write_all(&piece).await.map_err(|error| failed(&error))?;
    }
    file.flush().await.map_err(|error| failed(&error))?;
    Ok(size)
}

/// Checks that an archive is a valid one, within the limits.
fn check_archive(part: &Path, format: &str, limits: &muster_archive::Limits) -> Result<(), ServiceError> {
    if format == "zip" {
        let file = std::fs::File::open(part).map_err(|error| write_failed(part, &error))?;
        muster_archive::check_zip(file, limits).map_err(|error| ServiceError::BadRequest(unusable(&error)))?;
    }
    Ok(())
}

/// The error of an archive with its cause.
fn unusable(error: &UnpackError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// The content of a dotenv report, or why it cannot be used.
fn variables(part: &Path, format: &str) -> Result<Result<Vec<(String, String)>, String>, ServiceError> {
    let file = std::fs::File::open(part).map_err(|error| write_failed(part, &error))?;
    let mut report = Vec::new();
    let read = match format {
        "gzip" => flate2::read::MultiGzDecoder::new(file).take(DOTENV_READ_MAX).read_to_end(&mut report),
        "raw" => file.take(DOTENV_READ_MAX).read_to_end(&mut report),
        _ => return Err(ServiceError::BadRequest("a dotenv report is gzip or raw".to_owned())),
    };
    if let Err(error) = read {
        return Ok(Err(format!("the dotenv report is damaged: {error}")));
    }
    Ok(dotenv::parse(&report).map_err(|error| format!("the dotenv report is not valid: {error}")))
}

/// Reads one file of an archive.
///
/// # Errors
/// In words for a person.
pub(crate) fn read_entry(
    archive: &Path,
    entry: &str,
    bytes_max: u64,
    limits: &muster_archive::Limits,
) -> Result<Vec<u8>, String> {
    let open = std::fs::File::open(archive).map_err(|error| format!("cannot read `{}`: {error}", archive.display()))?;
    let limits = muster_archive::Limits { bytes: bytes_max, ..*limits };
    match muster_archive::read_zip_file(open, entry, &limits) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(format!("the archive has no `{entry}`")),
        Err(UnpackError::Limit(Exceeded { limit: Limit::Bytes, .. })) => {
            Err(format!("`{entry}` is larger than {bytes_max} bytes"))
        }
        Err(error) => Err(format!("cannot unpack `{entry}`: {}", unusable(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_folder() {
        assert_eq!(safe_name("../../etc/passwd"), "passwd");
        assert_eq!(safe_name("C:\\x\\a.zip"), "a.zip");
        assert_eq!(safe_name(".."), "artifact");
        assert_eq!(safe_name(".env"), ".env");
        assert_eq!(safe_name(&"ä".repeat(300)).len(), 200);
    }

    #[test]
    fn kinds_and_formats_are_from_a_list() {
        assert!(KINDS.is_sorted(), "it is searched by halves");
        for kind in ["archive", "metadata", "junit", "dotenv", "cobertura", "metrics_referee", "sast"] {
            assert!(check_names(kind, "gzip").is_ok(), "{kind}");
        }
        for kind in ["../x", "", "junit2", "coverage_report", "Junit"] {
            assert!(matches!(check_names(kind, "gzip"), Err(ServiceError::BadRequest(_))), "{kind}");
        }
        assert!(check_names("junit", "tar").is_err());
    }
}
