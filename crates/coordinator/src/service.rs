//! Implements the service of the runner API: calls of runner managers become commands, and uploads become files.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use muster_job::{FailureReason, JobId, JobStatus, RunnerId};
use muster_runner_api::service::{
    ArtifactDownload, ArtifactQuery, ByteStream, JobRequestAnswer, RunnerService, ServiceError, TraceAnswer,
    UpdateAnswer,
};
use muster_runner_api::wire::{JobRequest, RegisterRequest, RunnerCredentials, TokenRequest, UpdateRequest};
use tokio::sync::oneshot;

use crate::artifacts;
use crate::artifacts::{NewArtifact, Upload};
use crate::blobs::{Appended, ArtifactName, Incoming, blocking};
use crate::command::{Authorization, Command, FinalReport, ServiceReply, TokenUse};
use crate::coordinator::Coordinator;
use crate::coverage;
use crate::error::BlobError;
use crate::views::Event;

#[async_trait]
impl RunnerService for Coordinator {
    async fn register(&self, request: RegisterRequest) -> Result<RunnerCredentials, ServiceError> {
        self.call(|reply| Command::Register { request: Box::new(request), reply }).await
    }

    async fn verify(&self, request: TokenRequest) -> Result<RunnerCredentials, ServiceError> {
        self.call(|reply| Command::Verify { request, reply }).await
    }

    async fn reset_token(&self, token: String) -> Result<RunnerCredentials, ServiceError> {
        self.call(|reply| Command::ResetToken { token, reply }).await
    }

    async fn reset_token_with_pat(&self, runner: i64, pat: String) -> Result<RunnerCredentials, ServiceError> {
        self.call(|reply| Command::ResetTokenWithPat { runner: RunnerId(runner), pat, reply }).await
    }

    async fn unregister(&self, token: String) -> Result<(), ServiceError> {
        self.call(|reply| Command::Unregister { token, reply }).await
    }

    async fn unregister_manager(&self, request: TokenRequest) -> Result<(), ServiceError> {
        self.call(|reply| Command::UnregisterManager { request, reply }).await
    }

    async fn request_job(&self, request: JobRequest) -> Result<JobRequestAnswer, ServiceError> {
        let last_update = request.last_update.clone();
        let answer = self.try_call(|reply| Command::RequestJob { request: Box::new(request), reply }).await;
        // At shutdown, held requests are answered without a job, and their managers poll again later.
        answer.unwrap_or(Ok(JobRequestAnswer { job: None, last_update }))
    }

    fn repeats_assignments(&self) -> bool {
        true
    }

    async fn update_job(&self, job: JobId, request: UpdateRequest) -> Result<UpdateAnswer, ServiceError> {
        let success = match request.state.as_str() {
            "running" | "pending" => {
                let token_use = if request.state == "running" { TokenUse::Work } else { TokenUse::Waiting };
                let authorization = self.authorize(job, &request.token, token_use).await?;
                return Ok(self.update_answer(job, authorization.status));
            }
            "success" => true,
            "failed" => false,
            other => return Err(ServiceError::BadRequest(format!("state does not have a valid value: `{other}`"))),
        };
        let authorization = self.authorize(job, &request.token, TokenUse::Report).await?;
        let coverage = if authorization.status.is_complete() {
            None
        } else {
            self.end_trace(job, &request, &authorization).await?
        };
        let reason = request.failure_reason.as_deref().unwrap_or_default();
        let report = FinalReport {
            success,
            reason: (!success).then(|| FailureReason::from_wire(reason)),
            exit_code: request.exit_code,
            coverage,
            result_tree: request.result_tree,
        };
        let token = request.token;
        let status = self.call(|reply| Command::Finish { job, token, report: Box::new(report), reply }).await?;
        if status.is_complete() {
            // A repeated report may have opened the trace again after the first report closed it.
            self.blobs.close_trace(job);
        }
        Ok(self.update_answer(job, status))
    }

    async fn append_trace(
        &self,
        job: JobId,
        token: &str,
        start: u64,
        bytes: Bytes,
    ) -> Result<TraceAnswer, ServiceError> {
        let status = self.authorize(job, token, TokenUse::Work).await?.status;
        let update_interval = self.update_interval(job);
        let has_bytes = !bytes.is_empty();
        let max_bytes = self.options.limits.trace_bytes;
        let appended = self.blobs.append_trace(job, start, bytes, max_bytes).await.inspect_err(|error| {
            if let BlobError::Full { .. } = error {
                let _ = self.events.send(Event::StorageProblem(Some(error.to_string())));
                // Set the flag after the event, so that the report of a recovery follows the event.
                self.was_disk_full.store(true, Ordering::Relaxed);
            }
        })?;
        match appended {
            Appended::Yes(size) => {
                if has_bytes {
                    // There may be no receiver.
                    let _ = self.events.send(Event::TraceGrew { job, size });
                    // Reserve a place in the queue of commands before clearing the flag. If this call is canceled while
                    // it waits for the place, the flag stays set, and the next call reports the recovery.
                    if self.was_disk_full.load(Ordering::Relaxed)
                        && let Ok(permit) = self.commands.reserve().await
                        && self.was_disk_full.swap(false, Ordering::Relaxed)
                    {
                        permit.send(Command::TraceRecovered);
                    }
                }
                Ok(TraceAnswer { accepted: true, size, status, update_interval })
            }
            Appended::WrongOffset(size) => Ok(TraceAnswer { accepted: false, size, status, update_interval }),
            Appended::TooLarge => {
                let reason = FailureReason::TraceSizeExceeded;
                let message = format!("the log is larger than {} bytes", self.options.limits.trace_bytes);
                let status = self.call(|reply| Command::DropJob { job, reason, message, reply }).await?;
                Err(ServiceError::Forbidden { status: Some(status) })
            }
        }
    }

