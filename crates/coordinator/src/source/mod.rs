//! Where a pipeline's files come from: a snapshot of the working tree, and whatever its includes name.
//!
//! ```text
//! working tree --Snapshot::take--> bare repository of the run --git_http--> jobs of stock runners
//!                                        |            \--------(path)-----> jobs of our own agent
//!                                        +--SnapshotSources--> pipeline::compile
//! ```
//! What is not of the project comes from the user's folders, from pins, or from the network, in this order.
//!
//! Invariant: the user's repository is only ever read. Not its index, not a ref, not an object is written.

mod blobs;
mod error;
mod files;
mod git;
mod git_http;
mod include;
mod pins;
mod remote;
mod snapshot;
mod store;
mod tree;
mod vendor;
mod versions;

pub use error::SnapshotError;
pub use files::SnapshotSources;
pub use git_http::{CheckToken, GitServer, TokenCheck, git_routes};
pub use include::{IncludeConfig, RemotePolicy};
pub use pins::{Pin, Pins};
pub use remote::Waits;
pub use snapshot::{Commit, Parting, Snapshot};
pub use vendor::VendorOptions;
