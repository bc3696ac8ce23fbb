//! Implements [`RunnerService`] for the in-memory coordinator.

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use muster_job::{JobId, JobStatus};

use super::{Call, Fault, Job, MemoryCoordinator, State};
use crate::payload::JobPayload;
use crate::service::{
    ArtifactDownload, ArtifactQuery, ByteStream, JobRequestAnswer, RunnerService, ServiceError, TraceAnswer,
    UpdateAnswer,
};
use crate::wire::{JobRequest, RegisterRequest, RunnerCredentials, TokenRequest, UpdateRequest};

fn injected_failure() -> ServiceError {
    ServiceError::Internal("injected fault".to_owned())
}

fn running<'a>(state: &'a mut State, id: JobId, token: &str) -> Result<&'a mut Job, ServiceError> {
    let job = state.jobs.get_mut(&id).filter(|job| job.payload.token == token);
    let job = job.ok_or(ServiceError::Forbidden { status: None })?;
    if job.status.is_on_runner() { Ok(job) } else { Err(ServiceError::Forbidden { status: Some(job.status) }) }
}

impl State {
    pub(super) fn assign(&mut self) -> Option<JobId> {
        let id = self.queue.pop_front()?;
        let job = self.jobs.get_mut(&id)?;
        job.status = if self.two_phase { JobStatus::Pending } else { JobStatus::Running };
        job.assignments += 1;
        Some(id)
    }
}

impl MemoryCoordinator {
    fn with_faults<T>(
        &self,
        call: Call,
        effect: impl FnOnce(&mut State) -> Result<T, ServiceError>,
    ) -> Result<T, ServiceError> {
        self.change(|state| match state.faults.get_mut(&call).and_then(std::collections::VecDeque::pop_front) {
            Some(Fault::FailBefore | Fault::Hung | Fault::TraceReset) => Err(injected_failure()),
            Some(Fault::Missing) => Err(ServiceError::NotFound("injected fault".to_owned())),
            Some(Fault::Rejected) => Err(ServiceError::BadRequest("injected fault".to_owned())),
            Some(Fault::FailAfter) => effect(state).and(Err(injected_failure())),
            None => effect(state),
        })
    }

    /// Never returns if the next fault of the call is [`Fault::Hung`]. Removes that fault.
    async fn hang(&self, call: Call) {
        let hung = self.change(|state| {
            let faults = state.faults.get_mut(&call)?;
            matches!(faults.front()?, Fault::Hung).then(|| faults.pop_front()).flatten()
        });
        if hung.is_some() {
            std::future::pending().await
        }
    }

    fn assign_or_repeat(&self, key: Option<&str>) -> Result<Option<JobPayload>, ServiceError> {
        self.with_faults(Call::RequestJob, |state| {
            let known = key.and_then(|key| state.keys.get(key)).copied();
            let id = match known {
                Some(id) => id,
                None => match state.assign() {
                    Some(id) => id,
                    None => return Ok(None),
                },
            };
            if let Some(key) = key {
                state.keys.insert(key.to_owned(), id);
            }
            Ok(state.jobs.get(&id).map(|job| job.payload.clone()))
        })
    }
}

#[async_trait]
impl RunnerService for MemoryCoordinator {
    async fn register(&self, request: RegisterRequest) -> Result<RunnerCredentials, ServiceError> {
        self.with_faults(Call::Register, |state| state.runners.register(request))
    }

    async fn verify(&self, request: TokenRequest) -> Result<RunnerCredentials, ServiceError> {
        self.with_faults(Call::Verify, |state| state.runners.verify(request))
    }

    async fn reset_token(&self, token: String) -> Result<RunnerCredentials, ServiceError> {
        self.hang(Call::ResetToken).await;
        self.with_faults(Call::ResetToken, |state| state.runners.reset(&token))
    }

    async fn reset_token_with_pat(&self, runner: i64, pat: String) -> Result<RunnerCredentials, ServiceError> {
        self.with_faults(Call::ResetToken, |state| state.runners.reset_with_pat(runner, &pat))
    }

    async fn unregister(&self, token: String) -> Result<(), ServiceError> {
        self.with_faults(Call::Unregister, |state| state.runners.unregister(&token))
    }

    async fn unregister_manager(&self, request: TokenRequest) -> Result<(), ServiceError> {
        self.with_faults(Call::Unregister, |state| state.runners.unregister_manager(&request))
    }

