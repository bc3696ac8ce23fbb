//! The provider port and its adapters: where jobs run, and how to reach an agent there.
//!
//! ```text
//! manager --acquire--> Provider --Lease--> Environment --connect--> AgentConnection --gRPC--> agent
//! ```
//!
//! A [`Provider`] makes environments of one kind and says how many more leases it can give (back-pressure). A [`Lease`]
//! is one job's right to one slot of one environment. [`host`] is the adapter for this machine: one agent process, apart from
//! the manager, serves all local jobs. [`instance`] is the one for machines that come and go.
//!
//! Invariants: at most one unreleased lease per slot (life-of-a-job R2); an agent is never started while one answers on
//! the same socket; a process of this machine is spoken to only if the kernel confirms that it is an agent of ours; nothing here
//! knows what a job does.

mod error;
pub mod host;
pub mod instance;
mod port;
mod slots;

pub use error::EnvironmentError;
pub use port::{
    Asking, Capacity, Directories, Environment, Guard, Lease, LeaseRecord, Machine, Provider, REQUEST_HELD_AFTER,
    Resume, Share, Slot, SlotGuard, SlotKey, Sticky, VmImage,
};
pub use slots::{Slots, TakenSlot};
