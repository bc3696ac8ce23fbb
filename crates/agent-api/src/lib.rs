//! The gRPC contract between manager and agent.
//!
//! The contract consists of GitLab's step-runner service ([`step_runner`]), Muster's extension ([`agent`]), the inputs of the built-in steps
//! ([`builtin`]) to which a job is lowered, the [`client`] of an agent, [`tls`] between both, and the conventions for an agent in a [`container`].
//!
//! A job is one `Run` of one step, `builtin://job`, whose input is a [`plan::JobPlan`]: a tree of steps, each with its
//! policy.

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

/// Descriptors of all messages, as a `FileDescriptorSet`, for formats of messages other than the wire format.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Muster's extension (package `muster.agent.v1`).
#[expect(missing_docs, clippy::pedantic, reason = "generated")]
pub mod agent {
    tonic::include_proto!("muster.agent.v1");
}
