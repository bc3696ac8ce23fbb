//! The driver: one task that owns an engine, calls the plugins, keeps the books on disk, and hands out leases.
//!
//! ```text
//! Scaler::reserve -> Reservation::acquire -> Lease (connect_info, lost, suspect; dropped: released)
//!        \               |                     |
//!         +---- commands +---------------------+--> task: engine --> store, then calls of [`Host`], each in a task of its own
//! ```
//!
//! - No call waits for an earlier one: a slow `Increase` holds up neither a list nor a removal.
//! - What is asked for, leased or removed is stored before anyone is told ([`Store`]); a store that fails stops the scaler
//!   from doing more, not from keeping what it has: instances are listed and asked for their health, losses are told, slots
//!   are given back, questions are answered, and the end comes in its time.
//! - Dropping is cancelling: a [`Reservation`] is given back, a waiting [`Reservation::acquire`] gives up its place within
//!   the same turn of the task, a [`Lease`] frees its slot. [`Lease::keep`] leaves it to the next start of the manager, which
//!   gets it back with [`Scaler::claim`].

mod call;
mod capacity_notifier;
mod command;
mod context;
mod deferred_group;
mod environments;
mod family;
mod file_ledger;
mod handle;
mod host;
mod lease;
mod ledger_writer;
mod machines;
mod metrics;
mod sharing_metrics;
mod store;
mod task;
#[cfg(test)]
mod tests;

pub use deferred_group::DeferredGroup;
pub use family::{Family, Histogram, Kind, Sample};
pub use file_ledger::FileLedger;
pub use handle::{Scaler, StartError};
pub use host::{HostStatus, InstanceGroupPort, NoAnswer, Prepare, ReadyWhenReachable, StartingInstance};
pub use lease::{AcquireError, LeaseHandle, Reservation};
pub use metrics::{Buckets, Metrics};
pub use store::{LedgerError, LedgerStore, MemoryLedger};
