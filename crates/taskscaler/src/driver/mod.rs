//! The driver: a task that owns an engine, calls the plugins, writes the ledger and creates leases.
//!
//! ```text
//! Scaler::reserve -> Reservation::acquire -> LeaseHandle
//!        \               |                     |
//!         +--- commands -+---------------------+--> ScalerTask: Engine --> LedgerStore --> calls of InstanceGroupPort
//! ```
//!
//! - Each plugin call runs in its own task. A slow create call delays neither lists nor deletions.
//! - Create calls, delete calls and slot assignments happen only after the ledger contains them ([`LedgerStore`]). If the ledger
//!   cannot be written, these stop, but everything else continues: instances are listed and health-checked, jobs are notified
//!   when their instance is lost, slots are released, status queries are answered, and shutdown ends in time.
//! - A dropped [`Reservation`] is released, a dropped future of [`Reservation::acquire`] cancels the
//!   request, and a dropped [`LeaseHandle`] releases its slots. [`LeaseHandle::leave_to_next_start`] keeps the lease for
//!   the next start of the manager, which gets it with [`Scaler::claim`].

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
