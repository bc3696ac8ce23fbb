//! The driver: a task that owns an engine, calls the plugins, writes the ledger and creates leases.
//!
//! ```text
//! Scaler::reserve -> Reservation::acquire -> LeaseHandle
//!        \               |                     |
//!         +--- commands -+---------------------+--> ScalerTask: Engine --> LedgerStore --> calls of InstanceGroupPort
//! ```
//!
//! - Each plugin call runs in its own task. A slow create call delays neither lists nor deletions.
//! - Create calls, delete calls and slot assignments happen only after the ledger contains them ([`LedgerStore`]).
//!   While the ledger cannot be written, everything else continues.
//! - Dropping a handle releases what it holds. [`LeaseHandle::leave_to_next_start`] keeps the lease for the next start
//!   of the manager.

mod call;
mod capacity_notifier;
mod command;
mod context;
mod deferred_group;
mod environments;
mod file_ledger;
mod handle;
mod lease;
mod ledger_writer;
mod machines;
mod metric_set;
mod metrics;
mod ports;
mod sharing_metrics;
mod store;
mod task;
#[cfg(test)]
mod tests;

pub use deferred_group::DeferredGroup;
pub use file_ledger::FileLedger;
pub use handle::{Scaler, StartError};
pub use lease::{AcquireError, LeaseHandle, PrepareJobError, Reservation};
pub use metric_set::MetricSet;
pub use metrics::{Buckets, Metrics};
pub use ports::{
    ConnectInfoError, InstanceCallError, InstanceGroupPort, PluginAvailability, Prepare, ReadyWhenReachable,
    StartingInstance,
};
pub use store::{LedgerError, LedgerStore, MemoryLedger};
