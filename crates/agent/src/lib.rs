//! The agent: executes steps, and outlives its connection and its manager (design, decision 2).
//!
//! ```text
//! manager --gRPC over a unix socket--> service --> agent --> running job --> builtins / steps
//!                                         |          |            |
//!                                     log, result <--+-- spool <--+
//! ```
//!
//! Invariants: a request is in the spool before anything is started for it; a result is in the spool before anyone is
//! told (R4); the user's code starts at most once per run id (J2); when a job has a result, none of its processes is
//! left (J5); the agent never ends by itself while a job runs, or one that ended can still be fetched.

mod agent;
mod door;
mod gate;
mod job;
mod recover;
mod running;
mod serve;
mod service;
mod spool;

pub use serve::{Options, ServeError, boot_id, serve};
pub use spool::SpoolError;
