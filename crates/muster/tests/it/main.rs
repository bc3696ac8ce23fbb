//! Tests of the executable.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test's helpers fail as its body does"
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
