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

mod bookkeeper;
mod call;
mod density;
mod environments;
mod family;
mod handle;
mod host;
mod journal;
mod late;
mod lease;
mod machines;
mod metrics;
mod room;
mod shared;
mod store;
mod task;
#[cfg(test)]
mod tests;

pub use family::{Family, Histogram, Kind, Sample};
pub use handle::{Scaler, StartError};
pub use host::{Host, HostStatus, NoPreparation, Prepare, Unanswered, Up};
pub use journal::Journal;
pub use late::Late;
pub use lease::{AcquireFailure, Lease, Reservation};
pub use metrics::{Buckets, Metrics};
pub use store::{MemoryStore, Store, StoreError};
