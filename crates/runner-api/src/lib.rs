//! GitLab's runner API: wire types, one client ([`client`]), one set of server routes ([`routes`]).
//!
//! The types decode what GitLab 17-19 sends and encode what gitlab-runner 16-19 accepts (spec: runner-api).
//! Unknown keys are ignored; what Muster adds sits in [`payload::Extension`], which a peer that lacks it never sees.
//!
//! This is the only door between manager and coordinator, in `muster ci` too.
//!
//! Invariants: every call is safe to repeat; a token never stands in an error or a log; nothing here keeps state of jobs.

pub mod client;
pub mod payload;
pub mod retry;
pub mod routes;
pub mod service;
#[cfg(any(test, feature = "test-support"))]
pub mod test_support;
pub mod wire;
