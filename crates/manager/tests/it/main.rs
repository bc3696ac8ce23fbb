//! Tests of the manager between a coordinator and an agent in memory, with faults on both sides.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's helpers fail as its body does")]

mod acceptance;
mod agent;
mod answers;
mod bench;
mod broken_server;
mod connections;
mod faults;
mod in_flight;
mod limits;
mod many;
mod promises;
mod quota;
mod restart;
mod rotation;
mod slots;
mod unfit;
mod unreported;
