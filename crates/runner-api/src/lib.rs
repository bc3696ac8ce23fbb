//! GitLab's runner API: wire types, a client ([`client`]), and server routes ([`routes`]).
//!
//! The types decode what GitLab 17 to 19 sends, and encode what gitlab-runner 16 to 19 accepts
//! (docs/spec/runner-api.md). Unknown keys are ignored. Muster's additions are in [`payload::MusterExtension`].
//!
//! Calls use HTTP. Job requests use gRPC if the coordinator announces it (section 7).
//!
//! Invariants: every call for a job is safe to retry. Tokens never appear in errors or logs.

pub mod client;
mod job_router;
pub mod payload;
pub mod retry;
pub mod routes;
pub mod service;
#[cfg(any(test, feature = "test-support"))]
pub mod test_support;
pub mod wire;
