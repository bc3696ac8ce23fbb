//! Holds pipelines and jobs, decides which jobs are ready, assigns them to runner managers, and stores traces and artifacts.
//!
//! ```text
//! library calls --+                                   +--> rows (SQLite)      stored first,
//!                 +--> commands --> actor --> engine -+--> answers            then answered,
//! runner API -----+      (bounded)  (one task)        +--> events, long polls then published
//! ```
//! One task owns the state of all open pipelines. Finished pipelines are in the store, which [`History`] also reads. Traces and
//! artifacts are files beside the database.
//!
//! Invariants (J1 to J3 are those of ARCHITECTURE.md): an answer is only sent after the changes it reports are durable. A job is
//! assigned to one runner manager at a time and ends once (J1, J2). A trace only grows, and only at its end (J3).

mod actor;
mod api;
mod apply;
mod artifacts;
mod assign;
pub mod assignment;
mod blobs;
mod child;
mod child_compiler;
pub mod clock;
mod command;
mod coordinator;
pub mod coverage;
pub mod dotenv;
mod error;
mod expiry;
mod facts;
mod history;
pub mod http;
pub mod includes;
pub mod jwt;
mod keys;
mod long_polls;
mod options;
pub mod outbox;
pub mod payload;
mod prepare;
mod queue;
mod registry;
mod reports;
mod residency;
pub mod schedule;
mod service;
mod state;
mod store;
mod stored_pipelines;
mod timers;
mod trace_viewers;
mod upstream;
pub mod variables;
pub mod views;

pub use coordinator::Coordinator;
pub use error::{BlobError, CoordinatorError, OpenError, StoreError};
pub use facts::{GitFacts, JobKind, NewPipeline, NoFiles, Parent, ProjectFacts, RunnerSpec, SharedSources};
pub use history::{History, JobSetup};
pub use options::{Limits, Options};
