//! An agent in memory, whose jobs the test controls.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::Stream;
use muster_agent_api::agent as api;
use muster_agent_api::result::{JobResult, Outcome, StepNode, StepStatus};
use muster_agent_api::step_runner as proto;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

#[derive(Debug, Clone, Default)]
pub(crate) struct FakeJob {
    pub(crate) log: Vec<u8>,
    pub(crate) result: Option<JobResult>,
    pub(crate) canceled: bool,
}

/// Content of the spool, which outlives the agent's process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spool {
    pub(crate) jobs: BTreeMap<String, FakeJob>,
    /// IDs of the `Run` calls that started a job.
    pub(crate) started: Vec<String>,
    /// IDs of the `Close` calls.
    pub(crate) closed: Vec<String>,
    /// Error of each `Run`. `None` means that `Run` starts the job.
    pub(crate) run_error: Option<String>,
    /// Whether the next `Run` starts its job but loses its answer.
    pub(crate) lose_next_answer: bool,
    pub(crate) lose_all_answers: bool,
}

/// An agent whose process can be killed and started again.
pub(crate) struct FakeAgent {
    spool: Arc<watch::Sender<Spool>>,
    socket: PathBuf,
    process: Mutex<Option<Runtime>>,
}

impl FakeAgent {
    pub(crate) fn start(socket: &Path) -> Self {
        let agent = Self { spool: Arc::default(), socket: socket.to_owned(), process: Mutex::new(None) };
        agent.restart();
        agent
    }

    /// Ends the process with its connections, but keeps the spool.
    pub(crate) fn kill(&self) {
        if let Some(runtime) = self.process.lock().unwrap().take() {
            runtime.shutdown_background();
        }
        let _ = std::fs::remove_file(&self.socket);
    }

    pub(crate) fn restart(&self) {
        self.kill();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let entered = runtime.enter();
        let incoming = UnixListenerStream::new(UnixListener::bind(&self.socket).unwrap());
        let service = Service(Arc::clone(&self.spool));
        let server = tonic::transport::Server::builder()
            .add_service(proto::step_runner_server::StepRunnerServer::new(service.clone()))
            .add_service(api::agent_server::AgentServer::new(service));
        runtime.spawn(server.serve_with_incoming(incoming));
        drop(entered);
        *self.process.lock().unwrap() = Some(runtime);
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Spool)) {
        self.spool.send_modify(change);
    }

    pub(crate) fn write(&self, id: &str, text: &str) {
        self.change(|spool| spool.jobs.get_mut(id).unwrap().log.extend_from_slice(text.as_bytes()));
    }

    pub(crate) fn finish(&self, id: &str, outcome: Outcome) {
        self.finish_with(id, outcome, |_| {});
    }

    /// `change` changes the result.
    pub(crate) fn finish_with(&self, id: &str, outcome: Outcome, change: impl FnOnce(&mut JobResult)) {
        self.change(|spool| {
            let job = spool.jobs.get_mut(id).unwrap();
            let mut result = result(&job.log, outcome);
            change(&mut result);
            job.result = Some(result);
        });
    }

    /// Waits for the condition, with a timeout.
    pub(crate) async fn wait_for(&self, condition: impl FnMut(&Spool) -> bool) -> Spool {
        let mut changes = self.spool.subscribe();
        let found = tokio::time::timeout(Duration::from_secs(20), changes.wait_for(condition)).await;
        found.unwrap_or_else(|_| panic!("timed out waiting for the spool: {:#?}", self.spool())).unwrap().clone()
    }

    pub(crate) fn spool(&self) -> Spool {
        self.spool.borrow().clone()
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        self.kill();
    }
}

fn result(log: &[u8], outcome: Outcome) -> JobResult {
    let tree = StepNode {
        name: "job".to_owned(),
        status: StepStatus::Success,
        started_ms: 0,
        duration_ms: 1,
        exit_code: None,
        message: String::new(),
        cause: None,
        attempts: None,
        used: None,
        steps: Vec::new(),
        call: None,
    };
    let message = String::new();
    JobResult { outcome, message, log_bytes: log.len() as u64, log_crc32: crc32fast::hash(log), tree, used: None }
}

/// Removes the hashes, because the coordinator's URL differs between tests.
fn short(id: &str) -> String {
    let first = id.split('-').next().unwrap_or_default();
    format!("{first}-{}", id.rsplit('-').next().unwrap_or_default())
}

#[derive(Clone)]
struct Service(Arc<watch::Sender<Spool>>);

impl Service {
    fn job(&self, id: &str) -> Result<FakeJob, Status> {
        self.0.borrow().jobs.get(id).cloned().ok_or_else(|| Status::not_found("no such job"))
    }
}

