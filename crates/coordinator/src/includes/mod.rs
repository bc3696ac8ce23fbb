//! Gives the pipeline compiler access to the files of the snapshot, and to the files that `include:` entries refer to.
//!
//! Files outside the project come from local directories of the user, from pins, or from the network, in this order.

mod config;
mod pins;
mod remote;
mod sources;
mod tree;
mod vendor;
mod versions;

pub use config::{IncludeConfig, RemotePolicy};
pub use pins::{Pin, Pins};
pub use remote::WaitCallback;
pub use sources::SnapshotSources;
pub use vendor::VendorOptions;
