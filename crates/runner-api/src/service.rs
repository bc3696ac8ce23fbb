//! The port behind the server routes: what a coordinator must be able to do.
//!
//! `routes` turns HTTP into these calls and their answers into status codes; it holds no state of its own.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use muster_job::{JobId, JobStatus};

use crate::payload::JobPayload;
use crate::wire::{JobRequest, RegisterRequest, RunnerCredentials, TokenRequest, UpdateRequest};

/// Why the coordinator refuses a call.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// 403: unknown token, or a token that does not fit the job (runner-api 9.2: never 401, never 404 for jobs).
    /// `status` becomes `Job-Status` where the job is known, so that old and new runners stop.
    #[error("the token is not valid for this call")]
    Forbidden {
        /// The job's state, where the caller may know it.
        status: Option<JobStatus>,
    },
    /// 404.
    #[error("not found: {0}")]
    NotFound(String),
    /// 400.
    #[error("{0}")]
    BadRequest(String),
    /// 409: try again.
    #[error("conflict: {0}")]
    Conflict(String),
    /// 410: what was asked for is not offered here any more.
    #[error("gone: {0}")]
    Gone(String),
    /// 413.
    #[error("too large: {0}")]
    TooLarge(String),
    /// 507: the disk is full; the caller may repeat the call later.
    #[error("no space left: {0}")]
    StorageFull(String),
    /// 500.
    #[error("internal error: {0}")]
    Internal(String),
}

/// Answer to a job request.
#[derive(Debug)]
pub struct Assignment {
    /// The job, if there is one.
    pub job: Option<Box<JobPayload>>,
    /// `X-GitLab-Last-Update`, read before the queue was looked at.
    pub last_update: String,
}

/// Answer to `PATCH /jobs/:id/trace`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceAnswer {
    /// False: the start did not fit (416); the caller goes on from `size`.
    pub accepted: bool,
    /// The trace's size in bytes after the call.
    pub size: u64,
    /// `Job-Status`.
    pub status: JobStatus,
    /// `X-GitLab-Trace-Update-Interval`, whole seconds.
    pub update_interval: Duration,
}

/// Answer to `PUT /jobs/:id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateAnswer {
    /// `Job-Status`, after the update.
    pub status: JobStatus,
    /// `X-GitLab-Trace-Update-Interval`, whole seconds.
    pub update_interval: Duration,
}

/// The query of an artifact upload.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct ArtifactQuery {
    pub artifact_format: Option<String>,
    pub artifact_type: Option<String>,
    pub expire_in: Option<String>,
}

/// A stream of bytes that may fail on the way.
pub type ByteStream = BoxStream<'static, std::io::Result<Bytes>>;

/// An archive on its way to a job.
pub struct ArtifactDownload {
    /// Its file name.
    pub filename: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its content.
    pub body: ByteStream,
}

/// What a coordinator does for managers. Every call is safe to repeat.
#[async_trait]
pub trait RunnerService: Send + Sync + 'static {
    /// `POST /runners`.
    async fn register(&self, request: RegisterRequest) -> Result<RunnerCredentials, ServiceError>;
    /// `POST /runners/verify`.
    async fn verify(&self, request: TokenRequest) -> Result<RunnerCredentials, ServiceError>;
    /// `POST /runners/reset_authentication_token`.
    async fn reset_token(&self, token: String) -> Result<RunnerCredentials, ServiceError>;
    /// `POST /runners/:id/reset_authentication_token`, with a personal access token. A coordinator without people has none.
    async fn reset_token_with_pat(&self, _runner: i64, _pat: String) -> Result<RunnerCredentials, ServiceError> {
        Err(ServiceError::Forbidden { status: None })
    }
    /// `DELETE /runners`: the runner with all its managers.
    async fn unregister(&self, token: String) -> Result<(), ServiceError>;
    /// `DELETE /runners/managers`: only the manager with this system id.
    async fn unregister_manager(&self, request: TokenRequest) -> Result<(), ServiceError>;
    /// `POST /jobs/request`. Holds the call until there is a job or the long-poll time is over.
    async fn request_job(&self, request: JobRequest) -> Result<Assignment, ServiceError>;
    /// Whether a request with the same idempotency key gets the same job again, so that an answer that is not read loses
    /// no job. It is announced with each answer to a job request.
    fn repeats_assignments(&self) -> bool {
        false
    }
    /// `PUT /jobs/:id`.
    async fn update_job(&self, job: JobId, request: UpdateRequest) -> Result<UpdateAnswer, ServiceError>;
    /// `PATCH /jobs/:id/trace`: `start` comes from `Content-Range`.
    async fn append_trace(
        &self,
        job: JobId,
        token: &str,
        start: u64,
        bytes: Bytes,
    ) -> Result<TraceAnswer, ServiceError>;
    /// `POST /jobs/:id/artifacts`: one file.
    async fn upload_artifact(
        &self,
        job: JobId,
        token: &str,
        query: ArtifactQuery,
        filename: String,
        body: ByteStream,
    ) -> Result<(), ServiceError>;
    /// `GET /jobs/:id/artifacts`: the archive of `job`, asked for with the token of a job that depends on it.
    async fn download_artifacts(&self, job: JobId, token: &str) -> Result<ArtifactDownload, ServiceError>;
}
