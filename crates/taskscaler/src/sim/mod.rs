//! The engine in a modelled world: a cloud that makes, lists and loses machines, and jobs that come and go. Days pass in
//! milliseconds, and a seed says all that happens.
//!
//! - [`cloud`] is the provider: boot times, rate limits, quotas, stock-outs, spot losses, prices; and, where it is told to,
//!   lies: lists that are old or lack something, errors after success, grants that are short or late.
//! - [`turn`] is what happens beside: plugins that go, prices and clocks that jump, people.
//! - [`world`] runs an engine in it, with jobs, restarts of the manager, and the invariants after every event.
//! - [`trace`] are jobs: read from a file, or generated.
//! - [`report`] is what came of it: waits, cost, idle share, a timeline.

pub mod cloud;
pub mod disturbance;
mod event;
pub mod invariants;
pub mod report;
pub mod scenario;
pub mod simulation;
mod suspend;
pub mod trace;
