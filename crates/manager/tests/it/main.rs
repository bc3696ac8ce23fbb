//! Tests of the manager between a coordinator and an agent in memory, with faults on both sides.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a failed test panics")]

mod acceptance;
mod agent;
mod answers;
mod broken_server;
mod connections;
mod documented_times;
mod faults;
mod harness;
mod in_flight;
mod limits;
mod multiple_runners;
mod restart;
mod rotation;
mod run_limits;
mod slots;
mod suspension;
mod unprocessable_jobs;
mod unreported;
