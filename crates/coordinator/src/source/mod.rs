//! Where a pipeline's files come from: a snapshot of the working tree, and whatever its includes name.
//!
//! ```text
//! working tree --Snapshot::take--> bare repository of the run --git_http--> jobs of stock runners
//!                                        |            \--------(path)-----> jobs of our own agent
//!                                        +--SnapshotSources--> pipeline::compile
//! ```
//! Invariant: the user's repository is only ever read. Not its index, not a ref, not an object is written.

mod error;
mod files;
mod git;
mod git_http;
mod include;
mod snapshot;
mod store;

pub use error::SnapshotError;
pub use files::SnapshotSources;
pub use git_http::{CheckToken, GitServer, TokenCheck, git_routes};
pub use include::{IncludeConfig, RemotePolicy};
pub use snapshot::{Commit, Parting, Snapshot};
