//! The executor port and its adapters: where jobs run, and how to reach an agent there.
//!
//! ```text
//! manager --acquire--> Executor --Lease--> ExecutionEnvironment --connect--> AgentConnection --gRPC--> agent
//! ```
//!
//! An [`Executor`] provides execution environments of one kind and reports how many more leases it can give (back-pressure). A
//! [`Lease`] is one job's right to one slot of one environment. [`host`] is the adapter for this machine: one agent process, apart
//! from the manager, serves all local jobs. [`instance`] is the adapter for machines that an instance group creates and deletes.
//!
//! Invariants: at most one unreleased lease per slot (life-of-a-job R2); an agent is never started while one answers on
//! the same socket; a process of this machine is spoken to only if the kernel confirms that it is an agent of ours; nothing here
//! knows what a job does.

pub mod deploy;
mod error;
pub mod host;
pub mod instance;
mod port;
pub mod registry;
mod slots;

pub use error::ExecutorError;
pub use port::{
    Capacity, Directories, Elastic, EnvironmentRequest, ExecutionEnvironment, Executor, Guard, Lease, LeaseRecord,
    Locality, NestedVm, REQUEST_HELD_AFTER, Replaceable, ResumeRequest, Sharing, Slot, SlotGuard, SlotKey, SlotShare,
    StickyContextSettings, Suspend, VmImage,
};
pub use slots::{Slots, TakenSlot};
