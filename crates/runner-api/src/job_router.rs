//! The gRPC service that sends jobs (docs/spec/runner-api.md, section 7), and its codes for errors.
//!
//! The messages carry the same JSON as `POST /jobs/request`, so both transports have one decoder.

use http::StatusCode;
use tonic::Code;

pub(crate) use rpc::{GetJobRequest, GetJobResponse, job_router_client, job_router_server};

#[expect(unreachable_pub, clippy::pedantic, reason = "generated")]
mod rpc {
    tonic::include_proto!("gitlab.agent.job_router.rpc");
}

/// Muster's header of responses to job requests over HTTP. Announces gRPC at the same address.
pub(crate) const TRANSPORT_HEADER: &str = "x-muster-job-requests";
/// Value of [`TRANSPORT_HEADER`].
pub(crate) const GRPC: &str = "grpc";

/// Returns the gRPC code for the status of an HTTP response.
///
/// Most errors become `UNAVAILABLE`, because gitlab-runner considers a runner unhealthy after most other codes.
pub(crate) fn code(status: StatusCode) -> Code {
    match status {
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::BAD_REQUEST => Code::InvalidArgument,
        _ => Code::Unavailable,
    }
}
