//! Tests of the executable.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "helpers of tests may panic and print, as the tests themselves do"
)]

mod ci;
mod demo;
mod docker;
mod examples;
mod fleet;
mod from_clone;
mod manager;
mod plugin;
mod process;
mod remote_steps;
mod runner;
mod step;
mod step_runner;
