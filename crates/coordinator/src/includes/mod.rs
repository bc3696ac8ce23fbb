//! The pipeline crate's port to files: the snapshot, and whatever a pipeline's includes name.
//!
//! What is not of the project comes from the user's folders, from pins, or from the network, in this order.

mod config;
mod pins;
mod remote;
mod sources;
mod tree;
mod vendor;
mod versions;

pub use config::{IncludeConfig, RemotePolicy};
pub use pins::{Pin, Pins};
pub use remote::Waits;
pub use sources::SnapshotSources;
pub use vendor::VendorOptions;
