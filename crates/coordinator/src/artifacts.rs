//! Artifacts: files that jobs upload, one per job and kind.
//!
//! A row means that its content is complete, because content is stored before its row is written. Content without a row
//! is deleted: at once if it was replaced or rejected, at the next start if the process was killed.

use std::fs::File;
use std::io::{Read, Seek};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use muster_archive::{Exceeded, Limit, UnpackError};
use muster_job::JobId;
use muster_pipeline::duration;
use muster_runner_api::service::{ArtifactQuery, ByteStream, ServiceError};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::blobs::{ArtifactName, Blobs, Incoming, blocking};
use crate::dotenv::{self, DotenvError};
use crate::error::BlobError;
use crate::options::Limits;
use crate::store::ArtifactRow;

/// Artifact kind that later jobs download.
pub(crate) const ARCHIVE: &str = "archive";
/// Artifact kind whose content becomes variables.
pub(crate) const DOTENV: &str = "dotenv";
/// All valid kinds, sorted (docs/spec/pipeline-yaml.md, section 1.3, and docs/spec/runner-api.md, section 5.1).
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
/// Maximum number of bytes that are read from a dotenv report, after decompression.
const MAX_DOTENV_READ: u64 = 64 * 1024;
/// Number of locks, which all jobs share.
const LOCK_COUNT: usize = 64;
const MAX_NAME_BYTES: usize = 200;

pub(crate) enum Upload {
    /// The content is complete and valid, but not stored yet.
    Received(Box<dyn Incoming>, NewArtifact),
    /// The content is an invalid report.
    Rejected(ReportError),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    #[error("failed to read the dotenv report: {0}")]
    Damaged(#[source] std::io::Error),
    #[error("invalid dotenv report: {0}")]
    Invalid(#[source] DotenvError),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum EntryError {
    #[error("the archive has no file `{0}`")]
    Missing(String),
    #[error("`{entry}` is larger than {max_bytes} bytes")]
    TooLarge { entry: String, max_bytes: u64 },
    /// The archive is invalid, or exceeds a limit other than `max_bytes`.
    #[error("failed to unpack `{entry}`: {}", with_cause(source))]
    Unpack { entry: String, source: UnpackError },
}

#[derive(Debug, Clone)]
pub(crate) struct NewArtifact {
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) filename: String,
    pub(crate) size: u64,
    pub(crate) expire_in: Option<String>,
    /// Variables of a dotenv report. Empty for other kinds.
    pub(crate) dotenv: Vec<(String, String)>,
}

impl NewArtifact {
    pub(crate) fn name(&self, job: JobId) -> ArtifactName {
        ArtifactName { job, kind: self.kind.clone(), filename: self.filename.clone() }
    }
}

pub(crate) fn name_of(row: &ArtifactRow) -> ArtifactName {
    ArtifactName { job: row.job, kind: row.kind.clone(), filename: row.filename.clone() }
}

/// Locks with which uploads and deletions of the files of one job exclude each other.
#[derive(Debug, Clone)]
pub(crate) struct ArtifactLocks(Arc<[Arc<Mutex<()>>]>);

impl Default for ArtifactLocks {
    fn default() -> Self {
        Self((0..LOCK_COUNT).map(|_| Arc::default()).collect())
    }
}

impl ArtifactLocks {
    fn lock_of(&self, job: JobId) -> Arc<Mutex<()>> {
        self.0.get(self.lock_index(job)).cloned().unwrap_or_default()
    }

    /// Returns the index of a job's lock. Several jobs share a lock.
    pub(crate) fn lock_index(&self, job: JobId) -> usize {
        usize::try_from(job.0).unwrap_or(0) % LOCK_COUNT
    }

    /// Returns whether the lock of a job is free. If so, no upload or deletion uses the job's files.
    pub(crate) fn is_free(&self, job: JobId) -> bool {
        self.0.get(self.lock_index(job)).is_none_or(|lock| lock.try_lock().is_ok())
    }

    pub(crate) async fn lock(&self, job: JobId) -> OwnedMutexGuard<()> {
        self.lock_of(job).lock_owned().await
    }

