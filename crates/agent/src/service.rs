//! gRPC services of the agent: GitLab's step-runner, and Muster's extension.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use futures::{Stream, StreamExt};
use muster_agent_api::agent as api;
use muster_agent_api::result::Outcome;
use muster_agent_api::step_runner as proto;
use muster_job::{FailureReason, TerminationCause};
use tonic::{Request, Response, Status};

use crate::agent::{Agent, RequestError};
use crate::job::Job;

#[derive(Debug, Clone)]
pub(crate) struct Service(pub(crate) Arc<Agent>);

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        let text = error.to_string();
        match error {
            RequestError::InvalidId(_) | RequestError::InvalidSteps(_) => Status::invalid_argument(text),
            RequestError::Unknown(_) => Status::not_found(text),
            RequestError::Draining => Status::unavailable(text),
            RequestError::Spool(source)
                if matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded) =>
            {
                Status::resource_exhausted(text)
            }
            RequestError::Spool(_) | RequestError::CloseTimeout | RequestError::Unrecovered(_) => {
                Status::failed_precondition(text)
            }
        }
    }
}

#[tonic::async_trait]
impl proto::step_runner_server::StepRunner for Service {
    async fn run(&self, request: Request<proto::RunRequest>) -> Result<Response<proto::RunResponse>, Status> {
        self.0.run(request.into_inner())?;
        Ok(Response::new(proto::RunResponse {}))
    }

    async fn close(&self, request: Request<proto::CloseRequest>) -> Result<Response<proto::CloseResponse>, Status> {
        self.0.close(&request.into_inner().id).await?;
        Ok(Response::new(proto::CloseResponse {}))
    }

    type FollowLogsStream = Pin<Box<dyn Stream<Item = Result<proto::FollowLogsResponse, Status>> + Send>>;

    async fn follow_logs(
        &self,
        request: Request<proto::FollowLogsRequest>,
    ) -> Result<Response<Self::FollowLogsStream>, Status> {
        let request = request.into_inner();
        let job = self.0.job(&request.id)?;
        let offset = u64::try_from(request.offset)
            .map_err(|_| Status::invalid_argument(format!("{} is not a valid offset", request.offset)))?;
        let chunks = Arc::clone(&job.log).follow(offset);
        let stream = chunks.map(|chunk| match chunk {
            Ok(data) => Ok(proto::FollowLogsResponse { data }),
            Err(error) => {
                let message = format!("failed to read the job's log in the agent's spool: {error}");
                // Another process has shortened the log, so a retry does not help.
                let is_shortened = error.kind() == io::ErrorKind::UnexpectedEof;
                Err(if is_shortened { Status::data_loss(message) } else { Status::unavailable(message) })
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn status(&self, request: Request<proto::StatusRequest>) -> Result<Response<proto::StatusResponse>, Status> {
        let id = request.into_inner().id;
        let jobs = if id.is_empty() { self.0.jobs() } else { vec![self.0.job(&id)?] };
        Ok(Response::new(proto::StatusResponse { jobs: jobs.iter().map(|job| status(job)).collect() }))
    }

    async fn cancel(&self, request: Request<proto::CancelRequest>) -> Result<Response<proto::CancelResponse>, Status> {
        self.0.job(&request.into_inner().id)?.cancellation.cancel.cancel();
        Ok(Response::new(proto::CancelResponse {}))
    }
}

/// Returns the state of a job (`docs/spec/steps.md`, section 6.5).
fn status(job: &Job) -> proto::Status {
    use proto::status_error::Kind;
    use proto::step_result::Status as S;
    let finished = job.finished();
    let (status, error) = match finished.as_ref().map(|finished| (&finished.result.outcome, &finished.result.message)) {
        None => (S::Running, None),
        Some((Outcome::Success, _)) => (S::Success, None),
        Some((Outcome::Failed { reason, cause, .. }, message)) => {
            let id = &job.id;
            let (status, kind, message) = match cause {
                Some(TerminationCause::CanceledByUser) => {
                    (S::Cancelled, Kind::Cancelled, format!("job {id:?} cancelled: context canceled"))
                }
                Some(TerminationCause::TimedOut) => {
                    let message = format!("job {id:?} cancelled: context deadline exceeded: {message}");
                    (S::Cancelled, Kind::Timeout, message)
                }
                _ if *reason == FailureReason::ScriptFailure => (S::Failure, Kind::StepFailure, message.clone()),
                _ => (S::Failure, Kind::Internal, message.clone()),
            };
            (status, Some(proto::StatusError { kind: kind.into(), message }))
        }
    };
    proto::Status {
        id: job.id.clone(),
        message: error.as_ref().map(|error| error.message.clone()).unwrap_or_default(),
        status: status.into(),
        start_time: Some(timestamp(job.started)),
        end_time: finished.map(|finished| timestamp(finished.ended)),
        // The same error under the other likely field numbers (step_runner.proto).
        error_at_4: error.clone(),
        error_at_8: error.clone(),
        error,
    }
}

fn timestamp(time: SystemTime) -> prost_types::Timestamp {
    time.into()
}

#[tonic::async_trait]
impl api::agent_server::Agent for Service {
    async fn get_info(&self, _: Request<api::GetInfoRequest>) -> Result<Response<api::GetInfoResponse>, Status> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Response::new(api::GetInfoResponse {
            version,
            pid: i64::from(std::process::id()),
            supports_start_approval: true,
        }))
    }

    /// Waits until the job needs its start approval, has it, or has ended. The answer tells whether the job needs it.
    async fn wait_for_start_approval(
        &self,
        request: Request<api::WaitForStartApprovalRequest>,
    ) -> Result<Response<api::WaitForStartApprovalResponse>, Status> {
        let job = self.0.job(&request.into_inner().id)?;
        let is_waiting = tokio::select! {
            biased;
            _ = job.wait() => false,
            is_waiting = job.gate.wait_reached() => is_waiting,
        };
        Ok(Response::new(api::WaitForStartApprovalResponse { is_waiting }))
    }

    async fn approve_start(
        &self,
        request: Request<api::ApproveStartRequest>,
    ) -> Result<Response<api::ApproveStartResponse>, Status> {
        self.0.job(&request.into_inner().id)?.gate.open();
        Ok(Response::new(api::ApproveStartResponse {}))
    }

    async fn stop(&self, request: Request<api::StopRequest>) -> Result<Response<api::StopResponse>, Status> {
        let api::StopRequest { id, cause } = request.into_inner();
        let cause = serde_json::from_value(cause.into())
            .map_err(|error| Status::invalid_argument(format!("invalid cause: {error}")))?;
        self.0.job(&id)?.cancellation.stop.stop(cause);
        Ok(Response::new(api::StopResponse {}))
    }

    async fn wait_for_result(
        &self,
        request: Request<api::WaitForResultRequest>,
    ) -> Result<Response<api::WaitForResultResponse>, Status> {
        let job = self.0.job(&request.into_inner().id)?;
        let finished = job.wait().await.ok_or_else(|| Status::unavailable("the agent is shutting down"))?;
        let result = serde_json::to_string(&finished.result).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(api::WaitForResultResponse { result }))
    }

    async fn list_jobs(&self, _: Request<api::ListJobsRequest>) -> Result<Response<api::ListJobsResponse>, Status> {
        let entry = |job: &Arc<Job>| api::list_jobs_response::Entry {
            id: job.id.clone(),
            ended: job.finished().is_some(),
            log_bytes: i64::try_from(job.log.bytes()).unwrap_or(i64::MAX),
        };
        Ok(Response::new(api::ListJobsResponse { jobs: self.0.jobs().iter().map(entry).collect() }))
    }
}
