//! Conformance cases of GitLab's step format: real step files, run by the engine with real processes.
//!
//! The number of a test is the number of its case. docs/spec/steps.md describes the format, but does not list the
//! cases. `_legacy` tests the dialect of step-runner 0.11.0, and `_current` the current dialect.

#![expect(clippy::unwrap_used, reason = "a test panics if it fails")]

mod directories;
mod environment;
mod exports;
mod expressions;
mod framing;
mod harness;
mod inputs;
mod moa;
mod outputs;
mod processes;
mod references;
mod results;
mod sensitive;
