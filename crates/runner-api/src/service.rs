//! Interface that the server routes call, and that coordinators implement.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use muster_job::{JobId, JobStatus};

use crate::payload::JobPayload;
use crate::wire::{JobRequest, RegisterRequest, RunnerCredentials, TokenRequest, UpdateRequest};

/// Reason why the coordinator rejects a call.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// 403: the token is unknown or does not belong to the job (docs/spec/runner-api.md, section 9.2: never 401, and
    /// never 404 for jobs).
    #[error("the token is not valid for this call")]
    Forbidden {
        /// Header `Job-Status`, if the caller may know it.
        status: Option<JobStatus>,
    },
    /// 404.
    #[error("not found: {0}")]
    NotFound(String),
    /// 400.
    #[error("{0}")]
    BadRequest(String),
    /// 409: the caller should retry.
    #[error("conflict: {0}")]
    Conflict(String),
    /// 410: the feature is no longer available.
    #[error("gone: {0}")]
    Gone(String),
    /// 413.
    #[error("too large: {0}")]
    TooLarge(String),
    /// 507: the disk is full. The caller may retry later.
    #[error("no space left: {0}")]
    StorageFull(String),
    /// 500.
    #[error("internal error: {0}")]
    Internal(String),
}

/// Result of a job request.
#[derive(Debug)]
pub struct JobRequestAnswer {
    /// Assigned job. `None` means no job.
    pub job: Option<Box<JobPayload>>,
    /// Version of the queue (`X-GitLab-Last-Update`). Empty means no header.
    pub last_update: String,
}

/// Result of `PATCH /jobs/:id/trace`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceAnswer {
    /// False means a wrong start (416). The caller must continue from `size`.
    pub accepted: bool,
    /// Size of the trace in bytes after the call.
    pub size: u64,
    /// Header `Job-Status`.
    pub status: JobStatus,
    /// `X-GitLab-Trace-Update-Interval` in whole seconds.
    pub update_interval: Duration,
}

/// Result of `PUT /jobs/:id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateAnswer {
    /// Header `Job-Status` after the update.
    pub status: JobStatus,
    /// `X-GitLab-Trace-Update-Interval` in whole seconds.
    pub update_interval: Duration,
}

/// Query parameters of an artifact upload.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct ArtifactQuery {
    pub artifact_format: Option<String>,
    pub artifact_type: Option<String>,
    pub expire_in: Option<String>,
}

/// Stream of bytes that may fail.
pub type ByteStream = BoxStream<'static, std::io::Result<Bytes>>;

/// Archive for a job.
pub struct ArtifactDownload {
    /// Name of the file.
    pub filename: String,
    /// Size in bytes.
    pub size: u64,
    /// Content.
    pub body: ByteStream,
}

/// Calls of managers to a coordinator. Every call for a job is safe to retry.
#[async_trait]
pub trait RunnerService: Send + Sync + 'static {
    /// `POST /runners`.
    async fn register(&self, request: RegisterRequest) -> Result<RunnerCredentials, ServiceError>;
    /// `POST /runners/verify`.
    async fn verify(&self, request: TokenRequest) -> Result<RunnerCredentials, ServiceError>;
    /// `POST /runners/reset_authentication_token`.
    async fn reset_token(&self, token: String) -> Result<RunnerCredentials, ServiceError>;
    /// `POST /runners/:id/reset_authentication_token` with a personal access token. Defaults to a rejection.
    async fn reset_token_with_pat(&self, _runner: i64, _pat: String) -> Result<RunnerCredentials, ServiceError> {
        Err(ServiceError::Forbidden { status: None })
    }
    /// `DELETE /runners`: deletes the runner with all its managers.
    async fn unregister(&self, token: String) -> Result<(), ServiceError>;
    /// `DELETE /runners/managers`: deletes the manager with this system ID.
    async fn unregister_manager(&self, request: TokenRequest) -> Result<(), ServiceError>;
    /// `POST /jobs/request`. Holds the call until there is a job or the long poll ends.
    async fn request_job(&self, request: JobRequest) -> Result<JobRequestAnswer, ServiceError>;
    /// Returns whether the same idempotency key gets the same job, so that a lost response loses no job. Responses
    /// announce this.
    fn repeats_assignments(&self) -> bool {
        false
    }
    /// `PUT /jobs/:id`.
    async fn update_job(&self, job: JobId, request: UpdateRequest) -> Result<UpdateAnswer, ServiceError>;
    /// `PATCH /jobs/:id/trace`. `start` comes from `Content-Range`.
    async fn append_trace(
        &self,
        job: JobId,
        token: &str,
        start: u64,
        bytes: Bytes,
    ) -> Result<TraceAnswer, ServiceError>;
    /// `POST /jobs/:id/artifacts`: uploads a file.
    async fn upload_artifact(
        &self,
        job: JobId,
        token: &str,
        query: ArtifactQuery,
        filename: String,
        body: ByteStream,
    ) -> Result<(), ServiceError>;
    /// `GET /jobs/:id/artifacts`: returns the archive of `job`. `token` is the token of a dependent job.
    async fn download_artifacts(&self, job: JobId, token: &str) -> Result<ArtifactDownload, ServiceError>;
}
