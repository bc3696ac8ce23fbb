//! Gives the compiler the files of the snapshot and of `include:` entries.
//!
//! Files outside the project come from the user's local directories, from pins, or from the network, in this order.

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
