//! Helpers of the system tests and interoperability tests.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "helpers of tests may panic"
)]

pub mod connections;
mod files;
pub mod harness;
pub mod machines;
pub mod process;
pub mod proxy;
pub mod vms;