    pub(crate) fn try_lock(&self, job: JobId) -> Option<OwnedMutexGuard<()>> {
        self.lock_of(job).try_lock_owned().ok()
    }
}

/// Receives an upload and checks it. Invalid reports are dropped.
///
/// # Errors
/// [`ServiceError::BadRequest`] for an invalid archive or parameter or an interrupted upload, [`ServiceError::TooLarge`], and errors of
/// the blob store.
pub(crate) async fn receive(
    blobs: &dyn Blobs,
    query: ArtifactQuery,
    filename: &str,
    body: ByteStream,
    limits: &Limits,
) -> Result<Upload, ServiceError> {
    let kind = query.artifact_type.filter(|kind| !kind.is_empty()).unwrap_or_else(|| ARCHIVE.to_owned());
    let format = query.artifact_format.filter(|format| !format.is_empty()).unwrap_or_else(|| "zip".to_owned());
    check_names(&kind, &format)?;
    // Reject an invalid duration before the content replaces another file.
    expiry(query.expire_in.as_deref())?;
    let filename = sanitize_name(filename);
    let mut incoming = blobs.receive().await?;
    let size = receive_body(&mut *incoming, body, limits.artifact_bytes).await?;
    let content = incoming.open().await?;
    let (is_dotenv, content_format, unpack) = (kind == DOTENV, format.clone(), limits.unpack);
    let checked = blocking(move || {
        if content_format == "zip" {
            muster_archive::check_zip(&content, &unpack)
                .map_err(|error| ServiceError::BadRequest(with_cause(&error)))?;
        }
        if is_dotenv { dotenv_variables(content, &content_format) } else { Ok(Ok(Vec::new())) }
    });
    Ok(match checked.await? {
        Ok(dotenv) => {
            Upload::Received(incoming, NewArtifact { kind, format, filename, size, expire_in: query.expire_in, dotenv })
        }
        // An invalid report is dropped with `incoming`.
        Err(error) => Upload::Rejected(error),
    })
}

/// Returns the time after which an artifact expires. `None` if it never expires.
pub(crate) fn expiry(expire_in: Option<&str>) -> Result<Option<Duration>, ServiceError> {
    let text = expire_in.filter(|text| !text.is_empty());
    let after = text.map(duration::parse_or_never).transpose();
    after.map(Option::flatten).map_err(|error| ServiceError::BadRequest(format!("expire_in: {error}")))
}

/// Checks the kind and the format, which become parts of paths and rows.
fn check_names(kind: &str, format: &str) -> Result<(), ServiceError> {
    if KINDS.binary_search(&kind).is_err() {
        return Err(ServiceError::BadRequest(format!("artifact_type does not have a valid value: `{kind}`")));
    }
    if !matches!(format, "zip" | "gzip" | "raw") {
        return Err(ServiceError::BadRequest(format!("artifact_format does not have a valid value: `{format}`")));
    }
    Ok(())
}

/// Returns the last component of a path, without control characters and limited in length.
fn sanitize_name(name: &str) -> String {
    let base = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let clean: String = base.chars().filter(|letter| !letter.is_control()).collect();
    let mut end = clean.len().min(MAX_NAME_BYTES);
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    match clean.get(..end).unwrap_or_default() {
        "" | "." | ".." => "artifact".to_owned(),
        name => name.to_owned(),
    }
}

async fn receive_body(incoming: &mut dyn Incoming, mut body: ByteStream, max_bytes: u64) -> Result<u64, ServiceError> {
    let mut size = 0_u64;
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| ServiceError::BadRequest(format!("the upload was interrupted: {error}")))?;
        size = size.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
        if size > max_bytes {
            return Err(ServiceError::TooLarge(format!("the artifact is larger than {max_bytes} bytes")));
        }
        incoming.write(&chunk).await?;
    }
    Ok(size)
}

fn with_cause(error: &UnpackError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Reads the variables of a dotenv report. The inner error is the reason why the report is invalid.
fn dotenv_variables(mut file: File, format: &str) -> Result<Result<Vec<(String, String)>, ReportError>, ServiceError> {
    file.rewind().map_err(|error| BlobError::new("a dotenv report", error))?;
    let mut report = Vec::new();
    let read = match format {
        "gzip" => flate2::read::MultiGzDecoder::new(file).take(MAX_DOTENV_READ).read_to_end(&mut report),
        "raw" => file.take(MAX_DOTENV_READ).read_to_end(&mut report),
        _ => return Err(ServiceError::BadRequest("the format of a dotenv report must be gzip or raw".to_owned())),
    };
    if let Err(error) = read {
        return Ok(Err(ReportError::Damaged(error)));
    }
    Ok(dotenv::parse(&report).map_err(ReportError::Invalid))
}

pub(crate) fn read_entry(
    archive: File,
    entry: &str,
    max_bytes: u64,
    limits: &muster_archive::Limits,
) -> Result<Vec<u8>, EntryError> {
    let limits = muster_archive::Limits { bytes: max_bytes, ..*limits };
    let entry_name = || entry.to_owned();
    match muster_archive::read_zip_file(archive, entry, &limits) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(EntryError::Missing(entry_name())),
        Err(UnpackError::Limit(Exceeded { limit: Limit::Bytes, .. })) => {
            Err(EntryError::TooLarge { entry: entry_name(), max_bytes })
        }
        Err(source) => Err(EntryError::Unpack { entry: entry_name(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sanitized_names_have_no_directories_and_a_limited_length() {
        assert_eq!(sanitize_name("../../etc/passwd"), "passwd");
        assert_eq!(sanitize_name("C:\\x\\a.zip"), "a.zip");
        assert_eq!(sanitize_name(".."), "artifact");
        assert_eq!(sanitize_name(".env"), ".env");
        assert_eq!(sanitize_name(&"ä".repeat(300)).len(), 200);
    }

    #[test]
    fn unknown_kinds_and_formats_are_rejected() {
        assert!(KINDS.is_sorted(), "binary search requires a sorted list");
        for kind in ["archive", "metadata", "junit", "dotenv", "cobertura", "metrics_referee", "sast"] {
            assert!(check_names(kind, "gzip").is_ok(), "{kind}");
        }
        for kind in ["../x", "", "junit2", "coverage_report", "Junit"] {
            assert!(matches!(check_names(kind, "gzip"), Err(ServiceError::BadRequest(_))), "{kind}");
        }
        assert!(check_names("junit", "tar").is_err());
    }
}
