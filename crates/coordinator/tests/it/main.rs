//! Integration tests of the coordinator, one binary.

#![expect(clippy::indexing_slicing, reason = "a wrong index fails the test, and shows where")]

mod accept_timeout;
mod artifacts;
mod assignments;
mod clone;
mod conformance_bridges;
mod conformance_coordinator;
mod conformance_payload;
mod conformance_schedule;
mod conformance_variables;
mod from_yaml;
mod grpc;
mod memory;
mod outbox;
mod repositories;
mod requests;
mod runner_contact;
mod schedule;
mod service;
mod store;
mod support;
