//! gRPC service for job requests (docs/spec/runner-api.md, section 7), with the JSON of `POST /jobs/request`.

use http::StatusCode;
use tonic::Code;

pub(crate) use rpc::{GetJobRequest, GetJobResponse, job_router_client, job_router_server};

#[expect(unreachable_pub, clippy::pedantic, reason = "generated")]
mod rpc {
    tonic::include_proto!("gitlab.agent.job_router.rpc");
}

/// Muster's header of HTTP responses to job requests, which announces gRPC at the same address.
pub(crate) const TRANSPORT_HEADER: &str = "x-muster-job-requests";
pub(crate) const GRPC: &str = "grpc";

/// Returns the gRPC code for an HTTP status. Mostly `UNAVAILABLE`, because other codes make gitlab-runner consider a
/// runner unhealthy.
pub(crate) fn code(status: StatusCode) -> Code {
    match status {
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::BAD_REQUEST => Code::InvalidArgument,
        _ => Code::Unavailable,
    }
}
