//! The agent: executes steps, even if its connection or its manager is lost.
//!
//! ```text
//! manager --gRPC over a unix socket--> service --> agent --> running job --> builtins / steps
//!                                         |          |            |
//!                                     log, result <--+-- spool <--+
//! ```
//!
//! Invariants:
//! - A request is in the spool before anything starts for it.
//! - A result is in the spool before it is reported, unless the spool is full (R4 in `docs/spec/life-of-a-job.md`).
//! - The user's code starts at most once per run ID (J2).
//! - A job with a result has no running process (J5).
//! - An agent without connections keeps running while a job runs or a result can be fetched, except after
//!   [`Options::unattended_timeout`].

mod agent;
mod connections;
mod debugger;
mod gate;
mod job;
mod leftovers;
mod panics;
mod parsed_request;
mod peers;
mod recover;
mod refused;
mod run_job;
mod serve;
mod service;
mod spool;
mod tls;

#[cfg(test)]
mod tests;

pub use serve::{Options, ServeError, boot_id, serve};
pub use spool::SpoolError;
pub use tls::{TcpError, TcpOptions};
