//! Simulator: runs the engine with simulated providers and jobs. A day takes milliseconds, and a seed determines everything.
//!
//! - [`cloud`] simulates a provider: boot times, rate limits, quotas, stock-outs, preemptions and prices. It can inject faults:
//!   outdated or incomplete lists, errors after success, partial or delayed creations.
//! - [`disturbance`] defines other disturbances: plugin failures, jumps of prices and clocks, operator actions.
//! - [`simulation`] runs an engine with jobs and restarts of the manager, and checks the [`invariants`].
//! - [`scenario`] describes a simulation and generates random ones for tests.
//! - [`trace`] reads jobs from a file or generates them.
//! - [`report`] contains the results: wait times, cost, idle share and a timeline.

pub mod cloud;
pub mod disturbance;
mod event;
pub mod invariants;
pub mod report;
pub mod scenario;
pub mod simulation;
mod suspend;
pub mod trace;