    async fn request_job(&self, request: JobRequest) -> Result<JobRequestAnswer, ServiceError> {
        self.state.lock().runners.check(&request.token)?;
        if self.state.lock().refuses_runners {
            return Err(ServiceError::Forbidden { status: None });
        }
        if let Some(search) = self.gitlab {
            self.change(|state| state.requests += 1);
            return self.request_job_as_gitlab(&request.last_update, search).await;
        }
        let mut changes = self.changed.subscribe();
        self.change(|state| {
            state.requests += 1;
            state.waiting += 1;
            state.max_waiting = state.max_waiting.max(state.waiting);
        });
        // A disconnect drops this future and the guard.
        let waiting = Waiting(self);
        let deadline = tokio::time::sleep(self.long_poll);
        tokio::pin!(deadline);
        let job = loop {
            if let Some(job) = self.assign_or_repeat(request.idempotency_key.as_deref())? {
                break Some(Box::new(job));
            }
            changes.mark_unchanged();
            if !self.state.lock().queue.is_empty() {
                continue;
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = &mut deadline => break None,
            }
        };
        drop(waiting);
        Ok(JobRequestAnswer { job, last_update: "1".to_owned() })
    }

    fn repeats_assignments(&self) -> bool {
        self.gitlab.is_none()
    }

    async fn update_job(&self, id: JobId, request: UpdateRequest) -> Result<UpdateAnswer, ServiceError> {
        self.with_faults(Call::UpdateJob, |state| {
            let offered = |job: &&mut Job| job.status == JobStatus::Pending && job.payload.token == request.token;
            if state.two_phase
                && request.state == "running"
                && let Some(job) = state.jobs.get_mut(&id).filter(offered)
            {
                job.status = JobStatus::Running;
            }
            let job = running(state, id, &request.token)?;
            job.status = match (request.state.as_str(), job.status) {
                ("success" | "failed", JobStatus::Canceling) => JobStatus::Canceled,
                ("success", _) => JobStatus::Success,
                ("failed", _) => JobStatus::Failed,
                (_, status) => status,
            };
            job.updates.push(request);
            Ok(UpdateAnswer { status: job.status, update_interval: self.interval })
        })
    }

    async fn append_trace(
        &self,
        id: JobId,
        token: &str,
        start: u64,
        bytes: Bytes,
    ) -> Result<TraceAnswer, ServiceError> {
        self.hang(Call::AppendTrace).await;
        let reset = self.change(|state| {
            let faults = state.faults.get_mut(&Call::AppendTrace)?;
            matches!(faults.front()?, Fault::TraceReset).then(|| faults.pop_front()).flatten()
        });
        if reset.is_some() {
            let status = running(&mut self.state.lock(), id, token)?.status;
            return Ok(TraceAnswer { accepted: false, size: 0, status, update_interval: self.interval });
        }
        self.with_faults(Call::AppendTrace, |state| {
            let job = running(state, id, token)?;
            let accepted = job.trace.len() as u64 == start;
            if accepted {
                job.trace.extend_from_slice(&bytes);
            }
            let size = job.trace.len() as u64;
            Ok(TraceAnswer { accepted, size, status: job.status, update_interval: self.interval })
        })
    }

    async fn upload_artifact(
        &self,
        id: JobId,
        token: &str,
        query: ArtifactQuery,
        filename: String,
        body: ByteStream,
    ) -> Result<(), ServiceError> {
        running(&mut self.state.lock(), id, token)?;
        let content = body.try_fold(BytesMut::new(), |mut all, chunk| async move {
            all.extend_from_slice(&chunk);
            Ok(all)
        });
        let content = content.await.map_err(|error| ServiceError::BadRequest(error.to_string()))?;
        self.with_faults(Call::UploadArtifact, |state| {
            let job = running(state, id, token)?;
            job.uploads.push((filename.clone(), query));
            job.artifacts.insert(filename, content.freeze());
            Ok(())
        })
    }

    async fn download_artifacts(&self, id: JobId, token: &str) -> Result<ArtifactDownload, ServiceError> {
        let state = self.state.lock();
        if !state.jobs.values().any(|job| job.payload.token == token) {
            return Err(ServiceError::Forbidden { status: None });
        }
        let found = state.jobs.get(&id).and_then(|job| {
            let archive = |(_, query): &&(String, ArtifactQuery)| query.artifact_type.as_deref() != Some("dotenv");
            job.artifacts.get_key_value(&job.uploads.iter().find(archive)?.0)
        });
        let (filename, body) = found.ok_or_else(|| ServiceError::NotFound("no archive".to_owned()))?;
        let (filename, body, size) = (filename.clone(), body.clone(), body.len() as u64);
        Ok(ArtifactDownload { filename, size, body: futures::stream::once(async { Ok(body) }).boxed() })
    }
}

/// Held job request, counted as waiting until dropped.
struct Waiting<'a>(&'a MemoryCoordinator);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.waiting -= 1);
    }
}