    async fn upload_artifact(
        &self,
        job: JobId,
        token: &str,
        query: ArtifactQuery,
        filename: String,
        body: ByteStream,
    ) -> Result<(), ServiceError> {
        self.authorize(job, token, TokenUse::Transfer).await?;
        let upload = artifacts::receive(&*self.blobs, query, &filename, body, &self.options.limits).await?;
        let token = token.to_owned();
        match upload {
            Upload::Received(incoming, artifact) => self.store_upload(job, token, incoming, artifact).await,
            Upload::Rejected(reason) => {
                let message = reason.to_string();
                self.call(|reply| Command::RecordInvalidReport { job, token, reason: message.clone(), reply }).await?;
                Err(ServiceError::BadRequest(message))
            }
        }
    }

    async fn download_artifacts(&self, job: JobId, token: &str) -> Result<ArtifactDownload, ServiceError> {
        let token = token.to_owned();
        let archive = self.call(|reply| Command::Download { producer: job, token, reply }).await?;
        let content = self.blobs.stream(&artifacts::name_of(&archive)).await?;
        // Content that does not exist is a permanent error. For content that cannot be read now, the manager may retry.
        let missing = || ServiceError::NotFound(format!("the archive of job {job} does not exist"));
        let (size, body) = content.ok_or_else(missing)?;
        Ok(ArtifactDownload { filename: archive.filename, size, body })
    }
}

impl Coordinator {
    /// Stores an uploaded file and its row, and then deletes the file that has no row: the file that the upload
    /// replaced, or the uploaded file if its row was rejected. Runs to the end even if the connection is lost.
    async fn store_upload(
        &self,
        job: JobId,
        token: String,
        incoming: Box<dyn Incoming>,
        artifact: NewArtifact,
    ) -> Result<(), ServiceError> {
        let (blobs, locks, commands) = (Arc::clone(&self.blobs), self.locks.clone(), self.commands.clone());
        let notifier = commands.clone();
        let storing = async move {
            let _guard = locks.lock(job).await;
            let (name, artifact) = (artifact.name(job), Box::new(artifact));
            incoming.store(&name).await?;
            let (reply, answer) = oneshot::channel();
            let command = Command::ArtifactStored { job, token, artifact, reply };
            commands.send(command).await.map_err(|_| closed())?;
            // If the row could not be written, the old row remains valid until a later write succeeds, so no file is deleted.
            let stored = answer.await.map_err(|_| closed())??;
            if let Some(filename) = stored.leftover {
                blobs.delete(&ArtifactName { filename, ..name }).await?;
            }
            stored.result
        };
        let task = tokio::spawn(async move {
            let result = storing.await;
            // At shutdown, the command has no receiver.
            let _ = notifier.send(Command::UploadEnded).await;
            result
        });
        task.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Checks a finished trace against the reported size and checksum. Returns the coverage that the trace shows.
    async fn end_trace(
        &self,
        job: JobId,
        request: &UpdateRequest,
        authorization: &Authorization,
    ) -> Result<Option<f64>, ServiceError> {
        if request.output.checksum.is_some() || request.output.bytesize.is_some() {
            let (size, crc) = self.blobs.trace_checksum(job).await?;
            let wrong_size = request.output.bytesize.is_some_and(|reported| reported != size);
            let wrong_sum = request.output.checksum.as_ref().is_some_and(|reported| *reported != checksum_text(crc));
            if wrong_size || wrong_sum {
                // As on GitLab, a mismatch is logged, and the report is accepted (docs/spec/runner-api.md, section 4.2).
                tracing::warn!(%job, size, checksum = checksum_text(crc), reported = ?request.output, "trace does not match the size or checksum that its runner reported");
            }
        }
        let Some(expression) = authorization.coverage.clone() else { return Ok(None) };
        // The report is also accepted if the trace is missing or cannot be read.
        let Ok(Some(trace)) = self.blobs.open_trace(job).await else { return Ok(None) };
        blocking(move || Ok(coverage::find_in(&expression, trace).unwrap_or_default())).await
    }

    async fn authorize(&self, job: JobId, token: &str, token_use: TokenUse) -> Result<Authorization, ServiceError> {
        let token = token.to_owned();
        self.call(|reply| Command::Authorize { job, token, token_use, reply }).await
    }

    fn update_answer(&self, job: JobId, status: JobStatus) -> UpdateAnswer {
        UpdateAnswer { status, update_interval: self.update_interval(job) }
    }

    /// Returns the minimum time between two uploads of a job's trace. It is short while a user reads the trace
    /// (docs/spec/runner-api.md, section 3.2).
    fn update_interval(&self, job: JobId) -> Duration {
        let limits = &self.options.limits;
        if self.trace_viewers.is_viewed(job) { limits.trace_interval } else { limits.unwatched_trace_interval }
    }

    async fn call<T>(&self, command: impl FnOnce(ServiceReply<T>) -> Command) -> Result<T, ServiceError> {
        self.try_call(command).await.unwrap_or_else(|| Err(closed()))
    }

    /// Sends a command and waits for the answer. `None` if the coordinator stopped without an answer.
    async fn try_call<T>(&self, command: impl FnOnce(ServiceReply<T>) -> Command) -> Option<Result<T, ServiceError>> {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(command(reply)).await.is_err() {
            return Some(Err(closed()));
        }
        answer.await.ok()
    }
}

/// Text of `output.checksum` (docs/spec/runner-api.md, section 3.3).
fn checksum_text(crc: u32) -> String {
    format!("crc32:{crc:08x}")
}

fn closed() -> ServiceError {
    ServiceError::Internal("the coordinator is shutting down".to_owned())
}
