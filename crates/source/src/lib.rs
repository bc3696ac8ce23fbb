//! Takes snapshots of a working tree, which jobs can fetch.
//!
//! ```text
//! working tree --Snapshot::take--> bare repository of the run --git_http--> jobs of gitlab-runner
//!                                        |            \--------(path)-----> jobs of Muster's own agent
//!                                        +--Git, BlobReader--> files by commit and path
//! ```
//!
//! Invariant: the user's repository is only read.

mod blobs;
mod commit;
mod error;
mod git;
mod git_http;
mod locate;
mod snapshot;
mod store;

pub use blobs::{BlobReader, MAX_FILE_BYTES};
pub use commit::Commit;
pub use error::SnapshotError;
pub use git::{Git, line, nul_separated};
pub use git_http::{CheckToken, GitServer, TokenCheck, git_routes};
pub use snapshot::{Difference, Entry, MergeBase, Snapshot};
