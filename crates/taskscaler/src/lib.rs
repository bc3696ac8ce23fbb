//! The scaling engine: how many instances there should be, and which job goes where.
//!
//! - [`engine`] decides. It is a pure state machine: events and time in, actions out. Everything else feeds it.
//! - [`driver`] owns it: plugins, books on disk, leases, metrics.
//! - [`books`] is what it must not forget; [`decision`] is what it decided, and why; [`history`] keeps that for a day, and
//!   [`fleet`] answers operators from both.
//! - [`sim`] is a world to try it in.
//! - [`config`], [`policy`], [`cron`], [`forecast`] say what it is to do.
//!
//! Five concerns are apart: what a machine is and how it is made stays in the plugin (`crates/fleeting`); its life in
//! [`engine`]'s books; how many there are in [`formula`] and [`policy`]; which job gets which in [`engine`]'s placement;
//! what a job does there is not known here at all.
//!
//! Invariants (I1-I6 of life-of-a-job.md, checked by [`engine::Engine::check`] and the simulator): never more instances than
//! allowed; no lease on an instance that goes or is gone; every instance is used, kept by a policy, or removed within a
//! bound; no removal of an instance with a lease; no job waits while a slot is free; creation calls and spending stay within
//! their bounds, whatever the provider says.

pub mod books;
pub mod config;
pub mod cron;
pub mod decision;
pub mod driver;
pub mod engine;
pub mod event;
pub mod fleet;
pub mod forecast;
pub mod formula;
pub mod history;
pub mod need;
pub mod operator;
pub mod policy;
pub mod sim;
pub mod sleep;
mod throttle;
pub mod time;
pub mod words;
