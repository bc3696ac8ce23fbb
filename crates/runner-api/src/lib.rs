//! GitLab's runner API: wire types, a client ([`client`]), and server routes ([`routes`]).
//!
//! The types decode what GitLab 17 to 19 sends, and encode what gitlab-runner 16 to 19 accepts
//! (docs/spec/runner-api.md). Unknown keys are ignored. Muster's additions are in [`payload::MusterExtension`].
//! gitlab-runner ignores them, and GitLab neither sends nor receives them.
//!
//! Jobs are requested over HTTP, or over gRPC if the coordinator announces it (docs/spec/runner-api.md, section 7). All other calls use HTTP.
//!
//! Invariants: every call for a job is safe to retry. Tokens never appear in errors or logs. The crate keeps no state of
//! jobs.

pub mod client;
mod job_router;
pub mod payload;
pub mod retry;
pub mod routes;
pub mod service;
#[cfg(any(test, feature = "test-support"))]
pub mod test_support;
pub mod wire;
