//! The engine of pipelines: a small world to drive it in, properties, and the pure helpers around it.
#![expect(clippy::expect_used, reason = "helpers of tests: what is not as expected fails the test")]

mod generate;
mod paths;
mod properties;
mod reference;
mod run;
pub(crate) mod world;
