//! The executor port and its adapters: where jobs run, and how the manager reaches an agent there.
//!
//! ```text
//! manager --acquire--> Executor --Lease--> ExecutionEnvironment --connect--> AgentConnection --gRPC--> agent
//! ```
//!
//! An [`Executor`] provides execution environments of one kind and reports how many jobs it accepts. A [`Lease`] is one
//! job's right to one slot of one environment. [`host`] runs jobs on the manager's host, [`instance`] on machines that
//! an instance group creates and deletes, and [`ssh`] on an existing machine.
//!
//! Invariants:
//! - At most one unreleased lease exists per slot (R2 in `docs/spec/life-of-a-job.md`).
//! - No agent is started while another agent answers on the same socket.
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
