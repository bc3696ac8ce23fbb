//! The gRPC contract between manager and agent: GitLab's step-runner service ([`step_runner`]) and Muster's extension
//! ([`agent`]).
//!
//! A job is one `Run` of the step `builtin://job` with a [`plan::JobPlan`]: a tree of steps with policies. The inputs
//! of built-in steps are in [`builtin`].

pub mod builtin;
mod call_record;
pub mod client;
mod codec;
pub mod container;
pub mod development;
pub mod plan;
pub mod result;
pub mod tls;

/// GitLab's step-runner service (package `proto`).
#[expect(missing_docs, clippy::pedantic, reason = "generated")]
pub mod step_runner {
    tonic::include_proto!("proto");
}

/// Descriptors of all messages as a `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Muster's extension (package `muster.agent.v1`).
#[expect(missing_docs, clippy::pedantic, reason = "generated")]
pub mod agent {
    tonic::include_proto!("muster.agent.v1");
}
