//! The executor port and its adapters: where jobs run, and how the manager reaches an agent there.
//!
//! ```text
//! manager --acquire--> Executor --Lease--> ExecutionEnvironment --connect--> AgentConnection --gRPC--> agent
//! ```
//!
//! An [`Executor`] provides execution environments of one kind and reports how many jobs it accepts (back-pressure). A [`Lease`] is
//! one job's right to one slot of one environment. [`host`] is the adapter for the manager's host: one agent process, separate from the
//! manager, serves all local jobs. [`instance`] is the adapter for machines that an instance group creates and deletes. [`ssh`] is the
//! adapter for an existing machine.
//!
//! Invariants:
//! - At most one unreleased lease exists per slot (R2 in `docs/spec/life-of-a-job.md`).
//! - No agent is started while another one answers on the same socket.
//! - On its own host, the manager sends jobs only to a process that the kernel confirms to be one of its agents.
//! - Nothing in this crate depends on what a job does.

pub mod deploy;
mod error;
pub mod host;
pub mod instance;
mod port;
pub mod registry;
mod slots;
pub mod ssh;
#[cfg(test)]
mod test_support;

pub use error::ExecutorError;
pub use port::{
    Capacity, Directories, Elastic, EnvironmentRequest, ExecutionEnvironment, Executor, Guard, Lease, LeaseRecord,
    Locality, NestedVm, REQUEST_HELD_AFTER, Replaceable, ResumeRequest, Sharing, Slot, SlotGuard, SlotKey, SlotShare,
    StickyContextSettings, Suspend, VmImage,
};
pub use slots::{HeldSlot, Slots};
