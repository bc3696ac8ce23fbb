//! Agents without jobs, for tests.

use async_trait::async_trait;
use muster_agent_api::agent::agent_server::{Agent, AgentServer};
use muster_agent_api::agent::{
    ApproveStartRequest, ApproveStartResponse, GetInfoRequest, GetInfoResponse, ListJobsRequest, ListJobsResponse,
    StopRequest, StopResponse, WaitForResultRequest, WaitForResultResponse, WaitForStartApprovalRequest,
    WaitForStartApprovalResponse,
};
use tonic::transport::server::Router;
use tonic::{Request, Response, Status};

pub(crate) struct StubAgent {
    pub(crate) version: String,
    pub(crate) pid: i64,
}

impl StubAgent {
    pub(crate) fn server(self) -> Router {
        tonic::transport::Server::builder().add_service(AgentServer::new(self))
    }
}

fn unknown_job<T>() -> Result<Response<T>, Status> {
    Err(Status::not_found("no such job"))
}

#[async_trait]
impl Agent for StubAgent {
    async fn get_info(&self, _: Request<GetInfoRequest>) -> Result<Response<GetInfoResponse>, Status> {
        let Self { version, pid } = self;
        Ok(Response::new(GetInfoResponse { version: version.clone(), pid: *pid, supports_start_approval: false }))
    }

    async fn wait_for_result(
        &self,
        _: Request<WaitForResultRequest>,
    ) -> Result<Response<WaitForResultResponse>, Status> {
        unknown_job()
    }

    async fn list_jobs(&self, _: Request<ListJobsRequest>) -> Result<Response<ListJobsResponse>, Status> {
        Ok(Response::new(ListJobsResponse { jobs: Vec::new() }))
    }

    async fn wait_for_start_approval(
        &self,
        _: Request<WaitForStartApprovalRequest>,
    ) -> Result<Response<WaitForStartApprovalResponse>, Status> {
        unknown_job()
    }

    async fn approve_start(&self, _: Request<ApproveStartRequest>) -> Result<Response<ApproveStartResponse>, Status> {
        unknown_job()
    }

    async fn stop(&self, _: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
        unknown_job()
    }
}
