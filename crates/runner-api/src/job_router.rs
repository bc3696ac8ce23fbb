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

/// Muster's addition to HTTP responses to job requests: the coordinator also serves them over gRPC, at the same address.
pub(crate) const TRANSPORT_HEADER: &str = "x-muster-job-requests";
/// Value of [`TRANSPORT_HEADER`].
pub(crate) const GRPC: &str = "grpc";

/// Errors of the request, which have the same meaning over both transports.
///
/// All other errors are `UNAVAILABLE`. Muster's client then repeats the request over HTTP, which reports the exact error. gitlab-runner considers
/// a runner unhealthy after any other code.
const CODES: [(Code, StatusCode); 2] =
    [(Code::PermissionDenied, StatusCode::FORBIDDEN), (Code::InvalidArgument, StatusCode::BAD_REQUEST)];

/// Returns the gRPC code for the status of an HTTP response.
pub(crate) fn code(status: StatusCode) -> Code {
    CODES.iter().find(|(_, listed)| *listed == status).map_or(Code::Unavailable, |(code, _)| *code)
}

/// Returns the status of the HTTP response with the same meaning. `None` means that only HTTP has the exact error.
pub(crate) fn http_status(code: Code) -> Option<StatusCode> {
    CODES.iter().find(|(listed, _)| *listed == code).map(|(_, status)| *status)
}