#[tonic::async_trait]
impl proto::step_runner_server::StepRunner for Service {
    async fn run(&self, request: Request<proto::RunRequest>) -> Result<Response<proto::RunResponse>, Status> {
        let id = short(&request.into_inner().id);
        let mut answer = Ok(Response::new(proto::RunResponse {}));
        self.0.send_modify(|spool| {
            if let Some(message) = &spool.run_error {
                answer = Err(Status::invalid_argument(message.clone()));
                return;
            }
            if !spool.jobs.contains_key(&id) {
                spool.jobs.insert(id.clone(), FakeJob::default());
                spool.started.push(id);
            }
            if std::mem::take(&mut spool.lose_next_answer) || spool.lose_all_answers {
                answer = Err(Status::unavailable("the answer was lost"));
            }
        });
        answer
    }

    async fn close(&self, request: Request<proto::CloseRequest>) -> Result<Response<proto::CloseResponse>, Status> {
        let id = short(&request.into_inner().id);
        self.0.send_modify(|spool| {
            spool.jobs.remove(&id);
            spool.closed.push(id);
        });
        Ok(Response::new(proto::CloseResponse {}))
    }

    type FollowLogsStream = Pin<Box<dyn Stream<Item = Result<proto::FollowLogsResponse, Status>> + Send>>;

    async fn follow_logs(
        &self,
        request: Request<proto::FollowLogsRequest>,
    ) -> Result<Response<Self::FollowLogsStream>, Status> {
        let request = request.into_inner();
        let id = short(&request.id);
        self.job(&id)?;
        let offset = usize::try_from(request.offset).unwrap();
        let state = (self.0.subscribe(), offset, id);
        let stream = futures::stream::unfold(state, |(mut changes, offset, id)| async move {
            // Wait for output or for the end.
            let found = changes
                .wait_for(|spool| spool.jobs.get(&id).is_none_or(|job| job.log.len() > offset || job.result.is_some()));
            let data = found.await.ok()?.jobs.get(&id)?.log.get(offset..)?.to_vec();
            if data.is_empty() {
                return None;
            }
            let offset = offset + data.len();
            Some((Ok(proto::FollowLogsResponse { data: data.into() }), (changes, offset, id)))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn status(&self, _: Request<proto::StatusRequest>) -> Result<Response<proto::StatusResponse>, Status> {
        Ok(Response::new(proto::StatusResponse { jobs: Vec::new() }))
    }

    async fn cancel(&self, request: Request<proto::CancelRequest>) -> Result<Response<proto::CancelResponse>, Status> {
        let id = short(&request.into_inner().id);
        self.job(&id)?;
        self.0.send_modify(|spool| spool.jobs.get_mut(&id).unwrap().canceled = true);
        Ok(Response::new(proto::CancelResponse {}))
    }
}

#[tonic::async_trait]
impl api::agent_server::Agent for Service {
    async fn get_info(&self, _: Request<api::GetInfoRequest>) -> Result<Response<api::GetInfoResponse>, Status> {
        Ok(Response::new(api::GetInfoResponse { version: "fake".to_owned(), pid: 1, supports_start_approval: false }))
    }

    async fn wait_for_start_approval(
        &self,
        _: Request<api::WaitForStartApprovalRequest>,
    ) -> Result<Response<api::WaitForStartApprovalResponse>, Status> {
        Ok(Response::new(api::WaitForStartApprovalResponse { is_waiting: false }))
    }

    async fn approve_start(
        &self,
        _: Request<api::ApproveStartRequest>,
    ) -> Result<Response<api::ApproveStartResponse>, Status> {
        Ok(Response::new(api::ApproveStartResponse {}))
    }

    async fn stop(&self, _: Request<api::StopRequest>) -> Result<Response<api::StopResponse>, Status> {
        Err(Status::unimplemented("a manager cancels jobs and does not call `Stop`"))
    }

    async fn wait_for_result(
        &self,
        request: Request<api::WaitForResultRequest>,
    ) -> Result<Response<api::WaitForResultResponse>, Status> {
        let id = short(&request.into_inner().id);
        let mut changes = self.0.subscribe();
        let found = changes.wait_for(|spool| spool.jobs.get(&id).is_none_or(|job| job.result.is_some())).await;
        let job = found.unwrap().jobs.get(&id).cloned().ok_or_else(|| Status::not_found("no such job"))?;
        Ok(Response::new(api::WaitForResultResponse { result: serde_json::to_string(&job.result.unwrap()).unwrap() }))
    }

    async fn list_jobs(&self, _: Request<api::ListJobsRequest>) -> Result<Response<api::ListJobsResponse>, Status> {
        Ok(Response::new(api::ListJobsResponse { jobs: Vec::new() }))
    }
}
