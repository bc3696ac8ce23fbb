//! Autoscaler for job instances: decides how many instances exist and which job runs on which instance.
//!
//! - [`engine`] makes the decisions. It is a pure state machine: events and time in, actions out.
//! - [`driver`] runs an engine: it calls plugins, stores the ledger, creates leases and exports metrics.
//! - [`ledger`] defines the durable rows, [`decision`] the decisions. [`history`] stores recent decisions, and
//!   [`fleet`] answers queries of operators.
//! - [`sim`] simulates fleets, for tests and for `muster fleet simulate`.
//! - [`config`], [`policy`], [`cron`] and [`forecast`] define how much idle capacity the engine maintains.
//!
//! Plugins (`crates/fleeting`) create instances, the [`engine`] tracks them, [`formula`] and [`policy`] determine their
//! number. The scaler does not know what a job does on its instance.
//!
//! Invariants, checked by [`engine::Engine::check`] and the simulator:
//!
//! - I1: there are never more instances than allowed.
//! - I2: no lease is on an instance that is being deleted or was deleted.
//! - I3: every instance is in use, retained by a policy, or deleted in bounded time.
//! - I4: no instance with a lease is deleted.
//! - I5: no job waits while a fitting slot is free.
//! - I6: create calls and cost stay within their limits, whatever the provider reports.

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
pub mod ledger;
pub mod operator;
pub mod policy;
pub mod resources;
pub mod sim;
pub mod suspend;
mod throttle;
pub mod time;
pub mod types;
