//! Tests of the scheduling engine: a harness, properties, and the pure functions around it.
#![expect(clippy::expect_used, reason = "helpers of tests: what is not as expected fails the test")]

mod generate;
pub(crate) mod harness;
mod paths;
mod properties;
mod reference;
mod run;
