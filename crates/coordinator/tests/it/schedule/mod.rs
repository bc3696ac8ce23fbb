//! Tests of the scheduling engine: a harness, properties, and the pure functions around it.
#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

mod generate;
pub(crate) mod harness;
mod paths;
mod properties;
mod reference;
mod run;
