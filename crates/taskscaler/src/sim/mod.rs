//! Simulator: runs the engine with simulated providers and jobs, reproducible by a seed.
//!
//! - [`cloud`] simulates a provider and can inject its faults.
//! - [`disturbance`] defines other disturbances, such as plugin failures and operator actions.
//! - [`simulation`] runs an engine with jobs and restarts of the manager, and checks the [`invariants`].
//! - [`scenario`] describes a simulation and generates random ones for tests.
//! - [`trace`] reads jobs from a file or generates them.
//! - [`report`] contains the results.

pub mod cloud;
pub mod disturbance;
mod event;
pub mod invariants;
pub mod report;
pub mod scenario;
pub mod simulation;
mod suspend;
pub mod trace;
